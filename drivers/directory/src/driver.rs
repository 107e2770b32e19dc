//! The driver: each verb of the contract is one hop to a thread that may block.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use driver_core::config::{CommonConfig, ConfigError, Document, Finding};
use driver_core::naming::VolumeNaming;
use driver_core::parameters::Scope;
use driver_core::transfer::{CopyTag, ExportStream, TransferFormat};
use driver_core::{
    AccessRules, Adopter, BackendIdentity, Call, Capacity, CapacityQuery, CapacityReporter,
    Conditions, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver, Error,
    ExpandVolume, Expanded, Expander, GetSnapshot, Groups, Health, HealthQuery, Kind, Lister,
    NodeId, Page, PageRequest, Parameters, Snapshot, SnapshotFilter, Snapshots, Source, Topology,
    Transfer, Volume, VolumeId, VolumeName,
};

use csi_types::{AbsolutePath, Attachment};
use node_utils::Tools;

use crate::backup::Repository;
use crate::base::Base;
use crate::config::{DirectoryConfig, SnapshotDriver};
use crate::id::Tool;
use crate::kind::{DirectoryKind, Location};
use crate::kopia::{Kopia, KopiaConfig};
use crate::pending::{PATIENCE, PendingCopies};
use crate::restic::{Restic, ResticConfig};
use crate::share::{self, KeepMounted};
use crate::store::Store;
use crate::transfer;
use crate::volumes::Directories;

/// A driver whose volumes are directories below one base.
#[derive(Debug)]
pub struct DirectoryDriver {
    kind: DirectoryKind,
    instance: Option<String>,
    naming: VolumeNaming,
    pub(crate) directories: Arc<Directories>,
    /// The share of the base, where this process may mount it.
    pub(crate) share: Option<Arc<dyn KeepMounted>>,
    /// Whether this process only attaches volumes, and so does not use the base.
    pub(crate) only_attaches: bool,
    /// The time that the caller of a snapshot waits for it to be ready.
    pub(crate) patience: Duration,
}

/// Makes the driver of one connection, of whichever kind of this family it names. Touches no storage.
///
/// `node` is the node that this process runs on. In the directory `records` the driver records which
/// base directories are in use; it has to survive a restart of the process. With `tools` it mounts the
/// share of the base if that is not mounted; without them that is left to the administrator.
pub fn from_document(
    document: &Document,
    node: &NodeId,
    records: Option<&AbsolutePath>,
    tools: Option<&Tools>,
) -> Result<DirectoryDriver, ConfigError> {
    let name = document.driver()?;
    let kind = DirectoryKind::ALL
        .into_iter()
        .find(|kind| kind.name() == name);
    let kind = kind.ok_or_else(|| ConfigError::at("driver", "its volumes are no directories"))?;
    let section = kind.section();
    let key = |key: &str| format!("{section}.{key}");
    let local = kind == DirectoryKind::LocalHostpath;
    // First of all: an error in another key changes nothing about these.
    document.without_effect(&[
        ("node.format", "a directory is never formatted"),
        ("node.mount.checkFilesystem", "a directory is never checked"),
    ]);
    if local {
        document.without_effect(&[
            (&key("shareHost"), "the node mounts no share"),
            (&key("mountOptions"), "there is no share to mount"),
        ]);
    }
    let common = document.common()?;
    let config = document.section::<DirectoryConfig>(section)?;
    let layout = config.layout(kind)?;
    let flags = config.mount_options.as_ref();
    let flags = flags.unwrap_or(&common.node.mount.mount_flags);
    if kind.is_of_share() {
        let path = config.mount_options.as_ref().map(|_| key("mountOptions"));
        let path = path.unwrap_or_else(|| "node.mount.mount_flags".to_owned());
        share::warn_of_options(document, &path, flags);
    }
    let is_own_folder = layout.base.is_none();
    let path = layout
        .base
        .clone()
        .unwrap_or_else(|| share::own_folder(records, &layout.location, flags));
    if kind.is_of_share() {
        share::refuse_below(records, &path, key("controllerBasePath"))?;
    }
    let keeper =
        tools.and_then(|tools| share::keeper(&layout.location, flags, tools, &path, is_own_folder));
    let node_of_volumes = local.then(|| node.as_str());
    let repositories = repositories(&config, section, tools, (&common, node_of_volumes))?;
    let pending = PendingCopies::new(path.to_string());
    let node_path = match &layout.location {
        Location::Hostpath(path) => Some(path.clone()),
        _ => None,
    };
    let base = Base::new(kind, path, layout.creation, records.cloned())
        .with_id(layout.base_id.clone())
        .for_nodes(node_path);
    Ok(DirectoryDriver {
        kind,
        instance: common.instance_id.clone(),
        naming: VolumeNaming::new(&common),
        directories: Arc::new(Directories {
            store: Store::new(base, layout.quotas),
            layout,
            topology: local.then(|| Topology::node(node.as_str())),
            id_room: common.id_room,
            repositories,
            pending,
        }),
        share: keeper.map(|keeper| Arc::new(keeper) as _),
        only_attaches: false,
        patience: PATIENCE,
    })
}

