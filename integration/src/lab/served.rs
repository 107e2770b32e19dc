//! Drivers that make and export their volumes themselves, on this machine's own ZFS.
//!
//! The storage host is reached as a user's is: over SSH, with a key; only what is called local runs
//! where the program runs. The pool, the targets and the node must be as before when a cell ends.

pub mod access;
pub mod addons;
pub mod adopted;
pub mod appliance;
pub mod between;
pub mod children;
pub mod conformance;
pub mod connected;
pub mod costs;
pub mod cuts;
pub mod exports;
mod grouped;
pub mod healed;
pub mod hostile;
pub mod life;
pub mod login;
pub mod orphans;
pub mod postgres;
pub mod proxied;
pub mod sanity;
pub mod settings;
pub mod switches;
pub mod synology;
pub mod torn;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use csi_proto::v1::Volume;
use csi_proto::v1::volume_capability::access_mode::Mode;
use serde_json::Value;
use tokio::time::timeout;

use super::calls::{KUBELET, Node};
use super::command::run;
use super::fixture::{Access, Backing, Export, Fixture, LARGER, SIZE, capability};
use super::storage::shares::SMB_USER;
use super::storage::zfs::Dataset;
use crate::place::Place;
use crate::server::Launch;
use crate::tools;
use login::{Login, Road};

/// Below which volumes and detached snapshots are made.
const ROOT: &str = "tank/csi/served";

/// One kind of driver, with one access.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// Its name in those of cells.
    pub name: &'static str,
    kind: &'static str,
    section: &'static str,
    /// All of its configuration but how to log in, where that is given.
    whole: Option<&'static str>,
    /// Below which volumes and detached snapshots are made, in `v` and `s`.
    pub(super) root: &'static str,
    /// The login to the storage host, if it is not this machine.
    pub login: Login,
    /// The way its volumes are used.
    pub access: Access,
}

/// Every kind that is tested, as root.
pub const ALL: [Served; 9] = [
    served("zfs-generic-nfs", "zfs-generic-nfs", NFS, SHARE_NFS),
    served("zfs-generic-smb", "zfs-generic-smb", SMB, SHARE_SMB),
    served("zfs-generic-iscsi", "zfs-generic-iscsi", LIO, EXT4),
    served("zfs-generic-iscsi-block", "zfs-generic-iscsi", LIO, BLOCK),
    served("zfs-generic-targetcli", "zfs-generic-iscsi", TARGETCLI, XFS),
    served("zfs-generic-nvmeof", "zfs-generic-nvmeof", NVMET, EXT4),
    served(
        "zfs-generic-nvmeof-block",
        "zfs-generic-nvmeof",
        NVMET,
        BLOCK,
    ),
    served("zfs-local-dataset", "zfs-local-dataset", "", ZFS),
    served("zfs-local-zvol", "zfs-local-zvol", "", EXT4),
];

/// The same with a login that is not root.
pub const UNPRIVILEGED: [Served; 4] = [
    Served {
        login: Login::Sudo,
        ..served("zfs-generic-nfs-sudo", "zfs-generic-nfs", NFS, SHARE_NFS)
    },
    Served {
        login: Login::Sudo,
        ..served(
            "zfs-generic-iscsi-sudo",
            "zfs-generic-iscsi",
            LIO_SUDO,
            EXT4,
        )
    },
    Served {
        login: Login::AllowedFilesystems,
        ..served("zfs-generic-nfs-allow", "zfs-generic-nfs", NFS, SHARE_NFS)
    },
    Served {
        login: Login::AllowedZvols,
        ..served(
            "zfs-generic-iscsi-allow",
            "zfs-generic-iscsi",
            LIO_SUDO,
            EXT4,
        )
    },
];

/// Those whose exports a storage host can lose, one of each kind.
pub fn one_of_each_stack() -> impl Iterator<Item = Served> {
    let names = ["nfs", "smb", "iscsi", "nvmeof"].map(|name| format!("zfs-generic-{name}"));
    let all = ALL.into_iter();
    all.filter(move |served| names.iter().any(|name| name == served.name))
}

/// Those that make volumes on their own machine.
pub fn of_the_node() -> impl Iterator<Item = Served> {
    ALL.into_iter().filter(Served::is_of_the_node)
}

/// Those whose volumes are mounted, one of each way.
pub fn mounted() -> impl Iterator<Item = Served> {
    one_of_each_stack().chain(of_the_node())
}

