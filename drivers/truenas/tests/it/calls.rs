//! The calls of verbs to the NAS: so many each, and no question about one volume reads all snapshots.

use std::time::{Duration, Instant};

use driver_core::{
    CreateSnapshot, DeleteSnapshot, DeleteVolume, ExpandVolume, PageRequest, Parameters, Secrets,
    SizeRange, SnapshotFilter, SnapshotName, Source,
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
    // Connecting, and listening to jobs, is once for all.
    let warm = CreateSnapshot {
        name: SnapshotName::parse("warm").expect("a name"),
        source: other.id.clone(),
        parameters: says("detachedSnapshots"),
        secrets: Secrets::new(),
    };
    let snapshots = driver.snapshots().expect("snapshots");
    let warm = snapshots.create_snapshot(&call(), &warm).await;
    warm.unwrap_or_else(|error| panic!("warm: {}", error.chain()));
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
    let lister = driver.lister().expect("lists");
    let (page, filter) = (PageRequest::default(), SnapshotFilter::default());
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
    let growth = ExpandVolume::new(&a.id, size);
    costs.of(expander.expand_volume(&call(), growth)).await;
    costs.of(lister.list_volumes(&call(), &page)).await;
    // It is about all of them.
    nas.faults().set(|settings| settings.per_snapshot_us = 0);
    costs
        .of(snapshots.list_snapshots(&call(), &filter, &page))
        .await;
    nas.faults().set(|settings| settings.per_snapshot_us = each);
    for id in [&restored.id, &clone.id] {
        let gone = DeleteVolume::new(id);
        costs.of(driver.delete_volume(&call(), gone)).await;
    }
    for id in [&taken.id, &detached.id] {
        let gone = DeleteSnapshot::new(id);
        costs.of(snapshots.delete_snapshot(&call(), gone)).await;
    }
    let gone = DeleteVolume::new(&a.id);
    costs.of(driver.delete_volume(&call(), gone)).await;
    costs.all
}

/// The number of calls that democratic-csi makes for the same on 25.10, by its own code, in the order of the verbs. The
/// deletion of a clone is read from it: a clone of a snapshot is a volume as any other, and with that of a volume goes
/// the snapshot that it was made of. On other generations, where its calls were not counted, it is the aim too.
const NFS_THERE: [u64; 15] = [13, 11, 5, 11, 13, 14, 17, 1, 1, 4, 6, 7, 1, 3, 6];
const ISCSI_THERE: [u64; 15] = [14, 8, 5, 11, 14, 15, 18, 2, 1, 4, 9, 10, 1, 3, 9];
const NVMEOF_THERE: [u64; 15] = [12, 12, 5, 11, 12, 13, 16, 2, 1, 4, 7, 8, 1, 3, 7];

/// Verbs for which less would not be safe: the size is read before a filesystem grows, so that a late retry never
/// makes it smaller; what is deleted is read before it is, and a dataset that held detached snapshots is looked into.
/// The NQN of a clone is known before it is made: the NAS says with what it begins.
const FLOORS: [(&str, u64); 4] = [
    ("from volume", 14),
    ("grow", 2),
    ("delete snapshot", 2),
    ("delete detached snapshot", 5),
];

/// Verbs that remove a volume: who uses it is asked first.
const REMOVALS: [&str; 3] = [
    "delete clone of snapshot",
    "delete clone of volume",
    "delete volume",
];

/// More calls that 26 needs: a deletion is read back, since betas of it answered success for a dataset that stayed;
/// and a clone gets its properties by a call of its own.
const MORE_ON_26: [(&str, u64); 5] = [
    ("from volume", 1),
    ("delete clone of snapshot", 1),
    ("delete clone of volume", 1),
    ("delete detached snapshot", 1),
    ("delete volume", 1),
];

/// The most calls that each verb may cost, and the calls that it costs there.
type Bounds = ([u64; 15], Option<[u64; 15]>);

fn of(list: &[(&str, u64)], verb: &str) -> u64 {
    let found = list.iter().find(|(name, _)| *name == verb);
    found.map_or(0, |(_, number)| *number)
}

