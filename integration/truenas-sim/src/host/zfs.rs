//! `zfs` and `zpool`: what they print becomes datasets, snapshots and problems.

use std::collections::BTreeMap;

use nas_host::command::{Printed, attempt};

use super::Answer;
use crate::backend::{Dataset, Kind, Pool, Problem, Property, Scope, Snapshot, Source};

/// The properties of one dataset or snapshot.
type Properties = BTreeMap<String, Property>;

/// Runs `zfs`; a failure becomes what ZFS means by it.
pub(super) async fn zfs(words: &[&str]) -> Answer<String> {
    let words = [&["zfs"], words].concat();
    done(attempt(&words).await?)
}

/// The output of a command, if it succeeded.
pub(super) fn done(printed: Printed) -> Answer<String> {
    if printed.success {
        Ok(printed.out)
    } else {
        Err(problem(&printed.errors))
    }
}

/// The options that set these properties.
pub(super) fn options<'a>(
    properties: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Vec<String> {
    let pairs = properties.into_iter();
    pairs
        .flat_map(|(name, value)| ["-o".to_owned(), format!("{name}={value}")])
        .collect()
}

/// The meaning of a text on its standard error.
fn problem(text: &str) -> Problem {
    let text = text.trim();
    let quoted = text
        .split('\'')
        .nth(1)
        .map(|name| name.trim_start_matches("/mnt/"));
    // `cannot destroy snapshot tank/a@b: dataset is busy` has no quotes.
    let bare = || {
        let mut words = text
            .split_whitespace()
            .map(|word| word.trim_end_matches(':'));
        words.find(|word| word.contains('@'))
    };
    let name = quoted.or_else(bare).unwrap_or_default().to_owned();
    let list = text.lines().skip_while(|line| !line.ends_with(':')).skip(1);
    let list: Vec<String> = list.map(|line| line.trim().to_owned()).collect();
    let says = |words: &str| text.contains(words);
    if says("has dependent clones") {
        Problem::HasClones(name, list)
    } else if says("has children") {
        if list.iter().all(|each| each.contains('@')) {
            Problem::HasSnapshots(name)
        } else {
            Problem::HasChildren(name)
        }
    } else if says("more recent snapshots") {
        Problem::NewerSnapshots(list)
    } else if says("already exists") {
        Problem::Exists(name)
    } else if says("is busy") && says("cannot destroy snapshot") {
        Problem::Held(name)
    } else if says("is busy") {
        Problem::Busy(name)
    } else if says("does not exist") {
        Problem::Missing(name)
    } else if says("out of space") || says("No space left") {
        Problem::NoSpace(name)
    } else if says("not a cloned") {
        Problem::NotAClone(name)
    } else {
        Problem::Other(text.to_owned())
    }
}

/// The pools of these names.
pub(super) async fn pools(names: &[String]) -> Answer<Vec<Pool>> {
    let mut words = vec!["zpool", "list", "-Hpo", "name,size,allocated,health"];
    words.extend(names.iter().map(String::as_str));
    let text = done(attempt(&words).await?)?;
    let pool = |line: &str| {
        let [name, size, allocated, status] = columns(line)?;
        Some(Pool {
            name: name.to_owned(),
            size: size.parse().ok()?,
            allocated: allocated.parse().ok()?,
            status: status.to_owned(),
        })
    };
    Ok(text.lines().filter_map(pool).collect())
}

fn columns<const N: usize>(line: &str) -> Option<[&str; N]> {
    let columns: Vec<_> = line.splitn(N, '\t').collect();
    columns.try_into().ok()
}

/// Everything of a scope, by name, with its properties; names that do not exist are left out.
async fn read(
    pools: &[String],
    scope: &Scope,
    kinds: &str,
    depth: &[&str],
) -> Answer<BTreeMap<String, Properties>> {
    let (names, recursive) = match scope {
        Scope::All => (pools, true),
        Scope::Tree(names) => (names.as_slice(), true),
        Scope::Exact(names) => (names.as_slice(), false),
    };
    // What is no name in these pools, ZFS would take for a path or for another pool.
    let ours = |name: &&str| {
        let pool = name.split('/').next();
        pools.iter().any(|each| Some(each.as_str()) == pool) && !name.contains(['@', '#'])
    };
    let names: Vec<_> = names.iter().map(String::as_str).filter(ours).collect();
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let head = [
        "zfs",
        "get",
        "-Hpo",
        "name,property,value,source",
        "-t",
        kinds,
    ];
    let depth = if recursive { &["-r"][..] } else { depth };
    let printed = attempt(&[&head[..], depth, &["all"], &names].concat()).await?;
    let unknown = |line: &str| line.contains("does not exist") || line.contains(" in name");
    let is_only_unknown = !printed.errors.is_empty() && printed.errors.lines().all(unknown);
    if !printed.success && !is_only_unknown {
        return Err(problem(&printed.errors));
    }
    let mut all: BTreeMap<String, Properties> = BTreeMap::new();
    for line in printed.out.lines() {
        let Some([name, property, raw, source]) = columns(line) else {
            continue;
        };
        // The API has an empty text for these where ZFS has none.
        let none = raw == "-" && ["origin", "encryptionroot"].contains(&property);
        let value = Property {
            raw: if none { String::new() } else { raw.to_owned() },
            source: source_of(source),
        };
        let properties = all.entry(name.to_owned()).or_default();
        properties.insert(property.to_owned(), value);
    }
    Ok(all)
}

