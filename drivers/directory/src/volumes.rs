//! The verbs on volumes.
//!
//! A volume exists when its directory has its name on the shelf; everything before that happens
//! aside. compat: "local-hostpath": a size is remembered and reported, nothing enforces it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use csi_types::Attachment;
use driver_core::config::IdRoom;
use driver_core::{
    Call, Capacity, CapacityQuery, CreateVolume, Error, Expanded, Kind, Page, PageRequest,
    SizeRange, Source, Topology, Volume, VolumeId,
};
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;

use crate::config::{Layout, Permissions};
use crate::copy;
use crate::failure::{change, failed};
use crate::id::{SnapshotDir, VolumeDir};
use crate::page;
use crate::reach::Reach;
use crate::record::{self, SnapshotRecord, VolumeRecord, digest};
use crate::stop;
use crate::store::{Shelf, Store};

/// How often something is made again that somebody took for a leftover.
const ATTEMPTS: usize = 5;

/// The directories of one driver; every verb blocks.
#[derive(Debug)]
pub(crate) struct Directories {
    pub(crate) store: Store,
    pub(crate) layout: Layout,
    pub(crate) reach: Reach,
    pub(crate) place: Option<Topology>,
    pub(crate) id_room: IdRoom,
}

/// What a volume is to be filled with, found and open.
pub(crate) struct Filling {
    pub(crate) shelf: Shelf,
    pub(crate) name: String,
    pub(crate) dir: OwnedFd,
    /// A volume made of it cannot be smaller.
    pub(crate) least: u64,
}

/// The same, whoever has opened it.
pub(crate) struct Content<'a> {
    pub(crate) dir: &'a OwnedFd,
    /// Whether it has its name still.
    pub(crate) is_still: &'a dyn Fn() -> bool,
    pub(crate) least: u64,
    /// What it is, for errors.
    pub(crate) called: String,
}

/// What a volume is to be.
pub(crate) struct Wanted {
    pub(crate) dir: VolumeDir,
    pub(crate) record: VolumeRecord,
    pub(crate) size: SizeRange,
    /// The work, for errors and logs.
    pub(crate) doing: String,
}

impl Filling {
    /// What it is, for errors.
    fn called(&self) -> String {
        format!("{} {}", self.shelf.noun(), self.name)
    }
}

impl Directories {
    pub(crate) fn topology(&self) -> Vec<Topology> {
        self.place.iter().cloned().collect()
    }

    pub(crate) fn longest_attachment(&self) -> Attachment {
        let dir = VolumeDir::longest(self.id_room.bytes());
        self.reach.attachment(&self.layout.share, &dir)
    }

