//! The contract suite: tests the promises of every driver to the proxy on a real one.
//!
//! A driver's tests call [`keep_contract`] with a function that creates a driver on empty storage;
//! each part of the suite gets a new one and panics if a promise of [`Driver`]'s documentation is
//! broken. For verbs that are not advertised the suite proves that they do not exist.
//! [`fake::FakeDriver`] is a driver in memory, for tests of the layers above.

mod concurrency;
pub mod fake;
mod groups;
mod health;
mod modify;
mod paging;
mod publishing;
mod snapshots;
mod transfers;
mod verbs;
mod volumes;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_types::capability::{Access, AccessMode, MountAccess, VolumeCapability};

use crate::call::Call;
use crate::driver::Driver;
use crate::error::{Error, Kind};
use crate::parameters::Parameters;
use crate::request::{DeleteVolume, FindVolume};
use crate::size::SizeRange;
use crate::text::{SnapshotName, VolumeId, VolumeName};
use crate::topology::TopologyRequirement;
use crate::volume::{
    CreateSnapshot, CreateVolume, Found, Page, PageRequest, Secrets, Snapshot, SnapshotFilter,
    Source, Volume,
};

/// The requested size of the suite.
const SIZE: i64 = 64 << 20;
/// The time that each call of the suite has.
const TIME: Duration = Duration::from_mins(10);

/// A driver on empty storage, and a guard that keeps that storage alive.
pub struct Fresh {
    driver: Arc<dyn Driver>,
    callers: usize,
    cut: Option<Box<Cut>>,
    mutable: Option<Mutable>,
    grouping: &'static [(&'static str, &'static str)],
    holds: bool,
    _storage: Box<dyn Any + Send>,
}

/// The mutable parameters of a driver, for the suite.
#[derive(Debug, Clone, Copy)]
pub struct Mutable {
    /// Parameters, each with two values.
    pub good: &'static [(&'static str, [&'static str; 2])],
    /// A parameter with a value that it cannot have.
    pub bad: (&'static str, &'static str),
}

/// Disconnects the storage after that many more parts of its work, or reconnects it.
type Cut = dyn Fn(Option<usize>) + Send + Sync;

/// Runs the whole suite. `make` gives a driver on empty storage each time.
pub async fn keep_contract<F, R>(make: F)
where
    F: Fn() -> R,
    R: Future<Output = Fresh>,
{
    if !make().await.driver.capabilities().volumes {
        verbs::a_driver_without_volumes_has_no_verb(&make().await).await;
        return;
    }
    verbs::advertised_verbs_are_those_that_are_there(&make().await).await;
    verbs::identity_and_names_stay_the_same(&make().await);
    verbs::foreign_ids_reach_nothing(&make().await).await;
    volumes::creating_is_idempotent_and_conflicts_are_reported(&make().await).await;
    volumes::deleting_is_idempotent(&make().await).await;
    volumes::a_call_without_time_leaves_what_a_retry_completes(&make().await).await;
    volumes::a_partial_creation_is_never_reported_as_absent(&make().await).await;
    volumes::volumes_grow_and_never_shrink(&make().await).await;
    volumes::clones_stand_on_their_own(&make().await).await;
    snapshots::snapshots_are_idempotent_and_whole(&make().await).await;
    snapshots::snapshots_outlive_their_volume_or_keep_it(&make().await).await;
    snapshots::snapshots_become_volumes(&make().await).await;
    snapshots::content_may_be_used_in_the_other_way(&make().await).await;
    modify::volumes_are_changed_as_asked_or_not_at_all(&make().await).await;
    modify::parameters_count_at_creation(&make().await).await;
    modify::changes_at_once_end_with_one_of_them(&make().await).await;
    modify::a_change_that_is_cut_is_completed_by_a_retry(&make().await).await;
    publishing::lists_show_the_nodes_that_volumes_are_published_to(&make().await).await;
    publishing::a_publish_that_is_cut_converges(&make().await).await;
    publishing::a_volume_of_one_node_is_held_by_it_or_by_none(&make().await).await;
    groups::groups_are_cut_whole_once_and_go_whole(&make().await).await;
    groups::a_class_that_asks_for_more_than_there_is_is_refused(&make().await).await;
    health::what_exists_and_works_is_healthy_and_what_is_missing_is_not(&make().await).await;
    groups::ranges_are_sorted_and_end_within_the_snapshot(&make().await).await;
    transfers::advertised_forms_are_those_that_are_there(&make().await).await;
    transfers::what_flows_in_is_a_volume_that_stands_on_its_own(&make().await).await;
    transfers::a_flow_that_is_cut_leaves_nothing_that_is_ready(&make().await).await;
    transfers::what_is_given_up_is_deleted(&make().await).await;
    concurrency::equal_calls_at_once_make_one_volume(&make().await).await;
    concurrency::different_calls_at_once_do_not_disturb_each_other(&make().await).await;
    concurrency::creating_against_deleting_converges(&make().await).await;
    paging::pages_of_volumes_neither_lose_nor_repeat(&make().await).await;
    paging::pages_of_snapshots_neither_lose_nor_repeat(&make().await).await;
}

// === impl Fresh ===

impl Fresh {
    /// `storage` lives as long as the driver is used: a temporary directory, a server.
    pub fn new(driver: Arc<dyn Driver>, storage: impl Any + Send) -> Self {
        Self {
            driver,
            callers: concurrency::CALLERS,
            cut: None,
            mutable: None,
            grouping: &[],
            holds: false,
            _storage: Box::new(storage),
        }
    }

