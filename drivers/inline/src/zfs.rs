//! `zfs-local-ephemeral-inline`: each volume is a dataset of the node.
//!
//! One step makes it with all its properties, and one plan destroys it: a killed process leaves a whole
//! volume or none. The dataset stores the pod that it belongs to.

mod settings;

use std::time::Duration;

use async_trait::async_trait;
use csi_types::attachment::{DatasetName as AttachedName, ZfsLocal};
use csi_types::{AbsolutePath, AccessMode, Attachment};
use driver_core::{
    AccessRules, BackendIdentity, Backoff, Call, CreateVolume, DeleteVolume, Driver, Error,
    InlineFound, InlineMount, InlineVolume, InlineVolumes, Kind, Parameters, Volume, VolumeId,
    VolumeName,
};
use driver_zfs::backend::{Backend, Entry, ListFilter, ListQuery, ListScope};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::VolumeKind;
use driver_zfs::observed::{Dataset, Query, Request, State};
use driver_zfs::plan::owner::Owner;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::{Failed, New, Next, Plan, Step};
use tracing::warn;

pub use settings::Settings;

use crate::factory::unsupported;

/// The place where the pod of a volume sees it.
const TARGET: &str = "omnibus-csi:target_path";
/// The number of times that a verb is planned again after a concurrent change of the pool.
const ROUNDS: usize = 8;
/// The pauses before a retry of a dataset in use. All tries take almost a minute.
const IN_USE: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(26));
/// The number of datasets that are asked for in one exchange.
const PAGE: usize = 200;

/// Volumes that are datasets of this node and live with a pod. `B` says how they are changed.
#[derive(Debug)]
pub struct ZfsInline<B> {
    settings: Settings,
    backend: B,
}

fn target_property() -> Result<PropertyName, Error> {
    PropertyName::parse(TARGET)
        .map_err(|error| Error::new(Kind::Internal, "name a property").because(error))
}

/// The pod's path of a volume. compat: "Inline volumes": democratic-csi has ZFS mount it there.
fn target_of(dataset: &Dataset) -> Result<Option<&str>, Error> {
    let own = dataset.properties.own(&target_property()?);
    Ok(own.or_else(|| dataset.mountpoint()))
}

// === impl ZfsInline ===

impl<B: Backend> ZfsInline<B> {
    /// The driver of one connection. Touches no storage.
    pub fn new(settings: Settings, backend: B) -> Self {
        Self { settings, backend }
    }

