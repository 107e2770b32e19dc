//! Reading trees that were captured from Linux 6.12, and attaching and detaching in one that a
//! fake target changes as the kernel would.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use exec::testing::Scripted;
use exec::{Command, Output, RunError, Runner, Status};
use tokio::time::Instant;

use super::controller::{Controller, State};
use super::namespace::Namespace;
use super::*;
use crate::device::BlockDevice;
use crate::error::Kind;
use crate::kernel::Kernel;
use crate::kernel::testing::Tree;

/// One subsystem with two namespaces by two routes, captured with native multipath.
const NATIVE: &str = include_str!("captured/native.listing");
/// The same without native multipath, and with the maps of multipathd 0.11.1.
const SEPARATE: &str = include_str!("captured/separate.listing");

const NQN: &str = "nqn.2026-11.lab:dev-a";
const VOLUME: &str = "/devices/virtual/nvme-subsystem/nvme-subsys0";

fn facts(nsid: u32) -> NvmeFacts {
    NvmeFacts::new(NQN, nsid).expect("facts")
}

fn route(host: &str) -> Route {
    Route::new(Fabric::Tcp, host, Some("4440"), Vec::new()).expect("route")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

fn named(kernel: &Kernel, name: &str) -> BlockDevice {
    let found = BlockDevice::by_name(kernel, name);
    found.expect("look").expect("device")
}

// --- what is captured ---

#[test]
fn the_number_of_a_namespace_is_not_that_in_its_disks_name() {
    let tree = Tree::from_listing(NATIVE);
    let disks = Namespace::of(&tree.kernel(), NQN).expect("look");
    let seen: Vec<_> = disks
        .iter()
        .map(|disk| (disk.nsid, disk.device.name(), disk.is_joined))
        .collect();
    assert_eq!(seen, [(1, "nvme0n2", true), (2, "nvme0n1", true)]);
    let none = Namespace::of(&tree.kernel(), "nqn.2026-11.lab:dev-b");
    assert!(none.expect("look").is_empty());
}

#[test]
fn without_native_multipath_each_connection_has_its_own_disk() {
    let tree = Tree::from_listing(SEPARATE);
    let disks = Namespace::of(&tree.kernel(), NQN).expect("look");
    let seen: Vec<_> = disks
        .iter()
        .map(|disk| (disk.nsid, disk.device.name(), disk.is_joined))
        .collect();
    assert_eq!(
        seen,
        [
            (1, "nvme2n3", false),
            (1, "nvme3n3", false),
            (2, "nvme2n4", false),
            (2, "nvme3n4", false)
        ]
    );
}

#[test]
fn a_disk_a_path_and_a_map_tell_which_volume_they_show() {
    let native = Tree::from_listing(NATIVE);
    let separate = Tree::from_listing(SEPARATE);
    for (tree, name, nsid) in [
        (&native, "nvme0n1", 2),
        (&native, "nvme0n2", 1),
        (&separate, "nvme3n4", 2),
        (&separate, "dm-1", 1),
    ] {
        let kernel = tree.kernel();
        let device = named(&kernel, name);
        let found = facts_of(&kernel, &device).expect("look");
        assert_eq!(found, Some(facts(nsid)), "{name}");
        let identity = device.wwid(&kernel).expect("look").expect("identity");
        assert!(identity.is(&format!("uuid.0000000{nsid}-1111-2222-3333-444444444444")));
    }
}

#[test]
fn a_local_disk_is_never_a_volume_and_its_controller_never_ours() {
    let tree = Tree::from_listing(NATIVE);
    for controller in ["nvme0", "nvme1"] {
        tree.file(&format!("sys/class/nvme/{controller}/transport"), "pcie\n");
    }
    let kernel = tree.kernel();
    assert_eq!(
        facts_of(&kernel, &named(&kernel, "nvme0n1")).expect("look"),
        None
    );
    assert!(Controller::of(&kernel, NQN).expect("look").is_empty());
}

#[test]
fn a_captured_connection_goes_its_route_and_no_other() {
    let tree = Tree::from_listing(NATIVE);
    let controllers = Controller::of(&tree.kernel(), NQN).expect("look");
    assert_eq!(controllers.len(), 2);
    let goes = |route: &Route, address: &str| -> Vec<&str> {
        let addresses = [address.to_owned()];
        let going = controllers.iter().filter(|one| one.goes(route, &addresses));
        going.map(|one| one.name.as_str()).collect()
    };
    assert_eq!(goes(&route("10.77.0.1"), "10.77.0.1"), ["nvme0"]);
    assert_eq!(goes(&route("nas.lab"), "10.0.2.15"), ["nvme1"]);
    assert!(goes(&route("10.77.0.2"), "10.77.0.2").is_empty());
    let port = Route::new(Fabric::Tcp, "10.77.0.1", None, Vec::new()).expect("route");
    assert!(goes(&port, "10.77.0.1").is_empty());
    let rdma = Route::new(Fabric::Rdma, "10.77.0.1", Some("4440"), Vec::new()).expect("route");
    assert!(goes(&rdma, "10.77.0.1").is_empty());
    let leaving = vec![("host-iface".to_owned(), "eth1".to_owned())];
    let leaving = Route::new(Fabric::Tcp, "10.77.0.1", Some("4440"), leaving).expect("route");
    assert!(goes(&leaving, "10.77.0.1").is_empty());
}

#[test]
fn each_state_of_a_connection_is_understood() {
    // The words are those of `nvme_sysfs_show_state` in the kernel's sources.
    for (text, state) in [
        ("live", State::Live),
        ("new", State::Coming),
        ("resetting", State::Coming),
        ("connecting", State::Coming),
        ("deleting", State::Going),
        ("deleting (no IO)", State::Going),
        ("dead", State::Going),
        ("unknown state", State::Coming),
    ] {
        let tree = Tree::from_listing(NATIVE);
        tree.file("sys/class/nvme/nvme0/state", &format!("{text}\n"));
        let controllers = Controller::of(&tree.kernel(), NQN).expect("look");
        assert_eq!(controllers[0].state, state, "{text}");
    }
}

#[test]
fn the_text_of_facts_is_read_back_and_other_text_is_refused() {
    let text = facts(7).to_string();
    assert_eq!(text, "nvme 7 nqn.2026-11.lab:dev-a");
    assert_eq!(NvmeFacts::parse(&text), Some(facts(7)));
    for bad in [
        "nvme 0 nqn.x",
        "nvme 4294967295 nqn.x",
        "nvme 1 x",
        "nvme 1 nqn.a,b",
        "nvme 1 nqn.a b",
        "nvme x nqn.a",
        "nvme 1",
        "iscsi 1 nqn.a",
        "",
    ] {
        assert_eq!(NvmeFacts::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_route_cannot_lead_elsewhere_by_its_options() {
    let with = |key: &str, value: &str| {
        let options = vec![(key.to_owned(), value.to_owned())];
        Route::new(Fabric::Tcp, "10.0.0.1", None, options)
    };
    for (key, value) in [
        ("ctrl-loss-tmo", "-1"),
        ("-l", "5"),
        ("--tls", ""),
        ("tls_key", "x"),
    ] {
        assert!(with(key, value).is_ok(), "{key}");
    }
    for (key, value) in [
        ("traddr", "x"),
        ("-a", "x"),
        ("--nqn", "x"),
        ("", "x"),
        ("a b", "x"),
        ("---x", "x"),
        ("hostid", "--nqn"),
        ("hostid", "a\nb"),
    ] {
        assert!(with(key, value).is_err(), "{key} {value}");
    }
    for host in ["", "-x", "a b", "a/b", "a,b", "a\n"] {
        assert!(
            Route::new(Fabric::Tcp, host, None, Vec::new()).is_err(),
            "{host:?}"
        );
    }
    for port in ["", "0", "x", "65536", "-1"] {
        assert!(
            Route::new(Fabric::Tcp, "h", Some(port), Vec::new()).is_err(),
            "{port:?}"
        );
    }
}

// --- what is done ---

/// A target, and the kernel between it and us: it answers `nvme connect` by making what the kernel
/// would make, and takes away what is written to be deleted.
#[derive(Debug)]
struct Target {
    tree: Tree,
    /// Its own, because turns are taken by name and tests run beside each other.
    nqn: String,
    dead: Mutex<BTreeSet<String>>,
    commands: Mutex<Vec<String>>,
    /// Whether the namespace shows itself without being asked for.
    forthcoming: bool,
}

impl Target {
    fn new(forthcoming: bool) -> Arc<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let tree = Tree::new();
        tree.file("dev/nvme-fabrics", "")
            .file("etc/machine-id", "e0938eea3e4f460191627613050bea33\n");
        Arc::new(Self {
            tree,
            nqn: format!("nqn.2026-11.test:{}", COUNT.fetch_add(1, Ordering::Relaxed)),
            dead: Mutex::default(),
            commands: Mutex::default(),
            forthcoming,
        })
    }

    fn facts(&self, nsid: u32) -> NvmeFacts {
        NvmeFacts::new(&self.nqn, nsid).expect("facts")
    }

    fn kernel(&self) -> Kernel {
        self.tree.kernel()
    }

    fn kill(&self, address: &str, dead: bool) {
        let mut all = self.dead.lock().expect("lock");
        if dead {
            all.insert(address.to_owned());
        } else {
            all.remove(address);
        }
    }

    fn commands(&self) -> Vec<String> {
        std::mem::take(&mut *self.commands.lock().expect("lock"))
    }

    fn controllers(&self) -> Vec<String> {
        crate::kernel::list(&self.kernel().sys("class/nvme")).expect("list")
    }

    fn controller(&self, name: &str, address: &str, host: (&str, &str), state: &str) {
        let at = format!("sys/devices/virtual/nvme-fabrics/ctl/{name}");
        for (attribute, text) in [
            ("subsysnqn", &*self.nqn),
            ("transport", "tcp"),
            (
                "address",
                &format!("traddr={address},trsvcid=4440,src_addr=10.0.0.9"),
            ),
            ("state", state),
            ("hostnqn", host.0),
            ("hostid", host.1),
            ("rescan_controller", ""),
            ("delete_controller", ""),
        ] {
            self.tree.file(&format!("{at}/{attribute}"), text);
        }
        let class = format!("sys/class/nvme/{name}");
        self.tree.link(
            &class,
            &format!("../../devices/virtual/nvme-fabrics/ctl/{name}"),
        );
    }

    /// Namespace 1 and, as somebody else's, namespace 2.
    fn namespaces(&self) {
        if self.tree.path(&format!("sys{VOLUME}")).exists() {
            return;
        }
        self.tree
            .file(&format!("sys{VOLUME}/subsysnqn"), &self.nqn)
            .link(
                "sys/class/nvme-subsystem/nvme-subsys0",
                &format!("../..{VOLUME}"),
            );
        for (name, nsid) in [("nvme0n2", 1), ("nvme0n1", 2)] {
            let at = format!("{VOLUME}/{name}");
            self.tree
                .file(&format!("sys{at}/dev"), &format!("259:{nsid}\n"))
                .file(&format!("sys{at}/nsid"), &format!("{nsid}\n"))
                .file(&format!("sys{at}/size"), "2048\n")
                .file(&format!("sys{at}/wwid"), &format!("uuid.{nsid}\n"))
                .link(&format!("sys{at}/device"), "../../nvme-subsys0")
                .link(&format!("sys/class/block/{name}"), &format!("../..{at}"))
                .link(&format!("sys/dev/block/259:{nsid}"), &format!("../..{at}"))
                .file(&format!("dev/{name}"), &format!("259:{nsid}\n"));
        }
    }

    /// Does what the kernel does with what was written, until it is dropped.
    async fn serve(self: Arc<Self>) {
        loop {
            let names = self.controllers();
            for name in &names {
                let at = format!("sys/class/nvme/{name}");
                if self.tree.read(&format!("{at}/rescan_controller")) == "1" {
                    self.namespaces();
                }
                if self.tree.read(&format!("{at}/delete_controller")) == "1" {
                    self.tree.remove(&at);
                }
            }
            if self.controllers().is_empty() && !names.is_empty() {
                for gone in [
                    "nvme-subsystem/nvme-subsys0",
                    "block/nvme0n1",
                    "block/nvme0n2",
                ] {
                    let link = format!("sys/class/{gone}");
                    if self.tree.path(&link).is_symlink() {
                        self.tree.remove(&link);
                    }
                }
                if self.tree.path(&format!("sys{VOLUME}")).exists() {
                    self.tree.remove(&format!("sys{VOLUME}"));
                    self.tree
                        .remove("sys/dev/block/259:1")
                        .remove("sys/dev/block/259:2");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[async_trait]
impl Runner for Target {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.commands
            .lock()
            .expect("lock")
            .push(command.to_string());
        let arguments: Vec<_> = command
            .arguments()
            .iter()
            .map(exec::Argument::expose)
            .collect();
        let value = |option: &str| {
            let at = arguments.iter().position(|argument| *argument == option);
            arguments[at.expect("option") + 1].to_owned()
        };
        // The kernel takes its time, also to find out that nobody answers.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let address = value("--traddr");
        let ends = |code, stderr: &str| Output {
            status: Status::Exit(code),
            stdout: Vec::new(),
            stderr: stderr.into(),
        };
        if self.dead.lock().expect("lock").contains(&address) {
            tokio::time::sleep(Duration::from_secs(3)).await;
            // Captured from nvme-cli 2.13.
            return Ok(ends(
                1,
                "could not add new controller: failed to write to nvme-fabrics device\n",
            ));
        }
        let name = format!("nvme{}", self.controllers().len());
        self.controller(
            &name,
            &address,
            (&value("--hostnqn"), &value("--hostid")),
            "live",
        );
        if self.forthcoming {
            self.namespaces();
        }
        Ok(ends(0, ""))
    }
}

/// Runs `work` with the kernel at work beside it.
async fn beside<T>(target: &Arc<Target>, work: impl Future<Output = T>) -> T {
    tokio::select! {
        result = work => result,
        () = Arc::clone(target).serve() => unreachable!("it serves for ever"),
    }
}

async fn attach_by(
    target: &Arc<Target>,
    hosts: &[&str],
) -> Result<crate::device::Attached, crate::error::Error> {
    let wanted = Wanted {
        facts: target.facts(1),
        routes: hosts.iter().map(|host| route(host)).collect(),
        identity: Some("uuid.1".to_owned()),
    };
    let nobody = Scripted::new();
    let reach = Reach {
        here: &**target,
        host: &nobody,
        timeout: Duration::from_secs(30),
    };
    beside(target, attach(reach, &target.kernel(), &wanted, soon())).await
}

async fn detach_from(target: &Arc<Target>, nsid: u32) -> Result<(), crate::error::Error> {
    let nobody = Scripted::new();
    let reach = Reach {
        here: &**target,
        host: &nobody,
        timeout: Duration::from_secs(30),
    };
    beside(
        target,
        detach(reach, &target.kernel(), &target.facts(nsid), soon()),
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn attaching_twice_connects_once_and_detaching_leaves_nothing() {
    let target = Target::new(true);
    let first = attach_by(&target, &["10.0.0.1", "10.0.0.2"])
        .await
        .expect("attached");
    assert_eq!(first.device.name(), "nvme0n2");
    assert_eq!(first.paths, std::slice::from_ref(&first.device));
    assert_eq!(target.commands().len(), 2);
    let second = attach_by(&target, &["10.0.0.1", "10.0.0.2"])
        .await
        .expect("attached");
    assert_eq!(second, first);
    assert!(
        target.commands().is_empty(),
        "no command where nothing is missing"
    );
    detach_from(&target, 1).await.expect("detached");
    assert!(target.controllers().is_empty());
    detach_from(&target, 1).await.expect("gone already");
    assert!(target.commands().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dead_route_costs_seconds_and_is_added_when_it_is_back() {
    let target = Target::new(true);
    target.kill("10.0.0.1", true);
    let began = Instant::now();
    let attached = attach_by(&target, &["10.0.0.1", "10.0.0.2"])
        .await
        .expect("attached");
    assert!(
        began.elapsed() < Duration::from_secs(6),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(attached.device.name(), "nvme0n2");
    assert_eq!(target.controllers(), ["nvme0"]);
    target.kill("10.0.0.1", false);
    target.commands();
    attach_by(&target, &["10.0.0.1", "10.0.0.2"])
        .await
        .expect("attached");
    assert_eq!(target.controllers(), ["nvme0", "nvme1"]);
    let commands = target.commands();
    assert!(
        matches!(&commands[..], [one] if one.contains("--traddr 10.0.0.1 ")),
        "{commands:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn no_route_at_all_is_an_error_with_the_words_of_the_tool() {
    let target = Target::new(true);
    target.kill("10.0.0.1", true);
    let error = attach_by(&target, &["10.0.0.1"]).await.expect_err("dead");
    assert_eq!(error.kind(), Kind::Unreachable);
    let text = error.chain();
    assert!(
        text.contains("failed to write to nvme-fabrics") && text.contains("allow nqn."),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_the_predecessor_is_used_and_joined_under_its_name() {
    let target = Target::new(true);
    let shared = (
        "nqn.2014-08.org.nvmexpress:uuid:941e4f03-2cd6-435e-86df-731b1c573d86",
        "83e7a026-2564-455b-ada6-ddbdaf0bc519",
    );
    target.controller("nvme0", "10.0.0.1", shared, "live");
    target.namespaces();
    attach_by(&target, &["10.0.0.1"]).await.expect("attached");
    assert!(target.commands().is_empty());
    attach_by(&target, &["10.0.0.1", "10.0.0.2"])
        .await
        .expect("attached");
    let commands = target.commands().join("\n");
    assert!(
        commands.contains(&format!("--hostnqn {} --hostid {}", shared.0, shared.1)),
        "{commands}"
    );
    // Once it is gone, the machine connects as itself.
    detach_from(&target, 1).await.expect("detached");
    attach_by(&target, &["10.0.0.1"]).await.expect("attached");
    assert!(!target.commands().join("\n").contains(shared.0));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_does_not_show_itself_is_asked_for() {
    let target = Target::new(false);
    attach_by(&target, &["10.0.0.1"]).await.expect("attached");
    assert_eq!(
        target.tree.read("sys/class/nvme/nvme0/rescan_controller"),
        "1"
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_only_tries_is_not_doubled_and_not_taken_for_one_that_works() {
    let target = Target::new(true);
    target.controller("nvme0", "10.0.0.1", ("nqn.h", "i"), "connecting");
    target.namespaces();
    let error = attach_by(&target, &["10.0.0.1"])
        .await
        .expect_err("cut off");
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(target.commands().is_empty());
    let back = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        target.tree.file("sys/class/nvme/nvme0/state", "live\n");
    };
    let (attached, ()) = tokio::join!(attach_by(&target, &["10.0.0.1"]), back);
    assert_eq!(attached.expect("attached").device.name(), "nvme0n2");
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_its_way_out_is_waited_for_and_not_used() {
    let target = Target::new(true);
    target.controller("nvme0", "10.0.0.1", ("nqn.h", "i"), "deleting");
    let gone = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(target.commands().is_empty());
        target.tree.remove("sys/class/nvme/nvme0");
    };
    let (attached, ()) = tokio::join!(attach_by(&target, &["10.0.0.1"]), gone);
    attached.expect("attached");
    assert_eq!(target.commands().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_volume_in_the_place_of_the_wanted_one_is_an_error() {
    let target = Target::new(true);
    target.controller("nvme0", "10.0.0.1", ("nqn.h", "i"), "live");
    target.namespaces();
    target.tree.file("sys/class/block/nvme0n2/wwid", "uuid.9\n");
    let error = attach_by(&target, &["10.0.0.1"])
        .await
        .expect_err("another");
    assert!(error.chain().contains("uuid.9"), "{}", error.chain());
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_use_is_not_detached_and_another_one_in_use_keeps_the_connection() {
    let target = Target::new(true);
    target.controller("nvme0", "10.0.0.1", ("nqn.h", "i"), "live");
    target.namespaces();
    // Held by a volume group: no need of a real mount.
    target.tree.map("dm-0", "253:0", "LVM-x", &["nvme0n1"]);
    let error = detach_from(&target, 2).await.expect_err("in use");
    assert_eq!(error.kind(), Kind::Busy);
    assert!(
        error.chain().contains("nvme0n1 is held by dm-0"),
        "{}",
        error.chain()
    );
    detach_from(&target, 1).await.expect("left to the other");
    assert_eq!(target.controllers(), ["nvme0"]);
    target.tree.remove("sys/class/block/nvme0n1/holders/dm-0");
    detach_from(&target, 2).await.expect("the last one");
    assert!(target.controllers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_go_is_not_said_to_be_gone() {
    let target = Target::new(true);
    target.controller("nvme0", "10.0.0.1", ("nqn.h", "i"), "live");
    let nobody = Scripted::new();
    let reach = Reach {
        here: &*target,
        host: &nobody,
        timeout: Duration::from_secs(30),
    };
    let error = detach(reach, &target.kernel(), &target.facts(1), soon())
        .await
        .expect_err("it stays");
    assert_eq!(error.kind(), Kind::Timeout);
    assert_eq!(
        target.tree.read("sys/class/nvme/nvme0/delete_controller"),
        "1"
    );
}

#[tokio::test(start_paused = true)]
async fn growth_is_asked_for_and_awaited() {
    let target = Target::new(true);
    target.controller("nvme0", "10.0.0.1", ("nqn.h", "i"), "live");
    target.namespaces();
    let kernel = target.kernel();
    let device = named(&kernel, "nvme0n2");
    let nobody = Scripted::new();
    let reach = Reach {
        here: &*target,
        host: &nobody,
        timeout: Duration::from_secs(30),
    };
    let size = rescan(reach, &kernel, &device, None, soon())
        .await
        .expect("asked");
    assert_eq!(size, 1 << 20);
    assert_eq!(
        target.tree.read("sys/class/nvme/nvme0/rescan_controller"),
        "1"
    );
    let grows = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        target.tree.file("sys/class/block/nvme0n2/size", "4096\n");
    };
    let (size, ()) = tokio::join!(
        rescan(reach, &kernel, &device, Some(2 << 20), soon()),
        grows
    );
    assert_eq!(size.expect("grown"), 2 << 20);
    // More than there is: the caller is told what there is.
    let size = rescan(reach, &kernel, &device, Some(3 << 20), soon())
        .await
        .expect("asked");
    assert_eq!(size, 2 << 20);
}
