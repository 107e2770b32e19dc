//! A node is lost while it writes, and its volume moves to another one: nothing that it writes later is stored.
//!
//! The machine `node` is the first node, and stands still for a while: its programs know nothing of that time. The
//! machine `storage` is storage host, controller and second node. The calls are those of Kubernetes after
//! `node.kubernetes.io/out-of-service`: the volume is unpublished from a node that has unstaged nothing.

pub mod late;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::calls::{Node, until_done};
use super::faults::writer::{BLOCK, block};
use super::fixture::Fixture;
use super::leftovers::Leftovers;
use super::life::step;
use super::outside::{self, Demand, Machine};
use super::pair::class::{self, Class, FIRST, SECOND};
use super::pair::{Far, digest};
use super::served;
use crate::wait::until;
use late::{Notes, PLACES};

/// The second node writes so soon after the volume is unpublished from the first.
const SOON: Duration = Duration::from_secs(15);
/// The seconds that the first node's kernel may try to reach what it has lost: `ctrl-loss-tmo`, 2700, and some.
const GIVEN_UP: &str = "3000";
/// The blocks that the first node's writer was seen to note before the node stands still: all places, and some again.
const BEFORE: u64 = PLACES + 50;
const FILE: &str = "blocks";
/// The notes of the late writer, on its own disk.
const NOTES: &str = "/var/lib/lab/late";
/// The seed of the second node's blocks.
const SEED: u64 = 32;

/// The nodes, and the volume that moves.
struct Move {
    controller: Node,
    first: Node,
    second: Node,
    machine: Far,
    fixture: Fixture,
}

/// The volume of a node that stands still moves; the node goes on, and gets it back later.
///
/// # Panics
/// If a late write is stored, the second node waits too long, or the first does not come back by itself.
pub(super) async fn its_volume_moves(class: Class) {
    let machine = Far::reached();
    class::prepare(&machine);
    class::name_nodes(&machine);
    let before = (Leftovers::read(), served::storage(), machine.state());
    let controller = Node::start_with(class.launch("controller", SECOND)).await;
    let fixture = class.made(&controller, "moved").await;
    let moved = Move {
        controller,
        first: Node::start_far(class.launch("node", FIRST), machine.clone()).await,
        second: Node::start_with(class.launch("node", SECOND)).await,
        machine,
        fixture,
    };
    let pod = moved.used(&moved.first, FIRST).await;
    moved.writes_on(&pod.join(FILE));

    step("the first node stands still");
    outside::ask(Demand::Pause(Machine::Node)).await;
    let (file, last, took) = moved.to_the_second().await;
    let took = took.as_secs_f64();
    outside::note(&format!(
        "the second node wrote {took:.1} s after the unpublish"
    ));
    assert!(took <= SOON.as_secs_f64(), "only after {took:.1} s");

    step("the first node goes on");
    outside::ask(Demand::Resume(Machine::Node)).await;
    moved.nothing_late_is_stored(last);

    step("it gives up what it had, as kubelet does");
    moved.first.take_away(&moved.fixture, &[&pod]).await;
    // What this node remembers is no proof.
    fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
    let found = fs::read(&file).expect("the second node reads");
    assert!(found == own_blocks(), "the second node's blocks");
    let theirs = digest(&file);

    step("the volume comes back to it");
    let second_pod = moved.second.pod("pod");
    moved.leaves(&moved.second, SECOND, &second_pod).await;
    let pod = moved.used(&moved.first, FIRST).await;
    assert_eq!(moved.machine.digest(&pod.join(FILE)), theirs, "after all");
    moved.machine.write(&pod.join("again"), b"without a human");
    moved.leaves(&moved.first, FIRST, &pod).await;

    let Move {
        controller,
        second,
        machine,
        fixture,
        ..
    } = moved;
    controller.deleted(&fixture).await;
    Leftovers::back_to(&before.0, "the node here").await;
    assert_eq!(served::storage(), before.1, "the storage is as before");
    until("the other machine to be as before", || {
        (machine.state() == before.2).then_some(())
    })
    .await;
    controller.end().await;
    second.end().await;
}

// === impl Move ===

impl Move {
    /// Lets a node in, stages and publishes there, as often as an orchestrator would try.
    async fn used(&self, node: &Node, id: &str) -> PathBuf {
        let pod = node.pod("pod");
        until_done("attach", || self.controller.attach(&self.fixture, id)).await;
        until_done("stage", || node.stage(&self.fixture)).await;
        until_done("publish", || node.publish(&self.fixture, &pod)).await;
        pod
    }

    async fn leaves(&self, node: &Node, id: &str, pod: &Path) {
        node.take_away(&self.fixture, &[pod]).await;
        until_done("detach", || self.controller.detach(&self.fixture, id)).await;
    }

    /// Starts the late writer, and waits until it has overwritten blocks of its own.
    fn writes_on(&self, file: &Path) {
        step("the first node writes");
        let this = std::env::current_exe().expect("this binary");
        self.machine.run(&[
            "systemd-run",
            "--quiet",
            "--collect",
            "--unit=late",
            &this.display().to_string(),
            late::COMMAND,
            &file.display().to_string(),
            NOTES,
        ]);
        self.until_there("600", &format!("[ $(wc -l <{NOTES}) -ge {BEFORE} ]"));
    }

    /// Waits there for a condition of the shell, at most so many seconds.
    fn until_there(&self, seconds: &str, condition: &str) {
        let script = format!("timeout {seconds} sh -c 'until {condition}; do sleep 1; done'");
        self.machine.run(&[&script]);
    }

    /// Takes the volume from the first node without its help, and writes on the second. The file, the last block of
    /// the first in it, and the time from the first call to the first write.
    async fn to_the_second(&self) -> (PathBuf, u64, Duration) {
        step("its volume moves");
        let began = Instant::now();
        until_done("detach", || self.controller.detach(&self.fixture, FIRST)).await;
        let file = self.used(&self.second, SECOND).await.join(FILE);
        let last = late::last_of(&fs::read(&file).expect("the second node reads"));
        let own = OpenOptions::new().write(true).open(&file);
        let own = own.expect("the second node opens it");
        put(&own, 1);
        let took = began.elapsed();
        for number in 2..=PLACES {
            put(&own, number);
        }
        (file, last, took)
    }

    /// Waits until the late writer has ended by its errors.
    fn nothing_late_is_stored(&self, last: u64) {
        let began = Instant::now();
        self.until_there(GIVEN_UP, &format!("tail -n 1 {NOTES} | grep -qx end"));
        let notes = Notes::read(&self.machine.run(&["cat", NOTES]));
        outside::note(&format!(
            "{} late writes failed within {} s",
            notes.failed,
            began.elapsed().as_secs()
        ));
        assert!(
            notes.last >= BEFORE,
            "writes failed before the node stood still: {notes:?}"
        );
        // One was perhaps stored, and the answer lost.
        let acknowledged = notes.last..=notes.last + 1;
        assert!(
            acknowledged.contains(&last),
            "{notes:?}, and the second node found {last}"
        );
    }
}

fn put(file: &File, number: u64) {
    let place = (number - 1) * BLOCK as u64;
    let written = file.write_all_at(&block(SEED, number), place);
    written.expect("the second node writes");
    file.sync_all().expect("it reaches the storage");
}

/// The whole file, as the second node wrote it.
fn own_blocks() -> Vec<u8> {
    (1..=PLACES)
        .flat_map(|number| block(SEED, number))
        .collect()
}
