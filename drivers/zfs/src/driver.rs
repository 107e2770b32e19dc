//! The driver: each verb of the contract observes, plans and applies until it is done.
//!
//! No state is kept in the process. A step counts as done only when it is observed; see `converge`.
//! `request` reads requests, `results` builds responses, and `partial` finds what an earlier call
//! left in progress.

mod adopt;
mod blocks;
mod converge;
mod fence;
mod groups;
mod health;
mod moving;
mod orphans;
mod partial;
mod request;
mod results;
mod transfer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use csi_types::Attachment;
use driver_core::config::{Finding, IdRoom};
use driver_core::fence::FENCE;
use driver_core::naming::VolumeNaming;
use driver_core::transfer::{CopyTag, ExportStream, TransferFormat};
use driver_core::{
    AccessRules, Adopter, BLOCK_RANGES, BackendIdentity, BlockMetadata, Call, Capacity,
    CapacityQuery, CapacityReporter, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume,
    Driver, Effect, Error, ExpandVolume, Expanded, Expander, Exports, Fencer, FindVolume, Found,
    GetSnapshot, Groups, Health, Kind, Lister, Maintenance, Modifier, ModifyVolume, Mover, Orphan,
    Page, PageRequest, Parameters, PublishVolume, Publisher, Snapshot, SnapshotFilter, Snapshots,
    Source, Topology, Transfer, UnpublishVolume, UsageReporter, Volume, VolumeId, VolumeName,
    missing, without_groups,
};
use tokio::time::Instant;

use crate::backend::{Backend, Entry, Serves};
use crate::export::{AnyExport, Export};
use crate::id::{At, Child, Layout, Parent};
use crate::name::DatasetName;
use crate::observed::{Dataset, Query, Request, State, VolumeKind};
use crate::plan::access::{Access, AccessChange};
use crate::plan::create::{holds_no_others, holds_volumes};
use crate::plan::destroy::{DestroySnapshot, DestroyVolume, has_parent, have_parents};
use crate::plan::expand::Expand;
use crate::plan::modify::Modify;
use crate::plan::snapshot::Taken;
use crate::plan::{ExportRef, Outcome, Verb, is_complete};
use crate::policy::Policy;
use crate::property::PropertyName;

/// The time after an answer in which the host still counts as healthy. The probe then asks nothing, once in its minute.
const FRESH: Duration = Duration::from_secs(30);

/// The number of times that the recorded data of an export may change while it is read.
const ASKED: usize = 4;

/// Volumes that are datasets.
#[derive(Debug)]
pub struct ZfsDriver {
    settings: Settings,
    backend: Arc<dyn Backend>,
    export: Box<dyn AnyExport>,
    answered: Mutex<Option<Instant>>,
    /// The turn of a call that opens two streams: see `blocks`.
    opening: tokio::sync::Mutex<()>,
}

/// The configuration of a connection.
#[derive(Debug)]
pub struct Settings {
    /// The value of `driver:`.
    pub kind: String,
    /// The `instance_id`.
    pub instance: Option<String>,
    /// The way volumes get their ids.
    pub naming: VolumeNaming,
    /// The length that ids may have.
    pub id_room: IdRoom,
    /// The place of volumes.
    pub layout: Layout,
    /// Their policy.
    pub policy: Policy,
    /// Whether a volume with snapshots that this driver did not take is kept.
    pub keep_foreign_snapshots: bool,
    /// Whether deleted volumes are retained.
    pub retain: bool,
    /// The place where volumes are reachable; `None` means everywhere.
    pub place: Option<Topology>,
}

// === impl ZfsDriver ===

impl ZfsDriver {
    /// Creates the driver of one connection, without contacting the storage.
    pub fn new<B, E>(settings: Settings, backend: B, export: E) -> Self
    where
        B: Serves,
        E: Export<Command = B::Command, Output = B::Output>,
    {
        Self {
            settings,
            backend: Arc::new(backend),
            export: Box::new(export),
            answered: Mutex::new(None),
            opening: tokio::sync::Mutex::new(()),
        }
    }

