//! Targets of volumes that live and die with a pod, and whether that pod is still there.
//!
//! The kubelet keeps one folder for each pod, `pods/<uid>`, from before the first volume of the pod is
//! published until the last one is unpublished.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::mount::{MountTable, as_listed};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// Makes the directory that a program is going to mount a volume at. The folder around it exists. One that is there and
/// has content is refused: the volume would hide it.
pub fn make_target(target: &AbsolutePath) -> Result<(), Error> {
    let doing = || format!("make the directory `{target}`");
    let refused = |errno: Errno| Error::new(Kind::Internal, doing()).because(errno);
    match rustix::fs::mkdir(target.as_path(), Mode::from_raw_mode(0o750)) {
        Ok(()) => return Ok(()),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(refused(errno)),
    }
    // A link would have the volume mounted elsewhere.
    let found = rustix::fs::statat(CWD, target.as_path(), AtFlags::SYMLINK_NOFOLLOW);
    match found.map(|found| FileType::from_raw_mode(found.st_mode)) {
        Ok(FileType::Directory) if is_empty(target).map_err(refused)? => Ok(()),
        Ok(FileType::Directory) => Err(Error::new(Kind::Busy, doing())
            .because("it is there and has content")
            .advise("move the content away; it was not touched")),
        Ok(_) => Err(Error::new(Kind::Conflict, doing()).because("something else is there")),
        Err(errno) => Err(refused(errno)),
    }
}

fn is_empty(target: &AbsolutePath) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(target.as_path(), flags, Mode::empty())?;
    for entry in Dir::new(opened)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether anything is mounted at a target.
pub fn is_mounted(target: &AbsolutePath) -> Result<bool, Error> {
    let table = MountTable::read().map_err(|error| {
        let doing = format!("find what is mounted at `{target}`");
        Error::new(Kind::Internal, doing).because(error)
    })?;
    Ok(table.layers(&as_listed(target.as_path())).next().is_some())
}

/// Whether the pod of a target is proved to be gone: its folder is not there any more, and those of other
/// pods are. Of a target that no kubelet has made, nothing is known.
pub fn is_gone(target: &AbsolutePath) -> Result<bool, Error> {
    let Some(pod) = pod_of(target.as_path()) else {
        return Ok(false);
    };
    let doing = || format!("find the pod of `{target}`");
    let failed = |errno: Errno| Error::new(Kind::Internal, doing()).because(errno);
    match rustix::fs::statat(CWD, &pod, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => {}
        Ok(_) => return Ok(false),
        Err(errno) => return Err(failed(errno)),
    }
    // A folder of pods that is empty, or not there, is not that of a kubelet that works: it may not be
    // mounted where this process sees it.
    let Some(pods) = pod.parent() else {
        return Ok(false);
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let pods = match rustix::fs::open(pods, flags, Mode::empty()) {
        Ok(pods) => pods,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(errno) => return Err(failed(errno)),
    };
    for entry in Dir::read_from(&pods).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The uid of the pod that a target belongs to, if a kubelet has made it.
pub fn uid(target: &AbsolutePath) -> Option<String> {
    let uid = pod_of(target.as_path())?.file_name()?.to_owned();
    uid.into_string().ok()
}

/// The folder of the pod of `…/pods/<uid>/volumes/kubernetes.io~csi/<name>/mount`.
fn pod_of(target: &Path) -> Option<PathBuf> {
    let up = |path: &Path, name: &str| {
        let is = path.file_name().is_some_and(|found| found == name);
        is.then(|| path.parent().map(Path::to_owned)).flatten()
    };
    let volume = up(target, "mount")?;
    let plugin = volume.parent()?;
    let pod = up(&up(plugin, "kubernetes.io~csi")?, "volumes")?;
    up(pod.parent()?, "pods").map(|_| pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi_types::error::Effect;

    fn path(path: &Path) -> AbsolutePath {
        AbsolutePath::parse(path.to_str().expect("text")).expect("a path")
    }

    #[test]
    fn a_pod_is_gone_only_where_others_are_seen() {
        let kubelet = tempfile::tempdir().expect("a folder");
        let of = |uid: &str| {
            let target = "volumes/kubernetes.io~csi/scratch/mount";
            path(&kubelet.path().join("pods").join(uid).join(target))
        };
        assert!(!is_gone(&of("a")).expect("checked"), "there is no kubelet");
        std::fs::create_dir_all(kubelet.path().join("pods")).expect("a folder");
        assert!(!is_gone(&of("a")).expect("checked"), "there are no pods");
        std::fs::create_dir_all(kubelet.path().join("pods/b")).expect("a folder");
        assert!(is_gone(&of("a")).expect("checked"));
        assert!(!is_gone(&of("b")).expect("checked"), "it is there");
        // Not built as the kubelet builds them.
        for other in ["pods/a/mount", "x/a/volumes/kubernetes.io~csi/s/mount", "a"] {
            let other = path(&kubelet.path().join(other));
            assert!(!is_gone(&other).expect("checked"), "{other}");
        }
    }

    #[test]
    fn a_target_is_a_directory_and_no_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = path(&folder.path().join("mount"));
        make_target(&target).expect("made");
        make_target(&target).expect("there already");
        assert!(!is_mounted(&target).expect("checked"));
        let link = path(&folder.path().join("link"));
        std::os::unix::fs::symlink("/etc", link.as_path()).expect("a link");
        assert_eq!(
            make_target(&link).expect_err("a link").kind(),
            Kind::Conflict
        );
        std::fs::write(target.as_path().join("file"), "").expect("a file");
        let error = make_target(&target).expect_err("it has content");
        assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
        let deep = path(&folder.path().join("none/mount"));
        assert!(
            make_target(&deep).is_err(),
            "its folder is not ours to make"
        );
    }
}