fn source_of(text: &str) -> Source {
    match text.strip_prefix("inherited from ") {
        Some(from) => Source::Inherited(from.to_owned()),
        None if text == "default" => Source::Default,
        None if text == "-" => Source::None,
        None => Source::Local,
    }
}

/// Native properties, and user properties.
fn apart(properties: Properties) -> (Properties, Properties) {
    properties
        .into_iter()
        .partition(|(name, _)| !name.contains(':'))
}

/// The datasets of a scope.
pub(super) async fn datasets(pools: &[String], scope: &Scope) -> Answer<Vec<Dataset>> {
    let all = read(pools, scope, "filesystem,volume", &[]).await?;
    let dataset = |(name, properties): (String, Properties)| {
        let (properties, user) = apart(properties);
        let volume = properties
            .get("type")
            .is_some_and(|kind| kind.raw == "volume");
        let kind = if volume {
            Kind::Volume
        } else {
            Kind::Filesystem
        };
        Dataset {
            name,
            kind,
            properties,
            user,
        }
    };
    Ok(all.into_iter().map(dataset).collect())
}

/// The snapshots of the datasets of a scope, those of each in the order in which they were made.
pub(super) async fn snapshots(pools: &[String], scope: &Scope) -> Answer<Vec<Snapshot>> {
    let all = read(pools, scope, "snapshot", &["-d", "1"]).await?;
    let mut snapshots = Vec::new();
    for (name, properties) in all {
        let (properties, user) = apart(properties);
        let raw = |property: &str| properties.get(property).map_or("", |found| &found.raw);
        let number = |property: &str| raw(property).parse::<u64>().unwrap_or_default();
        let holds = if number("userrefs") > 0 {
            holds(&name).await?
        } else {
            BTreeMap::new()
        };
        let clones = raw("clones")
            .split(',')
            .filter(|clone| !["", "-"].contains(clone));
        let own = user
            .into_iter()
            .filter(|(_, value)| value.source == Source::Local);
        snapshots.push(Snapshot {
            createtxg: number("createtxg"),
            clones: clones.map(str::to_owned).collect(),
            user: own.map(|(name, value)| (name, value.raw)).collect(),
            holds,
            name,
            properties,
        });
    }
    snapshots.sort_by(|left, right| {
        let key = |snapshot: &Snapshot| (snapshot.dataset().to_owned(), snapshot.createtxg);
        key(left).cmp(&key(right))
    });
    Ok(snapshots)
}

/// The holds of a snapshot.
pub(super) async fn holds(snapshot: &str) -> Answer<BTreeMap<String, u64>> {
    let text = zfs(&["holds", "-Hp", snapshot]).await?;
    let hold = |line: &str| {
        let [_, tag, time] = columns(line)?;
        Some((tag.to_owned(), time.trim().parse().unwrap_or_default()))
    };
    Ok(text.lines().filter_map(hold).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_zfs_says_is_understood() {
        let clones = "cannot destroy 'tank/a@b': snapshot has dependent clones\n\
                      use '-R' to destroy the following datasets:\ntank/c\ntank/d\n";
        let name = |text: &str| text.to_owned();
        for (text, meant) in [
            (
                "cannot open 'tank/a': dataset does not exist\n",
                Problem::Missing(name("tank/a")),
            ),
            (
                "cannot unmount '/mnt/tank/a': pool or dataset is busy\n",
                Problem::Busy(name("tank/a")),
            ),
            (
                "cannot destroy snapshot tank/a@b: dataset is busy\n",
                Problem::Held(name("tank/a@b")),
            ),
            (
                clones,
                Problem::HasClones(name("tank/a@b"), vec![name("tank/c"), name("tank/d")]),
            ),
            (
                "cannot destroy 'tank/a': filesystem has children\n\
                 use '-r' to destroy the following datasets:\ntank/a@b\n",
                Problem::HasSnapshots(name("tank/a")),
            ),
            (
                "cannot destroy 'tank/a': filesystem has children\n\
                 use '-r' to destroy the following datasets:\ntank/a/c\ntank/a@b\n",
                Problem::HasChildren(name("tank/a")),
            ),
            (
                "permission denied",
                Problem::Other(name("permission denied")),
            ),
        ] {
            assert_eq!(problem(text), meant);
        }
    }
}
