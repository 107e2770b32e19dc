//! NVMe over fabrics against the kernel's own target, on the machine this runs on.
//!
//! It makes a subsystem through configfs, connects to it, and leaves nothing behind. It needs root,
//! the module `nvmet-tcp`, and a machine that may be changed: it is run in the lab, by
//! `cargo test -p node-utils --test nvme_in_the_lab -- --ignored --test-threads 1`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_types::attachment::{DeviceId, Listed, Nqn, Nsid, Nvmeof};
use csi_types::{Error, Kind};
use exec::testing::requirement::could_not_run;
use exec::{Command, Local, Observation, Observed, Observer, Program, Runner as _};
use node_utils::Tools;
use node_utils::device::{Attached, Usage};
use node_utils::kernel::Kernel;
use node_utils::mount::MountTable;
use node_utils::nvme::{NvmeFacts, attach, detach, facts_of, host_nqn, rescan};
use tokio::time::Instant;

const NQN: &str = "nqn.2026-11.lab:dev-nvme";
const PORT: u16 = 4447;

/// Two keys by which a node may prove who it is.
const KEYS: [&str; 2] = [
    "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    "DHHC-1:00:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:",
];

/// The identity of democratic-csi, under which its connections live on after an upgrade.
const SHARED: [&str; 2] = [
    "nqn.2014-08.org.nvmexpress:uuid:941e4f03-2cd6-435e-86df-731b1c573d86",
    "83e7a026-2564-455b-ada6-ddbdaf0bc519",
];

/// The target, for as long as it lives.
struct Target {
    files: tempfile::TempDir,
    root: PathBuf,
}

impl Target {
    /// A subsystem with two namespaces, at two addresses.
    fn new() -> Self {
        let target = Self {
            files: tempfile::tempdir_in("/var/tmp").expect("directory"),
            root: PathBuf::from("/sys/kernel/config/nvmet"),
        };
        assert!(target.root.exists(), "the module nvmet-tcp is not loaded");
        target.remove();
        let subsystem = target.subsystem();
        fs::create_dir(&subsystem).expect("subsystem");
        set(&subsystem.join("attr_allow_any_host"), "1");
        for nsid in [1, 2] {
            let file = target.file(nsid);
            let image = fs::File::create(&file).expect("file");
            image.set_len(64 << 20).expect("size");
            let namespace = subsystem.join(format!("namespaces/{nsid}"));
            fs::create_dir(&namespace).expect("namespace");
            set(&namespace.join("device_path"), &file.display().to_string());
            set(&namespace.join("device_uuid"), &uuid(nsid));
            set(&namespace.join("enable"), "1");
        }
        for (id, address) in [(4471, "127.0.0.1"), (4472, "127.0.0.2")] {
            let port = target.root.join(format!("ports/{id}"));
            fs::create_dir(&port).expect("port");
            set(&port.join("addr_trtype"), "tcp");
            set(&port.join("addr_adrfam"), "ipv4");
            set(&port.join("addr_traddr"), address);
            set(&port.join("addr_trsvcid"), &PORT.to_string());
        }
        target.open(true);
        target
    }

    fn subsystem(&self) -> PathBuf {
        self.root.join("subsystems").join(NQN)
    }

    fn file(&self, nsid: u32) -> PathBuf {
        self.files.path().join(format!("dev-{nsid}"))
    }

    /// Offers the subsystem at its ports, or at none as a target that is down.
    fn open(&self, open: bool) {
        for id in [4471, 4472] {
            let link = self.root.join(format!("ports/{id}/subsystems/{NQN}"));
            if open {
                std::os::unix::fs::symlink(self.subsystem(), link).expect("link");
            } else if link.is_symlink() {
                fs::remove_file(link).expect("unlink");
            }
        }
    }

    fn grow(&self, nsid: u32, bytes: u64) {
        let image = fs::OpenOptions::new().write(true).open(self.file(nsid));
        image.expect("file").set_len(bytes).expect("size");
        let namespace = self.subsystem().join(format!("namespaces/{nsid}"));
        set(&namespace.join("revalidate_size"), "1");
    }

