//! The typed volume context: how a volume reaches a pod.
//!
//! An [`Attachment`] is the only definition of a volume context. Drivers make one, the orchestrator
//! carries its text, the node reads it back. No other code interprets these keys. The keys are those
//! that democratic-csi writes, see `docs/compatibility.md`, "Volume context".

mod field;
mod fuse;
mod hidden;
mod iscsi;
mod listed;
mod nvmeof;
mod path;
mod portal;
mod share;
#[cfg(test)]
mod tests;
mod zfs;

use std::collections::BTreeMap;

pub use field::{DeviceId, FieldError};
pub use fuse::{Objectivefs, ObjectivefsName, Oneclient};
pub use hidden::Hidden;
pub use iscsi::{Interface, Iqn, Iscsi, Lun};
pub use listed::Listed;
pub use nvmeof::{ConnectOption, Fabric, Nqn, Nsid, Nvmeof, Transport};
pub use path::{AbsolutePath, PathError};
pub use portal::{Host, Portal};
pub use share::{NetworkShare, Server, Share};
pub use zfs::{DatasetName, ZfsLocal};

/// A volume context as text, as the orchestrator stores it.
pub type VolumeContext = BTreeMap<String, String>;

/// The key that chooses the kind of attachment.
pub const KIND_KEY: &str = "node_attach_driver";

/// The key that is `true` where the storage lets in only nodes that the volume is published to. The controller puts it
/// into the publish context: it is so of an attachment, not of a volume.
pub const FENCES_NODES_KEY: &str = "storage_fences_nodes";

/// The way a volume reaches a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachment {
    /// A directory of the node itself, bind-mounted.
    Hostpath(Hostpath),
    /// An NFS export.
    Nfs(NetworkShare),
    /// An SMB share.
    Smb(NetworkShare),
    /// A Lustre filesystem.
    Lustre(NetworkShare),
    /// A disk of an iSCSI target.
    Iscsi(Iscsi),
    /// A namespace of an NVMe-oF subsystem.
    Nvmeof(Nvmeof),
    /// A dataset or zvol of the node itself.
    ZfsLocal(ZfsLocal),
    /// An `ObjectiveFS` filesystem, by its FUSE daemon.
    Objectivefs(Objectivefs),
    /// An Onedata space, by its FUSE daemon.
    Oneclient(Oneclient),
}

/// A directory of the node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostpath {
    /// The path where it is, as the node sees it.
    pub path: AbsolutePath,
}

/// Why a volume context cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// A key that this kind of attachment needs is missing or empty.
    #[error("volume context has no `{0}`")]
    Missing(&'static str),
    /// No attachment of that name exists in this build.
    #[error("volume context has the unknown {KIND_KEY} `{}`", .0.escape_debug())]
    UnknownKind(String),
    /// A path that cannot be right.
    #[error("volume context has an unusable `{key}`: {reason}")]
    Unusable {
        /// The key.
        key: &'static str,
        /// The problem with its value.
        reason: PathError,
    },
    /// A value that cannot be right.
    #[error("volume context has an unusable `{key}`: {reason}")]
    Word {
        /// The key.
        key: &'static str,
        /// The problem with its value.
        reason: FieldError,
    },
}

/// The keys of a volume context, read for one kind of attachment. An empty value counts as absent:
/// that is how democratic-csi writes what is not configured.
#[derive(Clone, Copy)]
struct Keys<'a>(&'a VolumeContext);

// === impl Attachment ===

impl Attachment {
    /// Every value of [`KIND_KEY`] that is known.
    pub const KINDS: [&str; 9] = [
        "hostpath",
        "nfs",
        "smb",
        "lustre",
        "iscsi",
        "nvmeof",
        "zfs-local",
        "objectivefs",
        "oneclient",
    ];

