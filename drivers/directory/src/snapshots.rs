//! The calls for snapshots: whole copies in a collection of their own.
//!
//! The work of one call is here; [`crate::pending`] says when its caller is answered.
//!
//! A snapshot appears with its final name after all of it was copied and written to the disk, or
//! not at all. compat: "local-hostpath": democratic-csi's own have no record; their volume is guessed
//! from the name, their size is unknown.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use driver_core::text::GroupSnapshotId;
use driver_core::{
    Call, CreateSnapshot, Error, Kind, Page, PageRequest, Snapshot, SnapshotFilter, SnapshotId,
};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use crate::collection::Collection;
use crate::copy;
use crate::crash_points;
use crate::disk;
use crate::failure::failed;
use crate::id::{NamePart, SnapshotDir, VolumeDir};
use crate::page;
use crate::record::{self, SnapshotRecord, VolumeRecord};
use crate::staging_area::{Form, failed_making};
use crate::store::Store;
use crate::volumes::Directories;

/// The text that the names begin with that the snapshotter of Kubernetes makes up.
const USUAL: &str = "snapshot-";

/// A snapshot that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct WantedSnapshot {
    pub(crate) volume: VolumeDir,
    pub(crate) name: NamePart,
    pub(crate) dir: SnapshotDir,
    /// The group that it is one of.
    pub(crate) group: Option<GroupSnapshotId>,
    /// The directories that the snapshots of its group get; its own, if it is alone.
    pub(crate) together: Arc<BTreeSet<SnapshotDir>>,
}

// === impl WantedSnapshot ===

impl WantedSnapshot {
    pub(crate) fn doing(&self) -> String {
        format!("taking snapshot {} of volume {}", self.name, self.volume)
    }

    /// The error when a snapshot with this record has its name or its directory.
    fn taken_by(&self, record: &SnapshotRecord) -> Error {
        let why = match &record.group {
            Some(group) => format!("it is one of group snapshot {group}"),
            None => format!("it is one of volume {}", record.source),
        };
        Error::new(Kind::Conflict, format!("snapshot {} exists", self.name)).because(why)
    }
}

/// The error where a filesystem keeps no mark of a group.
pub(crate) fn unmarked(doing: &str) -> Error {
    Error::invalid(doing)
        .because("the filesystem of the base keeps no extended attributes, so nothing would say of a snapshot that it is of a group")
        .advise("take a snapshot of each volume")
}

/// The record of a snapshot that is there; an error where that cannot be read.
pub(crate) fn record_of(
    dir: &SnapshotDir,
    found: impl AsFd,
) -> Result<Option<SnapshotRecord>, Error> {
    SnapshotRecord::read(found).map_err(|errno| {
        Error::new(
            Kind::Unreachable,
            format!("reading the record of snapshot {dir}"),
        )
        .because(std::io::Error::from(errno))
        .advise(format!(
            "read the log of the kernel, or that of the server of the share; if the snapshot is lost, remove \
             `s/{dir}` in the base directory by hand"
        ))
    })
}

fn warn_of_unreadable(dir: &SnapshotDir, error: &Error) {
    let because = error.advice().unwrap_or_default();
    tracing::warn!(snapshot = %dir, error = error.chain(), because, "a snapshot cannot be read");
}

impl Directories {
    /// The size of a volume that has a record.
    pub(crate) fn recorded_size(&self, volume: &VolumeDir) -> Result<Option<u64>, Error> {
        let found = self.store.look_for(Collection::Volumes, volume.as_str())?;
        let record = found.and_then(VolumeRecord::read);
        Ok(record.map(|record| record.capacity))
    }

    pub(crate) fn wanted(&self, request: &CreateSnapshot) -> Result<WantedSnapshot, Error> {
        let volume = VolumeDir::parse(&request.source)?;
        let name = NamePart::of(&request.name);
        let dir = SnapshotDir::of(&volume, &name, self.id_room);
        Ok(WantedSnapshot {
            together: Arc::new(BTreeSet::from([dir.clone()])),
            dir,
            volume,
            name,
            group: None,
        })
    }

