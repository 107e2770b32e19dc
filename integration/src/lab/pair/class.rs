//! The connections of a pair, with the files and classes that make them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::OnceLock;

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;

use super::{Far, KEY, NODE, STORAGE};
use crate::lab::calls::{Node, within};
use crate::lab::command::run;
use crate::lab::fixture::{Access, Backing, Export, Fixture, capability};
use crate::lab::storage::shares::SMB_USER;
use crate::lab::storage::zfs::Dataset;
use crate::server::Launch;
use crate::volume;

/// Below which volumes are made, on both machines.
pub(in crate::lab) const ROOT: &str = "tank/csi/pair";
const SIZE: i64 = 512 << 20;
/// The filesystem of a device.
const NONE: &str = "";

/// A storage class: the connection, the parameters, and the secrets of a stage.
#[derive(Clone, Copy)]
pub(in crate::lab) struct Class {
    pub(in crate::lab) connection: &'static str,
    filesystem: &'static str,
    driver: &'static str,
    section: &'static str,
    /// The machine that stores it.
    host: &'static str,
}

pub(in crate::lab) const FILES: Class = Class {
    connection: "example-nfs",
    filesystem: "nfs",
    driver: "zfs-generic-nfs",
    section: "nfs:
  shareHost: HOST
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}}
",
    host: STORAGE,
};
pub(in crate::lab) const OTHER_FILES: Class = Class {
    connection: "other-nfs",
    host: NODE,
    ..FILES
};
pub(in crate::lab) const DISKS: Class = Class {
    connection: "example-iscsi",
    filesystem: "ext4",
    driver: "zfs-generic-iscsi",
    section: "iscsi:
  targetPortal: HOST:3260
  shareStrategy: lio
  shareStrategyLio: {basename: iqn.2026-01.lab.pair, nodes: {nameTemplate: '{{node}}'}}
proxy:
  perDriver: {nodeIdType: iqn}
",
    host: NODE,
};
/// The other machine's disks again, for one zone only.
pub(in crate::lab) const ZONED_DISKS: Class = Class {
    connection: "zoned",
    section: "iscsi:
  targetPortal: HOST:3260
  namePrefix: zoned-
  shareStrategy: lio
  shareStrategyLio: {basename: iqn.2026-01.lab.pair}
proxy:
  perDriver:
    topology:
    - requirements: {zone: zone2}
      extra: {custom.prefix/custom.name: custom.value}
",
    ..DISKS
};
pub(in crate::lab) const NAMESPACES: Class = Class {
    connection: "fast",
    filesystem: "xfs",
    driver: "zfs-generic-nvmeof",
    section: "nvmeof:
  transport: tcp://HOST:4420
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2026-01.lab.pair
    ports: [{id: 1, traddr: 0.0.0.0}]
    nodes: {nameTemplate: '{{node}}'}
proxy:
  perDriver: {nodeIdType: nqn}
",
    host: STORAGE,
};
pub(in crate::lab) const SHARES: Class = Class {
    connection: "windows",
    filesystem: "cifs",
    driver: "zfs-generic-smb",
    section: "smb:
  shareHost: HOST
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharesmb: true}}
",
    host: NODE,
};

/// The id of the machine `node` as a node of a process that has one driver alone.
pub(in crate::lab) const FIRST: &str = "first";
/// That of the machine `storage`.
pub(in crate::lab) const SECOND: &str = "second";

/// One connection for each protocol, of the machine `storage`, in a process that has it alone. Only nodes to which a
/// volume is published have access, but for SMB, which has no access per node.
pub(in crate::lab) const ALONE: [Class; 4] = [
    Class {
        connection: "nfs",
        section: "nfs:
  shareHost: HOST
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties:
    nodes: {names: {first: 10.77.0.2, second: 10.77.0.1}}
    properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}
",
        ..FILES
    },
    Class {
        connection: "smb",
        host: STORAGE,
        ..SHARES
    },
    Class {
        connection: "iscsi",
        section: "iscsi:
  targetPortal: HOST:3260
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2026-01.lab.pair
    nodes: {nameTemplate: 'iqn.2026-01.lab.pair:{{node}}'}
",
        host: STORAGE,
        ..DISKS
    },
    Class {
        connection: "nvmeof",
        filesystem: "ext4",
        section: "nvmeof:
  transport: tcp://HOST:4420
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2026-01.lab.pair
    ports: [{id: 1, traddr: 0.0.0.0}]
    nodes: {nameTemplate: 'nqn.2026-01.lab.pair:{{node}}'}
",
        ..NAMESPACES
    },
];

/// The disks of [`ALONE`] as devices, which several nodes may write.
pub(in crate::lab) const DEVICES: [Class; 2] = [
    Class {
        filesystem: NONE,
        ..ALONE[2]
    },
    Class {
        filesystem: NONE,
        ..ALONE[3]
    },
];

