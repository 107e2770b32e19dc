//! Each fault of the simulator's catalogue, at each call of each RPC that changes something: a retry converges to
//! what an undisturbed RPC makes, and in the end nothing is left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use driver_core::{
    CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver, Error, ExpandVolume, Kind, OrphanKind,
    PageRequest, Parameters, Secrets, SizeRange, SnapshotId, SnapshotName, Source,
};
use serde_json::json;
use tokio::task::JoinSet;
use truenas_sim::{Action, Generation, Rule, Simulator, exports};

use crate::costs::{call, request};
use crate::faults::everything;
use crate::nodes::{per_node, publish, unpublish};
use crate::others::snapshots_of;
use crate::taken_over::{rows, run};
use crate::volumes::{appliance, driver};

/// An RPC of the life of a volume and of what is made from it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rpc {
    Create,
    Publish,
    Unpublish,
    Expand,
    Snapshot,
    Restore,
    Clone,
    Detach,
    DeleteRestored,
    DeleteClone,
    DeleteSnapshot,
    DeleteDetached,
    Delete,
}

const LIFE: [Rpc; 13] = [
    Rpc::Create,
    Rpc::Publish,
    Rpc::Unpublish,
    Rpc::Expand,
    Rpc::Snapshot,
    Rpc::Restore,
    Rpc::Clone,
    Rpc::Detach,
    Rpc::DeleteRestored,
    Rpc::DeleteClone,
    Rpc::DeleteSnapshot,
    Rpc::DeleteDetached,
    Rpc::Delete,
];

/// A fault at a call.
#[derive(Debug, Clone)]
enum Fault {
    /// An action of the simulator itself.
    Rule(Action),
    /// The same at a job.
    Job(Action),
    /// The program is killed while the call runs.
    Kill,
    /// The middleware is restarted while the call runs.
    Restart,
    /// The connection is cut while the call runs, and nginx answers 502 for a while.
    Gateway,
    /// The NAS becomes this release while the call runs.
    Upgrade(Generation),
}

/// For how long nginx answers 502.
const A_WHILE: Duration = Duration::from_secs(3);

/// The methods with jobs.
const JOBS: [&str; 2] = ["filesystem.setperm", "replication.run_onetime"];

/// The beginnings or ends of the names of calls that change nothing.
const LOOKS: [&str; 9] = [
    ".query",
    ".config",
    ".stat",
    "core.",
    "system.",
    "auth.",
    ".sessions",
    ".get_nfs4_clients",
    ".status",
];

/// The faults of the catalogue that one call can meet. After the answer of a standby node a client waits for more than
/// a minute before it logs in again: too long for this many cases.
fn faults() -> Vec<Fault> {
    let fail = |errno, reason: &str| Action::Fail {
        errno,
        reason: reason.to_owned(),
    };
    let of_calls = [
        Action::CutBefore,
        Action::CutAfter,
        Action::NotAuthenticated,
        Action::ExpireSession,
        Action::TooManyCalls,
        Action::RateLimit,
        fail(13, "Not authorized"),
        fail(14, "internal error"),
        fail(16, "dataset is busy"),
        fail(28, "no space left on device"),
        fail(205, "the dataset is locked"),
        Action::FailAfter {
            errno: 14,
            reason: "failed to reload the service".to_owned(),
        },
    ];
    let of_jobs = [
        Action::JobFails {
            errno: 14,
            reason: "it failed".to_owned(),
        },
        Action::JobAborts,
        Action::JobResultLost,
        Action::JobEventTwice,
        Action::JobEventWithoutRunning,
        Action::JobEventsLost,
        Action::JobEvicted,
    ];
    let all = of_calls.into_iter().map(Fault::Rule);
    let all = all.chain(of_jobs.into_iter().map(Fault::Job));
    let more = [Fault::Kill, Fault::Restart, Fault::Gateway];
    all.chain(more).collect()
}

// === impl Fault ===