    fn remove(&self) {
        let subsystem = self.subsystem();
        if !subsystem.exists() {
            return;
        }
        self.open(false);
        for id in [4471, 4472] {
            let _ = fs::remove_dir(self.root.join(format!("ports/{id}")));
        }
        for nsid in [1, 2] {
            let _ = fs::remove_dir(subsystem.join(format!("namespaces/{nsid}")));
        }
        fs::remove_dir(subsystem).expect("subsystem");
    }
}

/// A target that lets in this machine alone, and asks it for a key.
struct Asking<'a> {
    host: PathBuf,
    target: &'a Target,
}

impl<'a> Asking<'a> {
    /// `None` if the kernel cannot ask.
    fn new(target: &'a Target, key: &str) -> Option<Self> {
        let nqn = host_nqn(&Kernel::here()).expect("a name");
        let asking = Self {
            host: target.root.join("hosts").join(nqn),
            target,
        };
        fs::create_dir_all(&asking.host).expect("host");
        if !asking.host.join("dhchap_key").exists() {
            return None;
        }
        asking.asks_for(key);
        set(&target.subsystem().join("attr_allow_any_host"), "0");
        std::os::unix::fs::symlink(&asking.host, asking.link()).expect("link");
        Some(asking)
    }

    fn asks_for(&self, key: &str) {
        set(&self.host.join("dhchap_key"), key);
    }

    fn link(&self) -> PathBuf {
        let name = self.host.file_name().expect("name");
        self.target.subsystem().join("allowed_hosts").join(name)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.link());
        let _ = fs::remove_dir(&self.host);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Whatever a failed test left connected would try to come back for 11 minutes.
        for controller in controllers() {
            let _ = fs::write(controller.join("delete_controller"), "1");
        }
        self.remove();
    }
}