    /// The backend that changes its volumes.
    pub fn storage(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    fn layout(&self) -> &Layout {
        &self.settings.layout
    }

    fn kind(&self) -> VolumeKind {
        self.settings.layout.kind
    }

    fn export_ref<'a>(&'a self, id: &'a VolumeId, dataset: &'a DatasetName) -> ExportRef<'a> {
        ExportRef {
            export: self.export.as_ref(),
            id,
            dataset,
            asked: None,
            chosen: None,
        }
    }

    async fn observe(&self, call: &Call, queries: Vec<Query>) -> Result<State, Error> {
        self.observe_with(call, Request::of(queries)).await
    }

    async fn observe_with(&self, call: &Call, request: Request) -> Result<State, Error> {
        let observed = self.backend.observe(call, &request).await?;
        self.heard();
        Ok(observed.pool)
    }

    /// The dataset with the name of a volume, if it is of the kind of volumes.
    async fn dataset_of(&self, call: &Call, id: &VolumeId) -> Result<Option<Dataset>, Error> {
        let dataset = self.layout().volume(id)?;
        let request = Request {
            properties: self.of_access(),
            ..Request::of([Query::Dataset(dataset.clone())])
        };
        let pool = self.observe_with(call, request).await?;
        let found = pool.dataset(&dataset).cloned();
        Ok(found.filter(|found| found.kind == self.kind()))
    }

    /// Refuses a list without anything below its parent where that does not exist. The parent of detached snapshots may
    /// be missing, and so may children of the parent of volumes: on a storage with volumes there may never have been one.
    async fn has_parent<T>(
        &self,
        call: &Call,
        parent: Parent<'_>,
        asked: &PageRequest,
        page: Page<T>,
        is_below: impl Fn(&T) -> bool,
    ) -> Result<Page<T>, Error> {
        if !page.entries.iter().any(is_below) && page.next.is_none() && asked.after.is_none() {
            self.look_for_parents(call, "list what is on the storage", &[parent])
                .await?;
        }
        Ok(page)
    }

    /// The parents of volumes: where one is missing, no volume of it is.
    async fn look_for_parents(
        &self,
        call: &Call,
        doing: &str,
        parents: &[Parent<'_>],
    ) -> Result<(), Error> {
        let queries = parents.iter();
        let queries = queries.map(|parent| Query::Dataset(parent.name.clone()));
        let seen = self.observe(call, queries.collect()).await?;
        have_parents(doing, parents, &seen)
    }

    /// The outcome of a call about a volume that was made.
    async fn about<T>(
        &self,
        call: &Call,
        id: &VolumeId,
        outcome: Result<T, Error>,
    ) -> Result<T, Error> {
        let doing = format!("find volume `{id}`");
        let parents = [self.layout().parent_of_volume(id)];
        missing::confirmed(outcome, self.look_for_parents(call, &doing, &parents)).await
    }

    /// The listed children that are volumes themselves: such a volume is neither found nor deleted by its id.
    fn unfit_children(&self, pool: &State) -> Vec<Error> {
        let children = self.layout().children.iter();
        let found = children.filter_map(|child| pool.dataset(child.dataset()));
        let unfit = found.filter(|found| !holds_volumes(found));
        let refused = |found| holds_no_others(Error::invalid("look at zfs.datasetChildren"), found);
        unfit.map(refused).collect()
    }

    fn heard(&self) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        *answered = Some(Instant::now());
    }

    fn is_fresh(&self) -> bool {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.is_some_and(|at| at.elapsed() < FRESH)
    }

    async fn access(
        &self,
        call: &Call,
        id: &VolumeId,
        change: AccessChange<'_>,
    ) -> Result<(), Error> {
        let dataset = self.layout().volume(id)?;
        self.converge(call, &self.access_of(id, &dataset, change))
            .await
    }

    /// The same for a fence: see [`Access::is_strict`].
    async fn access_at_fence(
        &self,
        call: &Call,
        id: &VolumeId,
        change: AccessChange<'_>,
    ) -> Result<(), Error> {
        let dataset = self.layout().volume(id)?;
        let verb = Access {
            is_strict: true,
            ..self.access_of(id, &dataset, change)
        };
        self.converge(call, &verb).await
    }

    fn access_of<'a>(
        &'a self,
        id: &'a VolumeId,
        dataset: &'a DatasetName,
        change: AccessChange<'a>,
    ) -> Access<'a> {
        Access {
            kind: self.kind(),
            export_ref: self.export_ref(id, dataset),
            change,
            fenced_by: self.can_fence().then_some(&self.layout().volumes),
            is_strict: false,
        }
    }

    /// Whether it needs no change.
    async fn is_so(
        &self,
        call: &Call,
        id: &VolumeId,
        change: AccessChange<'_>,
    ) -> Result<bool, Error> {
        let dataset = self.layout().volume(id)?;
        let verb = self.access_of(id, &dataset, change);
        let mut asked = State::default();
        for _ in 0..ASKED {
            let request = verb.request(&asked)?;
            let seen = self.backend.observe(call, &request).await?;
            self.heard();
            match verb.plan(&asked, &seen, 0)? {
                Outcome::Done(()) => return Ok(true),
                Outcome::Do(_) | Outcome::End(..) | Outcome::InUse(_) => return Ok(false),
                Outcome::Ask => asked = seen.pool,
            }
        }
        Err(Error::new(Kind::Pending, verb.doing()).because("it keeps changing"))
    }
}

