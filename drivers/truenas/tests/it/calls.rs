//! What the verbs ask of the NAS: so many calls each, and no question about one volume reads all snapshots.

use std::time::{Duration, Instant};

use driver_core::{
    CreateSnapshot, PageRequest, Parameters, Secrets, SizeRange, SnapshotFilter, SnapshotName,
    Source,
};
use serde_json::json;
use truenas_sim::{Generation, Simulator};

use crate::costs::{call, create, request, snapshot};
use crate::volumes::{appliance, driver};

/// Names as external-snapshotter gives them.
const SNAPSHOT: &str = "snapshot-0b1c2d3e-4f50-4a61-8b72-93a4b5c6d7e8";
const DETACHED: &str = "snapshot-1b1c2d3e-4f50-4a61-8b72-93a4b5c6d7e8";

const VERBS: [&str; 15] = [
    "create",
    "create again",
    "snapshot",
    "detached snapshot",
    "from snapshot",
    "from volume",
    "copy of snapshot",
    "grow",
    "list volumes",
    "list snapshots",
    "delete clone of snapshot",
    "delete clone of volume",
    "delete snapshot",
    "delete detached snapshot",
    "delete volume",
];

/// So many other snapshots there are, and so long the NAS reads each.
const OTHERS: usize = 500;
const EACH: Duration = Duration::from_millis(100);

/// Calls of each verb, and whether it was quicker than one walk over all snapshots.
struct Costs<'a> {
    nas: &'a Simulator,
    all: Vec<(u64, bool)>,
}

impl Costs<'_> {
    async fn of<T>(&mut self, work: impl Future<Output = Result<T, driver_core::Error>>) -> T {
        self.nas.reset_counts();
        let began = Instant::now();
        let done = work.await;
        let walk = EACH * u32::try_from(OTHERS).expect("a number");
        self.all
            .push((self.nas.counts().calls(), began.elapsed() < walk));
        done.unwrap_or_else(|error| panic!("{}: {}", VERBS[self.all.len() - 1], error.chain()))
    }
}

fn says(key: &str) -> Parameters {
    Parameters::new([(key.to_owned(), "true".to_owned())].into())
}

async fn life(generation: Generation, kind: &str) -> Vec<(u64, bool)> {
    let nas = appliance(generation).await;
    let zfs = if kind.ends_with("nfs") {
        "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n"
    } else {
        ""
    };
    let driver = driver(&nas, kind, zfs);
    let driver = driver.as_ref();
    let other = create(driver, "other").await;
    for number in 0..OTHERS {
        let taken = json!({"dataset": format!("tank/csi/v/{}", other.id), "name": format!("auto-{number}")});
        let method = if generation < Generation::V25_10 {
            "zfs.snapshot.create"
        } else {
            "pool.snapshot.create"
        };
        nas.call(method, vec![taken]).await.expect("taken");
    }
    let each = u64::try_from(EACH.as_micros()).expect("a number");
    nas.faults().set(|settings| settings.per_snapshot_us = each);
    let snapshots = driver.snapshots().expect("snapshots");
    let lister = driver.lister().expect("lists");
    let page = PageRequest::default();
    let mut costs = Costs {
        nas: &nas,
        all: Vec::new(),
    };
    let asked = request(driver, "a", None);
    costs.of(driver.create_volume(&call(), &asked)).await;
    let a = costs.of(driver.create_volume(&call(), &asked)).await;
    let taken = costs.of(async { Ok(snapshot(driver, &a, SNAPSHOT).await) });
    let taken = taken.await;
    let detached = CreateSnapshot {
        name: SnapshotName::parse(DETACHED).expect("a name"),
        source: a.id.clone(),
        parameters: says("detachedSnapshots"),
        secrets: Secrets::new(),
    };
    let detached = costs
        .of(snapshots.create_snapshot(&call(), &detached))
        .await;
    let of = |name: &str, source: Source| request(driver, name, Some(source));
    let restored = of("restored", Source::Snapshot(taken.id.clone()));
    costs.of(driver.create_volume(&call(), &restored)).await;
    let clone = of("clone", Source::Volume(a.id.clone()));
    costs.of(driver.create_volume(&call(), &clone)).await;
    let mut copy = of("copy", Source::Snapshot(taken.id.clone()));
    copy.parameters = says("detachedVolumesFromSnapshots");
    costs.of(driver.create_volume(&call(), &copy)).await;
    let expander = driver.expander().expect("growth");
    let size = SizeRange::new(4 << 30, 0).expect("a size");
    costs.of(expander.expand_volume(&call(), &a.id, size)).await;
    costs.of(lister.list_volumes(&call(), &page)).await;
    // It is about all of them.
    nas.faults().set(|settings| settings.per_snapshot_us = 0);
    let filter = SnapshotFilter::default();
    costs
        .of(snapshots.list_snapshots(&call(), &filter, &page))
        .await;
    nas.faults().set(|settings| settings.per_snapshot_us = each);
    costs.of(driver.delete_volume(&call(), &restored.id)).await;
    costs.of(driver.delete_volume(&call(), &clone.id)).await;
    costs
        .of(snapshots.delete_snapshot(&call(), &taken.id))
        .await;
    costs
        .of(snapshots.delete_snapshot(&call(), &detached.id))
        .await;
    costs.of(driver.delete_volume(&call(), &a.id)).await;
    costs.all
}

async fn within(generation: Generation, kind: &str, most: [u64; 15]) {
    let costs = life(generation, kind).await;
    let calls: Vec<u64> = costs.iter().map(|(calls, _)| *calls).collect();
    for ((verb, (calls_of_it, quick)), most) in VERBS.iter().zip(&costs).zip(most) {
        let what = format!("{kind} on {generation}: {verb}");
        assert!(*calls_of_it <= most, "{what}: {calls_of_it} of {calls:?}");
        assert!(*quick, "{what}: it reads all snapshots");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_costs_few_calls_and_no_walk_over_all_snapshots() {
    for (generation, most) in [
        (
            Generation::V24_10,
            [10, 3, 5, 24, 22, 24, 25, 4, 1, 6, 9, 14, 4, 12, 9],
        ),
        (
            Generation::V25_10,
            [11, 4, 10, 32, 20, 25, 25, 5, 1, 7, 9, 14, 4, 15, 9],
        ),
        (
            Generation::V26Rc,
            [10, 3, 5, 23, 21, 24, 25, 4, 1, 6, 9, 14, 4, 12, 9],
        ),
    ] {
        within(generation, "truenas-api-nfs", most).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_costs_few_calls_and_no_walk_over_all_snapshots() {
    for (kind, most) in [
        (
            "truenas-api-iscsi",
            [16, 7, 10, 36, 25, 30, 30, 8, 1, 7, 13, 20, 4, 15, 13],
        ),
        (
            "truenas-api-nvmeof",
            [15, 6, 10, 36, 23, 28, 28, 7, 1, 7, 11, 18, 4, 15, 11],
        ),
    ] {
        within(Generation::V25_10, kind, most).await;
    }
}
