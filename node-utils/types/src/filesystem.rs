//! The filesystems that can be made and mounted, and how the operator wants them.

mod settings;

use std::fmt;

pub use settings::{CheckOptions, FilesystemSettings, InvalidOption, OptionWord, as_args};

use crate::capability::FsType;
use crate::error::Error;

/// A filesystem that can be made and mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FilesystemKind {
    /// The third extended filesystem.
    Ext3,
    /// The fourth.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// FAT with long names.
    Vfat,
    /// exFAT.
    Exfat,
    /// NTFS.
    Ntfs,
}

// === impl FilesystemKind ===

impl FilesystemKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ext3,
        Self::Ext4,
        Self::Xfs,
        Self::Btrfs,
        Self::Vfat,
        Self::Exfat,
        Self::Ntfs,
    ];

    /// The filesystem that a request asks for.
    pub fn wanted(fs_type: Option<&FsType>) -> Result<Self, Error> {
        let Some(fs_type) = fs_type else {
            return Ok(Self::Ext4);
        };
        let name = fs_type.as_str();
        Self::named(name).ok_or_else(|| {
            let error = Error::invalid(format!("make a filesystem of the type `{name}`"));
            if name == "ext4dev" {
                return error
                    .advise("that was the name of ext4 while it was young; ask for `ext4`");
            }
            let known: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
            error.advise(format!("those that can be made are {}", known.join(", ")))
        })
    }

    /// The filesystem of that name, as `blkid` and requests spell it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name in requests and for `blkid` and `mkfs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Vfat => "vfat",
            Self::Exfat => "exfat",
            Self::Ntfs => "ntfs",
        }
    }

    /// The Debian package that has its tools.
    pub fn package(self) -> &'static str {
        match self {
            Self::Ext3 | Self::Ext4 => "e2fsprogs",
            Self::Xfs => "xfsprogs",
            Self::Btrfs => "btrfs-progs",
            Self::Vfat => "dosfstools",
            Self::Exfat => "exfatprogs",
            Self::Ntfs => "ntfs-3g",
        }
    }
}

impl fmt::Display for FilesystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
