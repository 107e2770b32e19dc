//! A virtual machine moves between two nodes while it writes to its disk: a device that both nodes have at once.
//!
//! The machine `storage` is storage host, controller and one node, the machine `node` is the other. The calls are those
//! of Kubernetes while a virtual machine is migrated: the volume is published to the node to which it moves, and taken
//! away from the other one when its QEMU has ended. No block may be lost or come twice: `guest.S` says what they are.

mod guest;
mod qemu;

use std::fs;
use std::path::{Path, PathBuf};

use super::calls::Node;
use super::command::run;
use super::fixture::Fixture;
use super::given;
use super::kernel::Since;
use super::leftovers::Leftovers;
use super::life::step;
use super::outside::{self, Demand, Machine};
use super::pair::class::{self, Class, FIRST, ROOT, SECOND};
use super::pair::{Far, NODE, STORAGE};
use super::served;
use super::storage::zfs::Zvol;
use crate::wait::until;
use qemu::Qemu;

/// The number of moves, if none is given.
const ROUNDS: u64 = 4;
/// The numbers that the guest prints before each move, and at the end.
const NUMBERS: usize = 100;

/// The number of moves.
pub fn rounds() -> u64 {
    given::rounds().unwrap_or(ROUNDS)
}

/// A machine on which the guest may run.
struct Host {
    address: &'static str,
    id: &'static str,
    node: Node,
    /// The machine, if it is not this one.
    far: Option<Far>,
}

/// The volume, and the controller that lets nodes in.
struct Disk {
    controller: Node,
    fixture: Fixture,
    /// The state of both machines when no node uses it.
    idle: (Leftovers, String),
}

/// Nothing that the guest said to be stored is lost, and a node that it left keeps nothing.
///
/// # Panics
/// If one of that is not so.
pub(super) async fn a_guest_goes_on(class: Class) {
    let far = Far::reached();
    for machine in [Machine::Storage, Machine::Node] {
        outside::ask(Demand::Emulator(machine)).await;
    }
    class::prepare(&far);
    class::name_nodes(&far);
    let before = (Leftovers::read(), served::storage(), far.state());
    let since = Since::now("a guest that moves");
    far.run(&["echo", since.mark(), ">/dev/kmsg"]);
    let controller = Node::start_with(class.launch("controller", SECOND)).await;
    let fixture = class.made(&controller, "guest").await;
    let disk = Disk {
        idle: (Leftovers::read(), far.state()),
        controller,
        fixture,
    };
    let first = Host {
        address: NODE,
        id: FIRST,
        node: Node::start_far(class.launch("node", FIRST), far.clone()).await,
        far: Some(far.clone()),
    };
    let second = Host {
        address: STORAGE,
        id: SECOND,
        node: Node::start_with(class.launch("node", SECOND)).await,
        far: None,
    };
    let image = guest::image();
    let printed = disk.guest_moves(&first, &second, &image).await;

    step("look at the storage side");
    disk.has_all(&printed, &image);
    assert!(since.losses().is_empty(), "{:#?}", since.losses());
    let losses = since.losses_in(&far.run(&["dmesg"]));
    assert!(losses.is_empty(), "{}: {losses:#?}", far.name());
    disk.controller.deleted(&disk.fixture).await;
    Leftovers::back_to(&before.0, "the node here").await;
    assert_eq!(served::storage(), before.1, "the storage is as before");
    until("the other machine to be as before", || {
        (far.state() == before.2).then_some(())
    })
    .await;
    disk.controller.end().await;
    second.node.end().await;
}

// === impl Disk ===

impl Disk {
    /// Starts the guest on the first machine, and moves it to and fro; what it printed.
    async fn guest_moves(&self, first: &Host, second: &Host, image: &[u8]) -> String {
        step("the guest starts");
        let (mut from, mut to) = (first, second);
        let mut path = self.enters(from).await;
        let far = first.far.as_ref().expect("the first is the other machine");
        far.write(&path, image);
        let mut qemu = Qemu::start(from, &path).await;
        let mut printed = String::new();
        let mut longest = 0;
        for round in 1..=rounds() {
            step(&format!("move {round}, to the {} node", to.id));
            let next_path = self.enters(to).await;
            let mut next = Qemu::wait(to, &next_path).await;
            qemu.prints(NUMBERS).await;
            longest = longest.max(qemu.moves_to(&mut next).await);
            printed.push_str(&qemu.end().await);
            self.leaves(from, &path).await;
            (qemu, path) = (next, next_path);
            (from, to) = (to, from);
        }
        qemu.prints(NUMBERS).await;
        printed.push_str(&qemu.end().await);
        self.leaves(from, &path).await;
        outside::note(&format!("the guest stood still for {longest} ms at most"));
        printed
    }

    /// The path of the disk on a machine.
    async fn enters(&self, host: &Host) -> PathBuf {
        let path = host.node.pod("guest");
        let attached = self.controller.attach(&self.fixture, host.id).await;
        attached.expect("the node is let in");
        let staged = host.node.stage(&self.fixture).await;
        staged.expect("staged");
        let published = host.node.publish(&self.fixture, &path).await;
        published.expect("published");
        path
    }

    /// Takes it away from a machine, which keeps nothing of it.
    async fn leaves(&self, host: &Host, path: &Path) {
        // A device that was open for writing is read by udev once more, which fails if the session ends amid it.
        host.run(&["udevadm", "settle", "--timeout=60"]);
        host.node.take_away(&self.fixture, &[path]).await;
        let detached = self.controller.detach(&self.fixture, host.id).await;
        detached.expect("no node uses it there");
        let Some(far) = &host.far else {
            return Leftovers::back_to(&self.idle.0, "the node here").await;
        };
        until("the other machine to keep nothing", || {
            (far.state() == self.idle.1).then_some(())
        })
        .await;
    }

    /// Compares the stored bytes with what the guest printed.
    fn has_all(&self, printed: &str, image: &[u8]) {
        let last = guest::last_of(printed);
        outside::note(&format!("{last} numbers in {} moves", rounds()));
        // What this machine remembers is no proof.
        fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
        let zvol = Zvol {
            name: format!("{ROOT}/v/{}", self.fixture.volume.volume_id),
        };
        guest::verify(&zvol.raw(0, guest::length(last)), image, last);
    }
}

// === impl Host ===

impl Host {
    /// Runs a command there.
    fn run(&self, words: &[&str]) -> String {
        match &self.far {
            Some(far) => far.run(words),
            None => run(words),
        }
    }
}
