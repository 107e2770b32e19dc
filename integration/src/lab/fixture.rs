//! Volumes made by hand on the storage side, with everything that a node needs to use them.
//!
//! A [`Fixture`] is what an administrator makes for node-manual: the dataset or zvol on the storage
//! host, its export, and the volume context, secrets and capability with which it is mounted.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::v1::{Volume, VolumeCapability};

use super::storage::lio::{Chap, Target};
use super::storage::nvmet::Subsystem;
use super::storage::shares;
use super::storage::zfs::{Dataset, Zvol};

/// The size of a block volume at first: the least that `mkfs.xfs` takes, and some.
pub const SIZE: u64 = 512 << 20;

/// The size that it grows to.
pub const LARGER: u64 = 768 << 20;

const CHAP_PASSWORDS: (&str, &str) = ("lab-chap-password", "lab-mutual-password");

/// The kind of export over which a volume reaches a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportKind {
    /// A directory of the node itself.
    Hostpath,
    /// A directory over NFS.
    Nfs,
    /// A directory over SMB, with user and password.
    Smb,
    /// A directory over SMB, as guest.
    SmbGuest,
    /// A zvol over iSCSI.
    Iscsi,
    /// A zvol over iSCSI, where both sides prove who they are.
    IscsiChap,
    /// A zvol over iSCSI, at two addresses.
    IscsiPortals,
    /// A zvol over iSCSI and IPv6.
    IscsiIpv6,
    /// A zvol over NVMe-oF.
    Nvmeof,
    /// A zvol over NVMe-oF, at two addresses.
    NvmeofTransports,
    /// A dataset of the node itself.
    Dataset,
    /// A zvol of the node itself.
    Zvol,
}

/// The way a pod uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Mounted, with this filesystem; none names what a share needs no name for.
    Mount(&'static str),
    /// As a device.
    Block,
}

/// One volume, made and exported.
#[derive(Debug)]
pub struct Fixture {
    /// As the orchestrator knows it.
    pub volume: Volume,
    /// The secrets of a stage.
    pub secrets: BTreeMap<String, String>,
    /// The way it is used.
    pub capability: VolumeCapability,
    /// The access of the capability.
    pub access: Access,
    /// Its form on the storage side.
    pub backing: Backing,
    /// The exporter of the volume.
    pub export: Export,
    /// The publish context, once a controller has published it to a node.
    pub published: OnceLock<BTreeMap<String, String>>,
}

/// The holder of the bytes.
#[derive(Debug)]
pub enum Backing {
    /// A dataset, or a directory in one.
    Dataset(Dataset),
    /// A zvol.
    Zvol(Zvol),
}

/// The way to the bytes.
#[derive(Debug)]
pub enum Export {
    /// Nothing: they are on the node.
    None,
    /// An NFS export to an address.
    Nfs(String),
    /// An SMB share.
    Smb(String),
    /// A LUN of a target.
    Iscsi(Target, u32),
    /// A namespace of a subsystem.
    Nvmeof(Subsystem, u32),
}

// === impl ExportKind ===

impl ExportKind {
    /// Whether the node mounts a directory that the storage has, rather than a device.
    pub fn is_shared(self) -> bool {
        matches!(
            self,
            Self::Hostpath | Self::Nfs | Self::Smb | Self::SmbGuest | Self::Dataset
        )
    }

    /// Makes a volume of this name and exports it.
    pub fn fixture(self, name: &str, access: Access) -> Fixture {
        let (backing, export, context, secrets) = if self.is_shared() {
            self.share(name)
        } else {
            self.device(name)
        };
        Fixture {
            secrets,
            ..Fixture::new(name, context, access, backing, export)
        }
    }

