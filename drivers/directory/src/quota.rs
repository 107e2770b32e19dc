//! Sizes of volumes that the filesystem of the base enforces: by project quotas of XFS and ext4, by qgroups of
//! btrfs.
//!
//! On XFS and ext4 each volume is a project of its own, and the directory's own project id is the only record of
//! that. The ids that a volume may have follow from its name. The first of them that no file has is taken, so no
//! counter is needed, and an id is in use as long as its directory exists. A limit without files is of no account:
//! what a killed process left is overwritten by the next volume that takes the id.
//!
//! A process may change the project of files that it owns, so a pod can give its volume any id. An id that does
//! not follow from the name of the volume is never used.
//!
//! On btrfs each volume is a subvolume. Its qgroup has its number, which no other subvolume ever gets.

mod stale;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use driver_core::{Call, Error, Kind};
use node_utils::{projects, subvolumes};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use sha2::{Digest, Sha256};

use crate::collection::Collection;
use crate::crash_points;
use crate::digest::object_digest;
use crate::disk;
use crate::failure::{change, failed};
use crate::lock::LockFile;
use crate::staging_area::{Form, PROJECTS};
pub(crate) use stale::StaleQgroups;

/// The ids that are tried for a volume. Ids are drawn by a digest: with half of the range taken, all of so many are
/// taken once in 2^64.
const TRIES: u32 = 64;
/// Fewer ids would be used up by accident.
const FEWEST_IDS: u32 = 1 << 16;
/// `f_type` of the filesystems that have project quotas.
const XFS: i64 = 0x5846_5342;
const EXT4: i64 = 0xEF53;

/// Whether the sizes of new volumes are enforced.
///
/// compat: "local-hostpath": democratic-csi enforces none, so this is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforce {
    /// They are recorded only.
    #[default]
    None,
    /// They are enforced where the filesystem can.
    Try,
    /// A volume whose size cannot be enforced is not made.
    Require,
}

/// The project ids that volumes may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectIds {
    first: u32,
    last: u32,
}

/// The section about quotas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Whether new volumes get one.
    pub enforce: Enforce,
    /// The ids of their projects.
    pub ids: ProjectIds,
}

/// The way the size of a new volume is enforced.
#[derive(Debug)]
pub(crate) enum Enforcement {
    /// Its directory is a project.
    Project(NewProject),
    /// It is a subvolume, on the filesystem of this directory.
    Subvolume(OwnedFd),
}

/// A project for a new volume.
#[derive(Debug)]
pub(crate) struct NewProject {
    ids: ProjectIds,
    /// The folder of locks.
    locks: OwnedFd,
    /// The digest of the name of the volume.
    volume: String,
}

/// The object that the filesystem limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    Project(u32),
    Subvolume(u64),
}

/// The subvolume that an open directory is the top of.
pub(crate) fn subvolume(dir: &OwnedFd) -> Option<u64> {
    subvolumes::id(dir).ok().flatten()
}

/// Whether what is made in a directory gets the project of that.
pub(crate) fn passes_on(dir: impl AsFd) -> bool {
    projects::project(dir).is_ok_and(|project| project.is_inherited)
}

/// Why volumes cannot have projects: nothing of another project can be moved into such a directory.
pub(crate) fn passed_on(doing: &str) -> Error {
    Error::new(Kind::Busy, doing)
        .because("the base passes on a project of its own, so volumes cannot have theirs")
        .advise("`chattr -P` on the base directory, on `v`, `s` and `.omnibus-csi` in it, and on the folders of `.omnibus-csi`")
}

// === impl ProjectIds ===

impl Default for ProjectIds {
    /// Neither small numbers, which administrators choose, nor those from 1048577 on, which the kubelet gives to
    /// ephemeral volumes.
    fn default() -> Self {
        Self {
            first: 1 << 30,
            last: (1 << 31) - 1,
        }
    }
}

