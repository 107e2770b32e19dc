//! The verbs on volumes.
//!
//! A volume exists when its directory has its name on the shelf; everything before that happens
//! aside. compat: "local-hostpath": a size is remembered and reported, nothing enforces it.

use std::os::fd::OwnedFd;
use std::time::SystemTime;

use driver_core::{
    Call, Capacity, CapacityQuery, CreateVolume, Effect, Error, Expanded, Kind, Page, PageRequest,
    SizeRange, Source, Topology, Volume, VolumeId,
};
use node_utils::Root;
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;

use crate::config::{Layout, Permissions};
use crate::copy;
use crate::failure::{failed, failed_midway};
use crate::id::{SnapshotDir, VolumeDir};
use crate::reach::Reach;
use crate::record::{SnapshotRecord, VolumeRecord, digest};
use crate::stop;
use crate::store::{Shelf, Store};
use crate::workshop::{Aside, Bench};

/// How often something is made again that somebody took for a leftover.
const ATTEMPTS: usize = 5;

/// The directories of one driver; every verb blocks.
#[derive(Debug)]
pub(crate) struct Directories {
    pub(crate) store: Store,
    pub(crate) layout: Layout,
    pub(crate) reach: Reach,
    pub(crate) place: Option<Topology>,
}

/// What a volume is to be filled with, found and open.
struct Filling {
    shelf: Shelf,
    name: String,
    dir: OwnedFd,
    /// A volume made of it cannot be smaller.
    least: u64,
}

impl Directories {
    pub(crate) fn topology(&self) -> Vec<Topology> {
        self.place.iter().cloned().collect()
    }

    fn volume(&self, dir: &VolumeDir, capacity: Option<u64>, source: Option<Source>) -> Volume {
        Volume {
            id: dir.id(),
            capacity,
            attachment: self.reach.attachment(&self.layout.share, dir),
            source,
            topology: self.topology(),
        }
    }

    pub(crate) fn create_volume(
        &self,
        call: &Call,
        request: &CreateVolume,
    ) -> Result<Volume, Error> {
        let dir = VolumeDir::parse(&request.id)?;
        let source = request.source.as_ref().map(normalised).transpose()?;
        let doing = format!("creating volume {dir}");
        if let Some(place) = &self.place
            && !request.topology.accepts(place)
        {
            return Err(Error::new(Kind::OutOfSpace, doing)
                .because("its volumes are reachable from another node than those required"));
        }
        let size = request
            .size
            .choose(1)
            .map_err(|error| Error::new(Kind::OutOfRange, doing.clone()).because(error))?;
        let mut record = VolumeRecord {
            capacity: size,
            source,
            parameters: digest(&request.parameters),
            created: SystemTime::now(),
        };
        let base = self.store.open_or_make(call)?;
        let mut filling = None;
        if let Some(source) = &record.source {
            if let Some(found) = Store::find(&base, Shelf::Volumes, dir.as_str())? {
                return self.existing(&dir, &found, &record, request.size);
            }
            let found = Self::filling(&base, source)?;
            record.capacity = at_least(size, found.least, request.size, &doing)?;
            filling = Some(found);
        }
        call.changing();
        let made = self.make(call, &base, &dir, &record, filling.as_ref(), &doing);
        if made? {
            return Ok(self.volume(&dir, Some(record.capacity), record.source));
        }
        match Store::find(&base, Shelf::Volumes, dir.as_str())? {
            Some(found) => self.existing(&dir, &found, &record, request.size),
            None => Err(Error::new(Kind::Conflict, doing)
                .because("something else than a directory has its name")),
        }
    }

    /// Makes the directory; `false` if the name is taken. After an error nothing of it is left.
    fn make(
        &self,
        call: &Call,
        base: &Root,
        dir: &VolumeDir,
        record: &VolumeRecord,
        filling: Option<&Filling>,
        doing: &str,
    ) -> Result<bool, Error> {
        let bench = self.store.workshop.open(base)?;
        let shelf = Store::shelf_to_change(base, Shelf::Volumes)?;
        let mut outcome = Err(Errno::NOENT);
        for _ in 0..ATTEMPTS {
            let aside = match filling {
                None => match self.empty(&bench) {
                    Err(Errno::NOENT) => continue,
                    made => made.map_err(|errno| failed(doing, errno))?,
                },
                Some(filling) => self
                    .filled(call, base, &bench, filling, doing)
                    .map_err(|error| error.with_effect(Effect::None))?,
            };
            let written = record.write(aside.dir());
            stop::mark("record");
            outcome =
                written.and_then(|_| aside.commit(rustix::fd::AsFd::as_fd(&shelf), dir.as_str()));
            if outcome != Err(Errno::NOENT) {
                break;
            }
        }
        bench.tidy(call);
        match outcome {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(failed(doing, errno)),
        }
    }