/// The repositories of both tools; only a process with `tools` runs the programs.
fn repositories(
    config: &DirectoryConfig,
    section: &str,
    tools: Option<&Tools>,
    (common, node): (&CommonConfig, Option<&str>),
) -> Result<Vec<Box<dyn Repository>>, ConfigError> {
    let texts = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let variables = || std::env::vars_os().filter_map(texts);
    let key = |tool: Tool| format!("{section}.snapshots.{}", tool.name());
    let restic = config.snapshots.restic.clone().unwrap_or_default();
    let restic = ResticConfig::read(&restic, &key(Tool::Restic), variables())?;
    let kopia = config.snapshots.kopia.clone().unwrap_or_default();
    let kopia = KopiaConfig::read(&kopia, &key(Tool::Kopia), variables())?;
    let Some(tools) = tools else {
        return Ok(Vec::new());
    };
    let instance = || common.instance_id.clone();
    Ok(vec![
        Box::new(Restic::new(tools.clone(), restic, instance())),
        Box::new(Kopia::new(tools.clone(), kopia, instance(), node)),
    ])
}

// === impl DirectoryDriver ===

impl DirectoryDriver {
    /// Mounts the share of the base if it is not mounted, and returns once it answers.
    pub(crate) async fn ensure_base(&self, call: &Call) -> Result<(), Error> {
        let Some(share) = &self.share else {
            return Ok(());
        };
        let is_kept = share.is_kept();
        let look = |directories: &Directories, _: &Call| directories.store.base.lacks_share();
        if is_kept || self.block(call, "looking for the base", look).await? {
            share.ensure(call.deadline()).await?;
        }
        Ok(())
    }

    /// Runs `work` on the base, where it may block; it goes on to its end if the caller leaves.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: &Call,
        doing: &'static str,
        work: impl FnOnce(&Directories, &Call) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.ensure_base(call).await?;
        self.block(call, doing, work).await
    }

    async fn block<T: Send + 'static>(
        &self,
        call: &Call,
        doing: &'static str,
        work: impl FnOnce(&Directories, &Call) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (directories, work_call) = (Arc::clone(&self.directories), call.clone());
        let work = move || work(&directories, &work_call);
        let task = node_utils::blocking::spawn_on_account(doing, work).await?;
        let ended = task.await;
        let ended =
            ended.unwrap_or_else(|join| Err(Error::new(Kind::Internal, doing).because(join)));
        call.outcome(ended)
    }

    /// Whose parameters of classes are its own.
    pub(crate) fn scope(&self) -> Scope<'_> {
        Scope {
            driver: self.kind.name(),
            instance: self.instance.as_deref(),
        }
    }

    /// The way the class wants a snapshot to be made.
    pub(crate) fn snapshot_driver(&self, parameters: &Parameters) -> Result<SnapshotDriver, Error> {
        match parameters.get(self.scope(), "driver") {
            None => Ok(self.directories.layout.default_driver),
            Some(name) => SnapshotDriver::parse(name).ok_or_else(|| {
                Error::invalid(format!("taking a snapshot with `{}`", name.escape_debug()))
                    .because("there is no such driver of snapshots")
                    .advise(
                        "set the parameter `driver` of the snapshot class to `filecopy`, `restic` or `kopia`",
                    )
            }),
        }
    }
}

