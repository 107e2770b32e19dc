//! The calls for snapshots, for those that are directories and those in a repository of a tool.

use std::os::fd::OwnedFd;

use driver_core::paging::MAX_PAGE;
use driver_core::{
    Call, CreateSnapshot, Error, Kind, Page, PageRequest, PageToken, Snapshot, SnapshotFilter,
    SnapshotId, Topology, Volume, VolumeId,
};
use rustix::io::Errno;

use crate::backup::{Backup, Known, Repository};
use crate::collection::Collection;
use crate::copy::write_out;
use crate::failure::failed;
use crate::id::{BackupId, NamePart, SnapshotHandle, Tool, VolumeDir};
use crate::volumes::{Directories, VolumeSpec, at_least};

/// The place where a snapshot is restored, in the room beside the volume that is made of it.
const RESTORED: &str = "restored";

impl Directories {
    pub(crate) fn delete_any_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<(), Error> {
        let SnapshotHandle::Backup(tool, found) = SnapshotHandle::parse(id)? else {
            return self.delete_snapshot(call, id);
        };
        let repository = self.repository(tool)?;
        match self.looked_up(call, repository, &found)? {
            Known::Backup(backup) => {
                // First, because a retry no longer finds the name.
                let of = (&backup.volume, &*backup.name);
                repository
                    .forget_unfinished(call, of)
                    .and_then(|()| repository.forget(call, &backup.id))
            }
            Known::Unnamed => Err(Error::new(
                Kind::Busy,
                format!(
                    "deleting snapshot {found} in the repository of {}",
                    tool.name()
                ),
            )
            .because("it has not the tags of a snapshot of a volume, so it is another program's")),
            Known::Cut => repository.forget(call, found.as_str()),
            Known::Nothing => Ok(()),
        }
    }

    pub(crate) fn get_any_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<Snapshot, Error> {
        let SnapshotHandle::Backup(tool, found) = SnapshotHandle::parse(id)? else {
            return self.get_snapshot(id);
        };
        let backup = self.backup(call, tool, &found)?;
        described(self.repository(tool)?, call, &backup, self.topology())
    }