fn set(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn uuid(nsid: u32) -> String {
    format!("0000000{nsid}-1111-2222-3333-444444444444")
}

/// The connections to the subsystem, as sysfs shows them.
fn controllers() -> Vec<PathBuf> {
    let Ok(all) = fs::read_dir("/sys/class/nvme") else {
        return Vec::new();
    };
    let ours = |path: &PathBuf| {
        fs::read_to_string(path.join("subsysnqn")).is_ok_and(|nqn| nqn.trim() == NQN)
    };
    let mut paths: Vec<PathBuf> = all
        .flatten()
        .map(|entry| entry.path())
        .filter(ours)
        .collect();
    paths.sort();
    paths
}

/// Remembers the commands that ran.
#[derive(Debug, Default)]
struct Commands(Mutex<Vec<String>>);

impl Observer for Commands {
    fn observe(&self, observation: &Observation<'_>) {
        let ran = observation.commands.iter().map(Command::to_string);
        self.0.lock().expect("lock").extend(ran);
    }
}

/// A node: its tools, and what it ran.
struct Node {
    ran: Arc<Commands>,
    tools: Tools,
    kernel: Kernel,
}

impl Node {
    fn new() -> Self {
        let ran = Arc::<Commands>::default();
        let runner = Observed::new(Local::new(), Arc::clone(&ran));
        Self {
            tools: Tools::all_through(Arc::new(runner)),
            ran,
            kernel: Kernel::here(),
        }
    }

    /// A node with this key, which is kept in `folder`.
    fn with_key(folder: &tempfile::TempDir, key: &str) -> Self {
        let (node, file) = (Self::new(), folder.path().join("key"));
        fs::write(&file, key).expect("key");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
        let tools = node.tools.clone().with_nvme_key(Some(file));
        Self { tools, ..node }
    }

    async fn attach(&self, nsid: u32, hosts: &[&str]) -> Result<Attached, Error> {
        let ways: Vec<String> = hosts
            .iter()
            .map(|host| format!("tcp://{host}:{PORT}"))
            .collect();
        let ways = ways.iter().map(String::as_str);
        let volume = Nvmeof {
            nqn: Nqn::parse(NQN).expect("nqn"),
            nsid: Nsid::parse(&nsid.to_string()).expect("nsid"),
            transports: Listed::transports("", ways).expect("transports"),
            device_id: Some(DeviceId::parse(&format!("uuid.{}", uuid(nsid))).expect("id")),
            is_fenced: false,
        };
        let attached = attach(&self.tools, &self.kernel, &volume, soon()).await;
        attached.map(|(attached, _)| attached)
    }

    /// Tries to get in, in vain.
    async fn is_refused(&self) {
        let error = self.attach(1, &["127.0.0.1"]).await.expect_err("refused");
        assert!(!error.chain().contains("DHHC"));
        assert!(controllers().is_empty());
    }

    async fn detach(&self, nsid: u32) -> Result<(), Error> {
        // The kernel waits a minute for a target that has stopped to answer.
        let deadline = Instant::now() + Duration::from_mins(2);
        detach(&self.tools, &self.kernel, &facts(nsid), deadline).await
    }

    /// The commands since the last time.
    fn commands(&self) -> Vec<String> {
        std::mem::take(&mut *self.ran.0.lock().expect("lock"))
    }

    async fn run(&self, program: &'static str, arguments: &[&str]) {
        let command = Command::new(Program::constant(program)).args(arguments.iter().copied());
        let done = Local::new().perform(&command).await;
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Has every packet between us and the target dropped.
    async fn cut(&self) {
        let rules = format!(
            "table inet dev_cut {{ chain c {{ type filter hook output priority 0; \
             tcp dport {PORT} drop; tcp sport {PORT} drop; }}; }}"
        );
        self.run("nft", &[&rules]).await;
    }

    async fn join(&self) {
        self.run("nft", &["delete", "table", "inet", "dev_cut"])
            .await;
    }

    fn usage(&self, attached: &Attached, mounts: &MountTable) -> Option<Usage> {
        attached.device.in_use(&self.kernel, mounts).expect("usage")
    }
}

fn facts(nsid: u32) -> NvmeFacts {
    NvmeFacts::parse(&format!("nvme {nsid} {NQN}")).expect("facts")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(5)
}

#[tokio::test]
#[ignore = "changes the NVMe target of this machine: for the lab"]
async fn a_volume_is_attached_once_found_again_and_detached_without_a_trace() {
    let _target = Target::new();
    let node = Node::new();
    let began = Instant::now();
    // The third does not answer.
    let hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
    let attached = node.attach(1, &hosts).await.expect("attached");
    eprintln!("attached {attached:?} after {:?}", began.elapsed());
    assert_eq!(controllers().len(), 2);
    assert_eq!(node.commands().len(), 3);
    let of = facts_of(&node.kernel, &attached.device).expect("look");
    assert_eq!(of, Some(facts(1)));
    assert_eq!(attached.device.size(&node.kernel).expect("size"), 64 << 20);
    let again = node.attach(1, &hosts[..2]).await.expect("attached");
    assert_eq!(again, attached);
    assert!(node.commands().is_empty(), "nothing was missing");
    // Another namespace of the subsystem comes over the same connections.
    let other = node.attach(2, &hosts[..1]).await.expect("attached");
    assert_ne!(other.device, attached.device);
    assert!(node.commands().is_empty());
    let began = Instant::now();
    node.detach(1).await.expect("detached");
    eprintln!("detached after {:?}", began.elapsed());
    assert!(controllers().is_empty());
    assert!(!attached.device.exists(&node.kernel).expect("look"));
    node.detach(1).await.expect("gone already");
}

#[tokio::test]
#[ignore = "changes the NVMe target of this machine: for the lab"]
async fn a_node_gets_in_by_its_key_alone_and_a_key_that_changes_ends_no_session() {
    let target = Target::new();
    let Some(asking) = Asking::new(&target, KEYS[0]) else {
        let why = "the kernel cannot ask for keys (CONFIG_NVME_TARGET_AUTH)";
        return could_not_run("keys of nodes", why);
    };
    let folder = tempfile::tempdir_in("/var/tmp").expect("directory");
    Node::new().is_refused().await;
    Node::with_key(&folder, KEYS[1]).is_refused().await;
    let node = Node::with_key(&folder, KEYS[0]);
    let attached = node.attach(1, &["127.0.0.1"]).await.expect("attached");
    assert!(node.commands().is_empty(), "the key is in no command");
    let connections = controllers();
    let [controller] = &connections[..] else {
        panic!("one connection");
    };
    let shown = controller.join("dhchap_secret").metadata().expect("key");
    assert_eq!(shown.permissions().mode() & 0o077, 0);
    asking.asks_for(KEYS[1]);
    let state = fs::read_to_string(controller.join("state")).expect("state");
    assert_eq!(state.trim(), "live");
    // As an administrator does it, who has changed the key of the node, too.
    set(&controller.join("dhchap_secret"), KEYS[1]);
    let device = fs::read(attached.device.node(&node.kernel));
    assert_eq!(device.expect("readable").len(), 64 << 20);
    node.detach(1).await.expect("detached");
    assert!(controllers().is_empty());
    // The new key is the only one.
    let node = Node::with_key(&folder, KEYS[1]);
    let again = node.attach(1, &["127.0.0.1"]).await.expect("attached");
    assert!(again.device.exists(&node.kernel).expect("look"));
    node.detach(1).await.expect("detached");
    Node::with_key(&folder, KEYS[0]).is_refused().await;
}

#[tokio::test]
#[ignore = "changes the NVMe target of this machine: for the lab"]
async fn a_volume_in_use_is_detected_and_kept() {
    let _target = Target::new();
    let node = Node::new();
    let nothing = MountTable::from_text("");
    let attached = node.attach(1, &["127.0.0.1"]).await.expect("attached");
    let device = attached.device.node(&node.kernel).display().to_string();
    assert_eq!(node.usage(&attached, &nothing), None);
    let mounted = tempfile::tempdir_in("/var/tmp").expect("directory");
    let at = mounted.path().display().to_string();
    node.run("mkfs.ext4", &["-q", &device]).await;
    node.run("mount", &[&device, &at]).await;
    let seen = node.usage(&attached, &MountTable::read().expect("table"));
    assert_eq!(seen, Some(Usage::Mounted(mounted.path().to_owned())));
    // Mounted where our table does not reach.
    assert_eq!(node.usage(&attached, &nothing), Some(Usage::Claimed));
    assert_eq!(
        node.detach(1).await.expect_err("mounted").kind(),
        Kind::Busy
    );
    node.detach(2).await.expect("left to the other one");
    assert_eq!(controllers().len(), 1);
    node.run("umount", &[&at]).await;
    // As block volumes are shown.
    let file = mounted.path().join("block_device");
    fs::write(&file, "").expect("file");
    let file = file.display().to_string();
    node.run("mount", &["--bind", &device, &file]).await;
    let seen = node.usage(&attached, &MountTable::read().expect("table"));
    assert_eq!(seen, Some(Usage::Bound(file.clone().into())));
    assert_eq!(node.detach(1).await.expect_err("shown").kind(), Kind::Busy);
    node.run("umount", &[&file]).await;
    node.detach(1).await.expect("detached");
    assert!(controllers().is_empty());
}

#[tokio::test]
#[ignore = "changes the NVMe target of this machine: for the lab"]
async fn growth_is_seen() {
    let target = Target::new();
    let node = Node::new();
    let attached = node
        .attach(1, &["127.0.0.1", "127.0.0.2"])
        .await
        .expect("attached");
    target.grow(1, 128 << 20);
    let size = rescan(
        &node.tools,
        &node.kernel,
        &attached.device,
        Some(128 << 20),
        soon(),
    )
    .await;
    assert_eq!(size.expect("rescanned"), 128 << 20);
    node.detach(1).await.expect("detached");
}

#[tokio::test]
#[ignore = "changes the NVMe target of this machine: for the lab"]
async fn a_connection_of_the_predecessor_is_used_and_its_name_kept_until_it_is_gone() {
    let _target = Target::new();
    let node = Node::new();
    let port = PORT.to_string();
    let connect = [
        "connect",
        "--nqn",
        NQN,
        "--transport",
        "tcp",
        "--traddr",
        "127.0.0.1",
    ];
    let host = [
        "--trsvcid",
        &port,
        "--hostnqn",
        SHARED[0],
        "--hostid",
        SHARED[1],
    ];
    node.run("nvme", &[&connect[..], &host[..]].concat()).await;
    node.attach(1, &["127.0.0.1"]).await.expect("attached");
    assert!(node.commands().is_empty(), "it is connected");
    node.attach(1, &["127.0.0.1", "127.0.0.2"])
        .await
        .expect("attached");
    let names = |controllers: Vec<PathBuf>| -> Vec<String> {
        let name = |path: PathBuf| fs::read_to_string(path.join("hostnqn")).expect("hostnqn");
        controllers
            .into_iter()
            .map(|path| name(path).trim().to_owned())
            .collect()
    };
    assert_eq!(names(controllers()), [SHARED[0], SHARED[0]]);
    node.detach(1).await.expect("detached");
    node.attach(1, &["127.0.0.1"]).await.expect("attached");
    let own = names(controllers());
    assert!(own.len() == 1 && own[0] != SHARED[0], "{own:?}");
    node.detach(1).await.expect("detached");
}

/// The outage that the defaults of a connection are chosen for.
#[tokio::test]
#[ignore = "changes the packet filter of this machine, and takes minutes: for the lab"]
async fn writing_survives_a_silent_cut_of_two_minutes() {
    let _target = Target::new();
    let node = Node::new();
    let attached = node.attach(1, &["127.0.0.1"]).await.expect("attached");
    node.cut().await;
    let back = async {
        tokio::time::sleep(Duration::from_secs(130)).await;
        node.join().await;
    };
    let late = write_during_outage(&node, &attached, Duration::from_secs(130), back).await;
    eprintln!("written {late:?} after the cut");
    node.detach(1).await.expect("detached");
}

#[tokio::test]
#[ignore = "changes the packet filter of this machine: for the lab"]
async fn a_volume_of_a_dead_target_is_detached() {
    let _target = Target::new();
    let node = Node::new();
    for silent_for in [Duration::ZERO, Duration::from_secs(15)] {
        node.attach(1, &["127.0.0.1"]).await.expect("attached");
        node.cut().await;
        tokio::time::sleep(silent_for).await;
        let began = Instant::now();
        let detached = node.detach(1).await;
        node.join().await;
        eprintln!(
            "cut for {silent_for:?}, detached after {:?}",
            began.elapsed()
        );
        detached.expect("detached");
        assert!(controllers().is_empty());
    }
}

#[tokio::test]
#[ignore = "changes the NVMe target of this machine: for the lab"]
async fn writing_survives_a_target_that_starts_again() {
    let target = Target::new();
    let node = Node::new();
    let attached = node.attach(1, &["127.0.0.1"]).await.expect("attached");
    target.open(false);
    let back = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        target.open(true);
    };
    let late = write_during_outage(&node, &attached, Duration::from_secs(20), back).await;
    eprintln!("written {late:?} after the target was back");
    node.detach(1).await.expect("detached");
}

/// Writes past the cache while the target is away, until it is `back`.
async fn write_during_outage(
    node: &Node,
    attached: &Attached,
    away: Duration,
    back: impl Future<Output = ()>,
) -> Duration {
    let output = format!("of={}", attached.device.node(&node.kernel).display());
    let command = Command::new(Program::constant("dd"))
        .args(["if=/dev/zero", &output, "bs=1M", "count=16", "oflag=direct"])
        .within(Duration::from_mins(5));
    let began = Instant::now();
    let back = async {
        back.await;
        Instant::now()
    };
    let local = Local::new();
    let (written, back) = tokio::join!(local.perform(&command), back);
    let late = back.elapsed();
    written.expect("no error reached the writer");
    assert!(began.elapsed() >= away, "it had to wait");
    assert!(late < Duration::from_secs(30), "it went on soon");
    late
}
