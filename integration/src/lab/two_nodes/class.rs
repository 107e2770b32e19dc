//! The connections of the cell, with the files and classes that make them.

use std::collections::BTreeMap;
use std::fs;

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;

use super::{ROOT, SIZE};
use crate::lab::command::run;
use crate::lab::fixture::{Access, Backing, Export, Fixture, capability};
use crate::lab::pair::{HERE, KEY, THERE};
use crate::lab::storage::shares::SMB_USER;
use crate::lab::storage::zfs::Dataset;
use crate::volume;

/// A storage class: the connection, the parameters, and the secrets of a stage.
#[derive(Clone, Copy)]
pub(super) struct Class {
    pub(super) connection: &'static str,
    filesystem: &'static str,
    driver: &'static str,
    section: &'static str,
    /// The machine that stores it.
    host: &'static str,
}

pub(super) const FILES: Class = Class {
    connection: "example-nfs",
    filesystem: "nfs",
    driver: "zfs-generic-nfs",
    section: "nfs:
  shareHost: HOST
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}}
",
    host: HERE,
};
pub(super) const OTHER_FILES: Class = Class {
    connection: "other-nfs",
    host: THERE,
    ..FILES
};
pub(super) const DISKS: Class = Class {
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
    host: THERE,
};
/// The other machine's disks again, for one zone only.
pub(super) const ZONED_DISKS: Class = Class {
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
pub(super) const NAMESPACES: Class = Class {
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
    host: HERE,
};
pub(super) const SHARES: Class = Class {
    connection: "windows",
    filesystem: "cifs",
    driver: "zfs-generic-smb",
    section: "smb:
  shareHost: HOST
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharesmb: true}}
",
    host: THERE,
};

// === impl Class ===

impl Class {
    /// The file of the connection: what a process with this driver alone would have.
    pub(super) fn file(self) -> String {
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

    pub(super) fn request(
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

    fn capability(self) -> csi::VolumeCapability {
        let mode = match self.filesystem {
            "nfs" | "cifs" => Mode::MultiNodeMultiWriter,
            _ => Mode::SingleNodeWriter,
        };
        capability(Access::Mount(self.filesystem), mode)
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
    pub(super) fn fixture(self, volume: csi::Volume) -> Fixture {
        Fixture {
            secrets: self.secrets(),
            capability: self.capability(),
            access: Access::Mount(self.filesystem),
            backing: Backing::Dataset(Dataset {
                name: format!("{ROOT}/v"),
            }),
            export: Export::None,
            volume,
        }
    }
}
