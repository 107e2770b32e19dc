//! The verbs of a node: stage, publish, their opposites, statistics and growth.
//!
//! A verb is a sequence of steps on threads that may block, and of tools. It reads all state from the
//! kernel: a killed process leaves a prefix of the steps, and the retry completes it. The
//! [`Attachment`] decides about the steps of a volume; a directory of the node is one step.

mod backing;
mod devices;
mod exclusive;
mod expand;
mod filesystems;
mod group;
pub mod health;
mod hostpath;
mod kata;
mod mount_target;
mod overdue;
mod ownership;
pub mod pods;
mod publish;
mod raw;
mod record;
mod release;
mod request;
mod share;
mod stage;
mod staged;
mod stats;
mod storages;
#[cfg(test)]
mod tests;
mod trim;
mod unresponsive;
mod unstage;

pub use ownership::OrchestratorDirs;
pub use request::{
    ExpandRequest, NodeConfig, PublishRequest, StageRequest, StagingPath, TargetPath, Usage,
    VolumeStats,
};
pub use staged::StagedHealth;
pub(crate) use unresponsive::take_away;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::blocking::{self, Doing, Limits, NodeAccount, NodeThreads, Purpose, Source};
use crate::kernel::Kernel;
use crate::mount::{MountError, MountTable, Place, as_listed};
use crate::tools::Tools;
use csi_types::attachment::{AbsolutePath, Attachment};
use csi_types::capability::{Access, MountAccess, VolumeCapability};
use csi_types::error::{Error, Kind};
use csi_types::health::{Condition, ConditionKind, Conditions};
use csi_types::said;
use devices::Devices;
use overdue::OverdueReads;

/// The time of a whole look at the health of a volume. The kubelet asks for one volume after the other, and would wait two
/// minutes for each.
pub const PROBE: Duration = Duration::from_secs(1);

/// The most mounts of a server that are looked at, as long as none answers without an error: those of a server that has lost
/// its exports are many.
const MOUNTS_OF_A_SERVER: usize = 8;

/// The node half of every kind of volume. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    context: Arc<Context>,
    overdue: Arc<OverdueReads>,
}

/// The context of every verb.
#[derive(Debug)]
struct Context {
    config: NodeConfig,
    tools: Tools,
    kernel: Kernel,
    devices: Arc<dyn Devices>,
    threads: Arc<NodeThreads>,
    dirs: OrchestratorDirs,
    guests: kata::Folders,
    #[cfg(test)]
    stops: tests::Stops,
}

// === impl Node ===

impl Node {
    /// A node with the operator's configuration, its programs and its kernel.
    pub fn new(config: NodeConfig, tools: Tools, kernel: Kernel) -> Self {
        let devices = devices::Attachers::new(tools.clone(), kernel.clone());
        Self::with(config, tools, kernel, Box::new(devices))
    }

    /// A node on this machine, whose programs run without a container.
    pub fn here(config: NodeConfig) -> Self {
        let tools = Tools::all_through(Arc::new(exec::Local::new()));
        Self::new(config, tools, Kernel::here())
    }

    fn with(config: NodeConfig, tools: Tools, kernel: Kernel, devices: Box<dyn Devices>) -> Self {
        let context = Context {
            config,
            tools,
            guests: kata::Folders::of(&kernel),
            kernel,
            devices: devices.into(),
            threads: Arc::default(),
            dirs: OrchestratorDirs::default(),
            #[cfg(test)]
            stops: tests::Stops::default(),
        };
        Self {
            context: Arc::new(context),
            overdue: Arc::default(),
        }
    }

    /// The same node with another configuration. Both share the threads and the list of overdue reads.
    #[must_use]
    pub fn with_config(&self, config: NodeConfig) -> Self {
        let context = &*self.context;
        let context = Context {
            config,
            tools: context.tools.clone(),
            kernel: context.kernel.clone(),
            devices: Arc::clone(&context.devices),
            threads: Arc::clone(&context.threads),
            dirs: context.dirs.clone(),
            guests: context.guests.clone(),
            #[cfg(test)]
            stops: tests::Stops::default(),
        };
        Self {
            context: Arc::new(context),
            overdue: Arc::clone(&self.overdue),
        }
    }