    /// The number of calls that run at once, for storage on which each of them takes long.
    #[must_use]
    pub fn with_callers(mut self, callers: usize) -> Self {
        self.callers = callers.max(2);
        self
    }

    /// With storage that `cut` disconnects after that many more parts of its work: what was done
    /// stays, but the driver gets no answer. `None` reconnects it.
    #[must_use]
    pub fn cutting(mut self, cut: impl Fn(Option<usize>) + Send + Sync + 'static) -> Self {
        self.cut = Some(Box::new(cut));
        self
    }

    /// With parameters that can be changed: needed where the driver has any.
    #[must_use]
    pub fn changing(mut self, mutable: Mutable) -> Self {
        self.mutable = Some(mutable);
        self
    }

    /// With parameters without which the driver takes no groups of snapshots.
    #[must_use]
    pub fn grouping(mut self, parameters: &'static [(&'static str, &'static str)]) -> Self {
        self.grouping = parameters;
        self
    }

    /// Says whether only nodes that were let in reach a volume, so that one of one node is held by it.
    #[must_use]
    pub fn holding(mut self, holds: bool) -> Self {
        self.holds = holds;
        self
    }

    fn name(text: &str) -> VolumeName {
        VolumeName::parse(text).expect("a name of the suite")
    }

    fn id(&self, name: &str) -> VolumeId {
        self.driver
            .name_volume(&Self::name(name), &Parameters::default())
            .unwrap_or_else(|error| panic!("name_volume({name}): {}", error.chain()))
    }

    /// A capability that volumes of this driver support.
    fn capability(&self) -> VolumeCapability {
        self.capability_in(|mode| mode != AccessMode::Unknown)
            .expect("a driver offers some access mode")
    }

    /// A capability with such an access mode, if volumes of this driver support any.
    fn capability_in(&self, is_wanted: impl Fn(AccessMode) -> bool) -> Option<VolumeCapability> {
        let rules = self.driver.access_rules();
        let (access, modes) = if rules.mount {
            (Access::Mount(MountAccess::default()), rules.mount_modes)
        } else {
            (Access::Block, rules.block_modes)
        };
        let mode = modes.into_iter().find(|mode| is_wanted(*mode))?;
        Some(VolumeCapability { access, mode })
    }