const SHARE_NFS: Access = Access::Mount("nfs");
const SHARE_SMB: Access = Access::Mount("cifs");
const EXT4: Access = Access::Mount("ext4");
const XFS: Access = Access::Mount("xfs");
const ZFS: Access = Access::Mount("zfs");
const BLOCK: Access = Access::Block;

const fn served(
    name: &'static str,
    kind: &'static str,
    section: &'static str,
    access: Access,
) -> Served {
    Served {
        name,
        kind,
        section,
        whole: None,
        root: ROOT,
        login: Login::Root,
        access,
    }
}

/// A driver with a configuration of its own, which says `root` itself.
pub(super) const fn configured(
    [name, kind, root, config]: [&'static str; 4],
    access: Access,
) -> Served {
    Served {
        whole: Some(config),
        root,
        ..served(name, kind, "", access)
    }
}

const NFS: &str = "nfs:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}}
";
const NFS_TO_CHOOSE: &str = "nfs:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties:
    properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}
    choices:
      frozen: {sharenfs: 'ro,no_subtree_check,no_root_squash'}
      open: {sharenfs: 'rw,no_subtree_check,no_root_squash'}
";
const SMB: &str = "smb:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharesmb: true}}
";
const LIO: &str = "iscsi:
  targetPortal: 127.0.0.1:3260
  shareStrategy: lio
  shareStrategyLio: {basename: iqn.2026-01.lab.served, block: {attributes: {emulate_tpu: 1}}}
";
const LIO_SUDO: &str = "iscsi:
  targetPortal: 127.0.0.1:3260
  shareStrategy: lio
  shareStrategyLio: {sudoEnabled: true, basename: iqn.2026-01.lab.served}
";
const TARGETCLI: &str = "iscsi:
  targetPortal: 127.0.0.1:3260
  shareStrategy: targetCli
  shareStrategyTargetCli:
    basename: iqn.2026-01.lab.served
    tpg: {attributes: {authentication: 0, generate_node_acls: 1, demo_mode_write_protect: 0}}
";
const NFS_FOR_NODES: &str = "nfs:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties:
    nodes: {names: {node-a: 192.0.2.7}}
    properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}
";
const LIO_FOR_NODES: &str = "iscsi:
  targetPortal: 127.0.0.1:3260
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2026-01.lab.served
    nodes: {nameTemplate: 'iqn.2026-01.lab.served:{{node}}', addresses: {node-a: 192.0.2.7}}
";
const NVMET_FOR_NODES: &str = "nvmeof:
  transport: tcp://127.0.0.1:4420
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2026-01.lab.served
    ports: [{id: 1, traddr: 0.0.0.0}]
    nodes: {nameTemplate: 'nqn.2026-01.lab.served:{{node}}', addresses: {node-a: 192.0.2.7}}
";
const NVMET: &str = "nvmeof:
  transport: tcp://127.0.0.1:4420
  shareStrategy: nvmet
  shareStrategyNvmet: {basename: nqn.2026-01.lab.served, ports: [{id: 1, traddr: 0.0.0.0}]}
";

// === impl Served ===

impl Served {
    /// Whether it takes snapshots of several volumes at one moment.
    pub fn takes_groups(&self) -> bool {
        let without = ["freenas-api-", "synology-"];
        !without.iter().any(|kinds| self.kind.starts_with(kinds))
    }

    /// Whether classes of attributes can change its volumes.
    pub fn takes_changes(&self) -> bool {
        !self.kind.starts_with("synology-")
    }

    /// Whether it makes volumes on its own machine, for that alone.
    fn is_of_the_node(&self) -> bool {
        self.kind.starts_with("zfs-local")
    }

    /// Makes the datasets of the configuration, and returns how to start the driver.
    ///
    /// # Panics
    /// If the machine is no storage host.
    pub fn start_on(&self, place: &Place) -> Launch {
        self.launch_over(place, "", &Road::default())
    }

    /// The same with more lines in the section `zfs`.
    ///
    /// # Panics
    /// If the machine is no storage host.
    pub fn launch_with(&self, place: &Place, more: &str) -> Launch {
        self.launch_over(place, more, &Road::default())
    }

    /// The same over a road of its own, if the storage host is reached over SSH.
    ///
    /// # Panics
    /// If the machine is no storage host.
    pub fn launch_by(&self, place: &Place, road: &Road) -> Launch {
        self.launch_over(place, "", road)
    }

