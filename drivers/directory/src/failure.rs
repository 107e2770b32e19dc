//! The errors of files, turned into the kinds of the contract.
//!
//! The only place that reads error numbers for the sake of a caller; code that acts on a number
//! (already there, gone) does so where it stands.

use driver_core::{Call, Error, Kind};
use rustix::io::Errno;

/// The failure of one system call, with the object it was about.
pub(crate) fn failed(doing: impl Into<String>, errno: Errno) -> Error {
    let error = Error::new(kind(errno), doing).because(std::io::Error::from(errno));
    match errno {
        Errno::ROFS => error.advise(
            "the filesystem of the base directory is mounted read-only, often after a disk error",
        ),
        Errno::ACCESS | Errno::PERM => {
            error.advise("run this process as root, or give it the base directory")
        }
        Errno::USERS => {
            error.advise("the project ids are used up: give `quotaProjectIds` a wider range")
        }
        Errno::DQUOT => error.advise("a disk quota is exhausted"),
        Errno::WOULDBLOCK => error.advise(
            "another process is at work in the base directory; if this lasts, look for a controller that hangs while it holds a lock there",
        ),
        Errno::XDEV => error.advise(
            "`v`, `s` and `.omnibus-csi` have to be on one filesystem, that of the base directory",
        ),
        _ => error,
    }
}

/// Takes one step that changes what callers can see, in one system call: it happens or it does not.
///
/// Work in the staging area is not such a step. An error that proves the step undone leaves the call
/// without effect, so that it is final for the caller; any other one counts as a change.
pub(crate) fn change<T>(call: &Call, step: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let done = step();
    if !matches!(done, Err(errno) if proves_undone(errno)) {
        call.changing();
    }
    done
}

fn proves_undone(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ACCESS
            | Errno::PERM
            | Errno::ROFS
            | Errno::NOSPC
            | Errno::DQUOT
            | Errno::EXIST
            | Errno::NOTEMPTY
            | Errno::NOENT
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::BUSY
            | Errno::XDEV
            | Errno::MLINK
            | Errno::INVAL
            | Errno::NOSYS
            | Errno::OPNOTSUPP
            | Errno::TOOBIG
            | Errno::NOMEM
    )
}

fn kind(errno: Errno) -> Kind {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::USERS => Kind::OutOfSpace,
        Errno::BUSY => Kind::Busy,
        Errno::WOULDBLOCK => Kind::Pending,
        Errno::STALE
        | Errno::NOTCONN
        | Errno::TIMEDOUT
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::SHUTDOWN => Kind::Unreachable,
        _ => Kind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver_core::Effect;
    use std::time::Duration;

    #[test]
    fn a_step_that_was_refused_has_no_effect_and_one_that_is_in_doubt_has() {
        for (errno, effect) in [
            (Errno::ROFS, Effect::None),
            (Errno::ACCESS, Effect::None),
            (Errno::NOSPC, Effect::None),
            (Errno::IO, Effect::Possible),
            (Errno::STALE, Effect::Possible),
        ] {
            let call = Call::within(Duration::from_secs(1));
            assert_eq!(change::<()>(&call, || Err(errno)), Err(errno));
            assert_eq!(call.effect(), effect, "{errno:?}");
        }
        let call = Call::within(Duration::from_secs(1));
        assert_eq!(change(&call, || Ok(())), Ok(()));
        let refused = change::<()>(&call, || Err(Errno::ROFS));
        assert_eq!(refused, Err(Errno::ROFS));
        assert_eq!(call.effect(), Effect::Possible, "the step before happened");
    }
}