    fn empty<'a>(&self, bench: &'a Bench<'_>) -> Result<Aside<'a>, Errno> {
        let wanted = self.layout.permissions;
        let mode = if wanted.mode.is_some() { 0o700 } else { 0o755 };
        let aside = bench.make_empty(mode)?;
        permit(&aside, wanted)?;
        Ok(aside)
    }

    fn filled<'a>(
        &self,
        call: &Call,
        base: &Root,
        bench: &'a Bench<'_>,
        filling: &Filling,
        doing: &str,
    ) -> Result<Aside<'a>, Error> {
        let aside = bench
            .make_filled()
            .map_err(|errno| failed_midway(doing, errno))?;
        let copied = copy::copy_tree(&filling.dir, aside.dir(), aside.folder(), call, doing)?;
        // Had it been deleted meanwhile, files would be missing from the copy.
        let (shelf, name) = (filling.shelf, &filling.name);
        if !Store::is_still(base, shelf, name, &filling.dir) {
            return Err(Error::not_found(format!(
                "{doing} from {} {name}",
                shelf.noun()
            )));
        }
        permit(&aside, self.layout.permissions).map_err(|errno| failed_midway(doing, errno))?;
        tracing::info!(
            doing,
            bytes = copied.bytes,
            files = copied.files,
            shared = copied.shared,
            "copied"
        );
        Ok(aside)
    }

    fn filling(base: &Root, source: &Source) -> Result<Filling, Error> {
        let (shelf, name) = match source {
            Source::Volume(id) => (Shelf::Volumes, VolumeDir::parse(id)?.to_string()),
            Source::Snapshot(id) => (Shelf::Snapshots, SnapshotDir::parse(id)?.to_string()),
        };
        let dir = Store::find(base, shelf, &name)?
            .ok_or_else(|| Error::not_found(format!("{} {name} as a source", shelf.noun())))?;
        let least = match shelf {
            Shelf::Volumes => VolumeRecord::read(&dir).map_or(0, |record| record.capacity),
            Shelf::Snapshots => SnapshotRecord::read(&dir).map_or(0, |record| record.size),
        };
        Ok(Filling {
            shelf,
            name,
            dir,
            least,
        })
    }

    /// Answers for a volume that is there already, if it is what is wanted. One without a record,
    /// democratic-csi's own, is taken as it is. compat: "local-hostpath".
    fn existing(
        &self,
        dir: &VolumeDir,
        found: &OwnedFd,
        wanted: &VolumeRecord,
        size: SizeRange,
    ) -> Result<Volume, Error> {
        let Some(record) = VolumeRecord::read(found) else {
            return Ok(self.volume(dir, None, wanted.source.clone()));
        };
        let other = if record.source != wanted.source {
            "it was made from another source"
        } else if record.parameters != wanted.parameters {
            "it was made with other parameters"
        } else if !size.holds(record.capacity) {
            "it has another size"
        } else {
            return Ok(self.volume(dir, Some(record.capacity), record.source));
        };
        Err(Error::new(Kind::Conflict, format!("volume {dir} exists")).because(other))
    }

    pub(crate) fn delete_volume(&self, call: &Call, id: &VolumeId) -> Result<(), Error> {
        let dir = VolumeDir::parse(id)?;
        self.store.remove(call, Shelf::Volumes, dir.as_str())
    }

    pub(crate) fn get_volume(&self, id: &VolumeId) -> Result<Volume, Error> {
        let dir = VolumeDir::parse(id)?;
        let base = self.store.open()?;
        self.look(&base, &dir)?
            .ok_or_else(|| Error::not_found(format!("volume {dir}")))
    }

    fn look(&self, base: &Root, dir: &VolumeDir) -> Result<Option<Volume>, Error> {
        let found = Store::find(base, Shelf::Volumes, dir.as_str())?;
        Ok(found.map(|found| {
            let record = VolumeRecord::read(&found);
            let capacity = record.as_ref().map(|record| record.capacity);
            self.volume(dir, capacity, record.and_then(|record| record.source))
        }))
    }

    pub(crate) fn list_volumes(&self, page: &PageRequest) -> Result<Page<Volume>, Error> {
        let base = self.store.open()?;
        let ours = |name: &str| VolumeDir::new(name).is_some();
        let (names, next) = Store::page(&base, Shelf::Volumes, page, ours)?;
        let mut entries = Vec::with_capacity(names.len());
        for dir in names.iter().filter_map(|name| VolumeDir::new(name)) {
            entries.extend(self.look(&base, &dir)?);
        }
        Ok(Page { entries, next })
    }

    pub(crate) fn expand_volume(
        &self,
        call: &Call,
        id: &VolumeId,
        size: SizeRange,
    ) -> Result<Expanded, Error> {
        let dir = VolumeDir::parse(id)?;
        let doing = format!("expanding volume {dir}");
        let base = self.store.open()?;
        let found = Store::find(&base, Shelf::Volumes, dir.as_str())?
            .ok_or_else(|| Error::not_found(format!("volume {dir}")))?;
        let record = VolumeRecord::read(&found);
        let now = record.as_ref().map(|record| record.capacity);
        let done = |capacity| Expanded {
            capacity,
            node_expansion_required: false,
        };
        if let Some(now) = now
            && size.required().is_none_or(|required| now >= required)
        {
            if size.holds(now) {
                return Ok(done(now));
            }
            return Err(Error::new(Kind::OutOfRange, doing)
                .because("it is larger than the limit already, and volumes do not shrink"));
        }
        let capacity = size
            .choose(1)
            .map_err(|error| Error::new(Kind::OutOfRange, doing.clone()).because(error))?;
        let record = record.unwrap_or_else(|| VolumeRecord {
            capacity,
            source: None,
            parameters: String::new(),
            created: SystemTime::now(),
        });
        // A volume of democratic-csi stays one without a record: nothing is known of how it was
        // made, and nothing limits it.
        if now.is_some() {
            call.changing();
            VolumeRecord { capacity, ..record }
                .write(&found)
                .map_err(|errno| failed(doing, errno))?;
            stop::mark("record");
        }
        Ok(done(capacity))
    }

    pub(crate) fn capacity(&self, query: &CapacityQuery) -> Result<Capacity, Error> {
        if let (Some(place), Some(asked)) = (&self.place, &query.topology)
            && !place.reaches(asked)
        {
            return Ok(Capacity::default());
        }
        Ok(Capacity {
            available: self.store.free_space()?,
            maximum_volume_size: None,
            minimum_volume_size: None,
        })
    }
}

