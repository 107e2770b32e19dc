//! The number of calls each request costs, beside democratic-csi 1.9.4 and Synology's own driver 2807900 on the same
//! simulator, and many at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_core::{
    DeleteSnapshot, ExpandVolume, GetSnapshot, PageRequest, SizeRange, SnapshotFilter, Source,
};
use futures_util::future::join_all;
use synology_sim::{Simulator, Version};

use crate::nas::{GIB, Nas, call};

/// Long beside what a call costs this machine, so that calls at once are seen as such.
const SLOW: Duration = Duration::from_millis(40);

/// The most calls, and the most exchanges in a row.
struct Limits(usize, usize);

/// The calls of a request, and how many of them came after each other.
async fn costs<T>(
    sim: &Simulator,
    what: &str,
    most: &Limits,
    request: impl Future<Output = T>,
) -> T {
    let before = (sim.calls(), sim.rounds());
    let done = request.await;
    let (calls, rounds) = (sim.calls() - before.0, sim.rounds() - before.1);
    assert!(calls <= most.0, "{what}: {calls} calls, {} allowed", most.0);
    assert!(
        rounds <= most.1,
        "{what}: {rounds} exchanges in a row, {} allowed",
        most.1
    );
    done
}

/// One life. `most` are the limits of creating, again, a snapshot, again, a copy of it, a copy, growing, deleting
/// the snapshot and deleting.
async fn life(nas: &Nas, most: [Limits; 9]) {
    // The login is not counted.
    assert!(nas.driver.probe(&call()).await.is_empty());
    nas.sim.slow_down(SLOW);
    let [
        create,
        again,
        snapshot,
        snapshot_again,
        restore,
        clone,
        grow,
        delete_snapshot,
        delete,
    ] = most;
    let sim: &Simulator = &nas.sim;
    let volume = costs(sim, "create", &create, nas.create("pvc-1", None)).await;
    costs(sim, "create again", &again, nas.create("pvc-1", None)).await;
    let taken = costs(sim, "snapshot", &snapshot, nas.snapshot(&volume.id, "s")).await;
    costs(
        sim,
        "snapshot again",
        &snapshot_again,
        nas.snapshot(&volume.id, "s"),
    )
    .await;
    let source = Some(Source::Snapshot(taken.id.clone()));
    costs(sim, "of a snapshot", &restore, nas.create("pvc-2", source)).await;
    let source = Some(Source::Volume(volume.id.clone()));
    costs(sim, "of a volume", &clone, nas.create("pvc-3", source)).await;
    let size = SizeRange::new(2 * GIB, 0).expect("a size");
    let time = call();
    let grown = nas
        .driver
        .expand_volume(&time, ExpandVolume::new(&volume.id, size));
    costs(sim, "grow", &grow, grown).await.expect("grown");
    let (page, all) = (PageRequest::default(), SnapshotFilter::default());
    let listed = nas.driver.list_volumes(&time, &page);
    costs(sim, "list volumes", &Limits(2, 1), listed)
        .await
        .expect("a list");
    let listed = nas.driver.list_snapshots(&time, &all, &page);
    costs(sim, "list snapshots", &Limits(4, 2), listed)
        .await
        .expect("a list");
    let gone = nas
        .driver
        .delete_snapshot(&time, DeleteSnapshot::new(&taken.id));
    costs(sim, "delete a snapshot", &delete_snapshot, gone)
        .await
        .expect("deleted");
    costs(sim, "delete", &delete, nas.delete(&volume.id)).await;
}