    /// First those that are directories, then those in each repository.
    pub(crate) fn list_all_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let after = page.after.as_ref().and_then(|token| token_in(&token.0));
        let mut listed = match after {
            Some(_) => Page {
                entries: Vec::new(),
                next: None,
            },
            None => self.list_snapshots(filter, page)?,
        };
        for repository in self.repositories.iter().filter(|one| one.is_listed()) {
            let (tool, after) = match after {
                Some((tool, _)) if repository.tool() < tool => continue,
                Some((tool, after)) if repository.tool() == tool => (tool, Some(after)),
                _ => (repository.tool(), None),
            };
            if listed.next.is_some() {
                return Ok(listed);
            }
            // Where no repository is, nothing is known of its snapshots.
            let mut backups = repository.list(call)?;
            self.expect_same(call, &**repository)?;
            backups.retain(|backup| {
                let fits = |source: &VolumeId| backup.volume.id() == *source;
                filter.source.as_ref().is_none_or(fits)
                    && after.is_none_or(|after| backup.key().as_str() > after)
            });
            let room = page
                .max
                .unwrap_or(MAX_PAGE)
                .saturating_sub(listed.entries.len());
            if backups.len() > room {
                let last = room.checked_sub(1).and_then(|last| backups.get(last));
                let key = last.map_or_else(String::new, Backup::key);
                listed.next = Some(PageToken(format!("{}{key}", token_of(tool))));
                backups.truncate(room);
            }
            for backup in &backups {
                let entry = described(&**repository, call, backup, self.topology())?;
                listed.entries.push(entry);
            }
        }
        Ok(listed)
    }

    /// Makes a volume of a snapshot in the repository.
    pub(crate) fn create_restored(
        &self,
        call: &Call,
        mut spec: VolumeSpec,
        (tool, id): (Tool, &BackupId),
    ) -> Result<Volume, Error> {
        let backup = self.backup(call, tool, id)?;
        let repository = self.repository(tool)?;
        let least = repository.size(call, &backup)?;
        spec.record.capacity = at_least(spec.record.capacity, least, spec.size, &spec.doing)?;
        let collection = self.store.open_or_create(Collection::Volumes)?;
        let made = self.restore(call, &collection, &spec, (repository, &backup));
        self.outcome(call, &collection, spec, made)
    }

    /// Restores into the staging area; `false` if the name was taken. After an error nothing of it is left.
    fn restore(
        &self,
        call: &Call,
        collection: &OwnedFd,
        spec: &VolumeSpec,
        (repository, backup): (&dyn Repository, &Backup),
    ) -> Result<bool, Error> {
        let doing = spec.doing.as_str();
        let fail = |errno| failed(doing, errno);
        self.make_filled(call, collection, spec, |staged| {
            // By the open directory: the path leads to another disk if the share is unmounted during the restore.
            let target = format!("{}/{RESTORED}", staged.folder_path().map_err(fail)?);
            // restic restores the whole path of what it was made of, another one than this base's if that moved.
            let below = repository.restore(call, backup, &target, doing)?;
            let restored = format!("{RESTORED}/{}", below.trim_start_matches('/'));
            staged
                .adopt(restored.trim_end_matches('/'))
                .map_err(|errno| {
                    let why =
                        "the tool has restored no directory of the name that the snapshot has";
                    match errno {
                        Errno::NOENT | Errno::NOTDIR => {
                            Error::new(Kind::Internal, doing).because(why)
                        }
                        errno => fail(errno),
                    }
                })?;
            write_out(staged.dir()).map_err(fail)
        })
    }

    pub(crate) fn create_backup(
        &self,
        call: &Call,
        request: &CreateSnapshot,
        tool: Tool,
    ) -> Result<Snapshot, Error> {
        let repository = self.repository(tool)?;
        let volume = VolumeDir::parse(&request.source)?;
        let name = NamePart::of(&request.name);
        let doing = format!(
            "taking snapshot {name} of volume {volume} with {}",
            tool.name()
        );
        let path = self.path_of(&volume);
        let existing = repository.existing(call)?;
        if let Some(all) = &existing {
            // As of directories: a name belongs to one volume.
            let taken = all.iter().find(|backup| backup.name == name.as_str());
            if let Some(backup) = taken.filter(|backup| backup.volume != volume) {
                return Err(
                    Error::new(Kind::Conflict, format!("snapshot {name} exists"))
                        .because(format!("it is one of volume {}", backup.volume)),
                );
            }
            // By whichever path: that of the base may be another one since.
            let same = |backup: &&Backup| backup.is_of(&volume, &name);
            if let Some(backup) = all.iter().find(same) {
                repository.forget_unfinished(call, (&volume, name.as_str()))?;
                return described(repository, call, backup, self.topology());
            }
        }
        let missing = || Error::not_found(format!("volume {volume}"));
        let look = || self.store.look_for(Collection::Volumes, volume.as_str());
        let source = look()?.ok_or_else(missing)?;
        let base = &self.store.base;
        if existing.is_none() {
            let used = repository.location();
            let used = used
                .map(|location| base.record_of_use(location))
                .transpose()?;
            if let Some((record, _)) = used.flatten() {
                return Err(Error::new(Kind::Unreachable, doing)
                    .because("the repository that was used before is not there")
                    .advise(format!(
                        "mount it, or mend its address; if it was removed on purpose, remove {record}"
                    )));
            }
            repository.init(call)?;
        }
        self.expect_same(call, repository)?;
        // If it was deleted during the backup, files are missing from the backup.
        let is_whole = || {
            let exists = self
                .store
                .still_exists(Collection::Volumes, volume.as_str(), &source)?;
            if exists { Ok(()) } else { Err(missing()) }
        };
        let made = repository.backup(call, &path, (&volume, &name), (&doing, &is_whole));
        described(repository, call, &made?, self.topology())
    }

    /// The directory of a volume as the tool is given it. compat: "restic": democratic-csi finds snapshots by it.
    fn path_of(&self, volume: &VolumeDir) -> String {
        let volumes = self.store.base.path().child(Collection::Volumes.dir());
        volumes.child(volume.as_str()).to_string()
    }

    fn backup(&self, call: &Call, tool: Tool, id: &BackupId) -> Result<Backup, Error> {
        match self.looked_up(call, self.repository(tool)?, id)? {
            Known::Backup(backup) => Ok(backup),
            Known::Unnamed | Known::Cut | Known::Nothing => Err(Error::not_found(format!(
                "snapshot {id} in the repository of {}",
                tool.name()
            ))),
        }
    }

    /// What the repository that was used before has under an id.
    fn looked_up(
        &self,
        call: &Call,
        repository: &dyn Repository,
        id: &BackupId,
    ) -> Result<Known, Error> {
        let known = repository.get(call, id)?;
        let is_there = matches!(known, Known::Backup(_));
        let location = repository.location();
        let recorded = location.map(|one| self.store.base.record_of_use(one));
        let is_recorded = recorded.transpose()?.flatten().is_some();
        // What has the snapshot is the right one.
        if !(is_there && is_recorded) {
            self.expect_same(call, repository)?;
        }
        Ok(known)
    }

    /// An error if this is another repository than the one that was used there before: what it does not have may exist in
    /// that one. The first use is put on record.
    fn expect_same(&self, call: &Call, repository: &dyn Repository) -> Result<(), Error> {
        let base = &self.store.base;
        let Some(location) = repository.location().filter(|_| base.keeps_records()) else {
            return Ok(());
        };
        let Some(found) = repository.id(call)? else {
            return Ok(());
        };
        match base.record_of_use(location)? {
            Some((_, known)) if known == found => Ok(()),
            Some((record, known)) if !known.is_empty() => {
                let doing = format!("using the repository of {}", repository.tool().name());
                Err(Error::new(Kind::Unreachable, doing)
                    .because(format!(
                        "it is the one with the id {found}, and the one with the id {known} was used before"
                    ))
                    .advise(format!(
                        "mount that one, or mend its address; if it was replaced on purpose, remove {record}"
                    )))
            }
            _ => {
                base.record_use(location, &found);
                Ok(())
            }
        }
    }

    fn repository(&self, tool: Tool) -> Result<&dyn Repository, Error> {
        let mut repositories = self.repositories.iter();
        let found = repositories.find(|repository| repository.tool() == tool);
        found.map(|repository| &**repository).ok_or_else(|| {
            Error::invalid(format!("using a snapshot of {}", tool.name()))
                .because("this process runs no programs")
        })
    }
}

fn described(
    repository: &dyn Repository,
    call: &Call,
    backup: &Backup,
    topology: Vec<Topology>,
) -> Result<Snapshot, Error> {
    let tool = repository.tool();
    let id = BackupId::new(&backup.id).ok_or_else(|| {
        Error::new(
            Kind::Internal,
            format!("reading what {} lists", tool.name()),
        )
        .because("an id has a form that ids do not have")
    })?;
    Ok(Snapshot {
        id: id.id(tool),
        source: backup.volume.id(),
        size: repository.size(call, backup)?,
        created: backup.time,
        ready: true,
        topology,
        group: None,
    })
}

/// What the tokens of a list begin with that is in a repository; those of directories begin with `s`.
const fn token_of(tool: Tool) -> &'static str {
    match tool {
        Tool::Restic => "r1/",
        Tool::Kopia => "k1/",
    }
}

/// In which repository a list goes on, and after which snapshot.
fn token_in(token: &str) -> Option<(Tool, &str)> {
    let mut tools = Tool::ALL.into_iter();
    tools.find_map(|tool| Some((tool, token.strip_prefix(token_of(tool))?)))
}
