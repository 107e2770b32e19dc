//! The calls for volumes.
//!
//! A volume exists when its directory has its name in the collection; everything before that happens in
//! the staging area. compat: "local-hostpath": a size is remembered and reported; [`crate::quota`] enforces it where
//! the configuration says so.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use csi_types::Attachment;
use driver_core::config::IdRoom;
use driver_core::transfer::Tree;
use driver_core::{
    Call, Capacity, CapacityQuery, CreateVolume, Error, Expanded, Kind, MadeFor, Page, PageRequest,
    SizeRange, Source, Topology, TopologyRequirement, Volume, VolumeId,
};
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;

use crate::backup::Repository;
use crate::collection::Collection;
use crate::config::{Layout, Permissions};
use crate::copy;
use crate::crash_points;
use crate::disk;
use crate::failure::{change, failed};
use crate::id::{SnapshotDir, SnapshotHandle, VolumeDir};
use crate::page;
use crate::pending::PendingCopies;
use crate::quota::{Enforce, Enforcement, Quotas};
use crate::record::{self, SnapshotRecord, VolumeRecord, digest};
use crate::staging_area::{Form, Staged, failed_making};
use crate::store::Store;

/// The number of times that something is made again that another process removed as a leftover.
const ATTEMPTS: usize = 5;

/// The directories of one driver; every verb blocks.
#[derive(Debug)]
pub(crate) struct Directories {
    pub(crate) store: Store,
    pub(crate) layout: Layout,
    pub(crate) topology: Option<Topology>,
    pub(crate) id_room: IdRoom,
    /// The repositories of snapshots, in the order of [`Tool`](crate::id::Tool), in which lists go through
    /// them; none if the process runs no programs.
    pub(crate) repositories: Vec<Box<dyn Repository>>,
    /// Snapshots that are not ready.
    pub(crate) pending: PendingCopies,
}

/// The source of a volume, found and open.
pub(crate) struct CopySource {
    pub(crate) collection: Collection,
    pub(crate) name: String,
    pub(crate) dir: OwnedFd,
    /// A volume made of it cannot be smaller.
    pub(crate) least: u64,
}

/// An open directory to copy, of this connection or of another one.
pub(crate) struct Content<'a> {
    pub(crate) dir: &'a OwnedFd,
    /// Whether it has its name still.
    pub(crate) still_exists: &'a dyn Fn() -> Result<bool, Error>,
    pub(crate) least: u64,
    /// Its kind and name, for errors.
    pub(crate) description: String,
}

/// The request for a volume.
pub(crate) struct VolumeSpec {
    pub(crate) dir: VolumeDir,
    pub(crate) record: VolumeRecord,
    pub(crate) size: SizeRange,
    /// The work, for errors and logs.
    pub(crate) doing: String,
}

impl CopySource {
    /// Its kind and name, for errors.
    fn description(&self) -> String {
        format!("{} {}", self.collection.noun(), self.name)
    }
}

impl Directories {
    pub(crate) fn topology(&self) -> Vec<Topology> {
        self.topology.iter().cloned().collect()
    }

    pub(crate) fn longest_attachment(&self) -> Attachment {
        let dir = VolumeDir::longest(self.id_room.bytes());
        self.layout.location.attachment(&dir)
    }

    /// Refuses an attachment of another kind, and of a directory of the node that is not this volume.
    pub(crate) fn check_attachment(
        &self,
        id: &VolumeId,
        attachment: &Attachment,
    ) -> Result<(), Error> {
        let dir = VolumeDir::parse(id)?;
        let own = self.layout.location.attachment(&dir);
        let invalid = || Error::invalid(format!("attach volume `{id}` as its context says"));
        match (&own, attachment) {
            (Attachment::Hostpath(own), Attachment::Hostpath(other)) if own == other => Ok(()),
            (Attachment::Hostpath(own), _) => Err(invalid().advise(format!(
                "this driver attaches it as the directory `{}`; if the base was moved, keep \
                 `shareBasePath` as it was with a bind mount",
                own.path
            ))),
            // The server of an older volume may have had another name.
            (own, other) if own.kind() == other.kind() => Ok(()),
            (own, _) => {
                Err(invalid().advise(format!("this driver attaches it as `{}`", own.kind())))
            }
        }
    }

