//! What belongs to others, or may, stays; and what was done is seen before it counts.

use driver_core::{
    CreateSnapshot, Driver, Error, Parameters, Secrets, Snapshot, SnapshotName, VolumeId,
};
use serde_json::json;
use truenas_sim::{Action, Generation, Rule, Simulator};

use crate::costs::{call, create};
use crate::taken_over::run;
use crate::volumes::{appliance, driver};

async fn is_there(nas: &Simulator, dataset: &str) -> bool {
    let found = run(nas, "pool.dataset.query", json!([[["id", "=", dataset]]])).await;
    !found.as_array().expect("rows").is_empty()
}

/// Asks for a snapshot that is a dataset of its own.
async fn detached(driver: &dyn Driver, of: &VolumeId) -> Result<Snapshot, Error> {
    let parameters = [("detachedSnapshots".to_owned(), "true".to_owned())];
    let asked = CreateSnapshot {
        name: SnapshotName::parse("s-1").expect("a name"),
        source: of.clone(),
        parameters: Parameters::new(parameters.into()),
        secrets: Secrets::new(),
    };
    let snapshots = driver.snapshots().expect("snapshots");
    snapshots.create_snapshot(&call(), &asked).await
}

fn done<T>(outcome: Result<T, Error>) -> T {
    outcome.unwrap_or_else(|error| panic!("{}", error.chain()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_looked_into_is_not_destroyed() {
    let elsewhere = json!({"source": "tank/csi/s"});
    let missing = Action::Fail {
        errno: 2,
        reason: "Path /mnt/tank/csi/s/pvc-1 not found".to_owned(),
    };
    for (method, action) in [
        ("filesystem.listdir", missing),
        // The directory is there and empty, and the dataset is not mounted on it.
        ("filesystem.statfs", Action::Answer(elsewhere)),
    ] {
        let nas = appliance(Generation::V25_10).await;
        let driver = driver(&nas, "truenas-api-nfs", "");
        let volume = create(driver.as_ref(), "pvc-1").await;
        let taken = done(detached(driver.as_ref(), &volume.id).await);
        nas.faults().add(Rule::new(method, action));
        let snapshots = driver.snapshots().expect("snapshots");
        done(snapshots.delete_snapshot(&call(), &taken.id).await);
        assert!(!is_there(&nas, "tank/csi/s/pvc-1/s-1").await, "{method}");
        assert!(is_there(&nas, "tank/csi/s/pvc-1").await, "{method}");
        // Once it can be, it goes.
        nas.faults().clear();
        done(snapshots.delete_snapshot(&call(), &taken.id).await);
        assert!(!is_there(&nas, "tank/csi/s/pvc-1").await, "{method}");
    }
}
