//! The directory that a volume is shown at: opened, made if it is missing, freed of dead mounts.
//!
//! A mount whose directory is gone, or whose filesystem does not answer any more, is no volume:
//! it is taken away, as `docs/compatibility.md`, "local-hostpath", says. A live mount is left for the verb
//! to judge.

use std::os::unix::fs::DirBuilderExt;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::mount_failed;
use crate::attachment::AbsolutePath;
use crate::error::{Effect, Error, Kind};
use crate::mount::{self, Place};

/// More dead layers than a restart leaves.
const DEAD_LAYERS: usize = 64;

/// compat: "local-hostpath": what democratic-csi gives to directories that it makes.
const MODE: u32 = 0o750;

/// An opened place for a volume.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    path: &'a AbsolutePath,
    pub(super) place: Place,
    made: Made,
    /// Whether this call took a dead mount away.
    freed: bool,
}

/// What a call made to open its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    Nothing,
    Directory,
    /// The directory and some above it, which stay: they may be others' by now.
    Parents,
}

/// Whether an answer means that what was mounted can never come back: its server forgot it, or the
/// process that served it is gone.
fn is_lost(errno: Errno) -> bool {
    matches!(errno, Errno::STALE | Errno::NOTCONN | Errno::SHUTDOWN)
}

/// Whether an answer means that the filesystem does not work now. It may be in use all the same,
/// and its device may come back.
pub(super) fn is_dead(errno: Errno) -> bool {
    is_lost(errno) || matches!(errno, Errno::IO | Errno::NODEV | Errno::NXIO)
}

// === impl Slot ===

impl<'a> Slot<'a> {
    /// Opens `path`, a directory or nothing; missing directories are made.
    pub(super) fn open(path: &'a AbsolutePath) -> Result<Self, Error> {
        let made = make(path)?;
        let mut freed = false;
        let place = live(path, &mut freed).map_err(|error| {
            if freed || made != Made::Nothing {
                error.with_effect(Effect::Possible)
            } else {
                error
            }
        })?;
        Ok(Self {
            path,
            place,
            made,
            freed,
        })
    }

    /// Removes what this call made, so that a refused request leaves nothing behind, and says so
    /// in the error.
    pub(super) fn undo(&self, error: Error) -> Error {
        // Missing is as good; anything else in the way is not ours to remove.
        let gone = self.made == Made::Nothing
            || matches!(
                rustix::fs::rmdir(self.path.as_path()),
                Ok(()) | Err(Errno::NOENT)
            );
        if gone && !self.freed && self.made != Made::Parents {
            error
        } else {
            error.with_effect(Effect::Possible)
        }
    }
}

/// Opens what is at `path` once no dead mount covers it any more; `freed` says whether one did.
fn live(path: &AbsolutePath, freed: &mut bool) -> Result<Place, Error> {
    for _ in 0..DEAD_LAYERS {
        match Place::open(path.as_path()) {
            Ok(place) if place.is_mount_point() && place.is_deleted() => free(path, None)?,
            Ok(place) if place.is_directory() => return Ok(place),
            Ok(place) => return Err(not_a_directory(path, &place)),
            Err(errno) if is_lost(errno) => free(path, Some(errno))?,
            Err(errno) => {
                let error = Error::new(Kind::Internal, format!("open `{path}`"));
                return Err(error.because(errno));
            }
        }
        *freed = true;
    }
    let doing = format!("free `{path}` of dead mounts");
    Err(Error::new(Kind::Busy, doing))
}

/// Makes the directory with its parents.
fn make(path: &AbsolutePath) -> Result<Made, Error> {
    let failed = |errno: Errno| {
        Error::new(Kind::Internal, format!("make directory `{path}`")).because(errno)
    };
    let mut made = Made::Directory;
    for _ in 0..2 {
        match rustix::fs::mkdir(path.as_path(), Mode::from_raw_mode(MODE)) {
            Ok(()) => return Ok(made),
            Err(Errno::EXIST) => return Ok(Made::Nothing),
            Err(Errno::NOENT) => {
                made = Made::Parents;
                let parent = path.as_path().parent().unwrap_or(path.as_path());
                let made = std::fs::DirBuilder::new()
                    .recursive(true)
                    .mode(MODE)
                    .create(parent);
                made.map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::NOENT).with_effect(Effect::Possible))
}

fn not_a_directory(path: &AbsolutePath, place: &Place) -> Error {
    let doing = format!(
        "use `{path}`, which is {}, not a directory",
        place.kind_name()
    );
    Error::new(Kind::Busy, doing).advise("remove it if it is not wanted; it was not touched")
}

/// Takes one dead mount away.
fn free(path: &AbsolutePath, errno: Option<Errno>) -> Result<(), Error> {
    tracing::warn!(%path, error = ?errno, "the mount is dead: its directory is gone or does not answer; it is taken away");
    match mount::unmount_dead(path.as_path()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let error = Error::new(Kind::Internal, format!("use `{path}`"));
            Err(error.because(errno.unwrap_or(Errno::STALE)))
        }
        Err(error) => Err(mount_failed(
            format!("take the dead mount `{path}` away"),
            error,
        )),
    }
}