#[async_trait]
impl Driver for ZfsDriver {
    fn kind(&self) -> &str {
        &self.settings.kind
    }

    fn access_rules(&self) -> AccessRules {
        self.export.access_rules()
    }

    fn backend_identity(&self) -> BackendIdentity {
        self.backend.identity()
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        let doing = format!("name volume `{}`", name.as_str().escape_debug());
        self.id_in(self.child_of(parameters, &doing)?, name, parameters)
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        if self.is_fresh() {
            return Vec::new();
        }
        let volumes = &self.layout().volumes;
        match self
            .observe(call, vec![Query::Nearest(volumes.clone())])
            .await
        {
            Ok(pool) if pool.nearest(volumes).is_some() => Vec::new(),
            Ok(_) => vec![
                Error::new(Kind::Unreachable, format!("find pool `{}`", volumes.pool()))
                    .because("it is not imported on the storage host"),
            ],
            Err(error) => vec![error],
        }
    }

    async fn examine(&self, call: &Call) -> Vec<Error> {
        let problems = self.probe(call).await;
        let export = self.export.examine();
        let asks_export = !export.is_empty();
        let children = &self.layout().children;
        if !problems.is_empty() || (!asks_export && children.is_empty()) {
            return problems;
        }
        let children = children.iter().map(Child::dataset).cloned();
        let request = Request {
            export,
            ..Request::of(children.map(Query::Dataset))
        };
        match self.backend.observe(call, &request).await {
            Ok(seen) => {
                let mut problems = self.unfit_children(&seen.pool);
                if asks_export {
                    let of_export = self.export.problems(&seen.export);
                    problems.extend(of_export.unwrap_or_else(|error| vec![error]));
                }
                problems
            }
            Err(error) => vec![error],
        }
    }

