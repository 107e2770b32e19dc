//! The calls for snapshots, for those that are directories and those in a repository of restic.

use std::os::fd::OwnedFd;

use driver_core::paging::MAX_PAGE;
use driver_core::{
    Call, CreateSnapshot, Error, Kind, Page, PageRequest, PageToken, Snapshot, SnapshotFilter,
    SnapshotId, Volume, VolumeId,
};
use rustix::io::Errno;

use crate::config::SnapshotDriver;
use crate::failure::failed;
use crate::id::{NamePart, ResticId, SnapshotHandle, VolumeDir};
use crate::restic::{Backup, Known, Restic};
use crate::store::Collection;
use crate::volumes::{Directories, VolumeSpec, at_least};

/// Where a snapshot is restored, in the room beside the volume that is made of it.
const RESTORED: &str = "restored";
/// What the tokens of the list begin with that is in the repository; those of directories begin with `s`.
const TOKEN: &str = "r1/";

impl Directories {
    pub(crate) fn create_snapshot_with(
        &self,
        call: &Call,
        request: &CreateSnapshot,
        driver: SnapshotDriver,
    ) -> Result<Snapshot, Error> {
        match driver {
            SnapshotDriver::Filecopy => self.create_snapshot(call, request),
            SnapshotDriver::Restic => self.create_backup(call, request),
        }
    }

    pub(crate) fn delete_any_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<(), Error> {
        let SnapshotHandle::Restic(found) = SnapshotHandle::parse(id)? else {
            return self.delete_snapshot(call, id);
        };
        let restic = self.restic()?;
        match restic.get(call, &found)? {
            Known::Backup(backup) => {
                // First, because a retry no longer finds the name.
                let of = (&backup.volume, &*backup.name);
                restic
                    .forget_unfinished(call, &backup.path, of)
                    .and_then(|()| restic.forget(call, &backup.id))
            }
            Known::Unnamed => Err(Error::new(
                Kind::Busy,
                format!("deleting snapshot {found} in the repository of restic"),
            )
            .because("it has not the tags of a snapshot of a volume, so it is another program's")),
            Known::Nothing => Ok(()),
        }
        .map_err(|error| error.with_effect(call.effect()))
    }

    pub(crate) fn get_any_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<Snapshot, Error> {
        let SnapshotHandle::Restic(found) = SnapshotHandle::parse(id)? else {
            return self.get_snapshot(id);
        };
        let backup = self.backup(call, &found)?;
        self.described_backup(call, self.restic()?, &backup)
    }