#[async_trait]
impl Driver for DirectoryDriver {
    fn kind(&self) -> &str {
        self.kind.name()
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(self.kind.fs_types())
    }

    fn backend_identity(&self) -> BackendIdentity {
        let place = self.directories.topology();
        let nodes = place.iter().flat_map(|place| place.segments().values());
        let node = nodes.cloned().collect::<String>();
        let base = match self.kind {
            DirectoryKind::LocalHostpath => self.directories.store.base.path().to_string(),
            _ => self.directories.layout.location.identity(),
        };
        BackendIdentity(format!("{}:{node}:{base}", self.kind.name()))
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        self.naming.volume_id(name, parameters)
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        if self.only_attaches && self.kind != DirectoryKind::LocalHostpath {
            return Vec::new();
        }
        let problems = self.run(call, "probing", |directories, _| {
            Ok(directories.store.problems())
        });
        problems.await.unwrap_or_else(|error| vec![error])
    }

    async fn examine(&self, call: &Call) -> Vec<Error> {
        let problems = self.probe(call).await;
        let is_elsewhere = self.only_attaches && self.kind != DirectoryKind::LocalHostpath;
        if is_elsewhere || !problems.is_empty() {
            return problems;
        }
        // A server whose base is full still serves: deleting is what helps.
        let obstacles = self.run(call, "looking at the base", |directories, _| {
            directories.store.obstacles()
        });
        obstacles.await.unwrap_or_else(|error| vec![error])
    }

    async fn describe(&self, call: &Call) -> Vec<Finding> {
        let doubts = self.run(call, "looking at the base", |directories, _| {
            Ok(directories.store.doubts())
        });
        doubts.await.unwrap_or_default()
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        let request = request.clone();
        self.run(call, "creating a volume", move |directories, call| {
            directories.create_volume(call, &request)
        })
        .await
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id.clone();
        self.run(call, "deleting a volume", move |directories, call| {
            directories.delete_volume(call, &id)
        })
        .await
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

    fn health(&self) -> Option<&dyn Health> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn groups(&self) -> Option<&dyn Groups> {
        Some(self)
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(self)
    }

    fn adopter(&self) -> Option<&dyn Adopter> {
        Some(self)
    }

    fn check_attachment(&self, id: &VolumeId, attachment: &Attachment) -> Result<(), Error> {
        self.directories.check_attachment(id, attachment)
    }

    fn longest_attachment(&self) -> Option<Attachment> {
        Some(self.directories.longest_attachment())
    }

    fn node_topology(&self) -> Option<Topology> {
        self.directories.topology.clone()
    }
}

#[async_trait]
impl Transfer for DirectoryDriver {
    fn export_formats(&self) -> &'static [TransferFormat] {
        transfer::FORMS
    }

    fn import_formats(&self) -> &'static [TransferFormat] {
        transfer::FORMS
    }

    fn export(&self, source: &Source, _: &CopyTag) -> Result<Box<dyn ExportStream + '_>, Error> {
        Ok(Box::new(transfer::ExportSource::new(self, source.clone())))
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
impl Lister for DirectoryDriver {
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error> {
        let id = id.clone();
        self.run(call, "looking at a volume", move |directories, _| {
            directories.get_volume(&id)
        })
        .await
    }