    /// The same node for an orchestrator that asks for volumes in these folders.
    #[must_use]
    pub fn with_dirs(&self, dirs: OrchestratorDirs) -> Self {
        let mut node = self.with_config(self.config().clone());
        // It was made above, so it has one owner.
        if let Some(context) = Arc::get_mut(&mut node.context) {
            context.dirs = dirs;
        }
        node
    }

    /// The decisions of the operator about all volumes of this node.
    pub fn config(&self) -> &NodeConfig {
        &self.context.config
    }

    /// Makes a volume ready. Idempotent.
    ///
    /// `NotFound`: it does not exist on this node. `Conflict`: another volume is staged there.
    /// `Timeout`: what is mounted there does not answer.
    pub async fn stage(&self, limits: Limits, request: StageRequest) -> Result<(), Error> {
        let path = request.staging.path();
        let source = self
            .source(&limits, Some(&request.attachment), path)
            .await?;
        let work = async move {
            if kata::is_wanted(&self.context, &request.capability) {
                kata::check(&request.attachment, &request.capability)?;
            }
            if !matches!(request.attachment, Attachment::Hostpath(_)) {
                self.answers(&limits, request.staging.path()).await?;
            }
            stage::stage(&self.context, &self.overdue, limits, request).await
        };
        self.account(source, Purpose::Change).on_account(work).await
    }

    /// Undoes [`Node::stage`]. Idempotent. A path outside of the orchestrator's folders at which nothing is
    /// mounted and that this driver never marked stays as it is.
    ///
    /// `Busy`: something is mounted there that this driver did not mount, outside of those folders.
    pub async fn unstage(&self, limits: Limits, staging: StagingPath) -> Result<(), Error> {
        let source = self.source(&limits, None, staging.path()).await?;
        let work = async move {
            let has_stage = self
                .check_ownership(&limits, staging.path(), ownership::has_stage)
                .await?;
            if !has_stage {
                return Ok(());
            }
            unstage::unstage(&self.context, limits, staging).await
        };
        self.account(source, Purpose::Change).on_account(work).await
    }

    /// Shows a staged volume at a target. Idempotent.
    ///
    /// `Conflict`: something else is at the target, or the same volume with other arguments.
    /// `Precondition`: not staged, or published elsewhere in an exclusive mode. The caller keeps
    /// two publications of one volume apart: between the check and the mount nothing is locked here.
    pub async fn publish(&self, limits: Limits, request: PublishRequest) -> Result<(), Error> {
        let path = request.staging.path();
        let source = self
            .source(&limits, Some(&request.attachment), path)
            .await?;
        let work = async move {
            if !matches!(request.attachment, Attachment::Hostpath(_)) {
                self.answers(&limits, request.staging.path()).await?;
            }
            let target = request.target.path();
            if kata::is_wanted(&self.context, &request.capability)
                || kata::find(&self.context, &limits, target).await?.is_some()
            {
                return kata::publish(&self.context, limits, request).await;
            }
            let mounted = kata::return_to_node(&self.context, &limits, &request).await?;
            let doing = Doing::changing(format!("publish at `{}`", request.target));
            let context = Arc::clone(&self.context);
            let published =
                blocking::run(limits, doing, move || publish::publish(&context, &request)).await;
            published.map_err(|error| error.after_change(mounted))
        };
        self.account(source, Purpose::Change).on_account(work).await
    }

    /// Undoes [`Node::publish`] and deletes the target. Idempotent.
    ///
    /// `Busy`: something is there that this driver did not mount, outside of the orchestrator's folders.
    pub async fn unpublish(&self, limits: Limits, target: TargetPath) -> Result<(), Error> {
        let source = self.source(&limits, None, target.path()).await?;
        let work = async move {
            self.check_ownership(&limits, target.path(), ownership::check)
                .await?;
            let doing = format!("unpublish `{target}`");
            let path = target.path().clone();
            let context = Arc::clone(&self.context);
            let work = move || {
                let withdrawn = kata::withdraw(&context, &path)?;
                let released = release::release_target(&context, &path);
                released.map_err(|error| error.after_change(withdrawn))
            };
            let unmount_timeout = self.context.unmount_timeout();
            unresponsive::unmount_or_force(&limits, &doing, target.path(), unmount_timeout, work)
                .await
        };
        self.account(source, Purpose::Change).on_account(work).await
    }

