//! Drivers that make and export their volumes themselves, on this machine's own ZFS.
//!
//! The storage host is reached as a user's is: over SSH, with a key; only what is called local runs
//! where the program runs. The pool, the targets and the node must be as before when a cell ends.

pub mod costs;
pub mod cuts;
pub mod hostile;
pub mod life;
pub mod sanity;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::command::run;
use super::storage::shares::SMB_USER;
use super::supply::Access;
use crate::place::Place;
use crate::server::Launch;

/// Below which volumes and detached snapshots are made.
const ROOT: &str = "tank/csi/served";

/// One kind of driver, with one access.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// Its name in those of cells.
    pub name: &'static str,
    kind: &'static str,
    section: &'static str,
    /// How its volumes are used.
    pub access: Access,
}

/// Every kind that is tested.
pub const ALL: [Served; 9] = [
    Served {
        name: "zfs-generic-nfs",
        kind: "zfs-generic-nfs",
        section: NFS,
        access: Access::Mount("nfs"),
    },
    Served {
        name: "zfs-generic-smb",
        kind: "zfs-generic-smb",
        section: SMB,
        access: Access::Mount("cifs"),
    },
    Served {
        name: "zfs-generic-iscsi",
        kind: "zfs-generic-iscsi",
        section: LIO,
        access: Access::Mount("ext4"),
    },
    Served {
        name: "zfs-generic-iscsi-block",
        kind: "zfs-generic-iscsi",
        section: LIO,
        access: Access::Block,
    },
    Served {
        name: "zfs-generic-targetcli",
        kind: "zfs-generic-iscsi",
        section: TARGETCLI,
        access: Access::Mount("xfs"),
    },
    Served {
        name: "zfs-generic-nvmeof",
        kind: "zfs-generic-nvmeof",
        section: NVMET,
        access: Access::Mount("ext4"),
    },
    Served {
        name: "zfs-generic-nvmeof-block",
        kind: "zfs-generic-nvmeof",
        section: NVMET,
        access: Access::Block,
    },
    Served {
        name: "zfs-local-dataset",
        kind: "zfs-local-dataset",
        section: "",
        access: Access::Mount("zfs"),
    },
    Served {
        name: "zfs-local-zvol",
        kind: "zfs-local-zvol",
        section: "",
        access: Access::Mount("ext4"),
    },
];

const NFS: &str = "nfs:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}}
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
    nodes: {nameTemplate: 'iqn.2026-01.lab.served:{{node}}'}
";
const NVMET_FOR_NODES: &str = "nvmeof:
  transport: tcp://127.0.0.1:4420
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2026-01.lab.served
    ports: [{id: 1, traddr: 0.0.0.0}]
    nodes: {nameTemplate: 'nqn.2026-01.lab.served:{{node}}'}
";
const NVMET: &str = "nvmeof:
  transport: tcp://127.0.0.1:4420
  shareStrategy: nvmet
  shareStrategyNvmet: {basename: nqn.2026-01.lab.served, ports: [{id: 1, traddr: 0.0.0.0}]}
";

/// How a storage host is logged in to.
#[derive(Debug)]
pub struct Login {
    /// The port at which it, or a way to it, listens.
    pub port: u16,
    /// A program that it runs in place of what is asked for.
    pub program: Option<PathBuf>,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            port: 22,
            program: None,
        }
    }
}

// === impl Served ===

impl Served {
    /// Makes the datasets that the driver is told of, and says how to start it.
    ///
    /// # Panics
    /// If the machine is no storage host.
    pub fn launch(&self, place: &Place) -> Launch {
        self.launch_by(place, &Login::default())
    }

    /// The same, with a login of its own if the storage host is reached over SSH.
    ///
    /// # Panics
    /// If the machine is no storage host.
    pub fn launch_by(&self, place: &Place, by: &Login) -> Launch {
        for name in ["v", "s"] {
            run(&["zfs", "create", "-p", &format!("{ROOT}/{name}")]);
        }
        for module in ["iscsi_target_mod", "nvmet", "nvmet_tcp"] {
            run(&["modprobe", module]);
        }
        let mut text = format!(
            "driver: {}\nzfs:\n  datasetParentName: {ROOT}/v\n  \
             detachedSnapshotsDatasetParentName: {ROOT}/s\n  datasetEnableQuotas: true\n  \
             datasetPermissionsMode: '0777'\n{}",
            self.kind, self.section
        );
        if self.is_remote() {
            text.push_str(&login(place.path(), by));
        }
        Launch::new(text).set("--log-level", "debug")
    }

    /// Whether its storage host is reached over SSH.
    pub fn is_remote(&self) -> bool {
        self.kind.starts_with("zfs-generic")
    }

    /// Whether its nodes may be asked for a secret that the configuration holds, here that of CHAP.
    pub fn has_secrets(&self) -> bool {
        self.kind == "zfs-generic-iscsi"
    }

    /// Whether its volumes are devices on the storage host.
    pub fn is_of_devices(&self) -> bool {
        !matches!(
            self.kind,
            "zfs-generic-nfs" | "zfs-generic-smb" | "zfs-local-dataset"
        )
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

    /// What a stage has to be told.
    pub fn secrets(&self) -> Vec<(&'static str, String)> {
        let (user, password) = SMB_USER;
        let flags = format!("username={user},password={password}");
        match self.kind {
            "zfs-generic-smb" => vec![("mount_flags", flags)],
            _ => Vec::new(),
        }
    }
}

/// The section of a login as root with a key of its own.
fn login(folder: &Path, by: &Login) -> String {
    let key = folder.join("key").display().to_string();
    run(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &key]);
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    fs::create_dir_all("/root/.ssh").expect("a folder of the lab");
    let known = "/root/.ssh/authorized_keys";
    let program = by
        .program
        .as_ref()
        .map(|program| format!("command=\"{}\" ", program.display()));
    let program = program.unwrap_or_default();
    let all = format!("{}\n{program}{}", read(known), read(&format!("{key}.pub")));
    fs::write(known, all).expect("a file of the lab");
    let host = run(&["ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub"]);
    let host = host.split(' ').nth(1).expect("a fingerprint").to_owned();
    let private = read(&key).replace('\n', "\n    ");
    format!(
        "sshConnection:\n  host: 127.0.0.1\n  port: {}\n  username: root\n  hostKey: {host}\n  \
         privateKey: |\n    {}\n",
        by.port,
        private.trim_end()
    )
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

/// What targets and subsystems are saved for the next start of this machine.
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