/// The calls by which a removal asks who uses a volume: of a share of NFS also for the number of its filesystem. 25.10
/// cannot be asked of SMB.
fn asks_who_uses(kind: &str, generation: Generation) -> u64 {
    if kind.ends_with("nfs") {
        2
    } else if kind.ends_with("smb") {
        u64::from(generation != Generation::V25_10)
    } else {
        1
    }
}

async fn within(generation: Generation, kind: &str, (most, there): Bounds) {
    let costs = life(generation, kind).await;
    let calls: Vec<u64> = costs.iter().map(|(calls, _)| *calls).collect();
    for (at, ((verb, (calls_of_it, quick)), most)) in VERBS.iter().zip(&costs).zip(most).enumerate()
    {
        let what = format!("{kind} on {generation}: {verb}");
        assert!(*calls_of_it <= most, "{what}: {calls_of_it} of {calls:?}");
        assert!(*quick, "{what}: it reads all snapshots");
        let asked = if REMOVALS.contains(verb) {
            asks_who_uses(kind, generation)
        } else {
            0
        };
        let mut aim = there.map_or(u64::MAX, |there| there[at].max(of(&FLOORS, verb)) + asked);
        if generation >= Generation::V26Beta {
            aim = aim.saturating_add(of(&MORE_ON_26, verb));
        }
        assert!(most <= aim, "{what}: democratic-csi needs {aim}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_costs_few_calls_and_no_walk_over_all_snapshots() {
    for (generation, most) in [
        (
            Generation::V24_10,
            [6, 2, 3, 9, 8, 10, 10, 2, 1, 3, 8, 9, 2, 5, 8],
        ),
        (
            Generation::V25_10,
            [7, 3, 4, 11, 9, 11, 11, 2, 1, 3, 8, 9, 2, 5, 8],
        ),
        (
            Generation::V26Rc,
            [6, 2, 4, 10, 9, 12, 11, 2, 1, 3, 9, 10, 2, 6, 9],
        ),
    ] {
        within(generation, "truenas-api-nfs", (most, Some(NFS_THERE))).await;
    }
}

/// Nothing of democratic-csi was counted over SMB, where it makes its share as it does over NFS: that is the aim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_smb_costs_few_calls_and_no_walk_over_all_snapshots() {
    for (generation, most) in [
        (
            Generation::V24_10,
            [5, 2, 3, 9, 7, 9, 9, 1, 1, 3, 7, 8, 2, 5, 7],
        ),
        (
            Generation::V25_10,
            [6, 3, 4, 11, 8, 10, 10, 1, 1, 3, 6, 7, 2, 5, 6],
        ),
        (
            Generation::V26Rc,
            [5, 2, 4, 10, 8, 11, 10, 1, 1, 3, 8, 9, 2, 6, 8],
        ),
    ] {
        within(generation, "truenas-api-smb", (most, Some(NFS_THERE))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_costs_few_calls_and_no_walk_over_all_snapshots() {
    for (generation, most) in [
        (
            Generation::V24_10,
            [9, 5, 3, 9, 11, 13, 13, 2, 1, 3, 10, 11, 2, 5, 10],
        ),
        (
            Generation::V25_10,
            [10, 6, 4, 11, 12, 14, 14, 2, 1, 3, 10, 11, 2, 5, 10],
        ),
        (
            Generation::V26Rc,
            [9, 5, 4, 10, 12, 15, 14, 2, 1, 3, 11, 12, 2, 6, 11],
        ),
    ] {
        within(generation, "truenas-api-iscsi", (most, Some(ISCSI_THERE))).await;
    }
    for (generation, most) in [
        (
            Generation::V25_10,
            [10, 6, 4, 11, 12, 14, 14, 2, 1, 3, 8, 9, 2, 5, 8],
        ),
        (
            Generation::V26Rc,
            [9, 5, 4, 10, 12, 15, 14, 2, 1, 3, 9, 10, 2, 6, 9],
        ),
    ] {
        within(generation, "truenas-api-nvmeof", (most, Some(NVMEOF_THERE))).await;
    }
}