    /// The backend where its datasets are changed.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    fn owner(&self) -> Owner<'_> {
        Owner {
            provisioner: &self.settings.kind,
            instance: self.settings.instance.as_deref(),
        }
    }

    /// Whether a dataset is the volume of that id, and not marked as that of another connection.
    fn is_volume(&self, id: &VolumeId, dataset: &Dataset) -> bool {
        let name = dataset.properties.own(&PropertyName::VOLUME_NAME);
        dataset.is_managed() && name == Some(id.as_str()) && !self.owner().is_another(dataset)
    }

    async fn observe(&self, call: &Call, queries: Vec<Query>) -> Result<State, Error> {
        let request = Request {
            properties: vec![target_property()?],
            ..Request::of(queries)
        };
        Ok(self.backend.observe(call, &request).await?.pool)
    }

    /// All properties of a new volume.
    fn properties(&self, wanted: &InlineVolume<'_>) -> Result<Vec<Property>, Error> {
        let mut all = self.settings.chosen(wanted.attributes)?;
        let value = |text: &str| {
            PropertyValue::parse(text)
                .map_err(|error| Error::invalid(format!("volume `{}`", wanted.id)).because(error))
        };
        let mut set = |name: PropertyName, text: &str| {
            all.push(Property::new(name, value(text)?));
            Ok::<(), Error>(())
        };
        set(PropertyName::MANAGED, "true")?;
        set(PropertyName::SUCCESS, "true")?;
        set(PropertyName::VOLUME_NAME, wanted.id.as_str())?;
        set(PropertyName::MOUNTPOINT, "legacy")?;
        set(target_property()?, wanted.target.as_str())?;
        if wanted.readonly {
            let readonly = PropertyName::parse("readonly")
                .map_err(|error| Error::new(Kind::Internal, "name a property").because(error))?;
            set(readonly, "on")?;
        }
        all.extend(self.owner().marks());
        Ok(all)
    }

    /// The plan that makes a volume; `None` if it exists.
    fn creation(
        &self,
        dataset: &DatasetName,
        wanted: &InlineVolume<'_>,
        properties: &[Property],
        seen: &State,
    ) -> Result<Option<Plan>, Error> {
        let conflict = |why: String| {
            Error::new(Kind::Conflict, format!("make volume `{}`", wanted.id)).because(why)
        };
        if let Some(found) = seen.dataset(dataset) {
            if !self.is_volume(wanted.id, found) {
                let why = format!("there is a dataset `{dataset}` that is not this volume");
                return Err(conflict(why).advise("see `zfs get all` of it, and move it away"));
            }
            return match target_of(found)? {
                Some(target) if target != wanted.target.as_str() => {
                    let target = target.escape_debug();
                    Err(conflict(format!("it is there for the pod at `{target}`")))
                }
                _ => Ok(None),
            };
        }
        let mut plan = Plan::about(dataset.clone());
        plan.step(Step::Create {
            dataset: dataset.clone(),
            new: New::Filesystem,
            properties: properties.to_vec(),
        });
        Ok(Some(plan))
    }

    /// The plan that removes a volume; `None` if it is gone.
    fn removal(
        &self,
        dataset: &DatasetName,
        id: &VolumeId,
        seen: &State,
    ) -> Result<Option<Plan>, Error> {
        let Some(found) = seen.dataset(dataset) else {
            return Ok(None);
        };
        if !self.is_volume(id, found) {
            let object = dataset.as_str();
            warn!(
                object,
                "left a dataset that has the name of the volume and is not it"
            );
            return Ok(None);
        }
        let busy = |why: String| {
            Error::new(Kind::Busy, format!("remove volume `{id}`"))
                .because(why)
                .advise("remove it by hand: this driver has made nothing below its volumes")
        };
        if let Some(below) = seen.children_of(dataset).first() {
            return Err(busy(format!("`{}` is below it", below.name)));
        }
        let mut plan = Plan::about(dataset.clone());
        plan.guard(dataset.clone(), found.guid);
        // Snapshots of a scheduled tool: they are removed with the volume.
        for snapshot in seen.snapshots_of(dataset) {
            if snapshot.is_stood_on() {
                return Err(busy(format!("a clone stands on `{}`", snapshot.name)));
            }
            if snapshot.is_held() {
                return Err(busy(format!("a user hold keeps `{}`", snapshot.name)));
            }
            plan.guard(snapshot.name.clone(), snapshot.guid);
            plan.step(Step::DestroySnapshot(snapshot.name.clone()));
        }
        plan.step(Step::DestroyDataset(dataset.clone()));
        Ok(Some(plan))
    }

    /// Observes, plans and applies until there is nothing to do.
    async fn converge(
        &self,
        call: &Call,
        query: impl Fn() -> Query,
        plan: impl Fn(&State) -> Result<Option<Plan>, Error>,
    ) -> Result<(), Error> {
        let mut in_use = IN_USE;
        let mut last = None;
        for _ in 0..ROUNDS {
            call.check("work on an inline volume")?;
            let seen = self.observe(call, vec![query()]).await?;
            let Some(plan) = plan(&seen)? else {
                return Ok(());
            };
            match self.backend.apply(call, &plan, &Request::of([])).await {
                Ok(_) => return Ok(()),
                Err(Failed {
                    next: Next::Tell,
                    error,
                }) => return Err(error),
                Err(Failed { next, error }) => {
                    if next != Next::Observe {
                        let wait = match next {
                            Next::WaitFor(known) => known,
                            _ => in_use.pause(),
                        };
                        tokio::time::sleep(wait.min(call.remaining())).await;
                    }
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::new(Kind::Internal, "work on an inline volume")))
    }
}

#[async_trait]
impl<B: Backend> Driver for ZfsInline<B> {
    fn kind(&self) -> &str {
        &self.settings.kind
    }

    fn access_rules(&self) -> AccessRules {
        one_pod(&["zfs"])
    }

    fn backend_identity(&self) -> BackendIdentity {
        self.backend.identity()
    }

    fn makes_volumes(&self) -> bool {
        false
    }

    fn unsupported(&self, verb: &'static str) -> Error {
        unsupported(verb)
    }

    fn name_volume(&self, _: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        Err(unsupported("name volume"))
    }

