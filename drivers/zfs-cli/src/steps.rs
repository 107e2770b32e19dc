//! Turns plans into commands.
//!
//! Scripts are constants; everything that varies is an argument. Each command is harmless if its
//! work was already done, or fails with a message that [`super::failure`] knows.

use std::time::Duration;

use driver_core::{Error, Kind};
use exec::{Command, Program};

use super::COMMAND;
use super::tools::{ZfsTools, script};
use driver_zfs::backend::Incoming;
use driver_zfs::name::DatasetName;
use driver_zfs::plan::listed;
use driver_zfs::property::{Property, PropertyName};
use driver_zfs::step::{Guard, New, Permission, Plan, Step, Still};

const CHMOD: Program = Program::constant("chmod");
const CHOWN: Program = Program::constant("chown");

/// The message of `zfs destroy` for a snapshot that does not exist.
const NO_SNAPSHOT: &str = "could not find any snapshots to destroy";
/// The message for any object that does not exist.
const ABSENT: &str = "does not exist";
/// The messages for an interrupted receive that is not there: it was ended, or its dataset is gone.
const NOT_RECEIVING: [&str; 2] = ["resumable receive state to abort", ABSENT];
/// The messages for a dataset that is destroyed only if it is empty: it is gone, or has snapshots or children.
const KEPT: [&str; 2] = [ABSENT, "has children"];
/// The message of a guard that found another object.
pub(super) const STALE: &str = "is not what it was when it was looked at";

/// `$1` has a line for each object, with its name and the expected GUID; the rest is the command
/// that reads them, in any order.
pub(super) const GUARD: &str = include_str!("script/guard.sh");

/// `$1` is the expected text with `=` before it, or empty; `$2` is the object, the rest is the
/// command that reads the property and its source. The script treats `-` as no value, as ZFS does.
const GUARD_PROPERTY: &str = include_str!("script/guard_property.sh");

/// A stream from `send` to `receive`, which are functions. Each end reports that it is done: a pipe
/// only reports its last part, and a killed process prints nothing. Their error output is in
/// `said`.
/// `$1` counts the words of the sending command; those of the receiving one follow them. Pools that
/// were created by ZFS before 2013 cannot receive resumable streams: they receive without that.
const COPY: &str = concat!(
    include_str!("script/both_ends.sh"),
    include_str!("script/copy.sh")
);

/// `$1` is the snapshot, `$2` the part, the rest is `zfs`. The resume point is read under the lock:
/// an interrupted receive may still have run, and be complete by now. A part that can never resume
/// is ended.
const GO_ON: &str = concat!(
    include_str!("script/both_ends.sh"),
    include_str!("script/go_on.sh")
);

/// `$1` is the device. The host creates it after the zvol, with an event if there is udev. While
/// many zvols are created at once this takes longer, and longer still the more often each of them
/// is polled. udev gives up a device that ZFS does not open in that time: when its queue is empty,
/// the script triggers the missing events again, if there is udev and the login may.
const SETTLE: &str = include_str!("script/settle.sh");

/// A command whose failure is no failure.
const AT_WILL: &str = "\"$@\" >/dev/null 2>&1 || return 0\n";

/// A received filesystem is mounted by a separate step: on Linux only root may mount, so the `zfs
/// receive` of another login would fail after all content arrived.
const UNMOUNTED: &str = "-u";
/// Keeps a partial receive, with its resume token.
const RESUMABLE: &str = "-s";

/// Only the deadline of its call limits a copy: its size is unknown.
const COPYING: Duration = Duration::from_hours(48);

/// The longest list of snapshots in one command: less than the limit of an argument.
const SNAPSHOTS: usize = 60_000;

/// A command of a plan.
pub(super) struct Planned {
    /// The command.
    pub(super) command: Command,
    /// Its purpose; `None` if it is one of the export.
    pub(super) doing: Option<String>,
    /// Whether it only checks that nothing has changed.
    pub(super) is_guard: bool,
}

