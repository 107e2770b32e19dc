//! Mounting and unmounting by system calls, without child processes.
//!
//! A bind mount is made aside with all its flags and then moved into place in one step: a process
//! killed at any point leaves the whole mount or nothing. Kernels before 5.12 need two steps.
//! Nothing here knows what a volume is.

#![expect(
    clippy::disallowed_methods,
    reason = "the one module that may mount: it knows how to undo what it did"
)]

mod filesystem;
mod options;
mod place;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use filesystem::mount_filesystem;
pub use options::{Attributes, MountOptions, Superblock};
pub(crate) use place::Place;
pub(crate) use table::{Location, as_listed};
pub use table::{MountEntry, MountTable};

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use csi_types::backoff::Backoff;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use sys_mount::{Mount, MountFlags, UnmountFlags};

use crate::sys;

/// An upper bound of stacked mounts; beyond it something mounts as fast as we unmount.
const LAYERS: usize = 1000;

/// A failed mount or unmount.
#[derive(Debug, thiserror::Error)]
#[error("{doing}")]
pub struct MountError {
    doing: &'static str,
    errno: Errno,
    source: std::io::Error,
}

/// A process that only reads statistics keeps a mount busy for microseconds; so does a child with an inherited
/// descriptor, until it executes its program. A real user is still there after this many attempts, an eighth of a
/// second in all, or a little more.
const BUSY_RETRIES: u32 = 8;
/// The pauses between these attempts.
const BUSY: Backoff = Backoff::new(Duration::from_micros(500), Duration::from_millis(64));

/// The way a bind mount is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BindMethod {
    /// Made aside and moved into place.
    Atomic,
    /// Bound first and given its flags then.
    TwoSteps,
}

/// Set once the kernel has said that it does not know the calls that [`BindMethod::Atomic`] needs.
static WITHOUT_MOUNT_FDS: AtomicBool = AtomicBool::new(false);

// === impl MountError ===

impl MountError {
    pub(crate) fn new(doing: &'static str, errno: Errno) -> Self {
        Self {
            doing,
            errno,
            source: errno.into(),
        }
    }

    /// Whether it is in use.
    pub fn is_busy(&self) -> bool {
        self.errno == Errno::BUSY
    }

    /// The answer of the kernel.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Whether the process lacks the privilege to mount.
    pub fn is_denied(&self) -> bool {
        matches!(self.errno, Errno::PERM | Errno::ACCESS)
    }
}

// === impl BindMethod ===

impl BindMethod {
    /// The best that this kernel can do.
    pub(crate) fn best() -> Self {
        if WITHOUT_MOUNT_FDS.load(Ordering::Relaxed) {
            Self::TwoSteps
        } else {
            Self::Atomic
        }
    }
}

/// Shows the directory or file `source` at `target`, both opened. `attributes` are added to those
/// of the mount that `source` is on. Mounts below `source` are not shown.
pub fn bind(
    source: impl AsFd,
    target: impl AsFd,
    attributes: Attributes,
) -> Result<(), MountError> {
    if BindMethod::best() == BindMethod::Atomic {
        match bind_whole(&source, &target, attributes) {
            Err(error) if error.errno == Errno::NOSYS => {
                WITHOUT_MOUNT_FDS.store(true, Ordering::Relaxed);
            }
            // A seccomp filter may forbid what it does not know and allow mount(2).
            Err(error) if error.is_denied() => {}
            result => return result,
        }
    }
    bind_in_two_steps(source, target, attributes)
}

fn bind_whole(
    source: impl AsFd,
    target: impl AsFd,
    attributes: Attributes,
) -> Result<(), MountError> {
    let failed = |doing| move |errno| MountError::new(doing, errno);
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(source, c"", clone).map_err(failed("copy the mount"))?;
    if !attributes.is_empty() {
        let (set, clear) = attributes.changes();
        sys::mount_setattr(&tree, set, clear).map_err(failed("set the flags of the mount"))?;
    }
    let into = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(&tree, c"", target, c"", into).map_err(failed("attach the mount"))
}

/// For kernels before 5.12. A process killed between the steps leaves a mount without its
/// flags, which [`complete`] repairs.
fn bind_in_two_steps(
    source: impl AsFd,
    target: impl AsFd,
    attributes: Attributes,
) -> Result<(), MountError> {
    let failed = |doing| move |errno| MountError::new(doing, errno);
    let source = format!("/proc/self/fd/{}", source.as_fd().as_raw_fd());
    let target_link = format!("/proc/self/fd/{}", target.as_fd().as_raw_fd());
    // The descriptor stays on what is covered from now on; its path leads to what covers it.
    let path = std::fs::read_link(&target_link)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        .map_err(failed("find the target"))?;
    classic_mount(
        &source,
        Path::new(&target_link),
        NO_TYPE,
        MountFlags::BIND,
        None,
    )
    .map_err(failed("bind the mount"))?;
    complete(&path, attributes).inspect_err(|_| {
        // Half a mount is worse than none; that it stays is seen by the next attempt.
        let _ = sys_mount::unmount(&path, no_follow());
    })
}

