//! The health of volumes, by the filesystem of their directories: where a directory has a quota of its own, that
//! counts.

use csi_types::said::{self, FULL, NO_INODES};
use driver_core::{Condition, ConditionKind, Conditions, Error, Kind, Reason, VolumeId};
use rustix::fs::{StatVfs, StatVfsMountFlags};

use crate::collection::Collection;
use crate::failure::failed;
use crate::id::VolumeDir;
use crate::store::Store;
use crate::volumes::Directories;

const READ_ONLY: Reason = Reason::constant("FilesystemReadOnly");

impl Directories {
    /// See [`driver_core::Health::conditions`].
    pub(crate) fn conditions(&self, ids: &[VolumeId]) -> Result<Vec<Option<Conditions>>, Error> {
        ids.iter().map(|id| self.conditions_of(id)).collect()
    }

    fn conditions_of(&self, id: &VolumeId) -> Result<Option<Conditions>, Error> {
        let dir = VolumeDir::parse(id)?;
        let found = self.store.look_for(Collection::Volumes, dir.as_str())?;
        let Some(found) = found else {
            return Ok(None);
        };
        let vfs = rustix::fs::fstatvfs(&found)
            .map_err(|errno| failed(format!("looking at volume {dir}"), errno))?;
        Ok(Some(judged(&vfs)))
    }
}

impl Store {
    /// Why no volume can be made or written although the base can be used: its filesystem is full, has no inodes left, or is
    /// read-only. Of a base that is not there yet, the filesystem that it would be made on counts.
    pub(crate) fn obstacles(&self) -> Result<Vec<Error>, Error> {
        let doing = || format!("writing to the base directory {}", self.base.path());
        let vfs = match self.base.open()? {
            Some(base) => rustix::fs::fstatvfs(&base),
            None => self.base.nearest(|path| rustix::fs::statvfs(path)),
        };
        let vfs = vfs.map_err(|errno| failed(doing(), errno))?;
        let found = judged(&vfs);
        let obstacle = |condition: &Condition| {
            let (kind, advice) = match condition.reason() {
                FULL => (
                    Kind::OutOfSpace,
                    "remove files from its filesystem, or let that grow",
                ),
                NO_INODES => (
                    Kind::OutOfSpace,
                    "remove small files from its filesystem, or move the base to one with more inodes",
                ),
                _ => (
                    Kind::Unreachable,
                    "mount it writable; `dmesg` names the error after which it turned read-only",
                ),
            };
            Error::new(kind, doing())
                .because(condition.message().to_owned())
                .advise(advice)
        };
        Ok(found.iter().map(obstacle).collect())
    }
}

fn judged(vfs: &StatVfs) -> Conditions {
    let degraded = |reason, text: &str| Condition::new(ConditionKind::Degraded, reason, text);
    let bytes = |blocks: u64| blocks.saturating_mul(vfs.f_frsize.max(1));
    let is_full = said::is_full(bytes(vfs.f_bavail), bytes(vfs.f_blocks));
    let full = is_full.then(|| degraded(FULL, said::IS_FULL));
    let no_inodes = (vfs.f_files > 0 && vfs.f_favail == 0)
        .then(|| degraded(NO_INODES, &said::no_inodes(vfs.f_files)));
    let read_only = vfs.f_flag.contains(StatVfsMountFlags::RDONLY).then(|| {
        degraded(
            READ_ONLY,
            "the filesystem of the base directory is read-only",
        )
    });
    full.into_iter().chain(no_inodes).chain(read_only).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_no_inodes_and_no_right_to_write_are_conditions_and_ample_room_is_none() {
        let ample = rustix::fs::statvfs("/").expect("statvfs");
        let ample = StatVfs {
            f_frsize: 4096,
            f_blocks: 1 << 20,
            f_bavail: 1 << 19,
            f_files: 1000,
            f_favail: 10,
            f_flag: StatVfsMountFlags::empty(),
            ..ample
        };
        assert!(judged(&ample).is_healthy());
        // A directory with a quota of 1 MiB.
        let little = StatVfs {
            f_blocks: 256,
            f_bavail: 128,
            ..ample
        };
        assert!(judged(&little).is_healthy());
        let mut bad = ample;
        bad.f_bavail = 1;
        bad.f_favail = 0;
        bad.f_flag = StatVfsMountFlags::RDONLY;
        let reasons: Vec<_> = judged(&bad).iter().map(Condition::reason).collect();
        assert_eq!(reasons, [FULL, NO_INODES, READ_ONLY]);
        // A share that counts nothing.
        let mut silent = bad;
        (silent.f_blocks, silent.f_files) = (0, 0);
        silent.f_flag = StatVfsMountFlags::empty();
        assert!(judged(&silent).is_healthy());
    }
}
