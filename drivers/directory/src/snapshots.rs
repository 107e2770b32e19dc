//! The verbs on snapshots: whole copies on their own shelf.
//!
//! A snapshot appears with its final name after all of it was copied and written to the disk, or
//! not at all. compat: "local-hostpath": democratic-csi's own have no record; their volume is guessed
//! from the name, their size is unknown.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use driver_core::{
    Call, CreateSnapshot, Effect, Error, Kind, Page, PageRequest, Snapshot, SnapshotFilter,
    SnapshotId,
};
use node_utils::Root;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use crate::copy;
use crate::disk;
use crate::failure::failed;
use crate::id::{NamePart, SnapshotDir, VolumeDir};
use crate::record::SnapshotRecord;
use crate::stop;
use crate::store::{Shelf, Store};
use crate::volumes::Directories;

/// What the names begin with that the snapshotter of Kubernetes makes up.
const USUAL: &str = "snapshot-";

impl Directories {
    pub(crate) fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let volume = VolumeDir::parse(&request.source)?;
        let name = NamePart::of(&request.name);
        let dir = SnapshotDir::of(&volume, &name);
        let doing = format!("taking snapshot {name} of volume {volume}");
        let base = self.store.open()?;
        if let Some(found) = Store::find(&base, Shelf::Snapshots, dir.as_str())? {
            return self.same(&base, &dir, &found, (&volume, &name));
        }
        let source = Store::find(&base, Shelf::Volumes, volume.as_str())?
            .ok_or_else(|| Error::not_found(format!("volume {volume}")))?;
        Self::refuse_taken(&base, &dir, &name)?;
        call.changing();
        let record = self
            .take(call, &base, (&volume, &source), (&dir, &name), &doing)
            .map_err(|error| error.with_effect(Effect::None))?;
        if let Some(record) = record {
            return Ok(self.snapshot(&dir, &record));
        }
        match Store::find(&base, Shelf::Snapshots, dir.as_str())? {
            Some(found) => self.same(&base, &dir, &found, (&volume, &name)),
            None => Err(Error::new(Kind::Conflict, doing)
                .because("something else than a directory has its name")),
        }
    }

    /// Makes the copy; `None` if the name was taken meanwhile.
    fn take(
        &self,
        call: &Call,
        base: &Root,
        (volume, source): (&VolumeDir, &OwnedFd),
        (dir, name): (&SnapshotDir, &NamePart),
        doing: &str,
    ) -> Result<Option<SnapshotRecord>, Error> {
        let created = SystemTime::now();
        let bench = self.store.workshop.open(base)?;
        let shelf = Store::shelf_to_change(base, Shelf::Snapshots)?;
        let aside = bench.make_filled().map_err(|errno| failed(doing, errno))?;
        let copied = copy::copy_tree(source, aside.dir(), aside.folder(), call, doing)?;
        // Had it been deleted meanwhile, files would be missing from the copy.
        if !Store::is_still(base, Shelf::Volumes, volume.as_str(), source) {
            return Err(Error::not_found(format!("volume {volume}")));
        }
        let record = SnapshotRecord {
            name: name.as_str().to_owned(),
            source: volume.clone(),
            size: copied.allocated,
            created,
        };
        let written = record.write(aside.dir());
        stop::mark("record");
        let outcome = written.and_then(|_| aside.commit(shelf.as_fd(), dir.as_str()));
        bench.tidy(call);
        match outcome {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(None),
            Err(errno) => return Err(failed(doing, errno)),
        }
        tracing::info!(
            doing,
            bytes = copied.bytes,
            files = copied.files,
            shared = copied.shared,
            "copied"
        );
        Ok(Some(record))
    }

    /// Answers for a snapshot that is there already, if it is of that volume.
    fn same(
        &self,
        base: &Root,
        dir: &SnapshotDir,
        found: &OwnedFd,
        (volume, name): (&VolumeDir, &NamePart),
    ) -> Result<Snapshot, Error> {
        match SnapshotRecord::read(found) {
            // Two pairs can make one name: `a-b` and `c`, `a` and `b-c`.
            Some(record) if record.source != *volume || record.name != name.as_str() => Err(
                Error::new(Kind::Conflict, format!("snapshot {dir} exists")).because(format!(
                    "it is `{}` of volume {}",
                    record.name, record.source
                )),
            ),
            Some(record) => Ok(self.snapshot(dir, &record)),
            None => self.adopted(base, dir, found, Some(volume)),
        }
    }

    /// Refuses a name that a snapshot of another volume has.
    fn refuse_taken(base: &Root, dir: &SnapshotDir, name: &NamePart) -> Result<(), Error> {
        let fail = |errno| failed("listing snapshots", errno);
        let shelf = match disk::open_dir(base, Shelf::Snapshots.dir()) {
            Err(Errno::NOENT) => return Ok(()),
            done => done.map_err(fail)?,
        };
        for (entry, _) in disk::entries(shelf.as_fd()).map_err(fail)? {
            let Some(other) = entry.to_str().ok().and_then(SnapshotDir::new) else {
                continue;
            };
            if other == *dir || !other.may_be_called(name) {
                continue;
            }
            let found = Store::find(base, Shelf::Snapshots, other.as_str())?;
            if let Some(record) = found.as_ref().and_then(SnapshotRecord::read)
                && record.name == name.as_str()
            {
                return Err(
                    Error::new(Kind::Conflict, format!("snapshot {name} exists"))
                        .because(format!("it is one of volume {}", record.source)),
                );
            }
        }
        Ok(())
    }

    pub(crate) fn delete_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<(), Error> {
        let dir = SnapshotDir::parse(id)?;
        if dir.readings().next().is_none() && !dir.is_shortened() {
            // No volume and no name can have made it: there is no such snapshot.
            return Ok(());
        }
        self.store.remove(call, Shelf::Snapshots, dir.as_str())
    }

    pub(crate) fn get_snapshot(&self, id: &SnapshotId) -> Result<Snapshot, Error> {
        let dir = SnapshotDir::parse(id)?;
        let base = self.store.open()?;
        self.look_at_snapshot(&base, &dir)?
            .ok_or_else(|| Error::not_found(format!("snapshot {dir}")))
    }

    fn look_at_snapshot(&self, base: &Root, dir: &SnapshotDir) -> Result<Option<Snapshot>, Error> {
        let Some(found) = Store::find(base, Shelf::Snapshots, dir.as_str())? else {
            return Ok(None);
        };
        match SnapshotRecord::read(&found) {
            Some(record) => Ok(Some(self.snapshot(dir, &record))),
            None if dir.readings().next().is_none() => Ok(None),
            None => self.adopted(base, dir, &found, None).map(Some),
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
        let base = self.store.open()?;
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
            let (names, next) = Store::page(&base, Shelf::Snapshots, &page, ours)?;
            for dir in names.iter().filter_map(|name| SnapshotDir::new(name)) {
                let found = self.look_at_snapshot(&base, &dir)?;
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

    fn snapshot(&self, dir: &SnapshotDir, record: &SnapshotRecord) -> Snapshot {
        Snapshot {
            id: dir.id(),
            source: record.source.id(),
            size: record.size,
            created: record.created,
            ready: true,
            topology: self.topology(),
        }
    }

    /// A snapshot without a record: its volume is the longest that exists among those its name
    /// can mean, its time that of its directory.
    fn adopted(
        &self,
        base: &Root,
        dir: &SnapshotDir,
        found: &OwnedFd,
        known: Option<&VolumeDir>,
    ) -> Result<Snapshot, Error> {
        let mut source = known.cloned();
        for (volume, _) in dir.readings() {
            if source.is_some() {
                break;
            }
            if Store::find(base, Shelf::Volumes, volume.as_str())?.is_some() {
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
        })
    }
}
