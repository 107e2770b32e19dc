//! The temporary folder of a trial: its journal, its socket, its mount points and, without a
//! configuration, its storage.
//!
//! It is removed by its owner, never across a mount: what is mounted there belongs to a volume.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use csi_types::AbsolutePath;
use node_utils::mount::MountTable;
use node_utils::{Component, Root};

use crate::screen::{chain, variable};

/// The text that the name of every folder begins with, and of everything that is made on a storage.
pub(crate) const PREFIX: &str = "omnibus-try-";

/// The longest path of a unix socket, without its closing zero.
const MAX_SOCKET: usize = 107;

/// A temporary folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    parent: AbsolutePath,
    name: String,
}

// === impl Folder ===

impl Folder {
    /// Makes one, where that is possible.
    pub(crate) fn make(name: &str) -> Result<Self, String> {
        let mut problems = Vec::new();
        for parent in parents() {
            let name = name.to_owned();
            let folder = Self { parent, name };
            match folder.create() {
                Ok(()) => return Ok(folder),
                Err(problem) => problems.push(format!("{}: {problem}", folder.parent)),
            }
        }
        let problems = problems.join("; ");
        Err(format!("no temporary folder can be made: {problems}"))
    }

    fn create(&self) -> Result<(), String> {
        if self.socket().as_str().len() > MAX_SOCKET {
            return Err("its path is too long for a socket in it".to_owned());
        }
        let mut private = DirBuilder::new();
        private.mode(0o700);
        let make = |path: AbsolutePath| private.create(path.as_path());
        make(self.path())
            .and_then(|()| make(self.base()))
            .map_err(|error| error.to_string())
    }

    /// The folders of this user's trials, of those that are running as well.
    pub(crate) fn all() -> Vec<Self> {
        let user = rustix::process::geteuid().as_raw();
        let ours = |entry: &fs::DirEntry| {
            let meta = entry.path().symlink_metadata();
            meta.is_ok_and(|meta| meta.is_dir() && meta.uid() == user)
        };
        let mut folders = Vec::new();
        for parent in parents() {
            let entries = fs::read_dir(parent.as_path()).into_iter().flatten();
            for entry in entries.flatten().filter(ours) {
                let name = entry.file_name().into_string().ok();
                let name = name.filter(|name| name.starts_with(PREFIX));
                folders.extend(name.map(|name| Self {
                    parent: parent.clone(),
                    name,
                }));
            }
        }
        folders
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The path where it is.
    pub(crate) fn path(&self) -> AbsolutePath {
        self.parent.child(&self.name)
    }

    /// The storage, if there is no other.
    pub(crate) fn base(&self) -> AbsolutePath {
        self.path().child("storage")
    }

    /// The socket of the server.
    pub(crate) fn socket(&self) -> AbsolutePath {
        self.path().child("csi.sock")
    }

    /// The path where the journal is kept.
    pub(crate) fn journal(&self) -> PathBuf {
        self.path().child("journal").as_path().to_owned()
    }

    /// The mounts below it, the last one first: mounts may lie on mounts.
    pub(crate) fn mounts(&self) -> Result<Vec<PathBuf>, String> {
        let table = MountTable::read().map_err(|error| error.to_string())?;
        let points = table.entries().map(|entry| entry.point().into_owned());
        let mut points: Vec<_> = points.collect();
        points.retain(|point| point.starts_with(self.path().as_path()));
        points.reverse();
        Ok(points)
    }

    /// Removes it with all that is in it, after what is mounted there.
    pub(crate) fn remove(&self) -> Result<(), String> {
        for point in self.mounts()? {
            let failed = |error| format!("unmount {}: {}", point.display(), chain(&error));
            node_utils::mount::unmount(&point).map_err(failed)?;
        }
        let name = Component::parse(&self.name).map_err(|error| error.to_string())?;
        Root::open(&self.parent)
            .and_then(|parent| parent.remove_tree(&name, &|| false))
            .map(drop)
            .map_err(|error| format!("the folder {}: {}", self.path(), chain(&error)))
    }
}

/// The path where folders are looked for and made: real paths, since mount tables do not know links.
fn parents() -> Vec<AbsolutePath> {
    let chosen = variable("TMPDIR");
    let candidates = chosen.as_deref().into_iter().chain(["/var/tmp", "/tmp"]);
    let mut parents = Vec::new();
    for parent in candidates.filter_map(|path| fs::canonicalize(path).ok()) {
        let parent = parent
            .to_str()
            .and_then(|path| AbsolutePath::parse(path).ok());
        parents.extend(parent.filter(|parent| !parents.contains(parent)));
    }
    parents
}