    /// The way the size of a volume that is made in `collection` is enforced; `None` if it is not. An error if the
    /// configuration requires it.
    fn enforcement(
        &self,
        collection: &OwnedFd,
        spec: &VolumeSpec,
    ) -> Result<Option<Enforcement>, Error> {
        let Quotas { enforce, ids } = self.layout.quotas;
        if enforce == Enforce::None {
            return Ok(None);
        }
        let doing = spec.doing.as_str();
        let dir = disk::open_dir(collection, ".").map_err(|errno| failed(doing, errno))?;
        match self.store.quota_obstacle(dir.as_fd(), doing) {
            Some(error) if enforce == Enforce::Require => Err(error),
            Some(error) => {
                self.store.warn_of_quotas(&error);
                Ok(None)
            }
            None => {
                let locks = || self.store.locks();
                Enforcement::of(dir, ids, spec.dir.as_str(), locks).map(Some)
            }
        }
    }

    pub(crate) fn volume(&self, dir: &VolumeDir, record: Option<VolumeRecord>) -> Volume {
        let (capacity, source, made_for) = match record {
            Some(record) => (Some(record.capacity), record.source, record.made_for),
            None => (None, None, MadeFor::default()),
        };
        Volume {
            id: dir.id(),
            capacity,
            attachment: self.layout.location.attachment(dir),
            source,
            topology: self.topology(),
            made_for,
            published_to: Vec::new(),
        }
    }