/// The source with its id in the form that we give out.
fn normalised(source: &Source) -> Result<Source, Error> {
    Ok(match source {
        Source::Volume(id) => Source::Volume(VolumeDir::parse(id)?.id()),
        Source::Snapshot(id) => Source::Snapshot(SnapshotDir::parse(id)?.id()),
    })
}

/// The size of a copy: as wanted, but not less than the source needs.
fn at_least(size: u64, least: u64, wanted: SizeRange, doing: &str) -> Result<u64, Error> {
    match wanted.limit() {
        Some(limit) if least > limit => Err(Error::new(Kind::OutOfRange, doing).because(format!(
            "its source needs {least} bytes, the limit is {limit}"
        ))),
        _ => Ok(size.max(least)),
    }
}

/// Gives a directory the mode and owner of the configuration.
fn permit(aside: &Aside<'_>, wanted: Permissions) -> Result<(), Errno> {
    if let Some(mode) = wanted.mode {
        rustix::fs::fchmod(aside.dir(), Mode::from_raw_mode(mode))?;
        stop::mark("mode");
    }
    if wanted.user.is_some() || wanted.group.is_some() {
        let (user, group) = (
            wanted.user.map(Uid::from_raw),
            wanted.group.map(Gid::from_raw),
        );
        rustix::fs::fchown(aside.dir(), user, group)?;
        stop::mark("owner");
    }
    Ok(())
}
