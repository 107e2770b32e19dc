//! The paths that may be unmounted and deleted.
//!
//! A request to unpublish or unstage names only a volume and a path, so the path decides. Allowed are paths
//! below the folders of the orchestrator, and paths that carry our mark: an extended attribute that is written
//! before the volume is mounted over it. Anything else is not ours and stays.

use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Context, record};
use crate::mount::{self, MountTable, as_listed};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// The folders in which the orchestrator asks for volumes.
#[derive(Debug, Clone)]
pub struct OrchestratorDirs(Vec<PathBuf>);

// === impl OrchestratorDirs ===

impl OrchestratorDirs {
    /// The defaults of the kubelet and of Nomad.
    const DEFAULTS: [&str; 2] = ["/var/lib/kubelet", "/local/csi"];

    /// The default folders and these. A path that is built like one of the kubelet's counts, too, whatever
    /// folder it is in.
    pub fn with(more: impl IntoIterator<Item = AbsolutePath>) -> Self {
        let defaults = Self::DEFAULTS.map(PathBuf::from);
        let more = more.into_iter().map(|dir| dir.as_path().to_owned());
        Self(defaults.into_iter().chain(more).collect())
    }

    /// Whether a path without links is below one of the folders.
    fn contain(&self, path: &Path) -> bool {
        is_built_by_kubelet(path)
            || self.0.iter().any(|dir| {
                let dir = std::fs::canonicalize(dir);
                dir.is_ok_and(|dir| path != dir && path.starts_with(dir))
            })
    }
}

impl Default for OrchestratorDirs {
    fn default() -> Self {
        Self::with([])
    }
}

/// Whether a path is `plugins/kubernetes.io/csi/...`, or the same of a pod, below some folder.
fn is_built_by_kubelet(path: &Path) -> bool {
    let names: Vec<_> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    names.windows(4).any(|window| match window {
        ["plugins", "kubernetes.io", "csi", _] => true,
        [_, "volumes" | "volumeDevices", "kubernetes.io~csi", _] => names.contains(&"pods"),
        _ => false,
    })
}

/// The owner of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// It may be unmounted and deleted.
    Ours,
    /// It is not ours, and nothing is mounted there.
    ForeignUnmounted,
    /// It is not ours, and something is mounted there.
    ForeignMounted,
}

/// Fails unless `path` may be unmounted and deleted.
pub(super) fn check(context: &Context, path: &AbsolutePath) -> Result<(), Error> {
    match owner(context, path)? {
        Owner::Ours => Ok(()),
        Owner::ForeignUnmounted | Owner::ForeignMounted => Err(not_ours(path)),
    }
}

/// Whether there is anything to undo at a staging path. Where nothing is mounted and nothing is ours no
/// volume is staged: the specification asks for success then. Fails if the mount of another program is there.
pub(super) fn has_stage(context: &Context, path: &AbsolutePath) -> Result<bool, Error> {
    match owner(context, path)? {
        Owner::Ours => Ok(true),
        Owner::ForeignUnmounted => Ok(false),
        Owner::ForeignMounted => Err(not_ours(path)),
    }
}

/// Does not touch what is mounted there, so it does not wait for a server.
fn owner(context: &Context, path: &AbsolutePath) -> Result<Owner, Error> {
    let listed = as_listed(path.as_path());
    if context.dirs.contain(&listed) {
        return Ok(Owner::Ours);
    }
    let doing = || release(path);
    let table =
        MountTable::read().map_err(|error| Error::new(Kind::Internal, doing()).because(error))?;
    let is_mounted = table.layers(&listed).next().is_some();
    let is_marked = if is_mounted {
        mount::open_covered(&listed).is_ok_and(|covered| record::is_marked(&covered))
    } else {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&listed, flags, Mode::empty()) {
            Ok(found) => record::is_marked(&found),
            Err(Errno::NOENT | Errno::NOTDIR) => true,
            Err(errno) => return Err(Error::new(Kind::Internal, doing()).because(errno)),
        }
    };
    Ok(match (is_marked, is_mounted) {
        (true, _) => Owner::Ours,
        (false, true) => Owner::ForeignMounted,
        (false, false) => Owner::ForeignUnmounted,
    })
}

fn release(path: &AbsolutePath) -> String {
    format!("release `{path}`")
}

fn not_ours(path: &AbsolutePath) -> Error {
    Error::new(Kind::Busy, release(path)).advise(
        "this driver mounted nothing there, and it is not below the folder of the orchestrator; it was not \
         touched. If the orchestrator uses another folder, name that with --kubelet-dir",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_kubelet_are_known_in_any_folder() {
        for (path, expected) in [
            ("/k/plugins/kubernetes.io/csi/d/abc/globalmount", true),
            ("/k/pods/u-i-d/volumes/kubernetes.io~csi/pvc-1/mount", true),
            ("/k/pods/u-i-d/volumeDevices/kubernetes.io~csi/pvc-1", true),
            (
                "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/uid",
                true,
            ),
            ("/k/plugins/kubernetes.io/csi", false),
            ("/k/pods/u-i-d/volumes/kubernetes.io~secret/token", false),
            ("/volumes/kubernetes.io~csi/a", false),
            ("/dev/shm", false),
        ] {
            assert_eq!(is_built_by_kubelet(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn the_folder_itself_and_its_neighbours_are_not_below_it() {
        let folder = tempfile::tempdir().expect("folder");
        let text = folder.path().to_str().expect("text");
        let dirs = OrchestratorDirs::with([AbsolutePath::parse(text).expect("path")]);
        let real = std::fs::canonicalize(folder.path()).expect("path");
        assert!(dirs.contain(&real.join("a")));
        assert!(!dirs.contain(&real));
        assert!(!dirs.contain(Path::new(&format!("{}x/a", real.display()))));
    }
}