    /// The request for a volume, as far as its request says.
    pub(crate) fn spec(&self, request: &CreateVolume) -> Result<VolumeSpec, Error> {
        let dir = VolumeDir::parse(&request.id)?;
        let source = request.source.as_ref().map(normalised).transpose()?;
        let doing = format!("creating volume {dir}");
        if let Some(place) = &self.topology
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
            made_for: MadeFor::of(&request.parameters),
        };
        let size = request.size;
        Ok(VolumeSpec {
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
        let spec = self.spec(request)?;
        let Some(source) = &spec.record.source else {
            let collection = self.store.open_or_create(Collection::Volumes)?;
            let made = self.make_empty(call, &collection, &spec);
            return self.outcome(call, &collection, spec, made);
        };
        if let Some(found) = self
            .store
            .look_for(Collection::Volumes, spec.dir.as_str())?
        {
            return self.existing(&spec, &found);
        }
        if let Source::Snapshot(id) = source
            && let SnapshotHandle::Backup(tool, id) = SnapshotHandle::parse(id)?
        {
            return self.create_restored(call, spec, (tool, &id));
        }
        let copy_source = self
            .copy_source(source)
            .map_err(|error| self.elsewhere(error, &request.topology))?;
        let collection = self.store.open_or_create(Collection::Volumes)?;
        let still_exists = || {
            self.store
                .still_exists(copy_source.collection, &copy_source.name, &copy_source.dir)
        };
        let content = Content {
            dir: &copy_source.dir,
            still_exists: &still_exists,
            least: copy_source.least,
            description: copy_source.description(),
        };
        self.make_of(call, &collection, spec, &content)
    }

    /// The error about a source that this node does not have. It may be on another node: if the
    /// request names a place, this error makes the scheduler choose another one, while "not found"
    /// would keep the volume here for ever. compat: "local-hostpath".
    fn elsewhere(&self, error: Error, topology: &TopologyRequirement) -> Error {
        let names_a_place = !topology.requisite.is_empty() || !topology.preferred.is_empty();
        if error.kind() != Kind::NotFound || self.topology.is_none() || !names_a_place {
            return error;
        }
        Error::new(Kind::OutOfSpace, error.to_string())
            .because("it does not exist on this node")
            .advise("volumes are copied on the node of their source only")
    }

    /// Makes a volume with a content.
    pub(crate) fn make_of(
        &self,
        call: &Call,
        collection: &OwnedFd,
        mut spec: VolumeSpec,
        content: &Content<'_>,
    ) -> Result<Volume, Error> {
        let (size, doing) = (spec.record.capacity, &spec.doing);
        spec.record.capacity = at_least(size, content.least, spec.size, doing)?;
        let made = self.make_copy(call, collection, &spec, content);
        self.outcome(call, collection, spec, made)
    }

    /// The answer after the attempt to make a volume.
    pub(crate) fn outcome(
        &self,
        call: &Call,
        collection: &OwnedFd,
        spec: VolumeSpec,
        made: Result<bool, Error>,
    ) -> Result<Volume, Error> {
        self.store.clean_up(if made.is_ok() {
            Duration::ZERO
        } else {
            call.remaining() / 2
        });
        if matches!(made, Ok(true)) {
            let VolumeSpec { dir, record, .. } = spec;
            return Ok(self.volume(&dir, Some(record)));
        }
        // Also after an error: one that an earlier call made exists, whatever keeps us from making it.
        let name = spec.dir.as_str();
        match (made, Store::find(collection, Collection::Volumes, name)?) {
            (_, Some(found)) => self.existing(&spec, &found),
            (Err(error), None) => Err(error.with_effect(call.effect())),
            (Ok(_), None) => Err(Store::taken(collection, name, &spec.doing)),
        }
    }

    /// Makes an empty volume; `false` if the name is taken. After an error nothing of it is left.
    fn make_empty(
        &self,
        call: &Call,
        collection: &OwnedFd,
        spec: &VolumeSpec,
    ) -> Result<bool, Error> {
        let permissions = self.layout.permissions;
        let mode = if permissions.mode.is_some() {
            0o700
        } else {
            0o755
        };
        let enforcement = self.enforcement(collection, spec)?;
        let enforcement = enforcement.as_ref();
        let form = enforcement.map_or(Form::Directory, Enforcement::form);
        let make = || {
            let staged = self
                .store
                .staging_area
                .make_empty(collection.as_fd(), form, mode)?;
            let limited = enforcement.map(|enforcement| enforcement.assign(call, &[staged.dir()]));
            let limited = limited.transpose()?;
            permit(staged.dir(), permissions)?;
            spec.record.write(staged.dir())?;
            crash_points::mark("record");
            // Last: of a few bytes, even the record would be too much.
            if let (Some(enforcement), Some(limited)) = (enforcement, limited) {
                enforcement.limit(limited, spec.record.capacity)?;
            }
            staged.commit(call, collection.as_fd(), spec.dir.as_str())
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
            Err(errno) => Err(failed(spec.doing.clone(), errno)),
        }
    }

    /// Makes a volume with a content; `false` if the name was taken by another process. After an error
    /// nothing of it is left.
    fn make_copy(
        &self,
        call: &Call,
        collection: &OwnedFd,
        spec: &VolumeSpec,
        content: &Content<'_>,
    ) -> Result<bool, Error> {
        let doing = spec.doing.as_str();
        let mut copied = None;
        let made = self.make_filled(call, collection, spec, |staged| {
            let (dir, folder) = (staged.dir(), staged.folder());
            copied = Some(copy::copy_tree(content.dir, dir, folder, call, doing)?);
            // If it was deleted during the copy, files are missing from the copy.
            if (content.still_exists)()? {
                return Ok(());
            }
            let source = &content.description;
            Err(Error::not_found(format!("{doing} from {source}")))
        })?;
        if let Some(copied) = copied.filter(|_| made) {
            copied.log(doing);
        }
        Ok(made)
    }

    /// Makes a volume of what `fill` leaves in the staging area; `false` if the name was taken by another process.
    /// After an error nothing of it is left.
    pub(crate) fn make_filled(
        &self,
        call: &Call,
        collection: &OwnedFd,
        spec: &VolumeSpec,
        fill: impl FnOnce(&mut Staged<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let fail = |errno| failed_making(&spec.doing, errno);
        // What an earlier copy left may be the room that this one needs.
        self.store.clean_up(call.remaining() / 2);
        let base = self.store.open()?;
        let staging = self.store.staging_area.open(&base)?;
        let enforcement = self.enforcement(collection, spec)?;
        let enforcement = enforcement.as_ref();
        let form = enforcement.map_or(Form::Directory, Enforcement::form);
        let mut staged = staging.make_filled(form).map_err(fail)?;
        // What comes into the folder inherits the project, whatever fills it: it gets nothing from its source.
        let limited = enforcement
            .map(|enforcement| enforcement.assign(call, &[staged.dir(), staged.folder()]))
            .transpose()
            .map_err(fail)?;
        fill(&mut staged).map_err(|error| staged.explain(error, &spec.doing))?;
        staged.clear_room(&spec.doing)?;
        permit(staged.dir(), self.layout.permissions).map_err(fail)?;
        spec.record.write(staged.dir()).map_err(fail)?;
        crash_points::mark("record");
        // Last: a source whose size was not enforced may have more than its size, and is copied all the same.
        if let (Some(enforcement), Some(limited)) = (enforcement, limited) {
            let bytes = spec.record.capacity;
            enforcement.limit(limited, bytes).map_err(fail)?;
        }
        match staged.commit(call, collection.as_fd(), spec.dir.as_str()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(fail(errno)),
        }
    }

    pub(crate) fn copy_source(&self, source: &Source) -> Result<CopySource, Error> {
        let (collection, name) = match source {
            Source::Volume(id) => (Collection::Volumes, VolumeDir::parse(id)?.to_string()),
            Source::Snapshot(id) => (Collection::Snapshots, SnapshotDir::parse(id)?.to_string()),
            Source::Elsewhere(source) => {
                return Err(Error::invalid(format!("opening {source} as a source"))
                    .because("it is in another connection"));
            }
        };
        let doing = || format!("{} {name} as a source", collection.noun());
        // Before it is looked for: a copy may end in between.
        let is_pending =
            collection == Collection::Snapshots && self.pending.names().contains(&name);
        let pending = || {
            if is_pending {
                return Error::new(Kind::Pending, format!("opening {}", doing()))
                    .because("it is not ready to use: it is still being copied");
            }
            Error::not_found(doing())
        };
        let dir = self.store.look_for(collection, &name)?;
        let dir = dir.ok_or_else(pending)?;
        let least = match collection {
            Collection::Volumes => VolumeRecord::read(&dir).map_or(0, |record| record.capacity),
            Collection::Snapshots => {
                let fail = |errno| failed(format!("reading the record of {}", doing()), errno);
                let record = SnapshotRecord::read(&dir).map_err(fail)?;
                record.map_or(0, |record| record.size)
            }
        };
        Ok(CopySource {
            collection,
            name,
            dir,
            least,
        })
    }

    /// A volume that exists already, if it matches the request.
    pub(crate) fn known(&self, spec: &VolumeSpec) -> Result<Option<Volume>, Error> {
        let found = self
            .store
            .look_for(Collection::Volumes, spec.dir.as_str())?;
        found.map(|found| self.existing(spec, &found)).transpose()
    }

    pub(crate) fn fill(
        &self,
        call: &Call,
        spec: VolumeSpec,
        tree: &Tree,
        least: u64,
    ) -> Result<Volume, Error> {
        let collection = self.store.open_or_create(Collection::Volumes)?;
        if let Some(found) = Store::find(&collection, Collection::Volumes, spec.dir.as_str())? {
            return self.existing(&spec, &found);
        }
        let description = match &spec.record.source {
            Some(Source::Elsewhere(source)) => source.to_string(),
            _ => "another connection".to_owned(),
        };
        let content = Content {
            dir: tree.dir(),
            still_exists: &|| tree.still_exists(),
            least,
            description,
        };
        self.make_of(call, &collection, spec, &content)
    }

    /// Answers for a volume that is there already, if it matches the request. One without a record,
    /// democratic-csi's own, is taken as it is. compat: "local-hostpath".
    pub(crate) fn existing(&self, spec: &VolumeSpec, found: &OwnedFd) -> Result<Volume, Error> {
        let VolumeSpec {
            dir,
            record: spec,
            size,
            ..
        } = spec;
        let exists = || Error::new(Kind::Conflict, format!("volume {dir} exists"));
        let required = size.required().unwrap_or_default();
        let Some(record) = VolumeRecord::read_as(found, required) else {
            // A copy of ours has a record where one can be kept. This may be half of one.
            if spec.source.is_some() && record::can_be_kept(found) {
                return Err(exists()
                    .because("it was not made by this program, so it may not be a whole copy")
                    .advise("delete that directory, and the copy is made again"));
            }
            return Ok(Volume {
                source: spec.source.clone(),
                ..self.volume(dir, None)
            });
        };
        let other = if record.source != spec.source {
            "it was made from another source".to_owned()
        } else if record.parameters != spec.parameters {
            "it was made with other parameters".to_owned()
        } else if !size.holds(record.capacity) {
            format!("it has {} bytes, and {size} are asked for", record.capacity)
        } else {
            return Ok(self.volume(dir, Some(record)));
        };
        Err(exists().because(other))
    }

    pub(crate) fn delete_volume(&self, call: &Call, id: &VolumeId) -> Result<(), Error> {
        let dir = VolumeDir::parse(id)?;
        self.pending.refuse_source(&dir)?;
        self.store.remove(call, Collection::Volumes, dir.as_str())
    }

    pub(crate) fn get_volume(&self, id: &VolumeId) -> Result<Volume, Error> {
        let dir = VolumeDir::parse(id)?;
        self.store
            .look_for(Collection::Volumes, dir.as_str())?
            .map(|found| self.described(&dir, &found))
            .ok_or_else(|| self.store.missing(Collection::Volumes, dir.as_str()))
    }

    fn described(&self, dir: &VolumeDir, found: &OwnedFd) -> Volume {
        self.volume(dir, VolumeRecord::read(found))
    }

    pub(crate) fn list_volumes(&self, page: &PageRequest) -> Result<Page<Volume>, Error> {
        let ours = |name: &str| VolumeDir::new(name).is_some();
        let collection = self.store.collection(Collection::Volumes)?;
        let (names, next) = page::page(
            collection.as_ref().map(AsFd::as_fd),
            Collection::Volumes,
            page,
            ours,
            &[],
        )?;
        let mut entries = Vec::with_capacity(names.len());
        for dir in names.iter().filter_map(|name| VolumeDir::new(name)) {
            let Some(on) = &collection else { break };
            let found = Store::listed(on, Collection::Volumes, dir.as_str())?;
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
            .look_for(Collection::Volumes, dir.as_str())?
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
            made_for: MadeFor::default(),
        });
        // A volume of democratic-csi stays one without a record: nothing is known of how it was
        // made, and what limits it is not ours.
        if now.is_some() {
            // First: a call that finds the new size in the record takes the limit for raised.
            let quotas = self.layout.quotas;
            quotas.grow(call, &found, dir.as_str(), capacity, &doing)?;
            let grown = VolumeRecord { capacity, ..record };
            change(call, || grown.write(&found)).map_err(|errno| failed(doing, errno))?;
            crash_points::mark("record");
        }
        Ok(done(capacity))
    }

    pub(crate) fn capacity(&self, query: &CapacityQuery) -> Result<Capacity, Error> {
        if let (Some(place), Some(asked)) = (&self.topology, &query.topology)
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
        Source::Snapshot(id) => Source::Snapshot(SnapshotHandle::parse(id)?.id()),
        Source::Elsewhere(source) => Source::Elsewhere(source.clone()),
    })
}

/// The size of a copy: as requested, but not less than the source needs.
pub(crate) fn at_least(size: u64, least: u64, range: SizeRange, doing: &str) -> Result<u64, Error> {
    match range.limit() {
        Some(limit) if least > limit => Err(Error::new(Kind::OutOfRange, doing).because(format!(
            "its source needs {least} bytes, the limit is {limit}"
        ))),
        _ => Ok(size.max(least)),
    }
}

/// Gives a directory the mode and owner of the configuration.
fn permit(dir: BorrowedFd<'_>, permissions: Permissions) -> Result<(), Errno> {
    if let Some(mode) = permissions.mode {
        rustix::fs::fchmod(dir, Mode::from_raw_mode(mode))?;
        crash_points::mark("mode");
    }
    if permissions.user.is_some() || permissions.group.is_some() {
        let (user, group) = (
            permissions.user.map(Uid::from_raw),
            permissions.group.map(Gid::from_raw),
        );
        rustix::fs::fchown(dir, user, group)?;
        crash_points::mark("owner");
    }
    Ok(())
}