    async fn describe(&self, call: &Call) -> Vec<Finding> {
        self.backend.describe(call, self.kind()).await
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        let dataset = self.layout().volume(&request.id)?;
        self.check_place(request)?;
        let verb = self.creation(request, &dataset)?;
        self.shown(call, &verb, |made| self.volume(made)).await
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id;
        let dataset = self.layout().volume(id)?;
        if self.settings.retain {
            return Ok(());
        }
        let verb = DestroyVolume {
            layout: self.layout(),
            export_ref: self.export_ref(id, &dataset),
            keep_foreign: self.settings.keep_foreign_snapshots,
        };
        self.converge(call, &verb).await
    }

    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        let id = request.id;
        let found = match self.dataset_of(call, id).await? {
            None => self.dataset_in_turn(call, id).await?,
            found => found,
        };
        // A snapshot of that name from another owner is rejected when it is requested.
        let owner = self.settings.policy.owner();
        match found.filter(|found| !owner.is_another(found)) {
            Some(found) if is_complete(&found) => self.volume(&found).map(|_| Found::Whole),
            // The host may still be working on it: an interrupted copy resumes there.
            Some(found) if found.is_managed() => Ok(Found::Begun),
            Some(_) | None => Err(Error::not_found(format!("volume `{id}`"))),
        }
    }

    fn clones_volumes(&self) -> bool {
        true
    }

    fn lister(&self) -> Option<&dyn Lister> {
        Some(self)
    }

    fn expander(&self) -> Option<&dyn Expander> {
        Some(self)
    }

    fn capacity_reporter(&self) -> Option<&dyn CapacityReporter> {
        Some(self)
    }

    fn usage_reporter(&self) -> Option<&dyn UsageReporter> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn block_metadata(&self) -> Option<&dyn BlockMetadata> {
        let lists = self.kind() == VolumeKind::Zvol && self.backend.lists_blocks();
        lists.then_some(self)
    }

    fn health(&self) -> Option<&dyn Health> {
        Some(self)
    }

    fn groups(&self) -> Option<&dyn Groups> {
        let refusal = self.backend.refuses_groups();
        refusal.is_none().then_some(self)
    }

    fn unsupported(&self, verb: &'static str) -> Error {
        match self.backend.refuses_groups() {
            _ if verb == FENCE && self.export.is_per_node() => Error::unsupported(verb).because(
                "what a node has open may go on after it has lost its access: this target ends no session of one node \
                 alone",
            ),
            _ if verb == FENCE => Error::unsupported(verb).because(
                "every node reaches its volumes: only an export with `nodes` lets in some alone",
            ),
            _ if verb == BLOCK_RANGES => Error::unsupported(verb).because(match self.kind() {
                VolumeKind::Filesystem => "a filesystem has no blocks that its clients could ask for",
                VolumeKind::Zvol => "its storage streams no snapshot to this driver",
            }),
            Some(why) => without_groups(verb, why),
            None => Error::unsupported(verb),
        }
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(self)
    }

    /// Storage of a node is not attached.
    fn publisher(&self) -> Option<&dyn Publisher> {
        self.settings.place.is_none().then_some(self)
    }

    fn modifier(&self) -> Option<&dyn Modifier> {
        (!self.mutable_keys().is_empty()).then_some(self)
    }

    fn fencer(&self) -> Option<&dyn Fencer> {
        self.can_fence().then_some(self)
    }

    fn class_keys(&self) -> &[&'static str] {
        self.settings.policy.class.names()
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(self)
    }

    fn exports(&self) -> Option<&dyn Exports> {
        Some(self)
    }

    fn adopter(&self) -> Option<&dyn Adopter> {
        Some(self)
    }

    fn mover(&self) -> Option<&dyn Mover> {
        self.backend.streams().then_some(self)
    }

    fn longest_attachment(&self) -> Option<Attachment> {
        self.longest_shown()
    }

    fn node_topology(&self) -> Option<Topology> {
        self.settings.place.clone()
    }
}

#[async_trait]
impl Lister for ZfsDriver {
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error> {
        let found = self.dataset_of(call, id).await?;
        let found = match found.filter(is_complete) {
            Some(found) => self.volume(&found),
            None => Err(Error::not_found(format!("volume `{id}`"))),
        };
        self.about(call, id, found).await
    }

    async fn list_volumes(&self, call: &Call, page: &PageRequest) -> Result<Page<Volume>, Error> {
        let show = |entry: &Entry| self.listed_volume(entry);
        let listed = self
            .page(call, "v", self.volume_scopes(), page, show)
            .await?;
        let parent = self.layout().parent_of_volumes();
        self.has_parent(call, parent, page, listed, |_| true).await
    }
}

#[async_trait]
impl Expander for ZfsDriver {
    fn node_expands(&self) -> bool {
        self.kind() == VolumeKind::Zvol
    }

    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error> {
        let ExpandVolume { id, size, .. } = request;
        let dataset = self.layout().volume(id)?;
        let verb = Expand {
            policy: &self.settings.policy,
            kind: self.kind(),
            export_ref: self.export_ref(id, &dataset),
            size,
            reserves_by_size: self.backend.reserves_by_size(),
        };
        let grown = self.converge(call, &verb).await;
        self.about(call, id, grown).await
    }
}