impl Fault {
    fn action(&self) -> Action {
        match self {
            Self::Rule(action) | Self::Job(action) => action.clone(),
            _ => Action::Hold,
        }
    }

    /// Whether it is tried at calls of this method. After a cut a client waits before it connects again, so that a
    /// cut is tried only where something changes.
    fn is_tried_at(&self, method: &str) -> bool {
        match self {
            Self::Job(_) => JOBS.contains(&method),
            Self::Rule(Action::CutBefore | Action::CutAfter)
            | Self::Restart
            | Self::Gateway
            | Self::Upgrade(_) => changes(method),
            Self::Kill | Self::Rule(_) => true,
        }
    }

    /// Whether the call is held while something happens to the NAS or the program.
    fn holds(&self) -> bool {
        !matches!(self, Self::Rule(_) | Self::Job(_))
    }

    fn strike(&self, nas: &Simulator) {
        match self {
            Self::Rule(_) | Self::Job(_) | Self::Kill => {}
            Self::Restart => nas.restart(),
            Self::Gateway => {
                nas.faults().set(|settings| settings.bad_gateway = true);
                nas.cut_connections();
            }
            Self::Upgrade(generation) => nas.upgrade(*generation),
        }
    }

    fn end(nas: &Simulator) {
        nas.faults().clear();
        nas.faults().set(|settings| {
            settings.bad_gateway = false;
        });
    }
}

/// Whether calls of this method change something.
fn changes(method: &str) -> bool {
    !LOOKS.iter().any(|look| method.contains(look))
}

// === impl Rpc ===

impl Rpc {
    async fn run(self, driver: Arc<dyn Driver>) -> Result<(), Error> {
        let driver = driver.as_ref();
        let id = |name: &str| request(driver, name, None).id;
        let snapshot = |id: &str| SnapshotId::parse(id).expect("an id");
        let volume = async |name: &str, source| {
            let asked = request(driver, name, source);
            driver.create_volume(&call(), &asked).await.map(drop)
        };
        let cut = async |name: &str, detached: &str| {
            let parameters = [("detachedSnapshots".to_owned(), detached.to_owned())];
            let asked = CreateSnapshot {
                name: SnapshotName::parse(name).expect("a name"),
                source: id("pvc-1"),
                parameters: Parameters::new(parameters.into()),
                secrets: Secrets::new(),
            };
            let snapshots = driver.snapshots().expect("snapshots");
            snapshots.create_snapshot(&call(), &asked).await.map(drop)
        };
        let uncut = async |id: &str| {
            let snapshots = driver.snapshots().expect("snapshots");
            snapshots
                .delete_snapshot(&call(), DeleteSnapshot::new(&snapshot(id)))
                .await
        };
        let has_nodes = driver.publisher().is_some();
        match self {
            Self::Create => volume("pvc-1", None).await,
            Self::Publish if has_nodes => publish(driver, &id("pvc-1"), "a").await,
            Self::Unpublish if has_nodes => unpublish(driver, &id("pvc-1"), Some("a")).await,
            Self::Publish | Self::Unpublish => Ok(()),
            Self::Expand => {
                let expander = driver.expander().expect("growth");
                let size = SizeRange::new(3 << 30, 0).expect("a size");
                let grown = expander
                    .expand_volume(&call(), ExpandVolume::new(&id("pvc-1"), size))
                    .await;
                grown.map(drop)
            }
            Self::Snapshot => cut("s-1", "false").await,
            Self::Restore => volume("pvc-2", Some(Source::Snapshot(snapshot("pvc-1@s-1")))).await,
            Self::Clone => volume("pvc-3", Some(Source::Volume(id("pvc-1")))).await,
            Self::Detach => cut("s-2", "true").await,
            Self::DeleteRestored => {
                driver
                    .delete_volume(&call(), DeleteVolume::new(&id("pvc-2")))
                    .await
            }
            Self::DeleteClone => {
                driver
                    .delete_volume(&call(), DeleteVolume::new(&id("pvc-3")))
                    .await
            }
            Self::DeleteSnapshot => uncut("pvc-1@s-1").await,
            Self::DeleteDetached => uncut("pvc-1/s-2").await,
            Self::Delete => {
                driver
                    .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
                    .await
            }
        }
    }
}