    /// First those that are directories, then those in the repository.
    pub(crate) fn list_all_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let after = page
            .after
            .as_ref()
            .and_then(|token| token.0.strip_prefix(TOKEN));
        let mut listed = match after {
            Some(_) => Page {
                entries: Vec::new(),
                next: None,
            },
            None => self.list_snapshots(filter, page)?,
        };
        let Some(restic) = self.restic.as_ref().filter(|restic| restic.is_listed()) else {
            return Ok(listed);
        };
        if listed.next.is_some() {
            return Ok(listed);
        }
        // Where no repository is, nothing is known of its snapshots.
        let mut backups = restic.list(call, &[])?;
        backups.retain(|backup| {
            let fits = |source: &VolumeId| backup.volume.id() == *source;
            filter.source.as_ref().is_none_or(fits)
                && after.is_none_or(|after| backup.key().as_str() > after)
        });
        let room = page
            .max
            .unwrap_or(MAX_PAGE)
            .saturating_sub(listed.entries.len());
        let last = room.checked_sub(1).and_then(|last| backups.get(last));
        if backups.len() > room {
            let key = last.map_or_else(String::new, Backup::key);
            listed.next = Some(PageToken(format!("{TOKEN}{key}")));
            backups.truncate(room);
        }
        for backup in &backups {
            listed
                .entries
                .push(self.described_backup(call, restic, backup)?);
        }
        Ok(listed)
    }

    /// Makes a volume of a snapshot in the repository.
    pub(crate) fn create_restored(
        &self,
        call: &Call,
        mut spec: VolumeSpec,
        id: &ResticId,
    ) -> Result<Volume, Error> {
        let backup = self.backup(call, id)?;
        let least = self.restic()?.size(call, &backup.id)?;
        spec.record.capacity = at_least(spec.record.capacity, least, spec.size, &spec.doing)?;
        let collection = self.store.open_or_create(Collection::Volumes)?;
        let made = self.restore(call, &collection, &spec, &backup);
        self.outcome(call, &collection, spec, made)
    }

    /// Restores into the staging area; `false` if the name was taken. After an error nothing of it is left.
    fn restore(
        &self,
        call: &Call,
        collection: &OwnedFd,
        spec: &VolumeSpec,
        backup: &Backup,
    ) -> Result<bool, Error> {
        let doing = spec.doing.as_str();
        let fail = |errno| failed(doing, errno);
        self.make_filled(call, collection, spec, |staged| {
            // By the open directory: the path leads to another disk if the share is unmounted during the restore.
            let target = format!("{}/{RESTORED}", staged.folder_path().map_err(fail)?);
            self.restic()?.restore(call, backup, &target, doing)?;
            // It has the whole path of what it was made of, which is another one than this base's if that moved.
            let restored = format!("{RESTORED}/{}", backup.path.trim_start_matches('/'));
            staged.adopt(&restored).map_err(|errno| {
                let why = "restic has restored no directory of the name that the snapshot has";
                match errno {
                    Errno::NOENT | Errno::NOTDIR => Error::new(Kind::Internal, doing).because(why),
                    errno => fail(errno),
                }
            })?;
            rustix::fs::syncfs(staged.dir()).map_err(fail)
        })
    }

    fn create_backup(&self, call: &Call, request: &CreateSnapshot) -> Result<Snapshot, Error> {
        let restic = self.restic()?;
        let volume = VolumeDir::parse(&request.source)?;
        let name = NamePart::of(&request.name);
        let doing = format!("taking snapshot {name} of volume {volume} with restic");
        let path = self.path_of(&volume);
        let is_made = restic.is_there(call)?;
        if is_made {
            // As of directories: a name belongs to one volume.
            let all = restic.list(call, &[])?;
            let taken = all.iter().find(|backup| backup.name == name.as_str());
            if let Some(backup) = taken.filter(|backup| backup.volume != volume) {
                return Err(
                    Error::new(Kind::Conflict, format!("snapshot {name} exists"))
                        .because(format!("it is one of volume {}", backup.volume)),
                );
            }
            let of_path = |backup: &&Backup| backup.path == path && backup.is_of(&volume, &name);
            if let Some(backup) = all.iter().find(of_path) {
                restic.forget_unfinished(call, &path, (&volume, name.as_str()))?;
                return self.described_backup(call, restic, backup);
            }
        }
        let missing = || Error::not_found(format!("volume {volume}"));
        let look = || self.store.look_for(Collection::Volumes, volume.as_str());
        let source = look()?.ok_or_else(missing)?;
        if !is_made {
            restic.init(call)?;
        }
        let made = restic.backup(call, &path, (&volume, &name), &doing);
        let backup = made.map_err(|error| error.with_effect(call.effect()))?;
        // If it was deleted during the backup, files are missing from the backup.
        if !self
            .store
            .still_exists(Collection::Volumes, volume.as_str(), &source)
        {
            restic.forget(call, &backup.id)?;
            return Err(missing());
        }
        self.described_backup(call, restic, &backup)
    }

    /// The directory of a volume as the tool is given it. compat: "restic": snapshots are found by it.
    fn path_of(&self, volume: &VolumeDir) -> String {
        let volumes = self.store.base.path().child(Collection::Volumes.dir());
        volumes.child(volume.as_str()).to_string()
    }

    fn backup(&self, call: &Call, id: &ResticId) -> Result<Backup, Error> {
        match self.restic()?.get(call, id)? {
            Known::Backup(backup) => Ok(backup),
            Known::Unnamed | Known::Nothing => Err(Error::not_found(format!(
                "snapshot {id} in the repository of restic"
            ))),
        }
    }

    fn described_backup(
        &self,
        call: &Call,
        restic: &Restic,
        backup: &Backup,
    ) -> Result<Snapshot, Error> {
        let id = ResticId::new(&backup.id).ok_or_else(|| {
            Error::new(Kind::Internal, "reading what restic lists")
                .because("an id is no id of restic")
        })?;
        Ok(Snapshot {
            id: id.id(),
            source: backup.volume.id(),
            size: restic.size(call, &backup.id)?,
            created: backup.time,
            ready: true,
            topology: self.topology(),
            group: None,
        })
    }

    fn restic(&self) -> Result<&Restic, Error> {
        self.restic.as_ref().ok_or_else(|| {
            Error::invalid("using a snapshot of restic").because("this process runs no programs")
        })
    }
}
