//! Giving the unused blocks of a filesystem back to the storage below it, as `fstrim` does.
//!
//! A raw device is never trimmed: which of its blocks are unused only its pod knows. Nor is a filesystem that no
//! attachment brought to this node: it is not of the volume.

use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::time::Instant;

use super::expand::{Found, find};
use super::overdue::OverdueReads;
use super::{Context, stats};
use crate::blocking::{self, Doing, Limits};
use crate::device::BlockDevice;
use crate::sys::trim as sys;
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// The bytes that one system call looks at: the deadline counts between two. A storage frees so much in a few seconds.
const PIECE: u64 = 16 << 30;
/// The filesystems whose addresses are those of their device, from `linux/magic.h`: they can be trimmed piece by piece.
const IN_PIECES: [u64; 2] = [0xEF53, 0x5846_5342];

/// Trims the filesystem at `path`. Returns how many bytes; `None` for a raw device.
pub(super) async fn trim(
    context: &Arc<Context>,
    overdue: &OverdueReads,
    limits: Limits,
    path: AbsolutePath,
) -> Result<Option<u64>, Error> {
    let doing = format!("trim `{path}`");
    let look = {
        let (context, path, doing) = (Arc::clone(context), path.clone(), doing.clone());
        move || find(&context, &path, &doing)
    };
    let found = overdue.read(limits.clone(), doing.clone(), &path, look);
    let device = match found.await? {
        Found::Filesystem(device) => device,
        Found::Raw(_) => return Ok(None),
        Found::Nothing => {
            return Err(cannot(
                doing,
                "it is a directory or a share, without a device of its own",
            ));
        }
    };
    let deadline = limits.deadline();
    let (context, text) = (Arc::clone(context), doing.clone());
    let work = move || whole(&context, &path, &device, deadline, &text);
    let trimmed = blocking::run(limits, Doing::changing(doing), work).await?;
    Ok(Some(trimmed))
}

/// Trims it piece by piece, as far as that goes.
fn whole(
    context: &Context,
    path: &AbsolutePath,
    device: &BlockDevice,
    deadline: Instant,
    doing: &str,
) -> Result<u64, Error> {
    let changed = || Error::new(Kind::Pending, doing).because("what is mounted there has changed");
    let Ok(place) = stats::mounted(path) else {
        return Err(changed());
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let failed = |errno: Errno| Error::new(Kind::Internal, doing).because(errno);
    let directory = rustix::fs::openat(&place, c".", flags, Mode::empty()).map_err(failed)?;
    match find(context, path, doing)? {
        Found::Filesystem(now) if now == *device => {}
        _ => return Err(changed()),
    }
    let filesystem = rustix::fs::fstatfs(&directory).map_err(failed)?;
    let magic = u64::try_from(filesystem.f_type).unwrap_or_default();
    if !IN_PIECES.contains(&magic) {
        return sys::trim(&directory, 0, u64::MAX).map_err(|errno| refused(doing, errno));
    }
    let size = device.size(&context.kernel)?;
    let (mut start, mut trimmed) = (0, 0);
    while start < size {
        if Instant::now() >= deadline {
            return Err(Error::new(Kind::Timeout, doing)
                .because(format!(
                    "{start} of its {size} bytes were looked at, {trimmed} trimmed"
                ))
                .advise("ask again; what is trimmed already takes less time"));
        }
        match sys::trim(&directory, start, PIECE) {
            Ok(bytes) => trimmed += bytes,
            // The filesystem ends before its device does.
            Err(Errno::INVAL) if start > 0 => break,
            Err(errno) => return Err(refused(doing, errno)),
        }
        start += PIECE;
    }
    Ok(trimmed)
}

fn cannot(doing: impl Into<String>, why: &str) -> Error {
    Error::new(Kind::Unsupported, doing).because(why.to_owned())
}

fn refused(doing: &str, errno: Errno) -> Error {
    match errno {
        Errno::NOTTY | Errno::ROFS | Errno::OPNOTSUPP => {
            cannot(doing, "its filesystem, or the device below it, cannot trim")
        }
        Errno::PERM => Error::new(Kind::Internal, doing)
            .because(errno)
            .advise("trimming needs the capability SYS_ADMIN"),
        errno => Error::new(Kind::Internal, doing).because(errno),
    }
}