/// The number of rows that say the same.
type Shape = BTreeMap<String, usize>;

/// A call of an RPC: its method, and how many calls of that were before it.
type Point = (String, u32);

/// The result of an RPC without faults: its calls, and the rows that there are then.
struct Done {
    points: Vec<Point>,
    shape: Shape,
}

/// A NAS, and a kind of volumes on it.
struct World {
    nas: Simulator,
    kind: &'static str,
}

// === impl World ===

impl World {
    async fn new(generation: Generation, kind: &'static str) -> Self {
        let nas = appliance(generation).await;
        nas.faults().set(|settings| settings.idle_timeout = false);
        Self { nas, kind }
    }

    /// A process of its own, which is logged in.
    async fn driver(&self) -> Arc<dyn Driver> {
        // The NAS counts logins of a minute.
        self.nas.clock().advance(Duration::from_mins(2));
        let driver = match self.kind.rsplit('-').next() {
            Some("smb") => driver(
                &self.nas,
                self.kind,
                "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n",
            ),
            _ => per_node(&self.nas, self.kind),
        };
        let lister = driver.lister().expect("lists");
        let id = request(driver.as_ref(), "pvc-1", None).id;
        let _ = lister.get_volume(&call(), &id).await;
        driver
    }

    /// The rows on the NAS, without their numbers.
    async fn shape(&self) -> Shape {
        let mut shape = Shape::new();
        let mut add = |row: String| *shape.entry(row).or_default() += 1;
        for row in rows(&self.nas, "pool.dataset").await {
            let own = row["user_properties"].as_object().into_iter().flatten();
            let own: Vec<_> = own.map(|(key, _)| key.as_str()).collect();
            let sizes = ["refquota", "volsize"].map(|key| row[key]["parsed"].to_string());
            add(format!("{} {sizes:?} {own:?}", row["id"]));
        }
        let query = snapshots_of(self.nas.generation());
        for row in run(&self.nas, query, json!([]))
            .await
            .as_array()
            .expect("rows")
        {
            // A helper snapshot that a late call still used has another name.
            add(format!("snapshot of {}", row["dataset"]));
        }
        for service in exports::services(self.nas.generation()) {
            for row in rows(&self.nas, service).await {
                add(format!("{service} {}", json!(exports::said(&row))));
            }
        }
        shape
    }

    /// An RPC without faults.
    async fn run(&self, rpc: Rpc) {
        let done = rpc.run(self.driver().await).await;
        done.unwrap_or_else(|error| panic!("{}: {rpc:?}: {}", self.kind, error.chain()));
    }

    /// Removes the empty parents of detached snapshots that the NAS did not let be looked into: they stay, and are
    /// orphans.
    async fn tidy(&self) {
        let driver = self.driver().await;
        let maintenance = driver.maintenance().expect("it knows orphans");
        let later = SystemTime::now() + Duration::from_hours(24 * 365);
        let (call, all) = (call(), PageRequest::default());
        let found = maintenance.orphans(&call, later, &all).await;
        for orphan in found.expect("orphans").entries {
            assert_eq!(orphan.kind, OrphanKind::Container, "{orphan:?}");
            let gone = maintenance.remove_orphan(&call, later, &orphan).await;
            gone.unwrap_or_else(|error| panic!("{orphan:?}: {}", error.chain()));
        }
    }

    /// A life without faults.
    async fn undisturbed(&self) -> Vec<Done> {
        let mut all = Vec::new();
        for rpc in LIFE {
            let driver = self.driver().await;
            self.nas.reset_counts();
            let done = rpc.run(driver).await;
            done.unwrap_or_else(|error| panic!("{}: {rpc:?}: {}", self.kind, error.chain()));
            let methods = self.nas.counts().methods;
            let points = methods.into_iter().flat_map(|(method, cost)| {
                let calls = u32::try_from(cost.calls).expect("few calls");
                (0..calls).map(move |before| (method.clone(), before))
            });
            all.push(Done {
                points: points.collect(),
                shape: self.shape().await,
            });
        }
        all
    }