impl<'de> Deserialize<'de> for ProjectIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let ends = text
            .split_once('-')
            .and_then(|(first, last)| Some((number(first)?, number(last)?)));
        match ends {
            // 0 is no project, and the largest number is none of the kernel's.
            Some((first, last))
                if first > 0
                    && last < u32::MAX
                    && first < last
                    && last - first >= FEWEST_IDS - 1 =>
            {
                Ok(Self { first, last })
            }
            _ => Err(D::Error::custom(format!(
                "expected two numbers with a dash between them, and at least {FEWEST_IDS} ids"
            ))),
        }
    }
}

impl ProjectIds {
    /// Those that a volume may have, by the digest of its name, in the order in which they are tried.
    fn of(self, volume: &str) -> impl Iterator<Item = u32> {
        let count = self.last - self.first + 1;
        (0..TRIES).map(move |attempt| {
            let hash = Sha256::digest(format!("{volume} {attempt}"));
            let number = hash[..4]
                .iter()
                .fold(0, |number, byte| number << 8 | u32::from(*byte));
            self.first + number % count
        })
    }

    /// The project of the open directory of a volume, if it is one of those that the volume may have.
    fn own(self, dir: impl AsFd, volume: &str) -> Option<u32> {
        let found = projects::project(dir).ok()?.id;
        // Without files of the driver in it, most ids are not even in the range.
        let may_be = (self.first..=self.last).contains(&found);
        (may_be && self.of(volume).any(|id| id == found)).then_some(found)
    }
}

// === impl Quotas ===

impl Quotas {
    /// Why the sizes of volumes in that directory cannot be enforced.
    pub(crate) fn obstacle(self, dir: BorrowedFd<'_>, doing: &str) -> Option<Error> {
        let error = || Error::new(Kind::Busy, doing);
        let type_of = rustix::fs::fstatfs(dir).map(|stat| stat.f_type);
        if type_of == Ok(subvolumes::MAGIC) {
            return obstacle_of_btrfs(subvolumes::quotas(dir), doing);
        }
        let ask = || {
            if !projects::is_enforced(dir)? {
                return Ok(false);
            }
            // Only a process that may set limits may look at them.
            projects::quota(dir, self.ids.first)?;
            Ok(true)
        };
        match ask() {
            Ok(true) if passes_on(dir) => Some(passed_on(doing)),
            Ok(true) => None,
            Ok(false) if type_of == Ok(XFS) => Some(
                error()
                    .because("the filesystem is mounted without project quotas")
                    .advise(
                        "mount it with the option `prjquota`; the root filesystem needs `rootflags=prjquota` \
                         on the kernel's command line",
                    ),
            ),
            Ok(false) if type_of == Ok(EXT4) => Some(
                error()
                    .because("the filesystem is mounted without project quotas")
                    .advise(
                        "unmount it, run `tune2fs -O project,quota -Q prjquota` on its device, and mount it with the \
                         option `prjquota`",
                    ),
            ),
            Ok(false) => Some(
                error()
                    .because("the filesystem has no project quotas, or the kernel is older than 5.14")
                    .advise(
                        "put the base on XFS or ext4, mounted with the option `prjquota`, or on btrfs after \
                         `btrfs quota enable`",
                    ),
            ),
            Err(errno) => Some(refused(doing, errno)),
        }
    }

    /// What limits the open directory of a volume, if it has got something that does.
    fn limited(self, dir: &OwnedFd, volume: &str) -> Option<Limited> {
        subvolume(dir)
            .map(Limited::Subvolume)
            .or_else(|| self.ids.own(dir, volume).map(Limited::Project))
    }

