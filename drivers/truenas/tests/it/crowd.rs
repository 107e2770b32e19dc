//! Many verbs at once on one NAS.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driver_core::Call;
use tokio::task::JoinSet;
use truenas_sim::{Action, Generation, Rule};

use crate::costs::{create, request};
use crate::volumes::{appliance, driver};

const CROWD: usize = 64;

/// The NAS takes twenty calls of a connection, and runs ten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_volumes_made_at_once_keep_to_the_limit_of_the_connection() {
    for (generation, kind) in [
        (Generation::V22_12, "freenas-api-iscsi"),
        (Generation::V24_10, "freenas-api-nfs"),
        (Generation::V25_10, "truenas-api-nvmeof"),
        (Generation::V26Rc, "truenas-api-nfs"),
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, kind, "");
        create(driver.as_ref(), "warm").await;
        nas.faults().add(Rule::new("*", Action::Delay(5)));
        nas.reset_counts();
        let mut creates = JoinSet::new();
        for number in 0..CROWD {
            let driver = Arc::clone(&driver);
            creates.spawn(async move {
                let asked = request(driver.as_ref(), &format!("pvc-{number}"), None);
                let call = Call::within(Duration::from_mins(2));
                let made = driver.create_volume(&call, &asked).await;
                made.map(drop).map_err(|error| error.chain())
            });
        }
        while let Some(made) = creates.join_next().await {
            made.expect("joins")
                .unwrap_or_else(|error| panic!("{kind} on {generation}: {error}"));
        }
        let counts = nas.counts();
        assert_eq!(nas.connections(), 1, "{kind} on {generation}");
        assert_eq!(counts.in_flight, 10, "{kind} on {generation}");
        // A query for what is not there is refused on 25.10.
        let changes = counts.methods.iter();
        let changes = changes.filter(|(name, _)| !name.contains(".query"));
        let failed: u64 = changes.map(|(_, cost)| cost.errors).sum();
        assert_eq!(failed, 0, "{kind} on {generation}: {counts:?}");
    }
}

/// One that comes late is done before all that were there: their calls are in one queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_asked_for_among_many_does_not_wait_for_all_of_them() {
    let nas = appliance(Generation::V25_10).await;
    let driver = driver(&nas, "truenas-api-nfs", "");
    create(driver.as_ref(), "warm").await;
    nas.faults().add(Rule::new("*", Action::Delay(5)));
    let done = Arc::new(AtomicUsize::new(0));
    let mut creates = JoinSet::new();
    for worker in 0..CROWD {
        let (driver, done) = (Arc::clone(&driver), Arc::clone(&done));
        creates.spawn(async move {
            for number in 0..3 {
                create(driver.as_ref(), &format!("pvc-{worker}-{number}")).await;
            }
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    // The others have started.
    while nas.counts().in_flight < 10 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    create(driver.as_ref(), "late").await;
    assert_eq!(
        done.load(Ordering::SeqCst),
        0,
        "it waited for others to end"
    );
    while let Some(made) = creates.join_next().await {
        made.expect("joins");
    }
}

/// Up to 25.10 the NAS lets five permission jobs wait, and answers the number of one of them to who comes then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_that_are_made_at_once_all_get_their_permissions() {
    const AT_ONCE: u64 = 24;
    for generation in [Generation::V22_12, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let zfs = "  datasetPermissionsMode: '0777'\n  datasetPermissionsUser: 1000\n";
        let driver = driver(&nas, "truenas-api-nfs", zfs);
        create(driver.as_ref(), "warm").await;
        nas.reset_counts();
        let held = Rule::new("filesystem.setperm", Action::JobHold);
        nas.faults().add(held.times(1));
        let mut creates = JoinSet::new();
        for number in 0..AT_ONCE {
            let driver = Arc::clone(&driver);
            creates.spawn(async move {
                create(driver.as_ref(), &format!("pvc-{number}")).await;
            });
        }
        // The shares are made beside the permissions: all have come so far.
        let shared = || {
            nas.counts()
                .methods
                .get("sharing.nfs.create")
                .map_or(0, |c| c.calls)
        };
        while shared() < AT_ONCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        nas.faults().release();
        while let Some(made) = creates.join_next().await {
            made.expect("joins");
        }
        for number in 0..AT_ONCE {
            let path = serde_json::json!(format!("/mnt/tank/csi/v/pvc-{number}"));
            let stat = nas.call("filesystem.stat", vec![path]).await;
            let stat = stat.expect("a folder");
            let mode = stat["mode"].as_u64().map(|mode| mode & 0o7777);
            let seen = (mode, stat["uid"].as_i64());
            assert_eq!(seen, (Some(0o777), Some(1000)), "{number} on {generation}");
        }
        // None had to be asked for again: no more are in flight than the NAS lets wait.
        let jobs = nas.counts().methods["filesystem.setperm"].calls;
        assert_eq!(jobs, AT_ONCE, "{generation}");
    }
}