    async fn create_volume(&self, _: &Call, _: &CreateVolume) -> Result<Volume, Error> {
        Err(unsupported("create volume"))
    }

    async fn delete_volume(&self, _: &Call, _: DeleteVolume<'_>) -> Result<(), Error> {
        Err(unsupported("delete volume"))
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        let parent = Query::Nearest(self.settings.layout.volumes.clone());
        let seen = self.observe(call, vec![parent]).await;
        seen.err().into_iter().collect()
    }

    fn inline(&self) -> Option<&dyn InlineVolumes> {
        Some(self)
    }
}

/// Volumes that one node mounts. compat: "Inline volumes".
pub(crate) fn one_pod(fs_types: &'static [&'static str]) -> AccessRules {
    let one = |mode: &AccessMode| {
        matches!(
            mode,
            AccessMode::Unknown
                | AccessMode::SingleNodeWriter
                | AccessMode::SingleNodeReaderOnly
                | AccessMode::SingleNodeSingleWriter
                | AccessMode::SingleNodeMultiWriter
        )
    };
    AccessRules {
        mount_modes: AccessMode::ALL.into_iter().filter(one).collect(),
        ..AccessRules::filesystem(fs_types)
    }
}

#[async_trait]
impl<B: Backend> InlineVolumes for ZfsInline<B> {
    async fn make_inline(
        &self,
        call: &Call,
        wanted: &InlineVolume<'_>,
    ) -> Result<InlineMount, Error> {
        let dataset = self.settings.layout.volume(wanted.id)?;
        let properties = self.properties(wanted)?;
        let query = || Query::Dataset(dataset.clone());
        let plan = |seen: &State| self.creation(&dataset, wanted, &properties, seen);
        let asset = AttachedName::parse(dataset.as_str()).map_err(|error| {
            Error::invalid(format!("tell the node of {dataset}")).because(error)
        })?;
        call.outcome(self.converge(call, query, plan).await)?;
        Ok(InlineMount::Attachment(Attachment::ZfsLocal(ZfsLocal {
            asset,
        })))
    }

    async fn remove_inline(
        &self,
        call: &Call,
        id: &VolumeId,
        _target: &AbsolutePath,
    ) -> Result<(), Error> {
        // An id that no volume of this driver can have is nowhere.
        let Ok(dataset) = self.settings.layout.volume(id) else {
            return Ok(());
        };
        let query = || Query::Family(dataset.clone());
        let plan = |seen: &State| self.removal(&dataset, id, seen);
        call.outcome(self.converge(call, query, plan).await)
    }

    async fn list_inline(&self, call: &Call) -> Result<Vec<InlineFound>, Error> {
        let volumes = &self.settings.layout.volumes;
        let mut query = ListQuery {
            scopes: vec![ListScope {
                parent: volumes.clone(),
                depth: 1,
                kind: Some(VolumeKind::Filesystem),
                filter: ListFilter::Having(PropertyName::VOLUME_NAME),
            }],
            after: None,
            max: PAGE,
            properties: Vec::new(),
        };
        let mut found = Vec::new();
        loop {
            let listed = self.backend.list(call, &query).await?;
            let names = listed.entries.iter().filter_map(|entry| match entry {
                Entry::Dataset(dataset) => Some(dataset.name.clone()),
                Entry::Snapshot(_) => None,
            });
            let names: Vec<_> = names.collect();
            let queries = names.iter().cloned().map(Query::Dataset).collect();
            let seen = self.observe(call, queries).await?;
            for name in names {
                if let Some(dataset) = seen.dataset(&name) {
                    found.extend(self.found(dataset)?);
                }
            }
            query.after = listed.next;
            if query.after.is_none() {
                return Ok(found);
            }
        }
    }
}

impl<B: Backend> ZfsInline<B> {
    /// A dataset as a volume of this connection, if it is proved to be one.
    fn found(&self, dataset: &Dataset) -> Result<Option<InlineFound>, Error> {
        let name = dataset.properties.own(&PropertyName::VOLUME_NAME);
        if name != Some(dataset.name.leaf()) || !dataset.is_managed() || !self.owner().made(dataset)
        {
            return Ok(None);
        }
        let id = name.and_then(|name| VolumeId::parse(name).ok());
        let target = target_of(dataset)?.and_then(|target| AbsolutePath::parse(target).ok());
        Ok(id
            .zip(target)
            .map(|(id, target)| InlineFound { id, target }))
    }
}