    /// Space, files and health of the volume that is mounted at `path`. `NotFound`: none is.
    /// `Timeout`, at once: an earlier read of this path is overdue. `Unreachable`: it is mounted in a guest that does
    /// not answer.
    pub async fn stats(&self, limits: Limits, path: AbsolutePath) -> Result<VolumeStats, Error> {
        if let Some(handed) = kata::find(&self.context, &limits, &path).await? {
            return kata::stats(&self.context, limits, path, handed).await;
        }
        self.stats_here(limits, path).await
    }

    /// The same, but what does not answer within [`PROBE`] has a condition that says so, and no numbers. A guest is given
    /// more time, and is an error then.
    pub async fn stats_soon(
        &self,
        limits: Limits,
        path: AbsolutePath,
    ) -> Result<VolumeStats, Error> {
        let soon = limits.no_later_than(Instant::now() + PROBE);
        if let Some(handed) = kata::find(&self.context, &soon, &path).await? {
            return kata::stats(&self.context, limits, path, handed).await;
        }
        self.stats_or_silence(soon, path).await
    }

    /// The statistics of what is mounted on this node, or the condition that it does not answer in time.
    async fn stats_or_silence(
        &self,
        soon: Limits,
        path: AbsolutePath,
    ) -> Result<VolumeStats, Error> {
        match self.stats_here(soon, path.clone()).await {
            Err(error) if is_silence(&error) => Ok(stats::without_numbers(health::inaccessible(
                health::NO_ANSWER,
                said::no_answer(&path, PROBE),
            ))),
            found => found,
        }
    }

    /// The statistics of what is mounted on this node.
    async fn stats_here(&self, limits: Limits, path: AbsolutePath) -> Result<VolumeStats, Error> {
        let doing = format!("read statistics of `{path}`");
        let (look, context) = (path.clone(), Arc::clone(&self.context));
        let look = move || stats::stats(&context.kernel, &look);
        let source = self.source(&limits, None, &path).await?;
        let work = self.overdue.read(limits, doing, &path, look);
        self.account(source, Purpose::Look).on_account(work).await
    }

    /// The conditions of the ways to the device of the volume at `path`, within [`PROBE`]: sessions, connections, paths.
    /// Nothing that is mounted is touched.
    pub async fn device_conditions(
        &self,
        limits: Limits,
        path: AbsolutePath,
    ) -> Result<Conditions, Error> {
        let limits = limits.no_later_than(Instant::now() + PROBE);
        let doing = Doing::reading(format!("look at the device of `{path}`"));
        let context = Arc::clone(&self.context);
        let look = move || match kata::conditions(&context, &path)? {
            Some(conditions) => Ok(conditions),
            None => health::of_device_at(&context.kernel, &path),
        };
        let looked = blocking::run(limits, doing, look);
        self.account(None, Purpose::Look).on_account(looked).await
    }

