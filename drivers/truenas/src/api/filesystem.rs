//! Owners, modes and ACLs of directories. The NAS runs one of these jobs at a time on CORE and SCALE.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, Fields, JobRequest, Request};
use crate::{Dialect, Error, Generation};

/// The file or directory at a path.
#[derive(Debug, Clone)]
pub struct Stat {
    /// The path.
    pub path: String,
}

/// The file or directory at a path.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FileStat {
    /// `DIRECTORY`, `FILE`, …
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Type and permissions, as in `stat(2)`.
    pub mode: u32,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// Whether it has an ACL beyond its mode.
    #[serde(default)]
    pub acl: bool,
    /// The number of its filesystem, as in `stat(2)`.
    pub dev: Option<u64>,
    /// Whether a filesystem is mounted here. CORE does not say it.
    pub is_mountpoint: Option<bool>,
}

/// The number of a mounted filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    major: u64,
    minor: u64,
}

/// Finds which filesystem a path is on.
#[derive(Debug, Clone)]
pub struct FindFilesystem {
    /// The path.
    pub path: String,
}

/// The filesystem that a path is on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MountedFilesystem {
    /// The dataset.
    #[serde(default)]
    pub source: String,
}

/// Lists what is in a directory.
#[derive(Debug, Clone)]
pub struct ListDirectory {
    /// The directory.
    pub path: String,
    /// At most so much.
    pub limit: u32,
}

/// Something in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: String,
}

/// Sets mode and owner. A job.
#[derive(Debug, Clone, Default)]
pub struct SetPermissions {
    /// The directory.
    pub path: String,
    /// Octal digits.
    pub mode: Option<String>,
    /// The number of the owner.
    pub uid: Option<u32>,
    /// The number of the group.
    pub gid: Option<u32>,
    /// Also what is below.
    pub recursive: bool,
    /// Replace an ACL by the mode. Without it, a directory with an ACL refuses a mode.
    pub strip_acl: bool,
}

/// Sets the owner alone. A job.
#[derive(Debug, Clone, Default)]
pub struct SetOwner {
    /// The directory.
    pub path: String,
    /// The number of the owner.
    pub uid: Option<u32>,
    /// The number of the group.
    pub gid: Option<u32>,
    /// Also what is below.
    pub recursive: bool,
}

/// Sets an ACL. A job.
#[derive(Debug, Clone)]
pub struct SetAcl {
    /// The directory.
    pub path: String,
    /// The kind of ACL.
    pub kind: AclKind,
    /// The entries in the form of the API.
    pub entries: Vec<Value>,
    /// The number of the owner.
    pub uid: Option<u32>,
    /// The number of the group.
    pub gid: Option<u32>,
    /// Also what is below.
    pub recursive: bool,
}

/// The ACL of a directory.
#[derive(Debug, Clone)]
pub struct GetAcl {
    /// The directory.
    pub path: String,
    /// With the names of numbers.
    pub names: bool,
}

/// An ACL as it stands.
#[derive(Debug, Clone, Deserialize)]
pub struct FileAcl {
    /// `NFS4`, `POSIX1E` or `DISABLED`.
    pub acltype: String,
    /// The entries in the form of the API.
    pub acl: Option<Vec<Value>>,
}

/// The two kinds of ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclKind {
    /// That of NFS 4.
    Nfs4,
    /// POSIX.
    Posix1e,
}

// === impl FileStat ===

impl FileStat {
    /// The filesystem that it is on, if the NAS says it.
    pub fn device(&self) -> Option<Device> {
        self.dev.map(Device::of_stat)
    }
}

// === impl Device ===

impl Device {
    /// Reads the number of `stat(2)`, as the C library of Linux puts it together.
    fn of_stat(dev: u64) -> Self {
        Self {
            major: ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff),
            minor: (dev & 0xff) | ((dev >> 12) & 0xffff_ff00),
        }
    }

    /// Reads the first two numbers of `00:39:137`, as nfsd names a file: in hexadecimal.
    pub(crate) fn of_superblock(text: &str) -> Option<Self> {
        let mut numbers = text.split(':');
        let mut number = || u64::from_str_radix(numbers.next()?, 16).ok();
        Some(Self {
            major: number()?,
            minor: number()?,
        })
    }
}

impl Request for Stat {
    type Answer = FileStat;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("filesystem.stat", vec![json!(self.path)]))
    }
}

impl Request for FindFilesystem {
    type Answer = MountedFilesystem;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("filesystem.statfs", vec![json!(self.path)]))
    }
}

impl Request for ListDirectory {
    type Answer = Vec<DirectoryEntry>;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        let options = json!({"limit": self.limit});
        Ok(Call::new(
            "filesystem.listdir",
            vec![json!(self.path), json!([]), options],
        ))
    }
}

impl Request for GetAcl {
    type Answer = FileAcl;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let mut params = vec![json!(self.path), json!(true)];
        // CORE lacks the argument.
        if dialect.generation() > Generation::Core {
            params.push(json!(self.names));
        }
        Ok(Call::new("filesystem.getacl", params))
    }
}

impl AclKind {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nfs4 => "NFS4",
            Self::Posix1e => "POSIX1E",
        }
    }
}

impl JobRequest for SetPermissions {
    fn permits(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("path", self.path.as_str())
            .opt("mode", self.mode.as_ref())
            .opt("uid", self.uid.as_ref())
            .opt("gid", self.gid.as_ref())
            .put(
                "options",
                json!({"recursive": self.recursive, "stripacl": self.strip_acl}),
            )
            .call("filesystem.setperm")
    }
}

impl JobRequest for SetOwner {
    fn permits(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("path", self.path.as_str())
            .opt("uid", self.uid.as_ref())
            .opt("gid", self.gid.as_ref())
            .put("options", json!({"recursive": self.recursive}))
            .call("filesystem.chown")
    }
}

impl JobRequest for SetAcl {
    fn permits(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("path", self.path.as_str())
            .put("acltype", self.kind.name())
            .put("dacl", self.entries.clone())
            .opt("uid", self.uid.as_ref())
            .opt("gid", self.gid.as_ref())
            .put("options", json!({"recursive": self.recursive}))
            .call("filesystem.setacl")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_is_the_same_by_both_of_its_numbers() {
        for (dev, superblock) in [
            (57, "00:39:137"),
            (0x10_00a3, "00:1a3:34"),
            (0x0801, "08:01:2"),
        ] {
            let device = Device::of_superblock(superblock);
            assert_eq!(device, Some(Device::of_stat(dev)), "{superblock}");
        }
        for strange in ["", "00", "00:", "x:39:1", "0:-1:1"] {
            assert_eq!(Device::of_superblock(strange), None, "{strange}");
        }
    }
}
