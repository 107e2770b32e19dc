//! Turns queries into commands, and their output into a state.
//!
//! A missing object is an answer, so exit code 1 is accepted; it is trusted only if `zfs` reported
//! no other problem and the pool exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use driver_core::{Error, Kind};
use exec::{Accept, Command, Output};

use super::COMMAND;
use super::failure::{self, Complaint};
use super::rows::{COLUMNS, Rows, Scope};
use super::tools::{ZfsTools, of_the_pool};
use driver_zfs::export::Opaque;
use driver_zfs::name::{DatasetName, MarkRef, Object, SnapshotLeaf};
use driver_zfs::observed::{
    ALWAYS, Guid, Mark, OF_MEMBERS, Observed, PoolState, Query, Request, System,
};
use driver_zfs::plan::listed;
use driver_zfs::property::PropertyName;

/// The output of `uname -sr`, on Linux without a process.
const SYSTEM: &str = include_str!("script/system.sh");

/// See `script/health.sh`. The words are the pool, whether nothing else is asked, sudo and `zpool`.
pub(super) const HEALTH: &str = include_str!("script/health.sh");

/// `$1` is an awk program that filters the output, or nothing. `$2` counts the words that begin a
/// command of `zfs`, `$3` holds the pools, one in each line; `$4` and `$5` are `wanted` and `name` of
/// the filter; the rest is the query itself.
///
/// A missing object is an answer only if its pool exists, so a query that finds nothing checks the
/// pools of which it has seen nothing. A pipe only reports its last part, so the query prints its exit
/// status in its last line. No value can look like that line or follow it; without it a part was
/// killed. What is read without a filter stays in a variable, so that the next command of the list
/// need not read it again.
macro_rules! look {
    () => {
        concat!(include_str!("script/look.sh"), of_the_pool!(), "return 4\n")
    };
}

const LOOK: &str = look!();

/// The objects that may have a snapshot name: found by the kernel, or by a scan of everything.
pub(super) const NAMED_LOOK: &str = concat!(include_str!("script/named.sh"), look!());

/// Names of objects whose property is `$wanted`. Both are compared as text: awk considers `10` and
/// `1e1` equal.
const NAMED: &str = "($2 \"\") == (ENVIRON[\"wanted\"] \"\") { print $1 }";
/// All properties of `$name`, and those in the list `$wanted` of objects below it. Any other line
/// continues a value.
const FAMILY: &str = include_str!("script/family.awk");

/// The filter of an output.
#[derive(Clone, Copy, Default)]
struct Filter<'a> {
    /// A program of awk; empty for all that there is.
    program: &'a str,
    /// The text that it knows by these names.
    wanted: &'a str,
    name: &'a str,
}

/// The largest output of a query: a volume may have tens of thousands of foreign snapshots.
const OUTPUT: usize = 32 << 20;

/// Every kind of object.
const ALL_KINDS: &str = "filesystem,volume,snapshot";

/// Properties as `zfs get` takes them, each once: a class and an export may ask for the same one.
pub(super) fn properties(extra: &[PropertyName]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in ALWAYS.iter().chain(extra).map(PropertyName::as_str) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(",")
}

/// A query by this command of `zfs` within these pools.
fn look<A: Into<String>>(
    tools: &ZfsTools,
    pools: &[&str],
    filter: Filter<'_>,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    look_by(Command::function(LOOK), tools, pools, filter, arguments)
}

fn look_by<A: Into<String>>(
    script: Command,
    tools: &ZfsTools,
    pools: &[&str],
    filter: Filter<'_>,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let pools = pools.iter().flat_map(|pool| [*pool, "\n"]);
    let words = tools.words();
    script
        .arg(filter.program)
        .args([words.len().to_string(), pools.collect()])
        .args([filter.wanted, filter.name])
        .args(words)
        .args(arguments)
        .accepting(Accept::Codes(vec![1]))
        .with_output_cap(OUTPUT)
        .within(COMMAND)
}

fn get(tools: &ZfsTools, name: &DatasetName, filter: Filter<'_>, arguments: &[&str]) -> Command {
    let words = ["get", "-Hp", "-o", COLUMNS];
    let words = words.iter().chain(arguments).copied();
    look(tools, &[name.pool()], filter, words)
}