    /// The conditions of the volume at these paths, as this node sees it, within [`PROBE`] whatever hangs: what is
    /// mounted there, and its device. Nothing is known of a volume without a path.
    pub async fn conditions(
        &self,
        limits: Limits,
        paths: &[AbsolutePath],
    ) -> Result<Conditions, Error> {
        let limits = limits.no_later_than(Instant::now() + PROBE);
        let mut found = Conditions::default();
        for path in paths {
            if !found.is_healthy() && limits.deadline() <= Instant::now() {
                break;
            }
            found.extend(self.device_conditions(limits.clone(), path.clone()).await?);
            // What a guest has mounted only its runtime knows, and that may know no numbers.
            if kata::find(&self.context, &limits, path).await?.is_some() {
                continue;
            }
            match self.stats_or_silence(limits.clone(), path.clone()).await {
                Ok(stats) => found.extend(stats.conditions),
                Err(error) if error.kind() == Kind::NotFound => {
                    let text = said::not_mounted(path);
                    found.add(health::inaccessible(health::NOT_MOUNTED, text));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The conditions of the storages of the volumes that the kubelet has staged here for the driver of this name, within
    /// [`PROBE`] whatever hangs. Of each server one mount that answers is enough. Several of one kind and reason are one
    /// condition that counts them. What cannot be looked at is passed over, unless nothing can.
    pub async fn storage_conditions(
        &self,
        limits: Limits,
        driver: &str,
    ) -> Result<Conditions, Error> {
        let limits = limits.no_later_than(Instant::now() + PROBE);
        let doing = Doing::reading("look at the storages of this node".to_owned());
        let (context, driver) = (Arc::clone(&self.context), driver.to_owned());
        let look = move || storages::look(&context.kernel, &driver);
        let looked = blocking::run(limits.clone(), doing, look);
        let mut looked = self.account(None, Purpose::Look).on_account(looked).await?;
        let servers = std::mem::take(&mut looked.servers);
        let all = servers.iter();
        let answers = all.map(|(server, paths)| self.server(limits.clone(), server, paths));
        let answers = join_all(answers).await;
        for (server, answer) in servers.keys().zip(answers) {
            looked.add(server, answer.map(|found| found.into_iter().collect()));
        }
        looked.conditions()
    }

    /// The condition of a server by what is mounted of it at these paths. Where one answers with an error, which may be so
    /// of that volume alone, the next is asked.
    async fn server(
        &self,
        limits: Limits,
        server: &str,
        paths: &[AbsolutePath],
    ) -> Result<Option<Condition>, Error> {
        let (mut dead, mut failed) = (None, None);
        for path in paths.iter().take(MOUNTS_OF_A_SERVER) {
            match self.stats(limits.clone(), path.clone()).await {
                Ok(stats) => {
                    let mut conditions = stats.conditions.into_iter();
                    dead = conditions.find(|condition| condition.reason() == health::NO_ANSWER);
                    if dead.is_none() {
                        return Ok(None);
                    }
                }
                // It was unmounted in between.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) if is_silence(&error) => {
                    let text = said::no_answer(server, PROBE);
                    return Ok(Some(health::inaccessible(health::NO_ANSWER, text)));
                }
                Err(error) => failed = Some(error),
            }
        }
        match (dead, failed) {
            (Some(dead), _) => {
                let text = format!("no volume of `{server}` works: {}", dead.message());
                let condition = Condition::new(ConditionKind::Degraded, health::NO_ANSWER, text);
                Ok(Some(condition))
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// Grows the volume on the node, after its storage grew. Returns its size if something limits it.
    /// `NotFound`: nothing is mounted at that path.
    pub async fn expand(
        &self,
        limits: Limits,
        request: ExpandRequest,
    ) -> Result<Option<u64>, Error> {
        if let Some(handed) = kata::find(&self.context, &limits, &request.path).await? {
            let work = kata::expand(&self.context, limits, request, handed);
            return self.account(None, Purpose::Change).on_account(work).await;
        }
        let source = self.source(&limits, None, &request.path).await?;
        let work = expand::expand(&self.context, &self.overdue, limits, request);
        self.account(source, Purpose::Change).on_account(work).await
    }

    /// Gives the unused blocks of the filesystem of the volume at `path` back to its storage. Returns how many bytes;
    /// `None` for a raw device, which stays as it is. Idempotent. `NotFound`: nothing is mounted there. `Unsupported`: it
    /// has no device of its own, or cannot trim. `Timeout`: a part was trimmed.
    pub async fn trim(&self, limits: Limits, path: AbsolutePath) -> Result<Option<u64>, Error> {
        let source = self.source(&limits, None, &path).await?;
        let work = trim::trim(&self.context, &self.overdue, limits, path);
        self.account(source, Purpose::Change).on_account(work).await
    }

    fn account(&self, source: Option<Source>, purpose: Purpose) -> NodeAccount {
        self.context.threads.account(source, purpose)
    }

    /// What a call waits for: the server or device of the volume, or of what is mounted at `path`; `None` if that is on
    /// a filesystem of this node.
    async fn source(
        &self,
        limits: &Limits,
        volume: Option<&Attachment>,
        path: &AbsolutePath,
    ) -> Result<Option<Source>, Error> {
        if let Some(source) = volume.and_then(Source::of_volume) {
            return Ok(Some(source));
        }
        let doing = Doing::reading(format!("find what is mounted at `{path}`"));
        let (limits, path) = (Limits::until(limits.deadline()), path.clone());
        let directory = volume.and_then(|attachment| match attachment {
            Attachment::Hostpath(volume) => Some(volume.path.clone()),
            _ => None,
        });
        let look = move || {
            // Whatever is wrong with the table, the call itself says.
            let Ok(table) = MountTable::read() else {
                return Ok(None);
            };
            let below =
                directory.and_then(|directory| Source::of_directory(&table, directory.as_path()));
            Ok(below.or_else(|| source_at(&table, &as_listed(path.as_path()))))
        };
        let found = blocking::run(limits, doing, look);
        self.account(None, Purpose::Look).on_account(found).await
    }

    async fn check_ownership<T: Send + 'static>(
        &self,
        limits: &Limits,
        path: &AbsolutePath,
        check: fn(&Context, &AbsolutePath) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let doing = Doing::reading(format!("find out who uses `{path}`"));
        let (context, path) = (Arc::clone(&self.context), path.clone());
        blocking::run(limits.clone(), doing, move || check(&context, &path)).await
    }

    /// Checks that the filesystem at a staging path answers, for as long as an unmount may take. The
    /// long deadline of a stage is for making filesystems, not for a server that does not answer. A
    /// check that hangs holds no lock and mounts nothing.
    async fn answers(&self, limits: &Limits, staging: &AbsolutePath) -> Result<(), Error> {
        let limits = limits.no_later_than(Instant::now() + self.context.unmount_timeout());
        let (path, doing) = (staging.clone(), format!("look at `{staging}`"));
        let look = move || {
            // What is there is judged by the verb. Its numbers, too: to open a share again the
            // kernel may remember enough, and the verb would be the first to ask the server.
            drop(Place::open(path.as_path()).and_then(rustix::fs::fstatvfs));
            Ok(())
        };
        let reading = self.overdue.read(limits, doing, staging, look);
        blocking::meant_for(Purpose::Look, reading).await
    }
}

/// Whether what is mounted does not answer now, or did not before.
fn is_silence(error: &Error) -> bool {
    error.kind() == Kind::Timeout || blocking::is_for_threads_that_hang(error)
}

/// The place where what is mounted at a path comes from, unless it is on the filesystem below it, as a directory of
/// this node is.
fn source_at(table: &MountTable, path: &Path) -> Option<Source> {
    let top = table.layers(path).last()?;
    let below = table.by_id(top.parent);
    let is_local = below.is_some_and(|below| below.device == top.device);
    (!is_local).then(|| Source::of_mount(&top))
}

// === impl Context ===

impl Context {
    /// The time that an unmount may take before its server counts as silent.
    fn unmount_timeout(&self) -> Duration {
        self.tools.timeouts().mount
    }

    /// Marks that something was changed outside this process: a test may end the process here.
    #[inline]
    fn changed(&self, what: &'static str) {
        #[cfg(test)]
        self.stops.pass(what);
        #[cfg(not(test))]
        let _ = (self, what);
    }
}

/// The mount settings of the request. Fails for a raw device: a directory cannot be one.
fn mount_access<'a>(
    capability: &'a VolumeCapability,
    attachment: &Attachment,
) -> Result<&'a MountAccess, Error> {
    match &capability.access {
        Access::Mount(mount) => Ok(mount),
        Access::Block => Err(no_device(attachment)),
    }
}

/// The error of a request for a raw device of a volume without a device.
fn no_device(attachment: &Attachment) -> Error {
    let doing = format!(
        "use a volume of the kind `{}` as a raw device",
        attachment.kind()
    );
    Error::new(Kind::Invalid, doing)
        .advise("ask for a mounted volume, or for storage that has devices")
}

/// A failed mount or unmount.
fn mount_failed(doing: String, error: MountError) -> Error {
    let (kind, advice) = if error.is_busy() {
        (
            Kind::Busy,
            "a process still uses it: an open file, or a working directory",
        )
    } else if error.is_denied() {
        (Kind::Internal, "mounting needs the capability SYS_ADMIN")
    } else {
        return Error::new(Kind::Internal, doing).because(error);
    };
    Error::new(kind, doing).because(error).advise(advice)
}