    fn share(self, name: &str) -> (Backing, Export, Context, Context) {
        let dataset = match self {
            Self::Dataset => Dataset::create_unmounted(name),
            _ => Dataset::create(name),
        };
        let folder = dataset.folder();
        let path = folder.display().to_string();
        let mut secrets = Context::new();
        let (export, context) = match self {
            Self::Hostpath => (
                Export::None,
                vec![pair("node_attach_driver", "hostpath"), pair("path", &path)],
            ),
            Self::Nfs => {
                shares::nfs(&folder, number(name), "127.0.0.1");
                let context = vec![
                    pair("node_attach_driver", "nfs"),
                    pair("server", "127.0.0.1"),
                    pair("share", &path),
                ];
                (Export::Nfs("127.0.0.1".into()), context)
            }
            Self::Smb | Self::SmbGuest => {
                let guest = self == Self::SmbGuest;
                shares::smb(&folder, name, guest);
                if !guest {
                    let (user, password) = shares::SMB_USER;
                    let flags = format!("username={user},password={password}");
                    secrets.extend([pair("mount_flags", &flags)]);
                }
                let context = vec![
                    pair("node_attach_driver", "smb"),
                    pair("server", "127.0.0.1"),
                    pair("share", name),
                ];
                (Export::Smb(name.to_owned()), context)
            }
            _ => (
                Export::None,
                vec![
                    pair("node_attach_driver", "zfs-local"),
                    pair("zfs_asset_name", &dataset.name),
                ],
            ),
        };
        (
            Backing::Dataset(dataset),
            export,
            context.into_iter().collect(),
            secrets,
        )
    }

    fn device(self, name: &str) -> (Backing, Export, Context, Context) {
        let zvol = Zvol::create(name, SIZE);
        let mut secrets = Context::new();
        let (export, context) = match self {
            Self::Nvmeof | Self::NvmeofTransports => {
                let both = [("127.0.0.1", 4420), ("127.0.0.1", 4421)];
                let several = self == Self::NvmeofTransports;
                let ports = if several { &both[..] } else { &both[..1] };
                let subsystem = Subsystem::create(name, ports);
                subsystem.attach(1, &zvol);
                let context = nvmeof_context(&subsystem.nqn, ports, 1);
                (Export::Nvmeof(subsystem, 1), context)
            }
            Self::Zvol => (
                Export::None,
                Context::from([
                    pair("node_attach_driver", "zfs-local"),
                    pair("zfs_asset_name", &zvol.name),
                ]),
            ),
            _ => {
                let chap = (self == Self::IscsiChap).then(|| {
                    secrets = chap_secrets();
                    chap()
                });
                let portals: &[&str] = match self {
                    Self::IscsiPortals => &["127.0.0.1:3260", "127.0.0.2:3260"],
                    Self::IscsiIpv6 => &["[::1]:3260"],
                    _ => &["127.0.0.1:3260"],
                };
                let target = Target::create(name, portals, chap.as_ref());
                target.attach(0, &zvol);
                let context = iscsi_context(&target, 0);
                (Export::Iscsi(target, 0), context)
            }
        };
        (Backing::Zvol(zvol), export, context, secrets)
    }
}

type Context = BTreeMap<String, String>;

/// The context of a LUN.
pub fn iscsi_context(target: &Target, lun: u32) -> BTreeMap<String, String> {
    let mut context = Context::from([
        pair("node_attach_driver", "iscsi"),
        pair("iqn", &target.iqn),
        pair("lun", &lun.to_string()),
        pair("portal", &target.portals[0]),
    ]);
    if target.portals.len() > 1 {
        context.extend([pair("portals", &target.portals.join(","))]);
    }
    context
}

/// The context of a namespace.
pub fn nvmeof_context(nqn: &str, ports: &[(&str, u16)], nsid: u32) -> BTreeMap<String, String> {
    let all: Vec<_> = ports
        .iter()
        .map(|(address, service)| format!("tcp://{address}:{service}"))
        .collect();
    let mut context = Context::from([
        pair("node_attach_driver", "nvmeof"),
        pair("nqn", nqn),
        pair("nsid", &nsid.to_string()),
        pair("transport", &all[0]),
    ]);
    if all.len() > 1 {
        context.extend([pair("transports", &all.join(","))]);
    }
    context
}