    /// Refuses an attachment of another volume, or of something that is no volume of this driver.
    pub(crate) fn check_attachment(
        &self,
        id: &VolumeId,
        attachment: &Attachment,
    ) -> Result<(), Error> {
        let dir = VolumeDir::parse(id)?;
        let own = self.reach.attachment(&self.layout.share, &dir);
        if *attachment == own {
            return Ok(());
        }
        let volumes = self.layout.share.child("v");
        Err(
            Error::invalid(format!("attach volume `{id}` as its context says")).advise(format!(
                "this driver attaches it as the directory `{volumes}/{dir}`; if the base was moved, keep \
                 `shareBasePath` as it was with a bind mount"
            )),
        )
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

    /// What a volume is to be, as far as its request says.
    pub(crate) fn wanted(&self, request: &CreateVolume) -> Result<Wanted, Error> {
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
        let record = VolumeRecord {
            capacity: size,
            source,
            parameters: digest(&request.parameters),
            created: SystemTime::now(),
        };
        let size = request.size;
        Ok(Wanted {
            dir,
            record,
            size,
            doing,
        })
    }

    pub(crate) fn create_volume(
        &self,
        call: &Call,
        request: &CreateVolume,
    ) -> Result<Volume, Error> {
        let wanted = self.wanted(request)?;
        let shelf = self.store.shelf_or_make(Shelf::Volumes)?;
        let Some(source) = &wanted.record.source else {
            let made = self.make_empty(call, &shelf, &wanted);
            return self.outcome(call, &shelf, wanted, made);
        };
        if let Some(found) = Store::find(&shelf, Shelf::Volumes, wanted.dir.as_str())? {
            return self.existing(&wanted, &found);
        }
        let filling = self.filling(source)?;
        let is_still = || {
            self.store
                .is_still(filling.shelf, &filling.name, &filling.dir)
        };
        let content = Content {
            dir: &filling.dir,
            is_still: &is_still,
            least: filling.least,
            called: filling.called(),
        };
        self.make_of(call, &shelf, wanted, &content)
    }

    /// Makes a volume with a content.
    pub(crate) fn make_of(
        &self,
        call: &Call,
        shelf: &OwnedFd,
        mut wanted: Wanted,
        content: &Content<'_>,
    ) -> Result<Volume, Error> {
        let (size, doing) = (wanted.record.capacity, &wanted.doing);
        wanted.record.capacity = at_least(size, content.least, wanted.size, doing)?;
        let made = self.make_copy(call, shelf, &wanted, content);
        self.outcome(call, shelf, wanted, made)
    }

    /// What is told of a volume after it was made, or not.
    fn outcome(
        &self,
        call: &Call,
        shelf: &OwnedFd,
        wanted: Wanted,
        made: Result<bool, Error>,
    ) -> Result<Volume, Error> {
        self.store.tidy(if made.is_ok() {
            Duration::ZERO
        } else {
            call.remaining() / 2
        });
        if matches!(made, Ok(true)) {
            let Wanted { dir, record, .. } = wanted;
            return Ok(self.volume(&dir, Some(record.capacity), record.source));
        }
        // Also after an error: one that an earlier call made exists, whatever keeps us from making it.
        let name = wanted.dir.as_str();
        match (made, Store::find(shelf, Shelf::Volumes, name)?) {
            (_, Some(found)) => self.existing(&wanted, &found),
            (Err(error), None) => Err(error.with_effect(call.effect())),
            (Ok(_), None) => Err(Store::taken(shelf, name, &wanted.doing)),
        }
    }

    /// Makes an empty volume; `false` if the name is taken. After an error nothing of it is left.
    fn make_empty(&self, call: &Call, shelf: &OwnedFd, wanted: &Wanted) -> Result<bool, Error> {
        let permissions = self.layout.permissions;
        let mode = if permissions.mode.is_some() {
            0o700
        } else {
            0o755
        };
        let make = || {
            let aside = self.store.workshop.make_empty(shelf.as_fd(), mode)?;
            permit(aside.dir(), permissions)?;
            wanted.record.write(aside.dir())?;
            stop::mark("record");
            aside.commit(call, shelf.as_fd(), wanted.dir.as_str())
        };
        let mut outcome = make();
        for _ in 1..ATTEMPTS {
            if outcome != Err(Errno::NOENT) {
                break;
            }
            outcome = make();
        }
        match outcome {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(failed(wanted.doing.clone(), errno)),
        }
    }

    /// Makes a volume with a content; `false` if the name was taken meanwhile. After an error
    /// nothing of it is left.
    fn make_copy(
        &self,
        call: &Call,
        shelf: &OwnedFd,
        wanted: &Wanted,
        content: &Content<'_>,
    ) -> Result<bool, Error> {
        let doing = wanted.doing.as_str();
        let fail = |errno| failed(doing, errno);
        // What an earlier copy left may be the room that this one needs.
        self.store.tidy(call.remaining() / 2);
        let base = self.store.open()?;
        let bench = self.store.workshop.open(&base)?;
        let aside = bench.make_filled().map_err(fail)?;
        let copied = copy::copy_tree(content.dir, aside.dir(), aside.folder(), call, doing)?;
        // Had it been deleted meanwhile, files would be missing from the copy.
        if !(content.is_still)() {
            return Err(Error::not_found(format!("{doing} from {}", content.called)));
        }
        permit(aside.dir(), self.layout.permissions).map_err(fail)?;
        wanted.record.write(aside.dir()).map_err(fail)?;
        stop::mark("record");
        match aside.commit(call, shelf.as_fd(), wanted.dir.as_str()) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(false),
            Err(errno) => return Err(fail(errno)),
        }
        copied.log(doing);
        Ok(true)
    }