/// Adds attributes to the mount at `path`, in place.
pub(crate) fn complete(path: &Path, attributes: Attributes) -> Result<(), MountError> {
    if attributes.is_empty() {
        return Ok(());
    }
    let doing = "set the flags of the mount";
    let failed = |errno| MountError::new(doing, errno);
    // A remount replaces all flags: those that are there have to be named again.
    let place = Place::open(path).map_err(failed)?;
    let all = place.attributes().map_err(failed)?.and(attributes);
    let flags = all.classic() | MountFlags::BIND | MountFlags::REMOUNT;
    classic_mount("", path, NO_TYPE, flags, None).map_err(failed)
}

/// For operations of mount(2) that mount no filesystem.
const NO_TYPE: &str = "none";

/// One call of mount(2).
fn classic_mount(
    source: &str,
    target: &Path,
    fs_type: &str,
    flags: MountFlags,
    data: Option<&str>,
) -> Result<(), Errno> {
    let mount = Mount::builder().fstype(fs_type).flags(flags);
    let mount = data.into_iter().fold(mount, sys_mount::MountBuilder::data);
    mount
        .mount(source, target)
        .map(drop)
        .map_err(|error| errno(&error))
}

/// `UMOUNT_NOFOLLOW`. The constant of that name in sys-mount 3.1 has the value of `O_NOFOLLOW`, which the kernel
/// refuses with `EINVAL`: the answer for "nothing is mounted there".
fn no_follow() -> UnmountFlags {
    UnmountFlags::from_bits_retain(libc::UMOUNT_NOFOLLOW)
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}

/// Unmounts the topmost mount at `path`; `false` if nothing is mounted there. Never follows a link
/// at the end of the path, and a mount in use is an error, not a success.
pub fn unmount(path: &Path) -> Result<bool, MountError> {
    unmount_with(path, no_follow())
}

/// Detaches the topmost mount at `path`, although it is in use: for mounts whose directory is gone, which can
/// never become idle.
pub(crate) fn unmount_dead(path: &Path) -> Result<bool, MountError> {
    unmount_with(path, no_follow() | UnmountFlags::DETACH)
}

/// As [`unmount_dead`], for a server that does not respond: processes that wait for it get an error.
pub(crate) fn unmount_silent(path: &Path) -> Result<bool, MountError> {
    let flags = no_follow() | UnmountFlags::DETACH | UnmountFlags::FORCE;
    unmount_with(path, flags)
}

fn unmount_with(path: &Path, flags: UnmountFlags) -> Result<bool, MountError> {
    let (mut retries, mut backoff) = (0, BUSY);
    loop {
        match sys_mount::unmount(path, flags).map_err(|error| errno(&error)) {
            Ok(()) => return Ok(true),
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(Errno::BUSY) if retries < BUSY_RETRIES => {
                // There is no event to wait for when a mount becomes idle.
                std::thread::sleep(backoff.pause());
                retries += 1;
            }
            Err(errno) => return Err(MountError::new("unmount", errno)),
        }
    }
}

/// Unmounts everything that is mounted at `path`; says how many layers that were.
pub fn unmount_all_layers(path: &Path) -> Result<usize, MountError> {
    for count in 0..LAYERS {
        if !unmount(path)? {
            return Ok(count);
        }
    }
    Err(MountError::new("unmount", Errno::BUSY))
}

/// Opens the directory or file that is covered by the mounts at `path`, through a private copy of the mount
/// around it.
pub(crate) fn open_covered(path: &Path) -> Result<OwnedFd, MountError> {
    let failed = |errno| MountError::new("open what is covered", errno);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(Errno::INVAL));
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(rustix::fs::CWD, parent, flags).map_err(failed)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&tree, name, flags, Mode::empty()).map_err(failed)
}

/// Whether something is mounted at exactly this path; `false` where there is nothing at all.
pub fn is_mounted(path: &Path) -> Result<bool, MountError> {
    match Place::open(path) {
        Ok(place) => Ok(place.is_mount_point()),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(MountError::new("look at the path", errno)),
    }
}
