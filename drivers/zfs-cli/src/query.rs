//! Questions as commands, and their answers as a picture.
//!
//! An object that does not exist is an answer, so exit code 1 is accepted; whether that was all
//! that `zfs` complained about, and whether the pool is there, is checked before it is believed.

use std::collections::BTreeSet;

use driver_core::{Error, Kind};
use exec::{Accept, Command, Output};

use super::COMMAND;
use super::failure::{self, Complaint};
use super::rows::{COLUMNS, Rows, Scope};
use super::tools::{ZfsTools, of_the_pool};
use driver_zfs::name::{DatasetName, Object};
use driver_zfs::observed::{ALWAYS, OF_MEMBERS, Observed, Query, Request, System};
use driver_zfs::property::PropertyName;

/// What `uname -sr` says, on Linux without a process.
const SYSTEM: &str = "\
if [ -d /sys/module ] && read -r release 2>/dev/null </proc/sys/kernel/osrelease; then printf 'Linux %s\\n' \"$release\"
else uname -sr; fi";

/// `$1` is a program of awk that filters what is printed, or nothing. `$2` counts the words of the
/// command that looks for the pools; those of the look itself follow them.
///
/// What is not there is an answer only if its pool is there, so whoever finds nothing looks for that
/// too. A pipe tells of its last part only, so the look says in its last line how it ended. Nothing that
/// a value looks like can stand behind that one; without it somebody was killed.
const LOOK: &str = concat!(
    "\
filter=$1; n=$2; shift 2
pools() {
i=0; while [ $i -lt $n ]; do word=$1; shift; set -- \"$@\" \"$word\"; i=$((i + 1)); done
shift $(($# - n)); \"$@\"
}
look() { shift $n; \"$@\"; }
if [ -z \"$filter\" ]; then look \"$@\"
else
ended=.ended.$$.
{ look \"$@\"; echo \"$ended$?\"; } | ended=$ended LC_ALL=C awk -F '\\t' \"
index(\\$0, ENVIRON[\\\"ended\\\"]) == 1 { code = substr(\\$0, length(ENVIRON[\\\"ended\\\"]) + 1); next }
$filter
END { exit code == \\\"\\\" ? 3 : code }\"
fi
code=$?
[ $code -eq 1 ] || return $code
said=$(pools \"$@\" 2>&1 >/dev/null) && return 1
",
    of_the_pool!(),
    "return 4"
);

/// Names of objects whose property is `$wanted`. Both are compared as texts: awk takes `10` and `1e1`
/// for the same number.
const NAMED: &str = "($2 \"\") == (ENVIRON[\"wanted\"] \"\") { print $1 }";
/// All properties of `$name`, and those in the list `$wanted` of what lies below it. A line that
/// begins with nothing of the kind goes on with a value.
const FAMILY: &str = "\
BEGIN { name = ENVIRON[\"name\"] \"\"; n = length(name) }
NF > 2 && substr($1, 1, n) \"\" == name {
next_one = substr($1, n + 1, 1)
if (next_one == \"\") keep = 1
else if (next_one == \"@\" || next_one == \"/\") keep = index(ENVIRON[\"wanted\"], \",\" $2 \",\")
}
keep";

const WANTED: exec::Variable = exec::Variable::constant("wanted");
const NAME: exec::Variable = exec::Variable::constant("name");

/// How much a look may show: a volume may have tens of thousands of snapshots of others.
const OUTPUT: usize = 64 << 20;

/// Every kind of object.
const ALL_KINDS: &str = "filesystem,volume,snapshot";

/// Properties as `zfs get` takes them.
pub(super) fn properties(besides: &[PropertyName]) -> String {
    let names = ALWAYS.iter().chain(besides).map(PropertyName::as_str);
    names.collect::<Vec<_>>().join(",")
}

/// A look by this command of `zfs` within these pools.
fn look<A: Into<String>>(
    tools: &ZfsTools,
    pools: &[&str],
    filter: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let mut root = tools.words();
    root.extend(["get", "-H", "-o", "name", "type"].map(str::to_owned));
    root.extend(pools.iter().map(|pool| (*pool).to_owned()));
    Command::function(LOOK)
        .args([filter.to_owned(), root.len().to_string()])
        .args(root)
        .args(tools.words())
        .args(arguments)
        .accepting(Accept::Codes(vec![1]))
        .with_output_cap(OUTPUT)
        .within(COMMAND)
}

fn get(tools: &ZfsTools, name: &DatasetName, filter: &str, arguments: &[&str]) -> Command {
    let words = ["get", "-Hp", "-o", COLUMNS];
    let words = words.iter().chain(arguments).copied();
    look(tools, &[name.pool()], filter, words)
}

/// The commands of a question: those of its looks in order, then those of its export.
pub(super) fn commands(tools: &ZfsTools, request: &Request<Command>) -> Vec<Command> {
    let wanted = properties(&request.properties);
    let queries = request.queries.iter();
    let queries = queries.map(|look| of_look(tools, look, &wanted));
    queries.chain(request.export.iter().cloned()).collect()
}

fn of_look(tools: &ZfsTools, look: &Query, wanted: &str) -> Command {
    match look {
        Query::Dataset(name) => get(tools, name, "", &[wanted, name.as_str()]),
        Query::Family(name) => {
            let members = OF_MEMBERS.iter().map(PropertyName::as_str);
            let members = members.collect::<Vec<_>>().join(",");
            let arguments = ["-d", "1", "-t", ALL_KINDS, wanted, name.as_str()];
            get(tools, name, FAMILY, &arguments)
                .env(NAME, name.as_str())
                .env(WANTED, format!(",{members},"))
        }
        Query::Snapshot(name) => get(tools, &name.dataset, "", &[wanted, &name.to_string()]),
        Query::Named { within, name } => named(tools, within, name),
        Query::Nearest(name) => {
            let names = name.with_ancestors();
            let names = names.iter().map(DatasetName::as_str);
            let arguments: Vec<_> = std::iter::once(wanted).chain(names).collect();
            get(tools, name, "", &arguments)
        }
        Query::System => Command::function(SYSTEM),
    }
}

fn named(tools: &ZfsTools, within: &[DatasetName], name: &str) -> Command {
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
    look(tools, &pools, NAMED, arguments).env(WANTED, name)
}

/// What the outputs of these commands show.
pub(super) fn observed(
    request: &Request<Command>,
    outputs: Vec<Output>,
) -> Result<Observed<Output>, Error> {
    let mut outputs = outputs.into_iter();
    let mut rows = Rows::default();
    let (mut named, mut system) = (Vec::new(), None);
    for look in &request.queries {
        let printed = |outputs: &mut std::vec::IntoIter<Output>| {
            let output = outputs.next().ok_or_else(short)?;
            if failure::is_only_absence(&output) {
                Ok(output.text().into_owned())
            } else {
                Err(Complaint::of(&output).into_error("look at datasets"))
            }
        };
        match look {
            Query::Dataset(name) => {
                rows.add(&printed(&mut outputs)?, &Scope::of([name.as_str()]));
            }
            Query::Family(name) => {
                let scope = Scope::of([name.as_str()]).with_all_below();
                rows.add(&printed(&mut outputs)?, &scope);
            }
            Query::Snapshot(name) => {
                let name = name.to_string();
                rows.add(&printed(&mut outputs)?, &Scope::of([name.as_str()]));
            }
            Query::Nearest(name) => {
                let names = name.with_ancestors();
                let scope = Scope::of(names.iter().map(DatasetName::as_str));
                rows.add(&printed(&mut outputs)?, &scope);
            }
            Query::Named { .. } => {
                for line in printed(&mut outputs)?
                    .lines()
                    .filter(|line| !line.is_empty())
                {
                    named.push(Object::parse(line).map_err(|error| {
                        Error::new(Kind::Internal, "look for a snapshot").because(error)
                    })?);
                }
            }
            Query::System => {
                let text = printed(&mut outputs)?;
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
    if let Some(system) = system {
        pool.set_system(system);
    }
    Ok(Observed {
        pool,
        export: outputs.collect(),
    })
}

fn short() -> Error {
    Error::new(Kind::Internal, "look at datasets").because("an answer is missing")
}
