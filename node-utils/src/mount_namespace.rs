//! Moves this process into a mount namespace of its own.
//!
//! Mounts made after that vanish with the process, however it ends. Mount namespaces belong to threads, so the process
//! must still have a single thread. Whether to do it is the caller's decision.
#![expect(
    clippy::disallowed_methods,
    reason = "this crate is where mounts are made"
)]

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{
    DumpableBehavior, dumpable_behavior, getegid, geteuid, set_dumpable_behavior,
};

use crate::sys;

/// Why the mounts of the machine could not be left.
#[derive(Debug, thiserror::Error)]
#[error("{doing}")]
pub struct ApartError {
    doing: &'static str,
    source: io::Error,
}

/// Gives this process mounts of its own. For those who may mount: root, with `CAP_SYS_ADMIN`.
pub fn leave_mounts() -> Result<(), ApartError> {
    check_single_thread()?;
    sys::unshare_mounts(false).map_err(of("get mounts of its own"))?;
    make_private()
}

/// Gives this process mounts of its own in a user namespace where it is root: it may make bind mounts, and nothing
/// else that it could not do before. After an error the process may have lost its user; it should report the error
/// and end.
pub fn leave_user_and_mounts() -> Result<(), ApartError> {
    check_single_thread()?;
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    sys::unshare_mounts(true).map_err(of("get a user namespace"))?;
    as_dumpable(|| {
        // Without this only root may write the group map.
        write("/proc/self/setgroups", "deny")?;
        write("/proc/self/uid_map", &format!("0 {uid} 1\n"))?;
        write("/proc/self/gid_map", &format!("0 {gid} 1\n"))
    })?;
    make_private()
}

/// The files in `/proc` of a process that forbids dumps belong to root, who we are not yet.
fn as_dumpable(work: impl FnOnce() -> Result<(), ApartError>) -> Result<(), ApartError> {
    let doing = of("be the owner of its own files in /proc");
    let before = match dumpable_behavior().map_err(&doing)? {
        // Only the kernel sets this value; the nearest one that can be set is stricter.
        DumpableBehavior::DumpableReadableOnlyByRoot => DumpableBehavior::NotDumpable,
        before => before,
    };
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(&doing)?;
    let done = work();
    let restored = set_dumpable_behavior(before).map_err(&doing);
    done.and(restored)
}

/// Nothing that happens here is to be seen outside, nor the other way round.
fn make_private() -> Result<(), ApartError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(of("keep its mounts to itself"))
}

fn check_single_thread() -> Result<(), ApartError> {
    let doing = "count its own threads";
    let error = |source| ApartError { doing, source };
    match fs::read_dir("/proc/self/task").map_err(error)?.count() {
        1 => Ok(()),
        _ => Err(error(io::Error::other("it has more than one"))),
    }
}

fn write(path: &str, text: &str) -> Result<(), ApartError> {
    let doing = "be root in its user namespace";
    fs::write(path, text).map_err(|source| ApartError { doing, source })
}

fn of(doing: &'static str) -> impl Fn(Errno) -> ApartError {
    move |errno| ApartError {
        doing,
        source: errno.into(),
    }
}
