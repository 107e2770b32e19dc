//! What the system says about files, turned into the kinds of the contract.
//!
//! The only place that reads error numbers for the sake of a caller; code that acts on a number
//! (already there, gone) does so where it stands.

use driver_core::{Effect, Error, Kind};
use rustix::io::Errno;

/// The failure of one system call, with the object it was about.
pub(crate) fn failed(doing: impl Into<String>, errno: Errno) -> Error {
    let error = Error::new(kind(errno), doing).because(std::io::Error::from(errno));
    match errno {
        Errno::ROFS => error.advise("the filesystem of the base directory is mounted read-only"),
        Errno::DQUOT => error.advise("a disk quota is exhausted"),
        _ => error,
    }
}

/// The same after the backend may have been changed.
pub(crate) fn failed_midway(doing: impl Into<String>, errno: Errno) -> Error {
    failed(doing, errno).with_effect(Effect::Possible)
}

fn kind(errno: Errno) -> Kind {
    match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Kind::Denied,
        Errno::NOSPC | Errno::DQUOT => Kind::OutOfSpace,
        Errno::BUSY => Kind::Busy,
        Errno::STALE
        | Errno::NOTCONN
        | Errno::TIMEDOUT
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::SHUTDOWN => Kind::Unreachable,
        _ => Kind::Internal,
    }
}