    /// An RPC with a fault at one of its calls; whether that happened.
    async fn disturbed(&self, rpc: Rpc, fault: &Fault, point: &Point) -> bool {
        let (kind, generation) = (self.kind, self.nas.generation());
        let what = format!("{kind} on {generation}: {rpc:?}: {fault:?} at {point:?}");
        let driver = self.driver().await;
        let (method, before) = point;
        let rule = Rule::new(method, fault.action());
        self.nas.faults().add(rule.skip(*before).times(1));
        let mut worker = tokio::spawn(rpc.run(Arc::clone(&driver)));
        let (struck, outcome) = if fault.holds() {
            while self.nas.faults().holding() == 0 && !worker.is_finished() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let struck = self.nas.faults().holding() > 0;
            if struck {
                fault.strike(&self.nas);
            }
            if struck && matches!(fault, Fault::Kill) {
                worker.abort();
                let _ = worker.await;
                self.nas.faults().release();
                (struck, None)
            } else {
                self.nas.faults().release();
                // What follows a job waits for the NAS as long as its caller lets it.
                let early = tokio::time::timeout(A_WHILE, &mut worker).await;
                let outcome = if let Ok(outcome) = early {
                    outcome
                } else {
                    Fault::end(&self.nas);
                    worker.await
                };
                (struck, Some(outcome.expect("no panic")))
            }
        } else {
            let outcome = worker.await.expect("no panic");
            let rules = self.nas.faults().rules();
            let struck = rules.iter().all(|rule| rule.times == Some(0));
            (struck, Some(outcome))
        };
        // The next try is that of another process: this one may have waited so long for the NAS that it tries again
        // only after a minute.
        drop(driver);
        Fault::end(&self.nas);
        let mut last = match outcome {
            Some(Ok(())) => return struck,
            Some(Err(error)) => is_temporary(&what, &error),
            None => String::new(),
        };
        assert!(struck, "{what}: it failed by itself: {last}");
        for _ in 0..4 {
            match rpc.run(self.driver().await).await {
                Ok(()) => return struck,
                Err(error) => last = is_temporary(&what, &error),
            }
        }
        panic!("{what}: does not converge: {last}");
    }
}

/// An orchestrator would forget the object after another one.
fn is_temporary(what: &str, error: &Error) -> String {
    let temporary = [
        Kind::Unreachable,
        Kind::Pending,
        Kind::Busy,
        Kind::Timeout,
        Kind::Denied,
        Kind::OutOfSpace,
        Kind::Internal,
    ];
    let text = format!("{:?}: {}", error.kind(), error.chain());
    assert!(temporary.contains(&error.kind()), "{what}: {text}");
    text
}

fn same(found: &Shape, expected: &Shape, what: &str) {
    let less = |a: &Shape, b: &Shape| {
        let mut rows = a.clone();
        rows.retain(|row, number| b.get(row) != Some(number));
        rows
    };
    let (more, missing) = (less(found, expected), less(expected, found));
    assert!(
        more.is_empty() && missing.is_empty(),
        "{what}: there is {more:#?} instead of {missing:#?}"
    );
}