/// Queries that one command answers.
pub(super) enum Group<'a> {
    /// Objects by their names.
    Objects(Vec<&'a Query>),
    /// Bookmarks of datasets.
    Marks(Vec<&'a Query>),
    /// Anything else.
    Other(&'a Query),
}

/// The queries of a request, grouped into commands: pools, all objects at once, all bookmarks, then the others in order.
pub(super) fn groups(request: &Request) -> Vec<Group<'_>> {
    let by_name = |query: &&Query| {
        matches!(
            query,
            Query::Dataset(_) | Query::Snapshot(_) | Query::Nearest(_)
        )
    };
    let (objects, others): (Vec<_>, Vec<_>) = request.queries.iter().partition(by_name);
    let of_marks = |query: &&Query| matches!(query, Query::Marks(_));
    let (marks, others): (Vec<_>, Vec<_>) = others.into_iter().partition(of_marks);
    // A pool that is suspended keeps all others waiting.
    let is_pool = |query: &&Query| matches!(query, Query::Pool(_));
    let (pools, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_pool);
    let objects = (!objects.is_empty()).then_some(Group::Objects(objects));
    let marks = (!marks.is_empty()).then_some(Group::Marks(marks));
    let pools = pools.into_iter().map(Group::Other);
    let others = others.into_iter().map(Group::Other);
    pools.chain(objects).chain(marks).chain(others).collect()
}

impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Objects(_) => write!(f, "look at {}", listed(self.names())),
            Self::Marks(_) => write!(f, "look at the bookmarks of {}", listed(self.names())),
            Self::Other(query) => query.fmt(f),
        }
    }
}

impl Group<'_> {
    /// The names of the objects, each once.
    fn names(&self) -> Vec<String> {
        let (Self::Objects(queries) | Self::Marks(queries)) = self else {
            return Vec::new();
        };
        let names = queries.iter().flat_map(|query| match query {
            Query::Nearest(name) => {
                let above = name.with_ancestors().into_iter();
                above.map(|name| name.to_string()).collect()
            }
            Query::Dataset(name) | Query::Marks(name) => vec![name.to_string()],
            Query::Snapshot(name) => vec![name.to_string()],
            _ => Vec::new(),
        });
        let mut known = BTreeSet::new();
        names.filter(|name| known.insert(name.clone())).collect()
    }

    fn command(&self, tools: &ZfsTools, wanted: &str, is_alone: bool) -> Command {
        let query = match self {
            Self::Objects(_) => {
                return self.named(tools, &["-o", COLUMNS, wanted]);
            }
            Self::Marks(_) => {
                let of_them = [PropertyName::GUID, PropertyName::CREATETXG];
                let of_them = of_them.map(|name| name.to_string()).join(",");
                let words = ["-d", "1", "-t", "bookmark", "-o", "name,property,value"];
                return self.named(tools, &[&words[..], &[&of_them]].concat());
            }
            Self::Other(query) => query,
        };
        match query {
            Query::Family(name) => {
                let members = OF_MEMBERS.iter().map(PropertyName::as_str);
                let members = members.collect::<Vec<_>>().join(",");
                let arguments = ["-d", "1", "-t", ALL_KINDS, wanted, name.as_str()];
                let filter = Filter {
                    program: FAMILY,
                    wanted: &format!(",{members},"),
                    name: name.as_str(),
                };
                get(tools, name, filter, &arguments)
            }
            Query::Named {
                within,
                has_children,
                name,
                leaf,
            } => named(tools, within, *has_children, name, leaf),
            Query::Pool(name) => {
                let alone = if is_alone { "yes" } else { "no" };
                Command::function(HEALTH)
                    .args([name.pool(), alone])
                    .args([tools.sudo.as_str(), tools.zpool.as_str()])
                    .within(COMMAND)
            }
            _ => Command::function(SYSTEM),
        }
    }

    /// Properties of all that is named.
    fn named(&self, tools: &ZfsTools, words: &[&str]) -> Command {
        let names = self.names();
        let pools: BTreeSet<&str> = names.iter().map(|name| pool_of(name)).collect();
        let pools: Vec<&str> = pools.into_iter().collect();
        let words = ["get", "-Hp"].iter().chain(words).copied();
        let words = words.chain(names.iter().map(String::as_str));
        look(tools, &pools, Filter::default(), words)
    }
}

fn pool_of(name: &str) -> &str {
    name.split(['/', '@']).next().unwrap_or(name)
}

/// The commands of a request: one for each group, then those of its export.
pub(super) fn commands(tools: &ZfsTools, request: &Request) -> Result<Vec<Command>, Error> {
    let wanted = properties(&request.properties);
    let groups = groups(request);
    let is_alone = groups.len() == 1 && request.export.is_empty();
    let queries = groups.iter();
    let queries = queries.map(|group| group.command(tools, &wanted, is_alone));
    let export = request.export.iter().map(|command| command.get().cloned());
    queries.map(Ok).chain(export).collect()
}