#[async_trait]
impl Modifier for ZfsDriver {
    fn mutable_keys(&self) -> &[&'static str] {
        self.settings.policy.class.mutable()
    }

    async fn modify_volume(&self, call: &Call, request: ModifyVolume<'_>) -> Result<(), Error> {
        let ModifyVolume { id, parameters, .. } = request;
        let doing = format!("modify volume `{id}`");
        let wanted = self.settings.policy.class.of_change(parameters, &doing)?;
        let dataset = self.layout().volume(id)?;
        let verb = Modify {
            kind: self.kind(),
            export_ref: ExportRef {
                chosen: self.settings.policy.class.share_choice(&wanted),
                ..self.export_ref(id, &dataset)
            },
            wanted: &wanted,
        };
        let modified = self.converge(call, &verb).await;
        self.about(call, id, modified).await
    }
}

#[async_trait]
impl CapacityReporter for ZfsDriver {
    async fn capacity(&self, call: &Call, query: &CapacityQuery) -> Result<Capacity, Error> {
        if let (Some(place), Some(asked)) = (&self.settings.place, &query.topology)
            && !place.reaches(asked)
        {
            return Ok(Capacity::default());
        }
        let child = self.child_of(&query.parameters, "look for free space")?;
        let volumes = child.map_or(&self.layout().volumes, Child::dataset);
        let pool = self
            .observe(call, vec![Query::Nearest(volumes.clone())])
            .await?;
        let nearest = pool.nearest(volumes);
        let nearest = nearest.ok_or_else(|| {
            Error::new(Kind::Unreachable, format!("find pool `{}`", volumes.pool()))
        })?;
        let available = nearest.properties.number(&PropertyName::AVAILABLE);
        Ok(Capacity {
            available: available.unwrap_or_default(),
            minimum_volume_size: Some(self.settings.policy.smallest).filter(|size| *size > 0),
            ..Capacity::default()
        })
    }
}

#[async_trait]
impl UsageReporter for ZfsDriver {
    async fn used(&self, call: &Call, ids: &[VolumeId]) -> Result<Vec<Option<u64>>, Error> {
        let names = ids.iter().map(|id| self.layout().volume(id));
        let names: Vec<DatasetName> = names.collect::<Result<_, _>>()?;
        let queries = names.iter().cloned().map(Query::Dataset).collect();
        let pool = self.observe(call, queries).await?;
        let used = |name| {
            let found = pool.dataset(name).filter(|found| is_complete(found));
            found?.properties.number(&PropertyName::REFERENCED)
        };
        Ok(names.iter().map(used).collect())
    }
}

