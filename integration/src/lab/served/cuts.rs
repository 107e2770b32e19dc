//! Calls that are stopped at each of their commands on the storage host, and made again.
//!
//! The commands are counted in an undisturbed run. Then, at each of them, the program is
//! killed while the rest goes on and meets the retry, or the connection is cut before the command,
//! during it or after it. Whatever happened, the retry leads to the storage that the undisturbed call
//! left, and taking it back leads to the storage of before: nothing is left, nothing is there twice.

pub mod host;
pub mod operation;
pub mod state;

use std::fs;
use std::path::Path;

use tonic::{Code, Status};

use super::connected::{is_unknown, note_unknown};
use super::login::Road;
use super::{ROOT, Served};
use crate::lab::calls::Node;
use crate::lab::content;
use crate::lab::life::step;
use crate::lab::storage::zfs::Zvol;
use crate::place::Place;

use host::{Host, Step, Stop};
use operation::{OBJECT, Operation, Part, Scene};
use state::{difference, state};

/// The bytes that are written to the source, and looked for in what is made of it.
const LENGTH: usize = 1 << 16;
/// The codes of a call whose end was not seen; any other one would say something of the volume.
const UNSEEN: [Code; 6] = [
    Code::Unavailable,
    Code::Aborted,
    Code::DeadlineExceeded,
    Code::Internal,
    Code::Unknown,
    Code::Cancelled,
];

/// A program, its storage host and what is on it.
struct Trial {
    served: Served,
    host: Host,
    node: Node,
    scene: Scene,
    before: Vec<String>,
    _place: Place,
}

/// The effect of an undisturbed call.
struct Undisturbed {
    steps: Vec<Step>,
    end: Vec<String>,
}

/// The program is killed at each command that changes something, and after the last, of every call
/// of `part`, but for what is repeated there.
///
/// # Panics
/// If a retry does not lead to the same end, or something is left.
pub async fn killed(served: Served, part: Part) {
    everywhere(served, part, |steps| {
        let is_last = |step: &Step| step.number == steps.len();
        let chosen = steps.iter().filter(|step| step.changes() || is_last(step));
        chosen.map(|step| (step.clone(), Stop::Killed)).collect()
    })
    .await;
}

/// The connection is cut before, during and after each command that changes something and takes time,
/// and once at each other one, of every call of `part`, but for what is repeated there.
///
/// Once is enough for the others: before a command all is as after the one before it, and what makes a
/// folder or a link is over at once.
///
/// # Panics
/// If a call says that it succeeded and did not, or a retry does not lead to the same end, or
/// something is left.
pub async fn severed(served: Served, part: Part) {
    const ALL: [Stop; 3] = [Stop::Before, Stop::During, Stop::After];
    everywhere(served, part, |steps| {
        let stops = |step: &Step| match (step.changes() && step.takes_time(), step.number % 3) {
            (true, _) => ALL.to_vec(),
            (false, which) => vec![ALL[which]],
        };
        let all = steps.iter().flat_map(|step| {
            let stops = stops(step).into_iter();
            stops.map(|stop| (step.clone(), stop))
        });
        all.collect()
    })
    .await;
}

/// One call, killed at its first, its middle and its last command, and cut from its host once.
///
/// # Panics
/// As above.
pub async fn a_few(served: Served) {
    let mut trial = Trial::start(served).await;
    let undisturbed = trial.undisturbed(Operation::Create).await;
    let changes: Vec<_> = undisturbed
        .steps
        .iter()
        .filter(|step| step.changes())
        .collect();
    assert!(changes.len() > 2, "{:?}", undisturbed.steps);
    let last = undisturbed.steps.last().expect("a step");
    for (step, stop) in [
        (changes[0], Stop::Killed),
        (changes[changes.len() / 2], Stop::Killed),
        (changes[changes.len() - 1], Stop::During),
        (last, Stop::Killed),
    ] {
        trial
            .stopped(Operation::Create, step, stop, &undisturbed)
            .await;
    }
    trial.end().await;
}

async fn everywhere(served: Served, part: Part, choose: impl Fn(&[Step]) -> Vec<(Step, Stop)>) {
    let (served, operations) = match served.for_nodes() {
        Some(for_nodes) if part.has_nodes() => (
            for_nodes,
            [part.operations(), &Operation::OF_NODES].concat(),
        ),
        _ => (served, part.operations().to_vec()),
    };
    let mut trial = Trial::start(served).await;
    // What the kernel shows is known once the export is loaded.
    let operations = operations.into_iter().filter(|operation| match operation {
        Operation::Expand => served.is_expanded_by_the_controller(),
        operation if operation.is_of_fences() => !is_unknown(served),
        operation => !operation.is_of_groups() || served.takes_groups(),
    });
    let operations: Vec<_> = operations.collect();
    if part.has_nodes() && is_unknown(served) {
        note_unknown("no fence was stopped");
    }
    for &operation in &operations {
        let undisturbed = trial.undisturbed(operation).await;
        let mut stops = choose(&undisturbed.steps);
        assert!(
            undisturbed.steps.iter().any(Step::changes),
            "{operation:?} changes nothing: {:?}",
            undisturbed.steps
        );
        if part == Part::Making && operation != operations[0] {
            stops.retain(|(step, _)| !repeated(step, &undisturbed.steps));
        }
        step(&format!("{operation:?}: stopped in {} ways", stops.len()));
        for (at, stop) in stops {
            trial.stopped(operation, &at, stop, &undisturbed).await;
        }
    }
    trial.end().await;
}