fn named(
    tools: &ZfsTools,
    within: &[DatasetName],
    has_children: bool,
    name: &str,
    leaf: &SnapshotLeaf,
) -> Command {
    let property = PropertyName::SNAPSHOT_NAME;
    let arguments = [
        "get",
        "-H",
        "-r",
        "-t",
        ALL_KINDS,
        "-o",
        "name,value",
        "-s",
        "local,received",
        property.as_str(),
    ];
    let pools: BTreeSet<&str> = within.iter().map(DatasetName::pool).collect();
    let pools: Vec<&str> = pools.into_iter().collect();
    let names = within.iter().map(DatasetName::as_str);
    let arguments = arguments.into_iter().chain(names);
    let filter = Filter {
        program: NAMED,
        wanted: name,
        name: "",
    };
    if has_children {
        // The channel program looks right below the parents alone.
        return look(tools, &pools, filter, arguments);
    }
    let parent = |nth: usize| within.get(nth).map_or("", DatasetName::as_str);
    let words = tools.words();
    let script = Command::function(NAMED_LOOK)
        .args([
            leaf.as_str(),
            parent(1),
            parent(0),
            &words.len().to_string(),
        ])
        .args(words);
    look_by(script, tools, &pools, filter, arguments)
}

/// The state that the outputs of these commands show.
pub(super) fn observed(request: &Request, outputs: Vec<Output>) -> Result<Observed, Error> {
    let mut outputs = outputs.into_iter();
    let mut rows = Rows::default();
    let (mut named, mut marks, mut system) = (Vec::new(), Vec::new(), None);
    let mut pools = Vec::new();
    for group in groups(request) {
        let output = outputs.next().ok_or_else(short)?;
        if !failure::is_only_absence(&output) {
            return Err(Complaint::of(&output).into_error("look at datasets"));
        }
        let text = output.text();
        match &group {
            Group::Objects(_) => {
                let names = group.names();
                rows.add(&text, &Scope::of(names.iter().map(String::as_str)));
            }
            Group::Other(Query::Family(name)) => {
                rows.add(&text, &Scope::of([name.as_str()]).with_all_below());
            }
            Group::Marks(_) => marks = read_marks(&text),
            Group::Other(Query::Pool(name)) => {
                pools.extend(PoolState::parse(text.trim()).map(|state| (name.clone(), state)));
            }
            Group::Other(Query::Named { .. }) => {
                for line in text.lines().filter(|line| !line.is_empty()) {
                    named.push(Object::parse(line).map_err(|error| {
                        Error::new(Kind::Internal, "look for a snapshot").because(error)
                    })?);
                }
            }
            Group::Other(_) => {
                let (name, release) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
                system = Some(System {
                    name: name.to_owned(),
                    release: release.to_owned(),
                });
            }
        }
    }
    let mut pool = rows.into_state()?;
    for object in named {
        pool.add_named(object);
    }
    for mark in marks {
        pool.add_mark(mark);
    }
    for (name, state) in pools {
        pool.set_pool(&name, state);
    }
    if let Some(system) = system {
        pool.set_system(system);
    }
    Ok(Observed {
        pool,
        export: outputs.map(Opaque::new).collect(),
        kept: None,
    })
}

/// Our bookmarks. What cannot be read is none: it is asked for again before it is used.
fn read_marks(text: &str) -> Vec<Mark> {
    let mut found: BTreeMap<MarkRef, [Option<u64>; 2]> = BTreeMap::new();
    for line in text.lines() {
        let mut columns = line.split('\t');
        let name = columns.next().and_then(MarkRef::parse_ours);
        let (Some(name), Some(property), Some(value)) = (name, columns.next(), columns.next())
        else {
            continue;
        };
        let [guid, createtxg] = found.entry(name).or_default();
        match property {
            "guid" => *guid = value.parse().ok(),
            "createtxg" => *createtxg = value.parse().ok(),
            _ => {}
        }
    }
    let whole = |(name, [guid, createtxg]): (MarkRef, [Option<u64>; 2])| {
        Some(Mark {
            name,
            guid: Guid(guid?),
            createtxg: createtxg?,
        })
    };
    found.into_iter().filter_map(whole).collect()
}

fn short() -> Error {
    Error::new(Kind::Internal, "look at datasets").because("an answer is missing")
}