/// Both machines get the names by which [`ALONE`] lets them in: they began as one image.
pub(in crate::lab) fn name_nodes(other: &Far) {
    let named = |machine: &str| {
        let (id, uuid) = match machine {
            "node" => (FIRST, "5a0f0f4e-6d2c-4f5e-9b1a-000000000001"),
            _ => (SECOND, "5a0f0f4e-6d2c-4f5e-9b1a-000000000002"),
        };
        format!(
            "mkdir -p /etc/nvme && echo nqn.2026-01.lab.pair:{id} >/etc/nvme/hostnqn && \
             echo {uuid} >/etc/nvme/hostid && \
             echo InitiatorName=iqn.2026-01.lab.pair:{id} >/etc/iscsi/initiatorname.iscsi && \
             systemctl restart iscsid"
        )
    };
    other.run(&[&named(other.name())]);
    let here = match other.name() {
        "node" => "storage",
        _ => "node",
    };
    run(&["sh", "-c", &named(here)]);
}

/// Both machines get the datasets that the connections name, and what exports need.
pub(in crate::lab) fn prepare(other: &Far) {
    for name in ["v", "s"] {
        let name = format!("{ROOT}/{name}");
        run(&["zfs", "create", "-p", &name]);
        other.run(&["zfs", "create", "-p", &name]);
    }
    for module in ["iscsi_target_mod", "nvmet", "nvmet_tcp"] {
        run(&["modprobe", module]);
        other.run(&["modprobe", module]);
    }
}

// === impl Class ===

impl Class {
    /// The file of the connection: what a process with this driver alone would have.
    pub(in crate::lab) fn file(self) -> String {
        let key = fs::read_to_string(KEY).expect("the outer half pushed it");
        let key = key.trim_end().replace('\n', "\n    ");
        let host_key = run(&["ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub"]);
        // Both machines began as one image.
        let host_key = host_key.split(' ').nth(1).expect("a fingerprint");
        format!(
            "driver: {}\nsshConnection:\n  host: {}\n  username: root\n  hostKey: {host_key}\n  \
             privateKey: |\n    {key}\nzfs:\n  datasetParentName: {ROOT}/v\n  \
             detachedSnapshotsDatasetParentName: {ROOT}/s\n  datasetEnableQuotas: true\n  \
             datasetPermissionsMode: '0777'\n{}",
            self.driver,
            self.host,
            self.section.replace("HOST", self.host)
        )
    }

    pub(in crate::lab) fn request(
        self,
        name: &str,
        source: Option<csi::VolumeContentSource>,
    ) -> csi::CreateVolumeRequest {
        let parameters = [("connection", self.connection), ("fsType", self.filesystem)];
        csi::CreateVolumeRequest {
            capacity_range: volume::at_least(SIZE),
            volume_capabilities: vec![self.capability()],
            volume_content_source: source,
            ..volume::create(
                &format!("{}-{name}", self.connection),
                &volume::parameters(&parameters),
            )
        }
    }

    /// A process that has this driver alone, as the node of this id.
    pub(in crate::lab) fn launch(self, mode: &str, id: &str) -> Launch {
        Launch::new(self.file())
            .set("--csi-mode", mode)
            .set("--log-level", "debug")
            .env("CSI_NODE_ID", id)
    }

    /// A new volume, made by a process that has this driver alone.
    pub(in crate::lab) async fn made(self, controller: &Node, name: &str) -> Fixture {
        let request = csi::CreateVolumeRequest {
            parameters: BTreeMap::new(),
            ..self.request(name, None)
        };
        let mut client = controller.server.client().controller;
        let reply = within("create", client.create_volume(request)).await;
        let volume = reply.expect("a volume is made").into_inner().volume;
        self.fixture(volume.expect("a volume"))
    }

    /// The port at which its storage answers.
    pub(in crate::lab) fn port(self) -> u16 {
        match self.driver {
            "zfs-generic-nfs" => 2049,
            "zfs-generic-smb" => 445,
            "zfs-generic-iscsi" => 3260,
            _ => 4420,
        }
    }

    /// Whether its volumes are disks to a node.
    pub(in crate::lab) fn is_device(self) -> bool {
        self.filesystem == "ext4"
    }

    fn capability(self) -> csi::VolumeCapability {
        let mode = match self.filesystem {
            "nfs" | "cifs" | NONE => Mode::MultiNodeMultiWriter,
            _ => Mode::SingleNodeWriter,
        };
        capability(self.access(), mode)
    }

    fn access(self) -> Access {
        match self.filesystem {
            NONE => Access::Block,
            filesystem => Access::Mount(filesystem),
        }
    }

    fn secrets(self) -> BTreeMap<String, String> {
        let (user, password) = SMB_USER;
        match self.filesystem {
            "cifs" => BTreeMap::from([(
                "mount_flags".to_owned(),
                format!("username={user},password={password}"),
            )]),
            _ => BTreeMap::new(),
        }
    }

    /// A volume of it, as nodes get it.
    pub(in crate::lab) fn fixture(self, volume: csi::Volume) -> Fixture {
        Fixture {
            secrets: self.secrets(),
            capability: self.capability(),
            access: self.access(),
            backing: Backing::Dataset(Dataset {
                name: format!("{ROOT}/v"),
            }),
            export: Export::None,
            published: OnceLock::new(),
            volume,
        }
    }
}