/// democratic-csi 1.9.4: 6, 6, 6 (4), 9, 9, 2, 2, 6, each after the other. Two rows have one call more here, beside
/// another: before a snapshot goes, the name of its LUN proves that it is of this connection; before a volume goes,
/// its snapshots are asked for.
const LUNS: fn() -> [Limits; 9] = || {
    [
        Limits(6, 6),
        Limits(6, 6),
        Limits(6, 6),
        Limits(4, 4),
        Limits(9, 9),
        Limits(9, 9),
        Limits(2, 2),
        Limits(3, 2),
        Limits(7, 6),
    ]
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn luns_cost_no_more_exchanges_than_with_democratic_csi() {
    for version in [Version::V6_2, Version::V7_0, Version::V7_2] {
        for iscsi in ["", "lunTemplate: {type: thin}"] {
            let nas = Nas::start(version, "").await;
            let text = crate::nas::config(&nas.sim, "");
            let text = if iscsi.is_empty() {
                text
            } else {
                text.replace("lunTemplate: {type: BLUN}", iscsi)
            };
            let sim = Arc::clone(&nas.sim);
            let driver = crate::nas::open(&text);
            life(&Nas { sim, driver }, LUNS()).await;
        }
    }
}

/// Synology's own driver: 8, 4, 14 (5), 13, 13, 7, 10, 5 over NFS; democratic-csi has no shared folders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_folders_cost_no_more_calls_than_with_the_driver_of_synology() {
    for kind in ["nfs", "smb"] {
        let nas = Nas::of_shares(Version::V7_2, kind).await;
        let most = [
            Limits(6, 6),
            Limits(1, 1),
            Limits(5, 5),
            Limits(3, 3),
            Limits(10, 9),
            Limits(9, 9),
            Limits(3, 3),
            Limits(3, 2),
            Limits(4, 4),
        ];
        life(&nas, most).await;
    }
}

/// Only a new snapshot and the whole list ask each folder, a few at once: DSM lists snapshots by folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_shared_folders_cost_what_one_costs_where_the_request_names_it() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let names: Vec<String> = (0..30).map(|number| format!("pvc-{number}")).collect();
    let volumes = join_all(names.iter().map(|name| nas.create(name, None))).await;
    nas.sim.slow_down(SLOW);
    let (sim, time, page): (&Simulator, _, _) = (&nas.sim, call(), PageRequest::default());
    let source = &volumes[7].id;
    let new = Limits(33, 12);
    let taken = costs(sim, "snapshot", &new, nas.snapshot(source, "s")).await;
    let again = costs(sim, "again", &Limits(3, 3), nas.snapshot(source, "s")).await;
    assert_eq!(again, taken);
    let get = nas.driver.get_snapshot(&time, GetSnapshot::new(&taken.id));
    costs(sim, "get", &Limits(2, 1), get)
        .await
        .expect("it is there");
    let of_one = SnapshotFilter {
        source: Some(source.clone()),
        ..SnapshotFilter::default()
    };
    let listed = nas.driver.list_snapshots(&time, &of_one, &page);
    let listed = costs(sim, "list of one", &Limits(2, 2), listed).await;
    assert_eq!(
        listed.expect("a list").entries,
        std::slice::from_ref(&taken)
    );
    let all = SnapshotFilter::default();
    let listed = nas.driver.list_snapshots(&time, &all, &page);
    let listed = costs(sim, "list", &Limits(31, 10), listed).await;
    assert_eq!(listed.expect("a list").entries.len(), 1);
    let gone = nas
        .driver
        .delete_snapshot(&time, DeleteSnapshot::new(&taken.id));
    costs(sim, "delete", &Limits(3, 2), gone)
        .await
        .expect("deleted");
}

/// democratic-csi needs 6 exchanges in a row for a volume, with all volumes at once; so it takes 6 answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_volumes_at_once_take_at_most_twice_as_long_as_with_democratic_csi() {
    let nas = Nas::start(Version::V7_2, "").await;
    assert!(nas.driver.probe(&call()).await.is_empty());
    let slow = Duration::from_millis(500);
    nas.sim.slow_down(slow);
    let began = Instant::now();
    let names: Vec<String> = (0..20).map(|number| format!("pvc-{number}")).collect();
    join_all(names.iter().map(|name| nas.create(name, None))).await;
    let took = began.elapsed();
    assert!(took <= slow * 6 * 2, "{took:?}");
    assert_eq!(nas.objects(), (20, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_serialize_one_operation_that_changes_anything_runs_at_a_time() {
    let nas = Nas::start(Version::V7_2, "").await;
    let text = crate::nas::config(&nas.sim, "").replace("port:", "serialize: true, port:");
    let driver = crate::nas::open(&text);
    assert!(driver.probe(&call()).await.is_empty());
    nas.sim.slow_down(SLOW);
    let rounds = nas.sim.rounds();
    let creations = ["a", "b", "c"].map(|name| {
        let (driver, request) = (Arc::clone(&driver), nas.request(name, None));
        async move { driver.create_volume(&call(), &request).await.expect("made") }
    });
    join_all(creations).await;
    assert!(
        nas.sim.rounds() - rounds >= 3 * 5,
        "each has at least 5 exchanges of its own"
    );
}
