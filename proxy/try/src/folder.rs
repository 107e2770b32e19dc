//! The temporary folder of a trial: its socket, its mount points and, without a configuration, its
//! storage.
//!
//! It is removed by its owner, never across a mount: what is mounted there belongs to a volume.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use csi_types::AbsolutePath;
use node_utils::mount::MountTable;
use node_utils::{Component, Root};
use rustix::fs::XattrFlags;

use super::trial::TrialName;
use crate::process;

/// The longest path of a unix socket, without its closing zero.
const MAX_SOCKET: usize = 107;

/// The temporary folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: AbsolutePath,
}

/// The mount points of one volume.
#[derive(Debug, Clone)]
pub(super) struct MountPoints {
    /// Where it is staged.
    pub(super) staging: AbsolutePath,
    /// Where the pod sees it.
    pub(super) target: AbsolutePath,
}

// === impl Folder ===

impl Folder {
    /// Makes one where files can have attributes of their own, if there is such a place: the
    /// directory driver keeps its records there.
    pub(super) fn make(name: &TrialName) -> Result<Self, String> {
        let mut problems = Vec::new();
        let mut second_best = None;
        let chosen = process::variable("TMPDIR").filter(|path| !path.is_empty());
        for parent in chosen.as_deref().into_iter().chain(["/var/tmp", "/tmp"]) {
            match Self::make_in(parent, name) {
                Ok(folder) if folder.keeps_attributes() => {
                    second_best.map(|other: Self| other.remove().ok());
                    return Ok(folder);
                }
                // Two candidates may be the same place.
                Ok(folder) if second_best.is_none() => second_best = Some(folder),
                Ok(folder) => drop(folder.remove()),
                Err(problem) => problems.push(format!("{parent}: {problem}")),
            }
        }
        second_best.ok_or_else(|| problems.join("; "))
    }

    fn make_in(parent: &str, name: &TrialName) -> Result<Self, String> {
        // The real path: mount tables do not know links.
        let real = fs::canonicalize(parent).map_err(|error| error.to_string())?;
        let real = real.to_str().ok_or("its path is not UTF-8")?;
        let parent = AbsolutePath::parse(real).map_err(|error| error.to_string())?;
        let folder = Self {
            path: parent.child(name.as_str()),
        };
        if folder.socket().as_str().len() > MAX_SOCKET {
            return Err("its path is too long for a socket in it".to_owned());
        }
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        private
            .create(folder.path.as_path())
            .map_err(|error| error.to_string())?;
        let made = private.create(folder.base().as_path());
        made.map_err(|error| error.to_string())?;
        Ok(folder)
    }

    fn keeps_attributes(&self) -> bool {
        let flags = XattrFlags::empty();
        rustix::fs::setxattr(self.path.as_path(), "user.omnibus-csi.try", b"1", flags).is_ok()
    }

    /// Where it is.
    pub(super) fn path(&self) -> &AbsolutePath {
        &self.path
    }

    /// The storage, if there is no other.
    pub(super) fn base(&self) -> AbsolutePath {
        self.path.child("storage")
    }

    /// The socket of the server.
    pub(super) fn socket(&self) -> AbsolutePath {
        self.path.child("csi.sock")
    }

    /// Makes what a kubelet makes before it asks for a mount.
    pub(super) fn mount_points(&self, volume: &str) -> io::Result<MountPoints> {
        let folder = self.path.child("node").child(volume);
        let (staging, pod) = (folder.child("staging"), folder.child("pod"));
        fs::create_dir_all(staging.as_path())?;
        fs::create_dir_all(pod.as_path())?;
        Ok(MountPoints {
            staging,
            target: pod.child("volume"),
        })
    }

    /// What is mounted below it.
    pub(super) fn mounts(&self) -> io::Result<Vec<PathBuf>> {
        let table = MountTable::read()?;
        let points = table.entries().map(|entry| entry.point().into_owned());
        Ok(points
            .filter(|point| point.starts_with(self.path.as_path()))
            .collect())
    }

    /// What is left in the storage: anything but the driver's own folders, empty.
    pub(super) fn left_in_base(&self) -> io::Result<Vec<PathBuf>> {
        let mut left = Vec::new();
        for (shelf, is_dir) in entries(self.base().as_path())? {
            // Volumes and snapshots lie on shelves. A hidden file is the mark of the base, which stays. A
            // hidden folder is the driver's staging area: its folders have to be empty but for the marks
            // of living processes, files without content.
            let hidden = shelf
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
            if !is_dir {
                left.extend((!hidden).then_some(shelf));
                continue;
            }
            for (entry, is_dir) in entries(&shelf)? {
                if hidden && is_dir {
                    let inside = entries(&entry)?.into_iter();
                    let content = inside.filter(|(path, is_dir)| {
                        *is_dir || path.symlink_metadata().is_ok_and(|meta| meta.len() > 0)
                    });
                    left.extend(content.map(|(path, _)| path));
                } else {
                    left.push(entry);
                }
            }
        }
        Ok(left)
    }

    /// Unmounts what is mounted below it.
    pub(super) fn unmount_all(&self) -> Vec<String> {
        let mounts = match self.mounts() {
            Ok(mounts) => mounts,
            Err(error) => return vec![format!("the mounts below {}: {error}", self.path)],
        };
        // The last one first: mounts may lie on mounts.
        let failed = |point: &Path| {
            let error = node_utils::mount::unmount(point).err()?;
            Some(format!(
                "mount {}: {}",
                point.display(),
                process::chain(&error)
            ))
        };
        mounts
            .iter()
            .rev()
            .filter_map(|point| failed(point))
            .collect()
    }

    /// Removes it with all that is in it, unless something is mounted there.
    pub(super) fn remove(&self) -> Result<(), String> {
        let (parent, name) = self.path.as_str().rsplit_once('/').unwrap_or_default();
        let parent = AbsolutePath::parse(&format!("{parent}/")).map_err(|e| e.to_string())?;
        let name = Component::parse(name).map_err(|error| error.to_string())?;
        Root::open(&parent)
            .and_then(|parent| parent.remove_tree(&name, &|| false))
            .map(drop)
            .map_err(|error| process::chain(&error))
    }
}

/// What is in a folder, and whether it is a folder itself.
fn entries(folder: &Path) -> io::Result<Vec<(PathBuf, bool)>> {
    let entry = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.path(), entry.file_type()?.is_dir()))
    };
    fs::read_dir(folder)?.map(entry).collect()
}
