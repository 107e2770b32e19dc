//! Attaching and detaching in a tree that a fake target changes as the kernel would.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use exec::testing::{OneByOne, RunOne};
use exec::{Command, Output, RunError, Status};
use tokio::time::Instant;

use crate::device::{Attached, BlockDevice};
use crate::kernel::Kernel;
use crate::kernel::testing::Tree;
use crate::nvme::{NvmeFacts, attach, detach, rescan};
use crate::tools::Tools;
use csi_types::attachment::{DeviceId, Listed, Nvmeof};
use csi_types::error::{Error, Kind};

const VOLUME: &str = "/devices/virtual/nvme-subsystem/nvme-subsys0";

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

fn named(kernel: &Kernel, name: &str) -> BlockDevice {
    let found = BlockDevice::by_name(kernel, name);
    found.expect("look").expect("device")
}

/// A target, and the kernel between it and us: it answers `nvme connect` by making what the kernel
/// would make, and takes away what is written to be deleted.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) tree: Tree,
    /// Its own, because turns are taken by name and tests run beside each other.
    pub(super) nqn: String,
    dead: Mutex<BTreeSet<String>>,
    commands: Mutex<Vec<String>>,
    /// Whether the namespace shows itself without being asked for.
    forthcoming: bool,
}

impl Target {
    pub(super) fn new(forthcoming: bool) -> Arc<Self> {
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
        NvmeFacts::parse(&format!("nvme {nsid} {}", self.nqn)).expect("facts")
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

    pub(super) fn commands(&self) -> Vec<String> {
        std::mem::take(&mut *self.commands.lock().expect("lock"))
    }

    pub(super) fn controllers(&self) -> Vec<String> {
        crate::kernel::list(&self.kernel().sys("class/nvme")).expect("list")
    }

    pub(super) fn controller(&self, name: &str, address: &str, host: (&str, &str), state: &str) {
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

    /// Namespace 1 and, of another volume, namespace 2.
    pub(super) fn namespaces(&self) {
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
                .file(&format!("sys{at}/queue/max_sectors_kb"), "8192\n")
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
impl RunOne for Target {
    async fn run_one(&self, command: &Command) -> Result<Output, RunError> {
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
        // The kernel needs time, also to detect that there is no answer.
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

/// `nvme` is the target itself; nothing is to be asked of the host.
pub(super) fn tools(target: &Arc<Target>) -> Tools {
    Tools::all_through(Arc::new(OneByOne(Arc::clone(target))))
}

async fn attach_by(target: &Arc<Target>, hosts: &[&str]) -> Result<Attached, Error> {
    let ways = hosts.iter().map(|host| format!("tcp://{host}:4440"));
    attach_with(target, &tools(target), &ways.collect::<Vec<_>>()).await
}

pub(super) async fn attach_with(
    target: &Arc<Target>,
    tools: &Tools,
    ways: &[String],
) -> Result<Attached, Error> {
    let facts = target.facts(1);
    let ways = ways.iter().map(String::as_str);
    let volume = Nvmeof {
        nqn: facts.nqn().clone(),
        nsid: facts.nsid(),
        transports: Listed::transports("", ways).expect("transports"),
        device_id: Some(DeviceId::parse("uuid.1").expect("id")),
        is_fenced: false,
    };
    let attached = beside(target, attach(tools, &target.kernel(), &volume, soon())).await;
    attached.map(|(attached, _)| attached)
}

async fn detach_from(target: &Arc<Target>, nsid: u32) -> Result<(), Error> {
    let tools = tools(target);
    beside(
        target,
        detach(&tools, &target.kernel(), &target.facts(nsid), soon()),
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
async fn a_name_that_no_longer_resolves_does_not_matter_while_the_volume_is_connected() {
    let target = Target::new(true);
    let error = attach_by(&target, &["nas.invalid"]).await;
    let error = error.expect_err("no such host");
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    attach_by(&target, &["10.0.0.1"]).await.expect("attached");
    target.commands();
    let attached = attach_by(&target, &["nas.invalid"])
        .await
        .expect("attached");
    assert_eq!(attached.device.name(), "nvme0n2");
    assert!(target.commands().is_empty());
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
async fn the_size_of_requests_is_limited_and_a_kernel_that_refuses_fails_nothing() {
    let target = Target::new(true);
    attach_by(&target, &["10.0.0.1"]).await.expect("attached");
    let limit = "sys/class/block/nvme0n2/queue/max_sectors_kb";
    assert_eq!(target.tree.read(limit), "1024\n");
    // A number of the kernel that cannot be changed.
    let fixed = "/proc/sys/kernel/ngroups_max";
    target.tree.remove(limit).link(limit, fixed);
    attach_by(&target, &["10.0.0.1"])
        .await
        .expect("attached all the same");
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
    let tools = tools(&target);
    let error = detach(&tools, &target.kernel(), &target.facts(1), soon())
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
    let tools = tools(&target);
    let size = rescan(&tools, &kernel, &device, None, soon())
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
        rescan(&tools, &kernel, &device, Some(2 << 20), soon()),
        grows
    );
    assert_eq!(size.expect("grown"), 2 << 20);
    // More than there is: the result is the real size.
    let size = rescan(&tools, &kernel, &device, Some(3 << 20), soon())
        .await
        .expect("asked");
    assert_eq!(size, 2 << 20);
}