    pub(crate) fn create_snapshot(
        &self,
        call: &Call,
        wanted: &WantedSnapshot,
        created: SystemTime,
    ) -> Result<Snapshot, Error> {
        let (volume, dir) = (wanted.volume.as_str(), wanted.dir.as_str());
        let doing = wanted.doing();
        if let Some(found) = self.store.look_for(Collection::Snapshots, dir)? {
            return self.same(&found, wanted);
        }
        let source = self
            .store
            .look_for(Collection::Volumes, volume)?
            .ok_or_else(|| Error::not_found(format!("volume {volume}")))?;
        let collection = self.store.open_or_create(Collection::Snapshots)?;
        self.refuse_taken(&collection, wanted)?;
        let taken = self.take(call, &collection, (&source, created), wanted, &doing);
        self.store.clean_up(if taken.is_ok() {
            Duration::ZERO
        } else {
            call.remaining() / 2
        });
        if let Some(record) = taken? {
            return Ok(self.snapshot(&wanted.dir, &record));
        }
        match Store::find(&collection, Collection::Snapshots, dir)? {
            Some(found) => self.same(&found, wanted),
            None => Err(Store::taken(&collection, dir, &doing)),
        }
    }

    /// Makes the copy; `None` if the name was taken by another process. After an error nothing of it is left.
    fn take(
        &self,
        call: &Call,
        collection: &OwnedFd,
        (source, created): (&OwnedFd, SystemTime),
        wanted: &WantedSnapshot,
        doing: &str,
    ) -> Result<Option<SnapshotRecord>, Error> {
        let fail = |errno| failed_making(doing, errno);
        let volume = &wanted.volume;
        // What an earlier copy left may be the room that this one needs.
        self.store.clean_up(call.remaining() / 2);
        let base = self.store.open()?;
        let staging = self.store.staging_area.open(&base)?;
        let staged = staging.make_filled(Form::Directory).map_err(fail)?;
        let copied = copy::copy_tree(source, staged.dir(), staged.folder(), call, doing)
            .map_err(|error| staged.explain(error, doing))?;
        // If it was deleted during the copy, files are missing from the copy.
        if !self
            .store
            .still_exists(Collection::Volumes, volume.as_str(), source)?
        {
            return Err(Error::not_found(format!("volume {volume}")));
        }
        let record = SnapshotRecord {
            name: wanted.name.as_str().to_owned(),
            source: volume.clone(),
            // Claims are made as large as this: not what its files occupy, but the volume's size.
            size: VolumeRecord::read(source).map_or(copied.allocated, |record| record.capacity),
            created,
            group: wanted.group.clone(),
        };
        let is_kept = record.write(staged.dir()).map_err(fail)?;
        if wanted.group.is_some() && !is_kept {
            return Err(unmarked(doing));
        }
        crash_points::mark("record");
        // Another process may have given the name to a snapshot of another volume since.
        let turn = staging.lock_names(call);
        // The snapshot may have been deleted since, while it was not ready.
        if turn.is_ok() || call.is_cancelled() {
            call.check(doing)?;
        }
        let turn = turn.map_err(fail)?;
        self.refuse_taken(collection, wanted)?;
        let outcome = staged.commit(call, collection.as_fd(), wanted.dir.as_str());
        drop(turn);
        match outcome {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        }
        copied.log(doing);
        Ok(Some(record))
    }

    /// Answers for a snapshot that is there already, if it is that one and known to be whole.
    pub(crate) fn same(&self, found: &OwnedFd, wanted: &WantedSnapshot) -> Result<Snapshot, Error> {
        let dir = &wanted.dir;
        match record_of(dir, found)? {
            // Two pairs can make one name: `a-b` and `c`, `a` and `b-c`.
            Some(record)
                if record.source != wanted.volume || record.name != wanted.name.as_str() =>
            {
                Err(
                    Error::new(Kind::Conflict, format!("snapshot {dir} exists")).because(format!(
                        "it is `{}` of volume {}",
                        record.name, record.source
                    )),
                )
            }
            Some(record) if record.group != wanted.group => Err(wanted.taken_by(&record)),
            Some(record) => Ok(self.snapshot(dir, &record)),
            // A snapshot of ours has a record where one can be kept. This may be half of one.
            None if wanted.group.is_some() || record::can_be_kept(found) => Err(Error::new(
                Kind::Conflict,
                format!("snapshot {dir} exists"),
            )
            .because("it was not made by this program, so it may not be a whole copy")
            .advise("take one with another name; if that one is not needed, delete its directory")),
            None => self.adopted(dir, found, Some(&wanted.volume)),
        }
    }