/// The export of a volume is the same whatever the volume was made of: where several calls make one, the
/// first is stopped there, and the others only at what comes last.
fn repeated(step: &Step, steps: &[Step]) -> bool {
    step.exports() && step.number < steps.len()
}

// === impl Trial ===

impl Trial {
    async fn start(served: Served) -> Self {
        let place = Place::new();
        let host = Host::new(place.path());
        let by = Road {
            program: Some(host.session()),
            ..Road::default()
        };
        let addons = place.path().join("addons.sock");
        let address = format!("unix://{}", addons.display());
        let launch = served.launch_over(&place, &served.allowing_changes(), &by);
        let launch = launch.set("--csi-addons-address", &address);
        if !served.is_remote() {
            host.install_globally();
        }
        let node = Node::start_with(launch).await;
        let fill = |id: &str| write(served, id, &content::bytes(1, LENGTH));
        let scene = Scene::set(node.server.client(), addons, served, fill).await;
        Self {
            served,
            host,
            scene,
            node,
            before: state(),
            _place: place,
        }
    }

    async fn undisturbed(&self, operation: Operation) -> Undisturbed {
        self.scene.prepare(operation).await;
        self.host.count();
        let outcome = self.scene.act(operation).await;
        outcome.unwrap_or_else(|status| panic!("{operation:?}, undisturbed: {status:?}"));
        let steps = self.host.steps();
        let end = state();
        self.has_its_content(operation, "undisturbed");
        self.take_back(operation, "undisturbed").await;
        Undisturbed { steps, end }
    }

    async fn stopped(
        &mut self,
        operation: Operation,
        at: &Step,
        stop: Stop,
        undisturbed: &Undisturbed,
    ) {
        let Step { number, words } = at;
        let what = format!("{operation:?}, {stop:?} {number} `{words}`");
        if !self
            .is_stopped(operation, at, stop, undisturbed, &what)
            .await
        {
            // What was left of the last time, as an empty adapter of LIO, spared it a command.
            self.undisturbed(operation).await;
            let stopped = self
                .is_stopped(operation, at, stop, undisturbed, &what)
                .await;
            assert!(stopped, "{what}: it was not called");
        }
    }

    async fn is_stopped(
        &mut self,
        operation: Operation,
        at: &Step,
        stop: Stop,
        undisturbed: &Undisturbed,
        what: &str,
    ) -> bool {
        self.scene.prepare(operation).await;
        let server = self.node.server.process();
        self.host.stop_at(at.number, stop, server);
        let outcome = self.scene.act(operation).await;
        if !self.host.has_stopped() {
            self.host.count();
            self.take_back(operation, what).await;
            return false;
        }
        if stop == Stop::Killed {
            let status = self.node.server.gone().await;
            assert!(crate::server::was_killed(status), "{what}: {status}");
            self.node.start_again().await;
            self.scene.with(self.node.server.client());
        } else {
            self.is_no_false_end(outcome, undisturbed, what).await;
        }
        self.scene.insist(operation).await;
        self.host.orphan_is_over().await;
        same(&undisturbed.end, what);
        self.has_its_content(operation, what);
        self.take_back(operation, what).await;
        true
    }

    /// A call whose connection was cut has succeeded only if all is done.
    async fn is_no_false_end(
        &self,
        outcome: Result<(), Status>,
        undisturbed: &Undisturbed,
        what: &str,
    ) {
        match outcome {
            Ok(()) => {
                self.host.orphan_is_over().await;
                same(&undisturbed.end, &format!("{what}: the call succeeded"));
            }
            Err(status) => assert!(UNSEEN.contains(&status.code()), "{what}: {status:?}"),
        }
    }

    async fn take_back(&self, operation: Operation, what: &str) {
        self.scene.take_back(operation).await;
        same(&self.before, &format!("{what}: taken back"));
    }

    fn has_its_content(&self, operation: Operation, what: &str) {
        if operation.copies() {
            let found = read(self.served, &self.scene.id(OBJECT));
            content::same(&content::bytes(1, LENGTH), &found, what);
        }
    }

    async fn end(self) {
        self.scene.clear().await;
        self.node.end().await;
    }
}

fn same(expected: &[String], what: &str) {
    let difference = difference(expected, &state());
    assert!(difference.is_empty(), "{what}: {difference:#?}");
}

fn zvol(id: &str) -> Zvol {
    let name = format!("{ROOT}/v/{id}");
    Zvol { name }
}

/// On the storage side: no node is needed to see whether a copy is whole.
fn write(served: Served, id: &str, bytes: &[u8]) {
    if served.is_device() {
        zvol(id).put(0, bytes);
    } else {
        let path = format!("/{ROOT}/v/{id}/content");
        fs::write(path, bytes).expect("it is mounted on the storage host");
    }
}

fn read(served: Served, id: &str) -> Vec<u8> {
    if served.is_device() {
        zvol(id).raw(0, LENGTH)
    } else {
        let path = format!("/{ROOT}/v/{id}/content");
        fs::read(Path::new(&path)).expect("it is mounted on the storage host")
    }
}