/// The guards of a plan, then its steps. One command checks all GUIDs, and consecutive destroys of
/// one dataset are one command.
pub(super) fn commands(tools: &ZfsTools, plan: &Plan) -> Result<Vec<Planned>, Error> {
    let identities = plan.guards.iter().filter_map(|guard| match &guard.still {
        Still::Itself(guid) => Some((guard.object.to_string(), guid.to_string())),
        Still::Has(..) => None,
    });
    let identities: Vec<_> = identities.collect();
    let properties = plan.guards.iter().filter_map(|guard| match &guard.still {
        Still::Itself(_) => None,
        Still::Has(name, value) => Some(Planned {
            command: has_property(tools, guard, name, value.as_deref()),
            doing: Some(format!("find that {guard}")),
            is_guard: true,
        }),
    });
    let first = (!identities.is_empty()).then(|| identities_are(tools, &identities));
    let mut all: Vec<Planned> = first.into_iter().chain(properties).collect();
    let mut steps = plan.steps.iter().map(|node| &node.step).peekable();
    while let Some(step) = steps.next() {
        let mut doing = step.to_string();
        let command = if let Step::DestroySnapshot(snapshot) = step {
            let mut names = snapshot.to_string();
            while let Some(Step::DestroySnapshot(next)) = steps.peek()
                && next.dataset == snapshot.dataset
                && names.len() < SNAPSHOTS
            {
                names = format!("{names},{}", next.leaf);
                steps.next();
            }
            doing = format!("destroy {names}");
            tools.tolerant([NO_SNAPSHOT; 2], &["destroy", "-d", &names])
        } else {
            command(tools, step)?
        };
        all.push(Planned {
            command,
            doing: (!matches!(step, Step::Export(_))).then_some(doing),
            is_guard: false,
        });
    }
    Ok(all)
}

fn identities_are(tools: &ZfsTools, identities: &[(String, String)]) -> Planned {
    let expected = identities
        .iter()
        .map(|(name, guid)| format!("{name}\t{guid}\n"));
    let names: Vec<&str> = identities.iter().map(|(name, _)| name.as_str()).collect();
    let command = Command::function(GUARD)
        .arg(expected.collect::<String>())
        .args(tools.words())
        .args([
            "get",
            "-Hp",
            "-o",
            "name,value",
            PropertyName::GUID.as_str(),
        ])
        .args(names.iter().copied())
        .within(COMMAND);
    Planned {
        command,
        doing: Some(format!("find that {} did not change", listed(&names))),
        is_guard: true,
    }
}

fn has_property(
    tools: &ZfsTools,
    guard: &Guard,
    name: &PropertyName,
    value: Option<&str>,
) -> Command {
    let object = guard.object.to_string();
    let expected = value.map(|value| format!("={value}")).unwrap_or_default();
    Command::function(GUARD_PROPERTY)
        .args([expected, object.clone()])
        .args(tools.words())
        .args(["get", "-Hp", "-o", "value,source", name.as_str(), &object])
        .within(COMMAND)
}

fn command(tools: &ZfsTools, step: &Step) -> Result<Command, Error> {
    Ok(match step {
        Step::Create {
            dataset,
            new,
            properties,
        } => create(tools, dataset, new, properties),
        Step::Snapshot {
            snapshots,
            properties,
        } => {
            let mut arguments = vec!["snapshot".to_owned()];
            options(&mut arguments, properties, |_| true);
            arguments.extend(snapshots.iter().map(ToString::to_string));
            tools.zfs(arguments)
        }
        Step::Clone {
            origin,
            dataset,
            properties,
        } => {
            let mut arguments = vec!["clone".to_owned(), "-p".to_owned()];
            options(&mut arguments, properties, |name| !name.is_for_new_only());
            arguments.extend([origin.to_string(), dataset.to_string()]);
            tools.zfs(arguments)
        }
        Step::Copy {
            from,
            to,
            properties,
        } => {
            let mut receive = ["receive", UNMOUNTED, RESUMABLE]
                .map(str::to_owned)
                .to_vec();
            options(&mut receive, properties, |name| !name.is_for_new_only());
            receive.push(to.to_string());
            copy(tools, &from.to_string(), receive)
        }
        Step::GoOn { from, to } => script(GO_ON, [from.to_string(), to.to_string()])
            .args(tools.words())
            .within(COPYING),
        Step::Abandon(dataset) => {
            tools.tolerant(NOT_RECEIVING, &["receive", "-A", dataset.as_str()])
        }
        Step::Set { object, properties } => {
            let mut arguments = vec!["set".to_owned()];
            arguments.extend(properties.iter().map(Property::to_string));
            arguments.push(object.to_string());
            tools.zfs(arguments)
        }
        Step::Inherit { object, property } => {
            tools.zfs(["inherit", property.as_str(), &object.to_string()])
        }
        // The exports of a host answer no numbers.
        Step::Record { .. } => return Err(Error::new(Kind::Unsupported, step.to_string())),
        Step::Rename { snapshot, to } => {
            let new = format!("{}@{to}", snapshot.dataset);
            tools.zfs(["rename", &snapshot.to_string(), &new])
        }
        Step::Promote(dataset) => tools.zfs(["promote", dataset.as_str()]),
        Step::Mark(snapshot, mark) => at_will(
            tools,
            ["bookmark".into(), snapshot.to_string(), mark.to_string()],
        ),
        Step::DestroyMark(mark) => at_will(tools, ["destroy".into(), mark.to_string()]),
        Step::DestroySnapshot(snapshot) => {
            tools.tolerant([NO_SNAPSHOT; 2], &["destroy", "-d", &snapshot.to_string()])
        }
        Step::DestroyDataset(dataset) => tools.destroying([ABSENT; 2], &destroy(dataset)),
        Step::DestroyEmpty(dataset) => tools.destroying_empty(KEPT, &destroy(dataset)),
        Step::Mount(dataset) => {
            tools.mounting(["already mounted"; 2], &["mount", dataset.as_str()])
        }
        Step::Permit { path, permission } => permit(tools, path.as_str(), permission),
        Step::Settle(dataset) => Command::function(SETTLE)
            .arg(dataset.device())
            .within(COMMAND),
        Step::Export(request) => request.get::<Command>()?.clone(),
    })
}