    fn request(&self, name: &str, source: Option<Source>) -> CreateVolume {
        CreateVolume {
            name: Self::name(name),
            id: self.id(name),
            size: SizeRange::new(SIZE, 0).expect("a size"),
            capabilities: vec![self.capability()],
            parameters: Parameters::default(),
            secrets: Secrets::new(),
            source,
            topology: TopologyRequirement::default(),
        }
    }

    async fn try_create(&self, name: &str, source: Option<Source>) -> Result<Volume, Error> {
        let request = self.request(name, source);
        self.driver.create_volume(&call(), &request).await
    }

    async fn create(&self, name: &str) -> Volume {
        expect(&format!("create {name}"), self.try_create(name, None).await)
    }

    async fn delete(&self, id: &VolumeId) {
        expect(
            &format!("delete {id}"),
            self.driver
                .delete_volume(&call(), DeleteVolume::new(id))
                .await,
        );
    }

    async fn exists(&self, id: &VolumeId) -> bool {
        match self.driver.find_volume(&call(), FindVolume::new(id)).await {
            Ok(found) => found == Found::Whole,
            Err(error) if error.kind() == Kind::NotFound => false,
            Err(error) => panic!("find {id}: {}", error.chain()),
        }
    }

    /// Whether its creation was started and is not complete.
    async fn is_partial(&self, id: &VolumeId) -> bool {
        matches!(
            self.driver.find_volume(&call(), FindVolume::new(id)).await,
            Ok(Found::Begun)
        )
    }

    async fn try_snapshot(&self, source: &VolumeId, name: &str) -> Result<Snapshot, Error> {
        let request = CreateSnapshot {
            name: SnapshotName::parse(name).expect("a name of the suite"),
            source: source.clone(),
            parameters: Parameters::default(),
            secrets: Secrets::new(),
        };
        self.driver.create_snapshot(&call(), &request).await
    }

    async fn snapshot(&self, source: &VolumeId, name: &str) -> Snapshot {
        expect(
            &format!("snapshot {name} of {source}"),
            self.try_snapshot(source, name).await,
        )
    }

    async fn volumes(&self, page: &PageRequest) -> Page<Volume> {
        expect("list", self.driver.list_volumes(&call(), page).await)
    }

    async fn snapshots(&self, source: Option<&VolumeId>, page: &PageRequest) -> Page<Snapshot> {
        let filter = SnapshotFilter {
            source: source.cloned(),
            secrets: Secrets::new(),
        };
        let listed = self.driver.list_snapshots(&call(), &filter, page).await;
        expect("list snapshots", listed)
    }
}

impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh")
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}

fn call() -> Call {
    Call::within(TIME)
}

fn expect<T>(doing: &str, outcome: Result<T, Error>) -> T {
    outcome.unwrap_or_else(|error| panic!("{doing}: {:?}: {}", error.kind(), error.chain()))
}

fn expect_kind<T: fmt::Debug>(doing: &str, outcome: Result<T, Error>, kinds: &[Kind]) {
    match outcome {
        Err(error) if kinds.contains(&error.kind()) => {}
        Err(error) => panic!(
            "{doing}: expected {kinds:?}, got {:?}: {}",
            error.kind(),
            error.chain()
        ),
        Ok(value) => panic!("{doing}: expected {kinds:?}, got {value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::fake::FakeDriver;
    use super::*;
    use crate::driver::Capabilities;

    async fn keep(driver: impl Fn() -> FakeDriver) {
        let mutable = Mutable {
            good: &[("speed", ["fast", "slow"])],
            bad: ("speed", ""),
        };
        keep_contract(|| async { Fresh::new(Arc::new(driver()), ()).changing(mutable) }).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn the_fake_driver_keeps_the_contract() {
        keep(FakeDriver::new).await;
    }

    #[tokio::test]
    async fn the_fake_driver_keeps_the_contract_with_the_fewest_verbs() {
        let few = Capabilities {
            volumes: true,
            health: true,
            ..Capabilities::NONE
        };
        keep(|| FakeDriver::new().with_capabilities(few)).await;
    }
}