/// A capability.
pub fn capability(access: Access, mode: Mode) -> VolumeCapability {
    let access_type = match access {
        Access::Block => AccessType::Block(BlockVolume {}),
        Access::Mount(kind) => AccessType::Mount(MountVolume {
            fs_type: kind.to_owned(),
            ..MountVolume::default()
        }),
    };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

// === impl Fixture ===

impl Fixture {
    /// A volume that is there already.
    pub fn new(
        name: &str,
        context: BTreeMap<String, String>,
        access: Access,
        backing: Backing,
        export: Export,
    ) -> Self {
        let mut volume_context = BTreeMap::from([pair("provisioner_driver", "node-manual")]);
        volume_context.extend(context);
        Self {
            volume: Volume {
                volume_id: name.to_owned(),
                volume_context,
                ..Volume::default()
            },
            secrets: BTreeMap::new(),
            capability: capability(access, Mode::SingleNodeMultiWriter),
            access,
            backing,
            export,
            published: OnceLock::new(),
        }
    }

    /// The same volume, to be used in another mode.
    #[must_use]
    pub fn in_mode(mut self, mode: Mode) -> Self {
        self.capability = capability(self.access, mode);
        self
    }

    /// Whether the bytes are a device's.
    pub fn is_device(&self) -> bool {
        matches!(self.backing, Backing::Zvol(_))
    }

    /// The zvol of it.
    ///
    /// # Panics
    /// If it has none.
    pub fn zvol(&self) -> &Zvol {
        match &self.backing {
            Backing::Zvol(zvol) => zvol,
            Backing::Dataset(dataset) => panic!("{} is no zvol", dataset.name),
        }
    }

    /// Makes a device larger on the storage side and tells hosts so.
    pub fn grow(&self, bytes: u64) {
        self.zvol().grow(bytes);
        if let Export::Nvmeof(subsystem, nsid) = &self.export {
            subsystem.announce_size(*nsid);
        }
    }

    /// Exports a directory again.
    pub fn export_again(&self) {
        if let (Export::Nfs(client), Backing::Dataset(dataset)) = (&self.export, &self.backing) {
            shares::nfs(&dataset.folder(), self.number(), client);
        }
    }

    /// Lets the NFS server export the directory whenever it starts.
    pub fn export_at_start(&self) {
        if let (Export::Nfs(client), Backing::Dataset(dataset)) = (&self.export, &self.backing) {
            shares::nfs_at_start(&dataset.folder(), self.number(), client);
        }
    }

    fn number(&self) -> u32 {
        number(&self.volume.volume_id)
    }

    /// Ends the export, so that only the bytes are left.
    pub fn remove(&self) {
        match (&self.export, &self.backing) {
            (Export::Nfs(client), Backing::Dataset(dataset)) => {
                shares::no_nfs(&dataset.folder(), client);
            }
            (Export::Smb(name), _) => shares::no_smb(name),
            (Export::Iscsi(target, lun), Backing::Zvol(zvol)) => {
                target.detach(*lun, zvol);
                target.remove();
            }
            (Export::Nvmeof(subsystem, _), _) => subsystem.remove(),
            _ => {}
        }
    }

    /// The content of a file of the volume, when no node has it.
    pub fn stored(&self, file: &str) -> Vec<u8> {
        match (&self.backing, self.access) {
            // Over NFS and SMB the dataset stays where it is; the node's own is mounted by hand.
            (Backing::Dataset(dataset), _) => {
                read_below(&dataset.folder(), file).unwrap_or_else(|| dataset.read(file))
            }
            (Backing::Zvol(zvol), Access::Mount(kind)) => zvol.read(kind, file),
            (Backing::Zvol(_), Access::Block) => panic!("a device has no files"),
        }
    }
}

fn read_below(folder: &Path, file: &str) -> Option<Vec<u8>> {
    fs::read(folder.join(file)).ok()
}

fn chap() -> Chap {
    Chap {
        initiator: ("node".to_owned(), CHAP_PASSWORDS.0.to_owned()),
        target: Some(("storage".to_owned(), CHAP_PASSWORDS.1.to_owned())),
    }
}

fn chap_secrets() -> Context {
    let setting = |key: &str, value: &str| pair(&format!("node-db.node.session.auth.{key}"), value);
    Context::from([
        setting("authmethod", "CHAP"),
        setting("username", "node"),
        setting("password", CHAP_PASSWORDS.0),
        setting("username_in", "storage"),
        setting("password_in", CHAP_PASSWORDS.1),
    ])
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

/// A number that tells exports apart.
fn number(name: &str) -> u32 {
    name.bytes()
        .fold(17, |number, byte| {
            (number * 31 + u32::from(byte)) % 1_000_003
        })
        .max(1)
}