fn create(tools: &ZfsTools, dataset: &DatasetName, new: &New, properties: &[Property]) -> Command {
    let mut arguments = vec!["create".to_owned(), "-p".to_owned()];
    options(&mut arguments, properties, |_| true);
    if let New::Zvol { size, block } = new {
        if let Some(block) = block {
            arguments.extend(["-o".to_owned(), format!("volblocksize={block}")]);
        }
        arguments.extend(["-V".to_owned(), size.to_string()]);
    }
    arguments.push(dataset.to_string());
    tools.zfs(arguments)
}

/// A step as the words of one command. It fails if the step was done before.
pub(super) fn words(tools: &ZfsTools, step: &Step) -> Result<Vec<String>, Error> {
    let command = match step {
        Step::DestroySnapshot(snapshot) => tools.zfs(["destroy", "-d", &snapshot.to_string()]),
        step => command(tools, step)?,
    };
    let arguments = command.arguments().iter();
    let arguments = arguments.map(|word| word.expose().to_owned());
    let program = command.program().as_str().to_owned();
    Ok(std::iter::once(program).chain(arguments).collect())
}

/// A command that may fail.
fn at_will<const N: usize>(tools: &ZfsTools, arguments: [String; N]) -> Command {
    Command::function(AT_WILL)
        .args(tools.words())
        .args(arguments)
        .within(COMMAND)
}

fn destroy(dataset: &DatasetName) -> [&str; 3] {
    ["destroy", "-f", dataset.as_str()]
}

fn options(
    arguments: &mut Vec<String>,
    properties: &[Property],
    takes: impl Fn(&PropertyName) -> bool,
) {
    for property in properties {
        if takes(&property.name) {
            arguments.extend(["-o".to_owned(), property.to_string()]);
        }
    }
}

fn copy(tools: &ZfsTools, from: &str, receive: Vec<String>) -> Command {
    let mut send = tools.words();
    send.extend(["send".to_owned(), from.to_owned()]);
    script(COPY, [send.len().to_string()])
        .args(send)
        .args(tools.words())
        .args(receive)
        .within(COPYING)
}

/// The command that receives its standard input. A resumed part has its properties already.
pub(super) fn receive(tools: &ZfsTools, incoming: &Incoming) -> Command {
    let mut arguments = ["receive", UNMOUNTED, RESUMABLE]
        .map(str::to_owned)
        .to_vec();
    if !incoming.goes_on {
        options(&mut arguments, &incoming.properties, |name| {
            !name.is_for_new_only()
        });
    }
    arguments.push(incoming.to.to_string());
    tools.zfs(arguments)
}

fn permit(tools: &ZfsTools, path: &str, permission: &Permission) -> Command {
    match permission {
        Permission::Mode(mode) => tools.as_root(&CHMOD, [format!("{mode:04o}"), path.to_owned()]),
        Permission::Owner(owner) => tools.as_root(&CHOWN, [owner.as_str(), path]),
        Permission::Acl(arguments) => {
            let path = [path.to_owned()];
            tools.as_root(&tools.acl, arguments.iter().cloned().chain(path))
        }
    }
}