    fn launch_over(&self, place: &Place, more: &str, road: &Road) -> Launch {
        for name in ["v", "s"] {
            run(&["zfs", "create", "-p", &format!("{}/{name}", self.root)]);
        }
        for module in ["iscsi_target_mod", "nvmet", "nvmet_tcp"] {
            run(&["modprobe", module]);
        }
        let cli = match self.login {
            Login::Sudo => "  cli: {sudoEnabled: true}\n",
            _ => "",
        };
        let made = || {
            format!(
                "driver: {}\nzfs:\n  datasetParentName: {ROOT}/v\n  \
                 detachedSnapshotsDatasetParentName: {ROOT}/s\n  datasetEnableQuotas: true\n  \
                 datasetPermissionsMode: '0777'\n{cli}{more}{}",
                self.kind, self.section
            )
        };
        // A whole configuration has the section first, if it has one.
        let with_more = |whole: &str| whole.replacen("zfs:\n", &format!("zfs:\n{more}"), 1);
        let mut text = self.whole.map_or_else(made, with_more);
        if self.is_remote() {
            text.push_str(&self.login.section(place.path(), self.root, road));
        }
        Launch::new(text).set("--log-level", "debug")
    }

    /// Whether its volumes are disks to a node.
    pub fn is_device(&self) -> bool {
        !["nfs", "smb", "dataset"]
            .iter()
            .any(|end| self.kind.ends_with(end))
    }

    /// Whether its storage host is reached over SSH.
    pub fn is_remote(&self) -> bool {
        let by_api = self.kind.starts_with("freenas-api-");
        self.kind.starts_with("zfs-generic") || self.kind.starts_with("freenas-") && !by_api
    }

    /// Whether the controller expands its volumes. Storage of the node is expanded by the node alone.
    pub fn is_expanded_by_the_controller(&self) -> bool {
        !self.is_of_the_node()
    }

    /// The sizes of its volumes at first, and what they grow to: enough for each filesystem, and little to
    /// format on an emulated processor. TrueNAS takes no quota below 1 GiB.
    fn sizes(&self) -> (u64, u64) {
        match self.kind {
            "freenas-api-nfs" | "freenas-api-smb" | "synology-iscsi" => (1 << 30, 1536 << 20),
            _ => (SIZE, LARGER),
        }
    }

    /// Whether its nodes may be asked for a secret that the configuration holds, here that of CHAP.
    pub fn has_secrets(&self) -> bool {
        self.kind == "zfs-generic-iscsi"
    }

    /// The same with exports that let in nodes by name, where there are such.
    #[must_use]
    pub fn for_nodes(self) -> Option<Self> {
        let section = match self.section {
            NFS => NFS_FOR_NODES,
            LIO => LIO_FOR_NODES,
            NVMET => NVMET_FOR_NODES,
            _ => return None,
        };
        Some(Self { section, ..self })
    }

    /// Whether its exports let in nodes by name.
    fn is_for_nodes(&self) -> bool {
        [NFS_FOR_NODES, LIO_FOR_NODES, NVMET_FOR_NODES].contains(&self.section)
    }

    /// The same whose classes choose options of shares, where there are such.
    #[must_use]
    fn to_choose(self) -> Self {
        let section = match self.section {
            NFS => NFS_TO_CHOOSE,
            section => section,
        };
        Self { section, ..self }
    }

    /// Keys of classes that change its volumes, each with two values.
    fn changes(&self) -> Vec<[&'static str; 3]> {
        let mut all = vec![
            ["compression", "lz4", "gzip"],
            ["logbias", "latency", "throughput"],
            ["sync", "standard", "always"],
        ];
        if !self.is_device() {
            all.push(["atime", "on", "off"]);
            all.push(["recordsize", "131072", "65536"]);
        }
        if self.section == NFS_TO_CHOOSE {
            all.push(["shareOptions", "open", "frozen"]);
        }
        all
    }

    /// The line of the section `zfs` that allows them.
    fn allowing_changes(&self) -> String {
        let names: Vec<_> = self.changes().iter().map(|[name, ..]| *name).collect();
        format!("  volumeParameters: [{}]\n", names.join(", "))
    }

    /// Two classes that have all of them.
    fn two_classes(&self) -> [Vec<(&'static str, &'static str)>; 2] {
        let all = self.changes();
        let one = all.iter().map(|[name, one, _]| (*name, *one)).collect();
        let other = all.iter().map(|[name, _, other]| (*name, *other)).collect();
        [one, other]
    }

