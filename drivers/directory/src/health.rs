//! The health of volumes, by the filesystem of their directories: where a directory has a quota of its own, that
//! counts.

use driver_core::{Condition, ConditionKind, Conditions, Error, Reason, VolumeId};
use rustix::fs::{StatVfs, StatVfsMountFlags};

use crate::collection::Collection;
use crate::failure::failed;
use crate::id::VolumeDir;
use crate::volumes::Directories;

/// With less than this left nothing of any size can be written, in bytes.
const NO_ROOM: u64 = 1 << 20;

const FULL: Reason = Reason::constant("FilesystemFull");
const NO_INODES: Reason = Reason::constant("NoInodesLeft");
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

fn judged(vfs: &StatVfs) -> Conditions {
    let degraded = |reason, text: &str| Condition::new(ConditionKind::Degraded, reason, text);
    let left = vfs.f_bavail.saturating_mul(vfs.f_frsize.max(1));
    let full = (vfs.f_blocks > 0 && left < NO_ROOM)
        .then(|| degraded(FULL, "nothing more can be written: delete something"));
    let no_inodes = (vfs.f_files > 0 && vfs.f_favail == 0)
        .then(|| degraded(NO_INODES, "no more files can be made: delete some"));
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
