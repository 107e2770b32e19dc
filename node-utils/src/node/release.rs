//! Undoing a mount: every layer is unmounted, then the directory or file itself is deleted.
//!
//! Usually two system calls. A symbolic link at the end of the path is never followed. A link, a directory or
//! a file with content is not ours to delete: it stays, and the call fails. Callers check with
//! [`super::ownership`] first whether the path may be released at all.

use rustix::fs::FileType;
use rustix::io::Errno;

use super::{Context, mount_failed};
use crate::loops::{Label, Loop};
use crate::mount::{self, Place};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// An upper bound of stacked mounts.
const LAYERS: usize = 1000;

/// Unmounts and deletes the target of a publication. The read-only loop device of a raw device is removed before
/// the target: its label is the path of the target.
pub(super) fn release_target(context: &Context, path: &AbsolutePath) -> Result<(), Error> {
    release_with(path, || {
        context.changed("unmounted");
        for face in Loop::labelled(&context.kernel, &Label::of(path.as_str()))? {
            face.remove(&context.kernel)?;
        }
        context.changed("read-only device removed");
        Ok(())
    })
}

/// Unmounts and deletes `path`. What is not there is released.
pub(super) fn release(path: &AbsolutePath) -> Result<(), Error> {
    release_with(path, || Ok(()))
}

/// As [`release`], with `before` done before a file is deleted.
fn release_with(path: &AbsolutePath, before: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
    let mut is_begun = false;
    release_layers(path, before, &mut is_begun).map_err(|error| error.after_change(is_begun))
}

/// Unmounts one layer after the other and deletes what is below them; `is_begun` says whether anything was taken away.
fn release_layers(
    path: &AbsolutePath,
    before: impl Fn() -> Result<(), Error>,
    is_begun: &mut bool,
) -> Result<(), Error> {
    for _ in 0..LAYERS {
        let unmounted = mount::unmount(path.as_path())
            .map_err(|error| mount_failed(format!("unmount `{path}`"), error))?;
        *is_begun |= unmounted;
        match rustix::fs::rmdir(path.as_path()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // One more layer, stacked by an older driver or by a retry.
            Err(Errno::BUSY) if unmounted => {}
            Err(Errno::NOTDIR) => {
                if delete_file(path, &before)? {
                    return Ok(());
                }
            }
            Err(errno) => return Err(refused(path, errno)),
        }
        // A file may have lost its read-only device by now.
        *is_begun = true;
    }
    Err(refused(path, Errno::BUSY))
}

/// Deletes what is not a directory; `false` if another mount is in the way.
fn delete_file(path: &AbsolutePath, before: impl Fn() -> Result<(), Error>) -> Result<bool, Error> {
    let place = match Place::open(path.as_path()) {
        Ok(place) => place,
        // A component before the last is a file: nothing can be at this path.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(true),
        Err(errno) => return Err(refused(path, errno)),
    };
    if place.is_mount_point() {
        return Ok(false);
    }
    let ours = match place.kind {
        FileType::RegularFile => place.size == 0,
        _ => false,
    };
    if !ours {
        let doing = format!(
            "delete `{path}`, which is {} and not ours",
            place.kind_name()
        );
        return Err(Error::new(Kind::Busy, doing).advise("look at what it is and move it away"));
    }
    if place.kind == FileType::RegularFile {
        before()?;
    }
    match rustix::fs::unlink(path.as_path()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        Err(errno) => Err(refused(path, errno)),
    }
}

fn refused(path: &AbsolutePath, errno: Errno) -> Error {
    let doing = format!("delete `{path}`");
    match errno {
        Errno::NOTEMPTY | Errno::EXIST => Error::new(Kind::Busy, doing).because(errno).advise(
            "nothing is mounted there, so its content is not a volume and stays; move it away",
        ),
        Errno::BUSY => Error::new(Kind::Busy, doing).because(errno),
        _ => Error::new(Kind::Internal, doing).because(errno),
    }
}