    /// A volume of this driver, as a node gets it.
    pub fn fixture(&self, volume: Volume) -> Fixture {
        let secrets = self.secrets().into_iter();
        Fixture {
            secrets: secrets
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            capability: capability(self.access, Mode::SingleNodeMultiWriter),
            access: self.access,
            backing: Backing::Dataset(Dataset {
                // The dot of an id is after the name of a child.
                name: format!("{}/v/{}", self.root, volume.volume_id.replacen('.', "/", 1)),
            }),
            export: Export::None,
            published: OnceLock::new(),
            volume,
        }
    }

    /// The secrets of a stage.
    pub fn secrets(&self) -> Vec<(&'static str, String)> {
        let (user, password) = SMB_USER;
        let flags = format!("username={user},password={password}");
        match self.kind {
            _ if self.kind.ends_with("-smb") => vec![("mount_flags", flags)],
            _ if self.name == synology::CHAP.name => synology::CHAP.secrets(),
            _ if self.name == appliance::CHAP.name => appliance::CHAP.secrets(),
            _ => Vec::new(),
        }
    }
}

/// Runs a command of the program beside a server, with its configuration; whether it ended well, and
/// what it says as JSON.
///
/// # Panics
/// If it says nothing of the kind.
async fn say(node: &Node, command: &str, flags: &[&str]) -> (bool, Value) {
    let config = format!("--driver-config-file={}", node.place.config().display());
    let words = [&[command, &config, "--json"], flags].concat();
    let output = timeout(KUBELET, tools::omnibus(&words, &[])).await;
    let output = output.unwrap_or_else(|_| panic!("{command} does not end"));
    let text = String::from_utf8_lossy(&output.stdout);
    let said = serde_json::from_str(&text).unwrap_or_else(|_| {
        panic!(
            "{command}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    (output.status.success(), said)
}

/// Everything in the pool that a driver may have made, what this machine exports, and what it would
/// export after its next start.
///
/// # Panics
/// If what is saved is no JSON.
pub fn storage() -> Vec<String> {
    let all = run(&["zfs", "list", "-H", "-r", "-t", "all", "-o", "name", "tank"]);
    let mut all: Vec<_> = all.lines().map(str::to_owned).collect();
    let config = Path::new("/sys/kernel/config");
    let within = |path: &str| folders(&config.join(path));
    // Each backstore of LIO has an adapter of its own; a port of nvmet stays when nothing uses it.
    let mut exports = [within("target/iscsi"), within("nvmet/subsystems")].concat();
    for adapter in within("target/core") {
        exports.extend(folders(&adapter));
    }
    for port in within("nvmet/ports") {
        exports.extend(folders(&port.join("subsystems")));
    }
    // These exist as soon as LIO is loaded.
    exports.retain(|path| !path.ends_with("discovery_auth") && !path.ends_with("lu_gps"));
    all.extend(exports.iter().map(|path| path.display().to_string()));
    let shares = fs::read_dir("/var/lib/samba/usershares").into_iter();
    let shares = shares.flatten().flatten().map(|entry| entry.path());
    all.extend(shares.map(|path| path.display().to_string()));
    let exported = fs::read_to_string("/var/lib/nfs/etab").unwrap_or_default();
    let paths = exported.lines().filter_map(|line| line.split('\t').next());
    all.extend(paths.map(|path| format!("exported {path}")));
    all.extend(saved());
    all.sort();
    all
}

/// The folders in a folder, and what is linked there.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.is_dir()).collect()
}

/// The targets and subsystems that are saved for the next start of this machine.
fn saved() -> Vec<String> {
    let mut all = Vec::new();
    for file in [
        "/etc/target/saveconfig.json",
        "/etc/rtslib-fb-target/saveconfig.json",
        "/etc/nvmet/config.json",
    ] {
        let Ok(text) = fs::read_to_string(file) else {
            continue;
        };
        let saved: Value = serde_json::from_str(&text).expect("what is saved is JSON");
        let elements = |list: &str| saved[list].as_array().cloned().unwrap_or_default();
        for (list, name) in [
            ("storage_objects", "name"),
            ("targets", "wwn"),
            ("subsystems", "nqn"),
        ] {
            let names = elements(list).into_iter();
            all.extend(names.map(|element| format!("{file}: {}", element[name])));
        }
        for port in elements("ports") {
            let linked = port["subsystems"].as_array().into_iter().flatten();
            all.extend(linked.map(|nqn| format!("{file}: {nqn} at {}", port["portid"])));
        }
    }
    all
}
