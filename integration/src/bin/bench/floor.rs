//! The baseline of the work itself: only the system calls that it needs.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

/// A folder on the file system that the program works on, for the same calls without it.
#[derive(Debug)]
pub(crate) struct Floor {
    base: OwnedFd,
    source: PathBuf,
    target: PathBuf,
}

// === impl Floor ===

impl Floor {
    /// Makes its folders below `place`.
    pub(crate) fn new(place: &Path) -> Result<Self> {
        let (base, source) = (place.join("floor"), place.join("floor-source"));
        fs::create_dir_all(base.join("made"))?;
        fs::create_dir_all(&source)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            base: rustix::fs::openat(CWD, &base, flags, Mode::empty())?,
            source,
            target: place.join("floor-target"),
        })
    }

    /// Create and delete a volume: mkdirat, fchmod, fchown, renameat; unlinkat.
    pub(crate) fn create_and_delete(&self) -> Result<Duration> {
        let began = Instant::now();
        rustix::fs::mkdirat(&self.base, "making", Mode::from_raw_mode(0o700))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.base, "making", flags, Mode::empty())?;
        rustix::fs::fchmod(&made, Mode::from_raw_mode(0o777))?;
        rustix::fs::fchown(&made, Some(rustix::process::geteuid()), None)?;
        rustix::fs::renameat(&self.base, "making", &self.base, "made/volume")?;
        rustix::fs::unlinkat(&self.base, "made/volume", AtFlags::REMOVEDIR)?;
        Ok(began.elapsed())
    }

    /// Publish and unpublish a volume: mkdir, mount; umount2, rmdir.
    pub(crate) fn publish_and_unpublish(&self) -> Result<Duration> {
        let began = Instant::now();
        rustix::fs::mkdir(&self.target, Mode::from_raw_mode(0o750))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the bare call is what is measured"
        )]
        mount_bind(&self.source, &self.target)?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the bare call is what is measured"
        )]
        unmount(&self.target, UnmountFlags::NOFOLLOW)?;
        rustix::fs::rmdir(&self.target)?;
        Ok(began.elapsed())
    }
}