#[async_trait]
impl Snapshots for ZfsDriver {
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let place = self.place_of(request)?;
        let verb = match self.snapshotting(request, place.clone()) {
            Ok(verb) => verb,
            Err(error) => return Err(self.unless_partial(call, &place, error).await),
        };
        let taken = self.shown(call, &verb, |taken| self.snapshot(taken)).await;
        self.about(call, &request.source, taken).await
    }

    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error> {
        let id = request.id;
        let place = match self.layout().snapshot(id) {
            // There is no such snapshot, and never was.
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            place => place?,
        };
        let verb = DestroySnapshot {
            layout: self.layout(),
            place,
            owner: self.settings.policy.owner(),
            keep_foreign: self.settings.keep_foreign_snapshots,
            asks_little: self.backend.asks_one_by_one(),
            leaves_mark: self.leaves_marks(),
        };
        self.converge(call, &verb).await
    }

    async fn get_snapshot(&self, call: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error> {
        let id = request.id;
        let place = self.layout().snapshot(id)?;
        let query = match &place.at {
            At::Attached(snapshot) => Query::Snapshot(snapshot.clone()),
            At::Detached(dataset) => Query::Dataset(dataset.clone()),
        };
        let parent = self.layout().parent_of(&place.at);
        let queries = vec![query, Query::Dataset(parent.name.clone())];
        let pool = self.observe(call, queries).await?;
        let found = match &place.at {
            At::Attached(snapshot) => pool.snapshot(snapshot).and_then(results::attached),
            At::Detached(dataset) => pool.dataset(dataset).and_then(results::detached),
        };
        let Some(properties) = found else {
            let missing = format!("snapshot `{id}`");
            has_parent(&format!("find {missing}"), parent, &pool)?;
            return Err(Error::not_found(missing));
        };
        self.snapshot(&Taken { place, properties })
    }

    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let source = filter.source.as_ref();
        let show = |entry: &Entry| self.listed_snapshot(entry);
        let scopes = self.snapshot_scopes(source, true)?;
        let listed = match self.page(call, "s", scopes, page, show).await {
            Err(error) if self.misses_detached_pool(&error) => {
                let scopes = self.snapshot_scopes(source, false)?;
                self.page(call, "s", scopes, page, show).await
            }
            listed => listed,
        };
        let is_below = |snapshot: &Snapshot| {
            let place = self.layout().snapshot(&snapshot.id);
            place.is_ok_and(|place| matches!(place.at, At::Attached(_)))
        };
        let layout = self.layout();
        let parent = source.map_or_else(
            || layout.parent_of_volumes(),
            |id| layout.parent_of_volume(id),
        );
        self.has_parent(call, parent, page, listed?, is_below).await
    }
}

#[async_trait]
impl Transfer for ZfsDriver {
    fn export_formats(&self) -> &'static [TransferFormat] {
        self.forms()
    }

    fn import_formats(&self) -> &'static [TransferFormat] {
        self.forms()
    }

    fn export(&self, source: &Source, tag: &CopyTag) -> Result<Box<dyn ExportStream + '_>, Error> {
        self.origin(source, tag)
    }

    async fn import(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn ExportStream,
    ) -> Result<Volume, Error> {
        self.filled_from(call, request, from).await
    }
}

#[async_trait]
impl Publisher for ZfsDriver {
    fn knows_nodes(&self) -> bool {
        self.export.is_per_node()
    }

    fn records(&self) -> bool {
        true
    }

    async fn publish_volume(&self, call: &Call, request: PublishVolume<'_>) -> Result<(), Error> {
        let change = AccessChange::Allow {
            node: request.node,
            is_only: request.capability.mode.is_of_one_node(),
        };
        let allowed = self.access(call, request.id, change).await;
        self.about(call, request.id, allowed).await?;
        let is_seen_again = !self.backend.asks_one_by_one();
        if self.can_fence() && call.effect() == Effect::Possible && !is_seen_again {
            // A fence may have been recorded since the parent was read, and have listed its nodes before this one. A host
            // reads the parent again after each plan.
            self.access_at_fence(call, request.id, change).await?;
        }
        Ok(())
    }

    async fn unpublish_volume(
        &self,
        call: &Call,
        request: UnpublishVolume<'_>,
    ) -> Result<(), Error> {
        let UnpublishVolume { id, node, .. } = request;
        self.access(call, id, AccessChange::Revoke(node)).await
    }
}

#[async_trait]
impl Maintenance for ZfsDriver {
    async fn orphans(
        &self,
        call: &Call,
        before: SystemTime,
        page: &PageRequest,
    ) -> Result<Page<Orphan>, Error> {
        self.orphans_on_page(call, before, page).await
    }

    async fn remove_orphan(
        &self,
        call: &Call,
        before: SystemTime,
        orphan: &Orphan,
    ) -> Result<(), Error> {
        self.without_orphan(call, before, orphan).await
    }
}

#[async_trait]
impl Exports for ZfsDriver {
    async fn is_exported(&self, call: &Call, id: &VolumeId) -> Result<bool, Error> {
        let owner = self.settings.policy.owner();
        self.is_so(call, id, AccessChange::Present(owner)).await
    }

    async fn repair_export(&self, call: &Call, id: &VolumeId) -> Result<(), Error> {
        let owner = self.settings.policy.owner();
        self.access(call, id, AccessChange::Present(owner)).await
    }
}
