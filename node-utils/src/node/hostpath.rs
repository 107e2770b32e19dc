//! Volumes that are directories of this node.
//!
//! Staging is a plain bind mount. The flags are set by each publication, so that a volume staged by an
//! older driver works like our own. compat: "local-hostpath".

use std::path::Path;

use super::mount_failed;
use csi_types::error::{Error, Kind};
use rustix::io::Errno;

use super::mount_target::{MountTarget, is_dead};
use crate::mount::{self, Attributes, Place};
use csi_types::attachment::Hostpath;

/// Opens the directory of a volume. Links before its last component are the operator's and are
/// followed; a link as the last one is refused.
pub(super) fn source(hostpath: &Hostpath) -> Result<Place, Error> {
    let path = &hostpath.path;
    let doing = || format!("open the directory `{path}` of the volume");
    let place = Place::open(path.as_path()).map_err(|errno| {
        if errno == Errno::NOENT
            && let Some(above) = missing_folder(hostpath)
        {
            return Error::new(Kind::Unreachable, doing())
                .because(format!(
                    "the folder of all volumes, {}, is not there either",
                    above.display()
                ))
                .advise(
                    "the filesystem of the base directory may not be mounted: mount it. If nothing is mounted there, \
                     `shareBasePath` of the connection is not the directory that `controllerBasePath` is: correct it",
                );
        }
        let kind = match errno {
            Errno::NOENT | Errno::NOTDIR => Kind::NotFound,
            _ => Kind::Internal,
        };
        let advice = match errno {
            Errno::NOENT => {
                "the volume was deleted, lives on another node, or its filesystem is not mounted"
            }
            errno if is_dead(errno) => "the filesystem below it does not answer",
            _ => "the node's process has to be able to reach it",
        };
        Error::new(kind, doing()).because(errno).advise(advice)
    })?;
    if !place.is_directory() {
        let what = place.kind_name();
        let error = Error::new(Kind::Invalid, doing());
        return Err(error.advise(format!("it is {what}; a volume is a directory")));
    }
    Ok(place)
}

/// The folder that the volume is in, if that does not exist. It has all volumes of the base, so the base is not mounted.
fn missing_folder(hostpath: &Hostpath) -> Option<&Path> {
    let above = hostpath.path.as_path().parent()?;
    // Where local-hostpath makes its volumes.
    let is_collection = above.file_name().is_some_and(|name| name == "v");
    (is_collection && matches!(Place::open(above), Err(Errno::NOENT))).then_some(above)
}

/// Shows the volume at the staging path, unless it is there already.
pub(super) fn stage(
    hostpath: &Hostpath,
    source: &Place,
    slot: &MountTarget<'_>,
) -> Result<(), Error> {
    if slot.place.is_mount_point() {
        if slot.place.is_same_as(source) {
            return Ok(());
        }
        let doing = format!("stage `{}`", hostpath.path);
        return Err(Error::new(Kind::Conflict, doing)
            .advise("another volume is mounted at the staging path; unstage it first"));
    }
    mount::bind(source, &slot.place, Attributes::default())
        .map_err(|error| mount_failed(format!("bind `{}`", hostpath.path), error))
}

/// Whether what is staged is this volume.
pub(super) fn check_staged(hostpath: &Hostpath, staged: &Place) -> Result<Place, Error> {
    let source = source(hostpath)?;
    if staged.is_same_as(&source) {
        return Ok(source);
    }
    let doing = format!("publish `{}`", hostpath.path);
    Err(Error::new(Kind::Busy, doing)
        .advise("the staging path shows another directory; stage the volume again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi_types::attachment::AbsolutePath;

    #[test]
    fn a_volume_is_said_to_be_deleted_only_where_its_base_is_there() {
        let top = tempfile::tempdir().expect("folder");
        let path = top.path().join("v/pvc-1");
        let path = AbsolutePath::parse(path.to_str().expect("text")).expect("path");
        let hostpath = Hostpath { path };
        let unmounted = source(&hostpath).expect_err("nothing is there");
        assert_eq!(unmounted.kind(), Kind::Unreachable);
        let advice = unmounted.advice().expect("advice");
        assert!(advice.contains("may not be mounted"), "{advice}");
        std::fs::create_dir(top.path().join("v")).expect("mounted");
        let deleted = source(&hostpath).expect_err("no such volume");
        assert_eq!(deleted.kind(), Kind::NotFound);
        std::fs::create_dir(top.path().join("v/pvc-1")).expect("made");
        source(&hostpath).expect("there");
    }
}