    /// Raises the limit of a volume that has one. Whether new volumes get one is of no account.
    pub(crate) fn grow(
        self,
        call: &Call,
        dir: &OwnedFd,
        volume: &str,
        bytes: u64,
        doing: &str,
    ) -> Result<(), Error> {
        let fail = |errno| refused(doing, errno);
        let volume = object_digest(Collection::Volumes.dir(), volume);
        let Some(limited) = self.limited(dir, &volume) else {
            return Ok(());
        };
        let Some((used, limit)) = limited.quota(dir).map_err(fail)? else {
            return Ok(());
        };
        if limit == 0 || limit >= bytes {
            return Ok(());
        }
        // Not even the new size could be recorded in such a volume.
        if used >= bytes {
            return Err(Error::new(Kind::OutOfRange, doing)
                .because(format!(
                    "it has {used} bytes already: its source had more than its size"
                ))
                .advise("ask for a larger size, or delete files"));
        }
        change(call, || limited.set_from_above(dir, bytes)).map_err(fail)?;
        crash_points::mark("grow limit");
        Ok(())
    }

    /// The directory of a volume that is going to be deleted, if it may have a limit to be taken away.
    pub(crate) fn opened(self, parent: impl AsFd, name: &str) -> Option<OwnedFd> {
        let enforced = self.enforce != Enforce::None;
        enforced
            .then(|| disk::open_dir(parent, name).ok())
            .flatten()
    }

    /// Takes the limit of a deleted volume away; gives the subvolume that it is, whose qgroup stays. `volume` is the
    /// digest of its name. As long as `dir` is open, no other volume gets the id.
    pub(crate) fn release(self, dir: &OwnedFd, volume: &str) -> Option<u64> {
        let limited = self.limited(dir, volume)?;
        if limited.set_from_above(dir, 0).is_ok() {
            crash_points::mark("release limit");
        }
        match limited {
            Limited::Project(_) => None,
            Limited::Subvolume(id) => Some(id),
        }
    }
}

fn obstacle_of_btrfs(found: Result<subvolumes::Quotas, Errno>, doing: &str) -> Option<Error> {
    let error = || Error::new(Kind::Busy, doing);
    match found {
        Ok(subvolumes::Quotas::On) => None,
        Ok(subvolumes::Quotas::Off) => Some(
            error()
                .because("quotas are not enabled on this btrfs")
                .advise("run `btrfs quota enable` with the path of the base directory"),
        ),
        Ok(subvolumes::Quotas::Inconsistent) => Some(
            error()
                .because("the quotas of this btrfs are inconsistent, so nothing is counted")
                .advise("run `btrfs quota rescan -w` with the path of the base directory"),
        ),
        Err(errno) => Some(refused(doing, errno)),
    }
}

/// The failure of a call about quotas.
fn refused(doing: &str, errno: Errno) -> Error {
    if errno != Errno::PERM {
        return failed(doing, errno);
    }
    Error::new(Kind::Busy, doing)
        .because("this process may not set quotas")
        .advise("give it the capability SYS_ADMIN")
}

// === impl Limited ===

impl Limited {
    /// Its use and its limit, in bytes; `None` if quotas were turned off since, so that there is no limit.
    fn quota(self, dir: &OwnedFd) -> Result<Option<(u64, u64)>, Errno> {
        match self {
            Self::Project(id) if projects::is_enforced(dir)? => {
                let found = projects::quota(dir, id)?;
                Ok(Some((found.bytes, found.limit)))
            }
            Self::Project(_) => Ok(None),
            Self::Subvolume(id) => match subvolumes::quota(dir, id) {
                Ok(found) => Ok(Some((found.bytes, found.limit))),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno),
            },
        }
    }

    /// Sets the limit of an open directory. What this takes counts for the subvolume whose descriptor btrfs gets: that
    /// of the volume may be full.
    fn set_from_above(self, dir: &OwnedFd, bytes: u64) -> Result<(), Errno> {
        match self {
            Self::Project(_) => self.set(dir, bytes),
            Self::Subvolume(_) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let above = rustix::fs::openat(dir, "..", flags, Mode::empty())?;
                self.set(above, bytes)
            }
        }
    }

    /// Sets its limit, 0 for none. `fd` is any on its filesystem.
    fn set(self, fd: impl AsFd, bytes: u64) -> Result<(), Errno> {
        match self {
            Self::Project(id) => projects::set_limit(fd, id, bytes),
            Self::Subvolume(id) => subvolumes::set_limit(fd, id, bytes),
        }
    }
}

