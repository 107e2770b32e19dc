//! The kinds of this family, and the differences between them that are not configuration.

use csi_types::attachment::{Hostpath, NetworkShare, Server, Share};
use csi_types::{AbsolutePath, Attachment};
use rustix::fs::StatFs;

use crate::id::VolumeDir;

/// One kind of driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryKind {
    /// Directories of the node that this process runs on.
    LocalHostpath,
    /// Directories of an NFS share.
    NfsClient,
    /// Directories of an SMB share.
    SmbClient,
    /// Directories of a Lustre filesystem.
    LustreClient,
}

/// The place where the nodes find the base directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// It is a directory of the node itself.
    Hostpath(AbsolutePath),
    /// It is a directory of an NFS share.
    Nfs(Server, AbsolutePath),
    /// It is a directory of an SMB share; the first component is the name of the share.
    Smb(Server, AbsolutePath),
    /// It is a directory of a Lustre filesystem.
    Lustre(Server, AbsolutePath),
}

/// Whether a filesystem is a share, where each step waits for a server.
pub(crate) fn is_share(filesystem: &StatFs) -> bool {
    let kinds = [
        DirectoryKind::NfsClient,
        DirectoryKind::SmbClient,
        DirectoryKind::LustreClient,
    ];
    kinds.into_iter().any(|kind| kind.is_mounted_as(filesystem))
}

// === impl DirectoryKind ===

impl DirectoryKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [
        Self::LocalHostpath,
        Self::NfsClient,
        Self::SmbClient,
        Self::LustreClient,
    ];

    /// The value of `driver:`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LocalHostpath => "local-hostpath",
            Self::NfsClient => "nfs-client",
            Self::SmbClient => "smb-client",
            Self::LustreClient => "lustre-client",
        }
    }

    /// The section of the configuration.
    pub const fn section(self) -> &'static str {
        match self {
            Self::LocalHostpath => "local-hostpath",
            Self::NfsClient => "nfs",
            Self::SmbClient => "smb",
            Self::LustreClient => "lustre",
        }
    }

    /// Filesystem types that a volume capability may name.
    pub(crate) const fn fs_types(self) -> &'static [&'static str] {
        match self {
            Self::LocalHostpath => &[],
            Self::NfsClient => &["nfs"],
            Self::SmbClient => &["cifs"],
            Self::LustreClient => &["lustre"],
        }
    }

    /// The types that `statfs` shows of a mounted share; none if there is no share.
    const fn mounted_types(self) -> &'static [u64] {
        match self {
            Self::LocalHostpath => &[],
            Self::NfsClient => &[0x6969],
            // Of the filesystem for version 1 of the protocol, and for later ones.
            Self::SmbClient => &[0xff53_4d42, 0xfe53_4d42],
            Self::LustreClient => &[0x0bd0_0bd0],
        }
    }

    /// Whether a share has to be mounted.
    pub(crate) const fn is_of_share(self) -> bool {
        !self.mounted_types().is_empty()
    }

    /// Whether a filesystem is a share of this kind.
    pub(crate) fn is_mounted_as(self, filesystem: &StatFs) -> bool {
        u64::try_from(filesystem.f_type).is_ok_and(|found| self.mounted_types().contains(&found))
    }
}

// === impl Location ===

impl Location {
    /// Checks that every volume below `path` has an address that a node can mount.
    pub(crate) fn new(
        kind: DirectoryKind,
        server: Option<Server>,
        path: AbsolutePath,
    ) -> Option<Self> {
        let location = match (kind, server) {
            (DirectoryKind::LocalHostpath, _) => Self::Hostpath(path),
            (DirectoryKind::NfsClient, server) => Self::Nfs(server?, path),
            (DirectoryKind::SmbClient, server) => Self::Smb(server?, path),
            (DirectoryKind::LustreClient, server) => Self::Lustre(server?, path),
        };
        location
            .try_attachment(&VolumeDir::longest(crate::id::MAX_VOLUME))
            .map(|_| location)
    }

    /// The attachment of a volume. compat: "Volume context".
    pub(crate) fn attachment(&self, dir: &VolumeDir) -> Attachment {
        self.try_attachment(dir)
            .expect("one with the longest id was made when the configuration was read")
    }

    fn try_attachment(&self, dir: &VolumeDir) -> Option<Attachment> {
        let (Self::Hostpath(base)
        | Self::Nfs(_, base)
        | Self::Smb(_, base)
        | Self::Lustre(_, base)) = self;
        let path = base.child("v").child(dir.as_str());
        let share = |server: &Server, share: &str| {
            Some(NetworkShare {
                server: server.clone(),
                share: Share::parse(share).ok()?,
            })
        };
        Some(match self {
            Self::Hostpath(_) => Attachment::Hostpath(Hostpath { path }),
            Self::Nfs(server, _) => Attachment::Nfs(share(server, path.as_str())?),
            Self::Smb(server, _) => {
                Attachment::Smb(share(server, path.as_str().trim_start_matches('/'))?)
            }
            Self::Lustre(server, _) => Attachment::Lustre(share(server, path.as_str())?),
        })
    }

    /// The share itself, as a process mounts it; `None` if there is none.
    pub(crate) fn share(&self) -> Option<Attachment> {
        let share = |server: &Server, path: &str| {
            Some(NetworkShare {
                server: server.clone(),
                share: Share::parse(path).ok()?,
            })
        };
        Some(match self {
            Self::Hostpath(_) => return None,
            Self::Nfs(server, path) => Attachment::Nfs(share(server, path.as_str())?),
            Self::Smb(server, path) => {
                Attachment::Smb(share(server, path.as_str().trim_start_matches('/'))?)
            }
            Self::Lustre(server, path) => Attachment::Lustre(share(server, path.as_str())?),
        })
    }

    /// The same text for the same base, for finding connections that share one.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Hostpath(path) => path.to_string(),
            Self::Nfs(server, path) | Self::Smb(server, path) | Self::Lustre(server, path) => {
                format!("{server}:{path}")
            }
        }
    }
}