/// A fault at each of its points of each RPC; each life has one in each of its RPCs.
async fn survives(generation: Generation, kind: &'static str, fault: Fault) {
    let world = World::new(generation, kind).await;
    // The first life makes the parents, too.
    world.undisturbed().await;
    let undisturbed = world.undisturbed().await;
    let before = everything(&world.nas, generation).await;
    let (mut due, mut struck) = (0_usize, 0_usize);
    for number in 0.. {
        let mut is_last = true;
        for (rpc, done) in LIFE.into_iter().zip(&undisturbed) {
            let points = done.points.iter();
            let mut points = points.filter(|(method, _)| fault.is_tried_at(method));
            let what = format!("{kind} on {generation}: {rpc:?}: {fault:?}, number {number}");
            if let Some(point) = points.nth(number) {
                is_last = false;
                due += 1;
                struck += usize::from(world.disturbed(rpc, &fault, point).await);
                if rpc == Rpc::DeleteDetached {
                    world.tidy().await;
                }
            } else {
                world.run(rpc).await;
            }
            same(&world.shape().await, &done.shape, &what);
        }
        assert_eq!(everything(&world.nas, generation).await, before);
        if is_last {
            break;
        }
    }
    // A fault may save a later call, which is then not there to be met.
    assert!(
        struck * 10 >= due * 9,
        "{kind}: {fault:?}: only {struck} of {due}"
    );
}

/// Waits for all, a few at a time: each has a NAS of its own, and waits more than it works.
async fn all_well(works: Vec<impl Future<Output = ()> + Send + 'static>) {
    let mut works = works.into_iter();
    let mut running = JoinSet::new();
    for work in works.by_ref().take(AT_ONCE) {
        running.spawn(work);
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no panic");
        if let Some(work) = works.next() {
            running.spawn(work);
        }
    }
}

/// The number of NAS at once.
const AT_ONCE: usize = 8;

macro_rules! matrix {
    ($($name:ident: $generation:ident $kind:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "takes minutes: a cell of `make test-all`"]
        async fn $name() {
            let of = |fault| survives(Generation::$generation, $kind, fault);
            all_well(faults().into_iter().map(of).collect()).await;
        }
    )*};
}

matrix! {
    nfs_survives_each_fault_at_each_call_on_24_10: V24_10 "freenas-api-nfs";
    smb_survives_each_fault_at_each_call_on_26: V26Rc "freenas-api-smb";
    iscsi_survives_each_fault_at_each_call_on_25_04: V25_04 "freenas-api-iscsi";
    nvmeof_survives_each_fault_at_each_call_on_25_10: V25_10 "freenas-api-nvmeof";
}

/// The NAS is upgraded in the middle of three RPCs in a row, from one of them on, at each call that changes something.
async fn is_upgraded(kind: &'static str, first: usize) {
    let releases = [Generation::V25_04, Generation::V25_10, Generation::V26Rc];
    for number in 0.. {
        let world = World::new(Generation::V24_10, kind).await;
        let before = world.shape().await;
        let points = world.undisturbed().await;
        let mut is_last = true;
        for (at, (rpc, done)) in LIFE.into_iter().zip(&points).enumerate() {
            let release = at.checked_sub(first).and_then(|later| releases.get(later));
            let points = done.points.iter();
            let mut points = points.filter(|(method, _)| changes(method));
            match (release, points.nth(number)) {
                (None, _) => world.run(rpc).await,
                (Some(release), Some(point)) => {
                    is_last = false;
                    let fault = Fault::Upgrade(*release);
                    world.disturbed(rpc, &fault, point).await;
                    // Names of methods differ, so that it may not have come to that call.
                    world.nas.upgrade(*release);
                }
                (Some(release), None) => {
                    world.nas.upgrade(*release);
                    world.run(rpc).await;
                }
            }
        }
        let mut after = world.shape().await;
        // The parents stay.
        after.retain(|row, _| row.contains("pvc") || !row.contains("tank/csi"));
        same(
            &after,
            &before,
            &format!("{kind}: from {first}, call {number}"),
        );
        if is_last {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: a cell of `make test-all`"]
async fn volumes_live_through_upgrades_in_the_middle_of_each_rpc() {
    let kinds = ["freenas-api-nfs", "freenas-api-smb", "freenas-api-iscsi"];
    let all = kinds.into_iter();
    let all = all.flat_map(|kind| (0..LIFE.len() - 2).map(move |first| is_upgraded(kind, first)));
    all_well(all.collect()).await;
}