fn is_btrfs(dir: &OwnedFd) -> bool {
    rustix::fs::fstatfs(dir).is_ok_and(|stat| stat.f_type == subvolumes::MAGIC)
}

// === impl Enforcement ===

impl Enforcement {
    /// The way of the filesystem of `collection`, for a volume of this name.
    pub(crate) fn of(
        collection: OwnedFd,
        ids: ProjectIds,
        volume: &str,
        locks: impl FnOnce() -> Result<OwnedFd, Error>,
    ) -> Result<Self, Error> {
        if is_btrfs(&collection) {
            return Ok(Self::Subvolume(collection));
        }
        Ok(Self::Project(NewProject {
            ids,
            locks: locks()?,
            volume: object_digest(Collection::Volumes.dir(), volume),
        }))
    }

    /// The form that a volume has to be.
    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Project(_) => Form::Directory,
            Self::Subvolume(_) => Form::Subvolume,
        }
    }

    /// Gives a volume that is empty something that can be limited; `dirs` are its directory and the room beside
    /// it, if there is some. `USERS` if every id is in use.
    pub(crate) fn assign(&self, call: &Call, dirs: &[BorrowedFd<'_>]) -> Result<Limited, Errno> {
        match (self, dirs) {
            (Self::Project(project), dirs) => project.assign(call, dirs).map(Limited::Project),
            (Self::Subvolume(_), [volume, ..]) => subvolumes::id(volume)?
                .map(Limited::Subvolume)
                // Another process has put a directory in its place.
                .ok_or(Errno::NOENT),
            (Self::Subvolume(_), []) => Err(Errno::INVAL),
        }
    }

    /// Limits what the volume occupies. If that is more already, it can only become less.
    pub(crate) fn limit(&self, limited: Limited, bytes: u64) -> Result<(), Errno> {
        let fd = match self {
            Self::Project(project) => &project.locks,
            Self::Subvolume(dir) => dir,
        };
        limited.set(fd, bytes)?;
        crash_points::mark("limit");
        Ok(())
    }
}

// === impl NewProject ===

impl NewProject {
    /// Makes directories that are empty a project of their own.
    fn assign(&self, call: &Call, dirs: &[BorrowedFd<'_>]) -> Result<u32, Errno> {
        // One process at a time: an id is in use once a directory has it.
        let _turn = LockFile::take(self.locks.as_fd(), PROJECTS, call)?;
        for id in self.ids.of(&self.volume) {
            let found = projects::quota(&self.locks, id)?;
            if found.files > 0 {
                continue;
            }
            // Of a process that was killed: it would hold while a copy is made.
            if found.limit > 0 {
                projects::set_limit(&self.locks, id, 0)?;
            }
            for dir in dirs {
                projects::assign(dir, id)?;
                crash_points::mark("assign project");
            }
            return Ok(id);
        }
        Err(Errno::USERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_btrfs_from_enforcing_sizes_is_said_with_what_to_do() {
        let said = |found| {
            let error = obstacle_of_btrfs(found, "enforcing")?;
            Some(error.advice().unwrap_or_default().to_owned())
        };
        assert_eq!(said(Ok(subvolumes::Quotas::On)), None);
        for (found, wanted) in [
            (Ok(subvolumes::Quotas::Off), "btrfs quota enable"),
            (Ok(subvolumes::Quotas::Inconsistent), "btrfs quota rescan"),
            (Err(Errno::PERM), "SYS_ADMIN"),
        ] {
            let advice = said(found).expect("an obstacle");
            assert!(advice.contains(wanted), "{advice}");
        }
    }
}