    /// Refuses a name that a snapshot of another volume has, unless both are of one group. What has the directory of
    /// another one of the group is not looked at: there may be a thousand, and each is compared when its turn comes.
    pub(crate) fn refuse_taken(
        &self,
        collection: &OwnedFd,
        wanted: &WantedSnapshot,
    ) -> Result<(), Error> {
        let fail = |errno| failed("listing snapshots", errno);
        let (name, shortened) = (&wanted.name, wanted.name.shortened());
        let listed = disk::open_dir(collection, ".").map_err(fail)?;
        for (entry, _) in disk::entries(listed.as_fd()).map_err(fail)? {
            let Some(other) = entry.to_str().ok().and_then(SnapshotDir::new) else {
                continue;
            };
            let may_be = other.may_be_called(name) || other.may_end(&shortened);
            if !may_be || wanted.together.contains(&other) {
                continue;
            }
            let found = Store::listed(collection, Collection::Snapshots, other.as_str());
            let record =
                found.and_then(|found| found.map_or(Ok(None), |found| record_of(&other, found)));
            let record = match record {
                Err(error) if !self.can_be_called(&other, name)? => {
                    warn_of_unreadable(&other, &error);
                    continue;
                }
                record => record?,
            };
            let Some(record) = record else {
                continue;
            };
            let is_of_group = record.group.is_some() && record.group == wanted.group;
            if record.name == name.as_str() && !is_of_group {
                return Err(wanted.taken_by(&record));
            }
        }
        Ok(())
    }

    /// Whether a snapshot whose record cannot be read can have this name. Of a shortened directory that shows only if
    /// its volume is there, or its id is in there as a whole. Otherwise it counts as another one: one record that is lost
    /// must not stop all snapshots.
    fn can_be_called(&self, dir: &SnapshotDir, name: &NamePart) -> Result<bool, Error> {
        if dir.may_end(name.as_str()) || dir.may_end(&name.shortened()) {
            return Ok(true);
        }
        let is_of = |volume: VolumeDir| dir.is_shortened_of(&volume, name);
        if dir.readings().any(|(volume, _)| is_of(volume)) {
            return Ok(true);
        }
        let Some(volumes) = self.store.collection(Collection::Volumes)? else {
            return Ok(false);
        };
        let fail = |errno| failed("listing volumes", errno);
        let listed = disk::open_dir(&volumes, ".").map_err(fail)?;
        let entries = disk::entries(listed.as_fd()).map_err(fail)?;
        Ok(entries.iter().any(|(entry, _)| {
            let volume = entry.to_str().ok().and_then(VolumeDir::new);
            volume.is_some_and(is_of)
        }))
    }

    /// Refuses to delete one of a group alone.
    fn refuse_member(&self, dir: &SnapshotDir, found: Option<&OwnedFd>) -> Result<(), Error> {
        let record = found.map_or(Ok(None), |found| record_of(dir, found))?;
        let recorded = record.and_then(|record| record.group);
        let of_group = self.pending.group(dir).or(recorded);
        of_group.map_or(Ok(()), |group| {
            let why = format!("it is one of group snapshot {group}, and goes with it");
            Err(Error::invalid(format!("deleting snapshot {dir}")).because(why))
        })
    }

    pub(crate) fn delete_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<(), Error> {
        let dir = SnapshotDir::parse(id)?;
        if dir.readings().next().is_none() && !dir.is_shortened() {
            // No volume and no name can have made it: there is no such snapshot.
            return Ok(());
        }
        let place = (Collection::Snapshots, dir.as_str());
        self.refuse_member(&dir, self.store.look_for(place.0, place.1)?.as_ref())?;
        self.pending
            .stop(&dir, None, &format!("deleting snapshot {dir}"))?;
        // By then it may be one of a group.
        let may_go = |found: &OwnedFd| self.refuse_member(&dir, Some(found)).map(|()| true);
        self.store.remove_if(call, place, &may_go)
    }

    pub(crate) fn get_snapshot(&self, id: &SnapshotId) -> Result<Snapshot, Error> {
        let dir = SnapshotDir::parse(id)?;
        if let Some(pending) = self.pending.snapshot(&dir, self.topology()) {
            return Ok(pending);
        }
        let found = self.store.look_for(Collection::Snapshots, dir.as_str())?;
        let described = match found {
            Some(found) => self.described_snapshot(&dir, &found, record_of(&dir, &found)?)?,
            None => None,
        };
        described.ok_or_else(|| Error::not_found(format!("snapshot {dir}")))
    }