    async fn list_volumes(&self, call: &Call, page: &PageRequest) -> Result<Page<Volume>, Error> {
        let page = page.clone();
        self.run(call, "listing volumes", move |directories, _| {
            directories.list_volumes(&page)
        })
        .await
    }
}

#[async_trait]
impl Expander for DirectoryDriver {
    fn node_expands(&self) -> bool {
        false
    }

    fn is_node_local(&self) -> bool {
        self.directories.topology.is_some()
    }

    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error> {
        let (id, size) = (request.id.clone(), request.size);
        self.run(call, "expanding a volume", move |directories, call| {
            directories.expand_volume(call, &id, size)
        })
        .await
    }
}

#[async_trait]
impl CapacityReporter for DirectoryDriver {
    async fn capacity(&self, call: &Call, query: &CapacityQuery) -> Result<Capacity, Error> {
        let query = query.clone();
        self.run(call, "measuring free space", move |directories, _| {
            directories.capacity(&query)
        })
        .await
    }
}

#[async_trait]
impl Health for DirectoryDriver {
    async fn conditions(
        &self,
        call: &Call,
        query: HealthQuery<'_>,
    ) -> Result<Vec<Option<Conditions>>, Error> {
        let ids = query.ids.to_vec();
        self.run(
            call,
            "looking at the health of volumes",
            move |directories, _| directories.conditions(&ids),
        )
        .await
    }

    async fn candidates(&self, call: &Call, page: &PageRequest) -> Result<Page<VolumeId>, Error> {
        let listed = self.list_volumes(call, page).await?;
        Ok(listed.map(|volume| volume.id))
    }
}

#[async_trait]
impl Snapshots for DirectoryDriver {
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let SnapshotDriver::Backup(tool) = self.snapshot_driver(&request.parameters)? else {
            let wanted = self.directories.wanted(request)?;
            let copied = self.copied_snapshot(call, wanted, Some(self.patience));
            return call.outcome(copied.await.map(|taken| taken.snapshot));
        };
        let request = request.clone();
        self.run(call, "taking a snapshot", move |directories, call| {
            directories.create_backup(call, &request, tool)
        })
        .await
    }

    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error> {
        let id = request.id.clone();
        self.run(call, "deleting a snapshot", move |directories, call| {
            directories.delete_any_snapshot(call, &id)
        })
        .await
    }

    async fn get_snapshot(&self, call: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error> {
        let id = request.id.clone();
        self.run(call, "looking at a snapshot", move |directories, call| {
            directories.get_any_snapshot(call, &id)
        })
        .await
    }

    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let (filter, page) = (filter.clone(), page.clone());
        self.run(call, "listing snapshots", move |directories, call| {
            directories.list_all_snapshots(call, &filter, &page)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use driver_core::Effect;
    use driver_core::config::NoEnvironment;

    use super::*;

    #[tokio::test]
    async fn the_work_of_a_call_says_no_less_than_the_call() {
        let text = "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: /nowhere\n  \
                    controllerBasePath: /nowhere\n";
        let document = Document::parse(text, &NoEnvironment).expect("document");
        let node = NodeId::parse("node-1").expect("node");
        let driver = from_document(&document, &node, None, None).expect("driver");
        for (changes, effect) in [(false, Effect::None), (true, Effect::Possible)] {
            let call = Call::within(Duration::from_mins(1));
            // As that of a step that is refused after one that was taken.
            let work = move |_: &Directories, call: &Call| -> Result<(), Error> {
                if changes {
                    call.changing();
                }
                Err(Error::new(Kind::OutOfSpace, "record the size"))
            };
            let error = driver.run(&call, "expanding a volume", work).await;
            let error = error.expect_err("there is no room");
            assert_eq!(
                (error.kind(), error.effect()),
                (Kind::OutOfSpace, effect),
                "{changes}"
            );
        }
    }
}
