//! The directory or file that a volume is mounted at: opened, made if it is missing, freed of dead
//! mounts.
//!
//! A mount whose directory or device is gone, or whose filesystem does not answer any more, is not a
//! volume: it is removed, see `docs/compatibility.md`, "local-hostpath". The verb decides about a live
//! mount.

use std::os::unix::fs::DirBuilderExt;

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::backing::{self, Backing, backing};
use super::mount_failed;
use super::record;
use crate::kernel::Kernel;
use crate::mount::{self, Place};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Effect, Error, Kind};

/// More dead layers than a restart leaves.
const DEAD_LAYERS: usize = 64;

/// compat: "local-hostpath": what democratic-csi gives to directories that it makes.
const MODE: u32 = 0o750;

/// And to files, which only hold a place.
const FILE_MODE: u32 = 0o640;

/// An opened mount target.
#[derive(Debug)]
pub(super) struct MountTarget<'a> {
    path: &'a AbsolutePath,
    pub(super) place: Place,
    shape: Shape,
    made: Made,
    /// Whether this call removed a dead mount.
    freed: bool,
    /// Whether this call marked it as a mount point of this driver.
    marked: bool,
}

/// The kind of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A mounted filesystem.
    Directory,
    /// A raw device.
    File,
}

/// The parts that a call made to open its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    Nothing,
    Place,
    /// The target and some parent directories. The parents stay: others may use them by now.
    Parents,
}

/// Whether an answer means that what was mounted can never come back: its server forgot it, or the
/// process that served it is gone.
pub(super) fn is_lost(errno: Errno) -> bool {
    matches!(errno, Errno::STALE | Errno::NOTCONN | Errno::SHUTDOWN)
}

/// Whether an answer means that the filesystem does not work now. It may be in use all the same,
/// and its device may come back.
pub(super) fn is_dead(errno: Errno) -> bool {
    is_lost(errno) || matches!(errno, Errno::IO | Errno::NODEV | Errno::NXIO)
}

// === impl MountTarget ===

impl<'a> MountTarget<'a> {
    /// Opens `path`, which has that shape or is not there; what is missing is made.
    pub(super) fn open(
        kernel: &Kernel,
        path: &'a AbsolutePath,
        shape: Shape,
    ) -> Result<Self, Error> {
        let made = make(path, shape)?;
        let mut freed = false;
        let place = live(kernel, path, shape, &mut freed)
            .map_err(|error| error.after_change(freed || made != Made::Nothing))?;
        let mut slot = Self {
            path,
            place,
            shape,
            made,
            freed,
            marked: false,
        };
        if !slot.place.is_mount_point() {
            slot.marked = record::mark(&slot.place);
        }
        Ok(slot)
    }

    /// Fails if it is a directory with content, which a volume would hide and which could then never be
    /// deleted.
    pub(super) fn check_empty(&self) -> Result<(), Error> {
        if self.made != Made::Nothing || !self.place.is_directory() {
            return Ok(());
        }
        let failed = |errno: Errno| {
            Error::new(
                Kind::Internal,
                format!("read the directory `{}`", self.path),
            )
            .because(errno)
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.place, c".", flags, Mode::empty());
        for entry in Dir::new(opened.map_err(failed)?).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                let doing = format!(
                    "publish at `{}`, which is a directory with content",
                    self.path
                );
                return Err(Error::new(Kind::Busy, doing)
                    .advise("move the content away; it was not touched"));
            }
        }
        Ok(())
    }

    /// Whether this call made it.
    pub(super) fn is_new(&self) -> bool {
        self.made != Made::Nothing
    }

    /// Removes what this call made, so that a refused request leaves nothing behind, and says so
    /// in the error.
    pub(super) fn undo(&self, error: Error) -> Error {
        if self.marked && self.made == Made::Nothing {
            let _ = record::unmark(&self.place);
        }
        // Missing is as good; anything else in the way is not ours to remove.
        let remove = || match self.shape {
            Shape::Directory => rustix::fs::rmdir(self.path.as_path()),
            Shape::File => rustix::fs::unlink(self.path.as_path()),
        };
        let gone = self.made == Made::Nothing || matches!(remove(), Ok(()) | Err(Errno::NOENT));
        if gone && !self.freed && self.made != Made::Parents {
            error
        } else {
            error.with_effect(Effect::Possible)
        }
    }
}

/// Opens what is at `path` once no dead mount covers it any more; `freed` says whether one did.
fn live(
    kernel: &Kernel,
    path: &AbsolutePath,
    shape: Shape,
    freed: &mut bool,
) -> Result<Place, Error> {
    for _ in 0..DEAD_LAYERS {
        match Place::open(path.as_path()) {
            Ok(place) if place.is_mount_point() && is_gone(kernel, &place)? => free(path, None)?,
            Ok(place) if shape.fits(&place) => return Ok(place),
            Ok(place) => return Err(misshapen(path, shape, &place)),
            Err(errno) if is_lost(errno) => free(path, Some(errno))?,
            Err(errno) if is_dead(errno) && has_lost_its_device(kernel, path)? => {
                free(path, Some(errno))?;
            }
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

/// Whether what is mounted there has lost its directory or its device.
fn is_gone(kernel: &Kernel, place: &Place) -> Result<bool, Error> {
    Ok(place.is_deleted() || backing(kernel, place)? == Backing::Gone)
}

/// Whether the mount table shows a device at `path` that is not there any more: a filesystem that
/// has shut itself down for that cannot be read.
fn has_lost_its_device(kernel: &Kernel, path: &AbsolutePath) -> Result<bool, Error> {
    Ok(backing::topmost(kernel, path)? == Some(Backing::Gone))
}

/// Makes the directory or file with its parents.
fn make(path: &AbsolutePath, shape: Shape) -> Result<Made, Error> {
    let failed = |errno: Errno| Error::new(Kind::Internal, format!("make `{path}`")).because(errno);
    let mut made = Made::Place;
    for _ in 0..2 {
        match shape.make(path) {
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
    Err(failed(Errno::NOENT))
}

// === impl Shape ===

impl Shape {
    fn make(self, path: &AbsolutePath) -> Result<(), Errno> {
        match self {
            Self::Directory => rustix::fs::mkdir(path.as_path(), Mode::from_raw_mode(MODE)),
            Self::File => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(FILE_MODE);
                rustix::fs::open(path.as_path(), flags, mode).map(drop)
            }
        }
    }

    /// Whether a volume of this shape can be there, or is.
    fn fits(self, place: &Place) -> bool {
        match self {
            Self::Directory => place.is_directory(),
            Self::File if place.is_mount_point() => place.kind == FileType::BlockDevice,
            Self::File => place.kind == FileType::RegularFile && place.size == 0,
        }
    }
}

fn misshapen(path: &AbsolutePath, shape: Shape, place: &Place) -> Error {
    let wanted = match shape {
        Shape::Directory => "a directory",
        Shape::File => "an empty file",
    };
    let doing = format!("use `{path}`, which is {}, not {wanted}", place.kind_name());
    Error::new(Kind::Busy, doing).advise("remove it if it is not wanted; it was not touched")
}

/// Removes one dead mount.
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