    fn described_snapshot(
        &self,
        dir: &SnapshotDir,
        found: &OwnedFd,
        record: Option<SnapshotRecord>,
    ) -> Result<Option<Snapshot>, Error> {
        match record {
            Some(record) => Ok(Some(self.snapshot(dir, &record))),
            None if dir.readings().next().is_none() => Ok(None),
            None => self.adopted(dir, found, None).map(Some),
        }
    }

    pub(crate) fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let wanted = filter.source.as_ref().map(VolumeDir::parse).transpose();
        // No snapshot is of a volume that cannot exist.
        let Ok(wanted) = wanted else {
            return Ok(Page {
                entries: Vec::new(),
                next: None,
            });
        };
        // First: what is ready since is found in the collection.
        let pending = self.pending.names();
        let collection = self.store.collection(Collection::Snapshots)?;
        let max = page.max;
        let mut page = page.clone();
        let mut entries = Vec::new();
        loop {
            let ours = |name: &str| {
                SnapshotDir::new(name).is_some_and(|dir| {
                    dir.is_shortened()
                        || dir.readings().any(|(volume, _)| {
                            wanted.as_ref().is_none_or(|wanted| volume == *wanted)
                        })
                })
            };
            page.max = max.map(|max| max.saturating_sub(entries.len()).max(1));
            let on = collection.as_ref().map(AsFd::as_fd);
            let (names, next) = page::page(on, Collection::Snapshots, &page, ours, &pending)?;
            for dir in names.iter().filter_map(|name| SnapshotDir::new(name)) {
                let Some(on) = on else { break };
                let found = match Store::listed(on, Collection::Snapshots, dir.as_str())? {
                    Some(found) => {
                        // One record that is lost must not keep all snapshots from being listed.
                        let mut is_readable = true;
                        let record = record_of(&dir, &found).unwrap_or_else(|error| {
                            warn_of_unreadable(&dir, &error);
                            is_readable = false;
                            None
                        });
                        let described = self.described_snapshot(&dir, &found, record)?;
                        described.map(|snapshot| Snapshot {
                            ready: snapshot.ready && is_readable,
                            ..snapshot
                        })
                    }
                    None => self.pending.snapshot(&dir, self.topology()),
                };
                let fits = |snapshot: &Snapshot| {
                    wanted
                        .as_ref()
                        .is_none_or(|wanted| wanted.id() == snapshot.source)
                };
                entries.extend(found.filter(fits));
            }
            // Names that only looked like the wanted ones leave room on the page.
            if next.is_none() || max.is_none_or(|max| entries.len() >= max) {
                return Ok(Page { entries, next });
            }
            page.after = next;
        }
    }

    pub(crate) fn snapshot(&self, dir: &SnapshotDir, record: &SnapshotRecord) -> Snapshot {
        Snapshot {
            id: dir.id(),
            source: record.source.id(),
            size: record.size,
            created: record.created,
            ready: true,
            topology: self.topology(),
            group: record.group.clone(),
        }
    }

    /// A snapshot without a record: its volume is the longest that exists among those its name
    /// can mean, its time that of its directory.
    fn adopted(
        &self,
        dir: &SnapshotDir,
        found: &OwnedFd,
        known: Option<&VolumeDir>,
    ) -> Result<Snapshot, Error> {
        let mut source = known.cloned();
        for (volume, _) in dir.readings() {
            if source.is_some() {
                break;
            }
            let exists = self.store.look_for(Collection::Volumes, volume.as_str())?;
            if exists.is_some() {
                source = Some(volume);
            }
        }
        let source = source
            .or_else(|| {
                let usual = |(_, name): &(VolumeDir, &str)| name.starts_with(USUAL);
                dir.readings()
                    .find(usual)
                    .or_else(|| dir.readings().last())
                    .map(|(volume, _)| volume)
            })
            .ok_or_else(|| Error::not_found(format!("snapshot {dir}")))?;
        let flags = StatxFlags::BTIME | StatxFlags::CTIME;
        let times = rustix::fs::statx(found, "", AtFlags::EMPTY_PATH, flags)
            .map_err(|errno| failed(format!("looking at snapshot {dir}"), errno))?;
        let born = StatxFlags::from_bits_retain(times.stx_mask).contains(StatxFlags::BTIME);
        let time = if born {
            times.stx_btime
        } else {
            times.stx_ctime
        };
        let since = Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), time.tv_nsec);
        Ok(Snapshot {
            id: dir.id(),
            source: source.id(),
            size: 0,
            created: SystemTime::UNIX_EPOCH + since,
            ready: true,
            topology: self.topology(),
            group: None,
        })
    }
}
