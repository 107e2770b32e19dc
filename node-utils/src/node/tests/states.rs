//! Prepared states of a node, each met by every verb: what comes of it is a table in
//! `docs/node-states.md`, which is documentation and test at once.
//!
//! Each cell is made from nothing, in mounts of its own. A cell says how the verb ended and, where
//! something changed, what is at the staging and the target path afterwards and whether the device
//! is attached. With `OMNIBUS_REGENERATE=1` the table is written instead of compared.

mod look;
mod prepare;

use std::any::Any;
use std::fmt::Write as _;
use std::sync::Mutex;

use look::Look;

use super::*;

/// The kind of volume a state is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Volume {
    Directory,
    Filesystem,
    Raw,
}

/// One row.
struct State {
    volume: Volume,
    name: &'static str,
    /// Makes the state; what it returns is kept until the verb has ended.
    prepare: fn(&Bench) -> Box<dyn Any>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Stage,
    Publish,
    Unpublish,
    Unstage,
    Stats,
    Expand,
}

impl Verb {
    const ALL: [Self; 6] = [
        Self::Stage,
        Self::Publish,
        Self::Unpublish,
        Self::Unstage,
        Self::Stats,
        Self::Expand,
    ];
}

/// The deadline of a verb that gives up on a filesystem that does not answer.
const SHORT_DEADLINE: Duration = Duration::from_millis(1500);

/// The deadline of a verb that removes such a filesystem: half of it passes before the removal.
const ENOUGH: Duration = Duration::from_secs(6);

const INTRODUCTION: &str = "\
# Node states: what each call does in which state

A test writes and compares these tables (`node-utils`, `node::tests::states`). Each row is a state that was prepared on a real kernel.
Each cell is the answer of the call and, after the arrow, what it changed. `done` is success; the other words are kinds of errors,
whose codes are in [gRPC codes](grpc-codes.md). Unless the state says otherwise, the volume is staged at the staging path, published
at the target path, and used by several writers. Loop devices stand in for network disks. What the node repairs without a call
is [said with its health](health.md#between-the-calls).
";

fn limits(state: &State, verb: Verb) -> Limits {
    let time = match verb {
        _ if !state.name.contains("does not answer") => return soon(),
        Verb::Unpublish | Verb::Unstage => ENOUGH,
        _ => SHORT_DEADLINE,
    };
    Limits::until(Instant::now() + time)
}

fn attachment(bench: &Bench, volume: Volume) -> Attachment {
    match volume {
        Volume::Directory => bench.attachment("one"),
        Volume::Filesystem | Volume::Raw => LoopStorage::attachment("one"),
    }
}

fn access(volume: Volume) -> Access {
    match volume {
        Volume::Raw => Access::Block,
        _ => Access::Mount(MountAccess::default()),
    }
}

fn stage_request(bench: &Bench, volume: Volume) -> StageRequest {
    StageRequest {
        staging: bench.staging("s"),
        attachment: attachment(bench, volume),
        capability: VolumeCapability {
            access: access(volume),
            mode: AccessMode::SingleNodeMultiWriter,
        },
        secrets: StageSecrets::default(),
    }
}

fn publish_request(bench: &Bench, volume: Volume) -> PublishRequest {
    PublishRequest {
        attachment: attachment(bench, volume),
        capability: VolumeCapability {
            access: access(volume),
            mode: AccessMode::SingleNodeMultiWriter,
        },
        ..bench.request("t")
    }
}

fn act(bench: &Bench, volume: Volume, verb: Verb) -> Result<String, Error> {
    act_within(soon(), bench, volume, verb)
}

fn act_within(limits: Limits, bench: &Bench, volume: Volume, verb: Verb) -> Result<String, Error> {
    let path = || AbsolutePath::parse(&bench.text("k/t")).expect("path");
    let node = bench.blind.get().unwrap_or(&bench.node);
    match verb {
        Verb::Stage => bench.run(node.stage(limits, stage_request(bench, volume)))?,
        Verb::Publish => bench.run(node.publish(limits, publish_request(bench, volume)))?,
        Verb::Unpublish => bench.run(node.unpublish(limits, bench.target("t")))?,
        Verb::Unstage => bench.run(node.unstage(limits, bench.staging("s")))?,
        Verb::Stats => {
            let stats = bench.run(node.stats(limits, path()))?;
            if let Some(worst) = stats.conditions.worst() {
                return Ok(worst.reason().to_string());
            }
        }
        Verb::Expand => {
            let request = ExpandRequest {
                path: path(),
                required: None,
            };
            bench.run(node.expand(limits, request))?;
        }
    }
    Ok("done".to_owned())
}

/// What one verb makes of one state.
fn cell(state: &'static State, verb: Verb) -> String {
    let text = Arc::new(Mutex::new(String::new()));
    let out = Arc::clone(&text);
    bench(move |bench| {
        for volume in ["one", "two"] {
            bench.storage.put(volume, 64 << 20);
        }
        let held = (state.prepare)(bench);
        let before = Look::at(bench);
        let outcome = match act_within(limits(state, verb), bench, state.volume, verb) {
            Ok(outcome) => outcome,
            Err(error) => format!("{:?}", error.kind()),
        };
        let changes = Look::at(bench).since(&before);
        drop(held);
        prepare::clean(bench);
        *out.lock().expect("lock") = if changes.is_empty() {
            outcome
        } else {
            format!("{outcome} → {}", changes.join(", "))
        };
    });
    text.lock().expect("lock").clone()
}

fn table() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (volume, heading) in [
        (Volume::Directory, "A directory of the node"),
        (Volume::Filesystem, "A filesystem on a device"),
        (Volume::Raw, "A raw device"),
    ] {
        let _ = write!(
            text,
            "\n## {heading}\n\n| state | stage | publish | unpublish | unstage | stats of the target | expand at the target |\n|---|---|---|---|---|---|---|\n"
        );
        for state in prepare::STATES
            .iter()
            .filter(|state| state.volume == volume)
        {
            let cells = Verb::ALL.map(|verb| cell(state, verb));
            let _ = writeln!(text, "| {} | {} |", state.name, cells.join(" | "));
        }
    }
    text
}

#[test]
fn every_verb_makes_of_every_state_what_the_documentation_says() {
    assert!(prepare::STATES.len() >= 40, "{}", prepare::STATES.len());
    let Some(path) = look::where_the_table_is() else {
        return;
    };
    let table = table();
    if std::env::var("OMNIBUS_REGENERATE").is_ok_and(|value| value == "1") {
        fs::write(path, table).expect("write");
        return;
    }
    let written = fs::read_to_string(path).expect("table");
    for (line, (is, was)) in table.lines().zip(written.lines()).enumerate() {
        assert_eq!(is, was, "line {}", line + 1);
    }
    assert_eq!(table.lines().count(), written.lines().count());
}
