//! The program is killed at any moment of any call, and the orchestrator's replay brings the volume
//! to where it wanted it: there, or away without a trace.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::Status;

use super::calls::{Node, until_done};
use super::content::{self, Rng};
use super::fixture::{Access, ExportKind, Fixture};
use super::given;
use super::leftovers::Leftovers;
use super::life::{LENGTH, read, step, stored, write};

/// The cycles of one volume. A new volume then starts, so that kills meet blank devices as well.
const A_VOLUME: u64 = 8;

/// The calls of a cycle, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Stage,
    Publish,
    Unpublish,
    Unstage,
}

const CALLS: [Call; 4] = [Call::Stage, Call::Publish, Call::Unpublish, Call::Unstage];

/// One volume through its cycles.
struct Cycles {
    node: Node,
    fixture: Fixture,
    pod: PathBuf,
    /// The time that each call took without a kill.
    takes: [Duration; 4],
    rng: Rng,
}

/// Cycles of stage, publish, write, read, unpublish and unstage. In each of them one call, in turn,
/// is killed at a random moment; what follows is what the orchestrator would do.
///
/// # Panics
/// If a replay does not succeed, a byte is lost or something is left behind.
pub async fn cycles(export_kind: ExportKind, access: Access, count: u64) {
    let seed = given::seed();
    step(&format!("seed {seed}"));
    let mut rng = Rng::new(seed);
    let (mut done, mut takes) = (0, learn(export_kind, access).await);
    while done < count {
        let fixture = export_kind.fixture(&format!("crash-{done}"), access);
        let before = Leftovers::read();
        let node = Node::start().await;
        let mut cycles = Cycles {
            pod: node.pod("crash"),
            node,
            fixture,
            takes,
            rng,
        };
        let these = A_VOLUME.min(count - done);
        for cycle in 0..these {
            cycles.one(cycle).await;
            let what = format!("cycle {} of {count}", done + cycle + 1);
            Leftovers::back_to(&before, &what).await;
        }
        cycles.node.end().await;
        cycles.fixture.remove();
        let last = content::bytes(these, LENGTH);
        content::same(&last, &stored(&cycles.fixture), "the storage side");
        (rng, takes) = (cycles.rng, cycles.takes);
        done += these;
        step(&format!("{done} of {count} cycles"));
    }
}

/// What the calls take undisturbed, with a volume that is made for it.
async fn learn(export_kind: ExportKind, access: Access) -> [Duration; 4] {
    let fixture = export_kind.fixture("crash-not", access);
    let node = Node::start().await;
    let mut undisturbed = Cycles {
        pod: node.pod("crash"),
        node,
        fixture,
        takes: [Duration::ZERO; 4],
        rng: Rng::new(0),
    };
    for call in CALLS {
        undisturbed.call(call).await;
    }
    undisturbed.node.end().await;
    step(&format!("undisturbed calls take {:?}", undisturbed.takes));
    undisturbed.takes
}

// === impl Cycles ===

impl Cycles {
    async fn one(&mut self, cycle: u64) {
        // The first call makes the filesystem of a new volume, so it is the first to be killed.
        let killed = CALLS[usize::try_from(cycle % 4).unwrap_or_default()];
        for call in CALLS {
            if call == Call::Unpublish {
                if cycle > 0 {
                    let found = read(&self.fixture, &self.pod);
                    content::same(&content::bytes(cycle, LENGTH), &found, "of before");
                }
                write(&self.fixture, &self.pod, &content::bytes(cycle + 1, LENGTH));
            }
            if call == killed {
                self.kill_in(call).await;
                // Sometimes the orchestrator no longer wants it, and wants it again afterwards.
                if call == Call::Stage && self.rng.below(3) == 0 {
                    until_done("unstage", || self.node.unstage(&self.fixture)).await;
                }
            }
            self.call(call).await;
        }
    }

    /// Makes a call until it succeeds, as an orchestrator does.
    async fn call(&mut self, call: Call) {
        let began = Instant::now();
        until_done(&format!("{call:?}"), || self.make(call)).await;
        self.takes[call as usize] = began.elapsed();
    }

    /// Makes a call, kills the program during it, and starts it again.
    async fn kill_in(&mut self, call: Call) {
        let takes = self.takes[call as usize].max(Duration::from_millis(20));
        // A little longer than it takes, so that the moment after the answer is met as well.
        let permille = u32::try_from(self.rng.below(1100)).unwrap_or_default();
        let moment = takes * permille / 1000;
        // Nothing outside shows how far the program is: the moment itself is what is tested.
        tokio::select! {
            _ = self.make(call) => {}
            () = sleep(moment) => {}
        }
        step(&format!("killed in {call:?} after {moment:?}"));
        self.node.crash().await;
    }

    async fn make(&self, call: Call) -> Result<(), Status> {
        match call {
            Call::Stage => self.node.stage(&self.fixture).await,
            Call::Publish => self.node.publish(&self.fixture, &self.pod).await,
            Call::Unpublish => self.node.unpublish(&self.fixture, &self.pod).await,
            Call::Unstage => self.node.unstage(&self.fixture).await,
        }
    }
}