    pub(crate) fn filling(&self, source: &Source) -> Result<Filling, Error> {
        let (shelf, name) = match source {
            Source::Volume(id) => (Shelf::Volumes, VolumeDir::parse(id)?.to_string()),
            Source::Snapshot(id) => (Shelf::Snapshots, SnapshotDir::parse(id)?.to_string()),
            Source::Elsewhere(source) => {
                return Err(Error::invalid(format!("opening {source} as a source"))
                    .because("it is in another connection"));
            }
        };
        let dir = self
            .store
            .look_for(shelf, &name)?
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
    pub(crate) fn existing(&self, wanted: &Wanted, found: &OwnedFd) -> Result<Volume, Error> {
        let Wanted {
            dir,
            record: wanted,
            size,
            ..
        } = wanted;
        let exists = || Error::new(Kind::Conflict, format!("volume {dir} exists"));
        let Some(record) = VolumeRecord::read(found) else {
            // A copy of ours has a record where one can be kept. This may be half of one.
            if wanted.source.is_some() && record::can_be_kept(found) {
                return Err(exists()
                    .because("it was not made by this program, so it may not be a whole copy")
                    .advise("delete that directory, and the copy is made again"));
            }
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
        Err(exists().because(other))
    }

    pub(crate) fn delete_volume(&self, call: &Call, id: &VolumeId) -> Result<(), Error> {
        let dir = VolumeDir::parse(id)?;
        self.store.remove(call, Shelf::Volumes, dir.as_str())
    }

    pub(crate) fn get_volume(&self, id: &VolumeId) -> Result<Volume, Error> {
        let dir = VolumeDir::parse(id)?;
        self.store
            .look_for(Shelf::Volumes, dir.as_str())?
            .map(|found| self.described(&dir, &found))
            .ok_or_else(|| Error::not_found(format!("volume {dir}")))
    }

    fn described(&self, dir: &VolumeDir, found: &OwnedFd) -> Volume {
        let record = VolumeRecord::read(found);
        let capacity = record.as_ref().map(|record| record.capacity);
        self.volume(dir, capacity, record.and_then(|record| record.source))
    }

    pub(crate) fn list_volumes(&self, page: &PageRequest) -> Result<Page<Volume>, Error> {
        let ours = |name: &str| VolumeDir::new(name).is_some();
        let shelf = self.store.shelf(Shelf::Volumes)?;
        let (names, next) =
            page::page(shelf.as_ref().map(AsFd::as_fd), Shelf::Volumes, page, ours)?;
        let mut entries = Vec::with_capacity(names.len());
        for dir in names.iter().filter_map(|name| VolumeDir::new(name)) {
            let Some(on) = &shelf else { break };
            let found = Store::find(on, Shelf::Volumes, dir.as_str())?;
            entries.extend(found.map(|found| self.described(&dir, &found)));
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
        let found = self
            .store
            .look_for(Shelf::Volumes, dir.as_str())?
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
            let grown = VolumeRecord { capacity, ..record };
            change(call, || grown.write(&found))
                .map_err(|errno| failed(doing, errno).with_effect(call.effect()))?;
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
        Source::Elsewhere(source) => Source::Elsewhere(source.clone()),
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
fn permit(dir: BorrowedFd<'_>, wanted: Permissions) -> Result<(), Errno> {
    if let Some(mode) = wanted.mode {
        rustix::fs::fchmod(dir, Mode::from_raw_mode(mode))?;
        stop::mark("mode");
    }
    if wanted.user.is_some() || wanted.group.is_some() {
        let (user, group) = (
            wanted.user.map(Uid::from_raw),
            wanted.group.map(Gid::from_raw),
        );
        rustix::fs::fchown(dir, user, group)?;
        stop::mark("owner");
    }
    Ok(())
}