    /// Reads a volume context. Keys that this kind does not use are ignored: the orchestrator and
    /// older drivers add theirs.
    pub fn parse(context: &VolumeContext) -> Result<Self, ContextError> {
        let keys = Keys(context);
        Ok(match keys.text(KIND_KEY)? {
            "hostpath" => {
                let path = AbsolutePath::parse(keys.text("path")?).map_err(|reason| {
                    ContextError::Unusable {
                        key: "path",
                        reason,
                    }
                })?;
                Self::Hostpath(Hostpath { path })
            }
            "nfs" => Self::Nfs(NetworkShare::read(keys)?),
            "smb" => Self::Smb(NetworkShare::read(keys)?.below_root()?),
            "lustre" => Self::Lustre(NetworkShare::read(keys)?),
            "iscsi" => Self::Iscsi(Iscsi::read(keys)?),
            "nvmeof" => Self::Nvmeof(Nvmeof::read(keys)?),
            "zfs-local" => Self::ZfsLocal(ZfsLocal::read(keys)?),
            "objectivefs" => Self::Objectivefs(Objectivefs::read(keys)?),
            "oneclient" => Self::Oneclient(Oneclient::read(keys)?),
            other => return Err(ContextError::UnknownKind(other.to_owned())),
        })
    }

    /// The text form that [`Attachment::parse`] reads. It holds what is hidden, too.
    pub fn to_context(&self) -> VolumeContext {
        let mut context = VolumeContext::new();
        let mut put = |key: &str, value: String| {
            context.insert(key.to_owned(), value);
        };
        put(KIND_KEY, self.kind().to_owned());
        match self {
            Self::Hostpath(hostpath) => put("path", hostpath.path.as_str().to_owned()),
            Self::Nfs(share) | Self::Smb(share) | Self::Lustre(share) => share.write(&mut put),
            Self::Iscsi(iscsi) => iscsi.write(&mut put),
            Self::Nvmeof(nvmeof) => nvmeof.write(&mut put),
            Self::ZfsLocal(zfs) => put("zfs_asset_name", zfs.asset.as_str().to_owned()),
            Self::Objectivefs(objectivefs) => objectivefs.write(&mut put),
            Self::Oneclient(oneclient) => oneclient.write(&mut put),
        }
        context
    }

    /// The value of [`KIND_KEY`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hostpath(_) => "hostpath",
            Self::Nfs(_) => "nfs",
            Self::Smb(_) => "smb",
            Self::Lustre(_) => "lustre",
            Self::Iscsi(_) => "iscsi",
            Self::Nvmeof(_) => "nvmeof",
            Self::ZfsLocal(_) => "zfs-local",
            Self::Objectivefs(_) => "objectivefs",
            Self::Oneclient(_) => "oneclient",
        }
    }

    /// Whether the volume can be given to a pod as a raw device. For ZFS on the node only the type
    /// of the dataset decides, so this returns true.
    pub fn may_be_device(&self) -> bool {
        self.is_remote_disk() || matches!(self, Self::ZfsLocal(_))
    }

    /// Whether the node gets a disk from somewhere else.
    pub fn is_remote_disk(&self) -> bool {
        matches!(self, Self::Iscsi(_) | Self::Nvmeof(_))
    }
}

// === impl Keys ===

impl<'a> Keys<'a> {
    /// A value that has to be there.
    fn text(self, key: &'static str) -> Result<&'a str, ContextError> {
        self.optional(key).ok_or(ContextError::Missing(key))
    }

    fn optional(self, key: &str) -> Option<&'a str> {
        let value = self.0.get(key).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// A value that has to be there and to be of its type.
    fn word<T>(
        self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, FieldError>,
    ) -> Result<T, ContextError> {
        parse(self.text(key)?).map_err(|reason| ContextError::Word { key, reason })
    }

    /// The entries of a list with commas, without blanks around them and without empty ones.
    fn list(self, key: &str) -> impl Iterator<Item = &'a str> {
        let entries = self.optional(key).unwrap_or_default().split(',');
        entries.map(str::trim).filter(|entry| !entry.is_empty())
    }

    /// The entries of a key and of its plural, each once and in this order.
    fn entries<T: PartialEq>(
        self,
        one: &'static str,
        many: &'static str,
        parse: impl Fn(&str) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, ContextError> {
        let mut found = Vec::new();
        for key in [one, many] {
            for entry in self.list(key) {
                let entry = parse(entry).map_err(|reason| ContextError::Word { key, reason })?;
                if !found.contains(&entry) {
                    found.push(entry);
                }
            }
        }
        if found.is_empty() {
            return Err(ContextError::Missing(one));
        }
        Ok(found)
    }
}
