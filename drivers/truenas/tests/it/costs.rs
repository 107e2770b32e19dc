//! The cost of verbs: exchanges in a row, counted by the simulator, whatever the number of volumes.

use std::sync::Arc;
use std::time::Duration;

use csi_types::capability::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver, ExpandVolume,
    Parameters, Secrets, SizeRange, Snapshot, SnapshotName, Source, TopologyRequirement, Volume,
    VolumeName,
};
use truenas_sim::{Generation, Simulator};

use crate::volumes::{appliance, driver};

pub(crate) fn call() -> Call {
    Call::within(Duration::from_mins(5))
}

pub(crate) fn request(driver: &dyn Driver, name: &str, source: Option<Source>) -> CreateVolume {
    let name = VolumeName::parse(name).expect("a name");
    let parameters = Parameters::default();
    let rules = driver.access_rules();
    let access = if rules.block {
        Access::Block
    } else {
        Access::Mount(MountAccess::default())
    };
    CreateVolume {
        id: driver.name_volume(&name, &parameters).expect("an id"),
        name,
        size: SizeRange::new(2 << 30, 0).expect("a size"),
        capabilities: vec![VolumeCapability {
            access,
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters,
        secrets: Secrets::new(),
        source,
        topology: TopologyRequirement::default(),
    }
}

pub(crate) async fn create(driver: &dyn Driver, name: &str) -> Volume {
    let made = driver
        .create_volume(&call(), &request(driver, name, None))
        .await;
    made.unwrap_or_else(|error| panic!("create {name}: {}", error.chain()))
}

pub(crate) async fn snapshot(driver: &dyn Driver, of: &Volume, name: &str) -> Snapshot {
    let request = CreateSnapshot {
        name: SnapshotName::parse(name).expect("a name"),
        source: of.id.clone(),
        parameters: Parameters::default(),
        secrets: Secrets::new(),
    };
    let snapshots = driver.snapshots().expect("snapshots");
    let taken = snapshots.create_snapshot(&call(), &request).await;
    taken.unwrap_or_else(|error| panic!("snapshot {name}: {}", error.chain()))
}

/// Exchanges in a row, and calls.
pub(crate) async fn exchanges(nas: &Simulator, work: impl Future<Output = ()>) -> (u64, u64) {
    nas.reset_counts();
    work.await;
    let counts = nas.counts();
    (counts.exchanges, counts.calls())
}

/// Creation, snapshot, deletion of the snapshot, growth, deletion.
async fn costs(nas: &Simulator, driver: &Arc<dyn Driver>, name: &str) -> [(u64, u64); 5] {
    let driver = driver.as_ref();
    let id = request(driver, name, None).id;
    let created = exchanges(nas, async {
        create(driver, name).await;
    })
    .await;
    let volume = create(driver, name).await;
    let taken = exchanges(nas, async {
        snapshot(driver, &volume, &format!("s-{name}")).await;
    })
    .await;
    let there = snapshot(driver, &volume, &format!("s-{name}")).await;
    let snapshots = driver.snapshots().expect("snapshots");
    let untaken = exchanges(nas, async {
        let gone = snapshots
            .delete_snapshot(&call(), DeleteSnapshot::new(&there.id))
            .await;
        gone.expect("deleted");
    })
    .await;
    let grown = exchanges(nas, async {
        let expander = driver.expander().expect("growth");
        let size = SizeRange::new(4 << 30, 0).expect("a size");
        let grown = expander
            .expand_volume(&call(), ExpandVolume::new(&id, size))
            .await;
        assert!(grown.expect("grown").capacity >= 4 << 30);
    })
    .await;
    let deleted = exchanges(nas, async {
        let gone = driver.delete_volume(&call(), DeleteVolume::new(&id)).await;
        gone.unwrap_or_else(|error| panic!("delete: {}", error.chain()));
    })
    .await;
    [created, taken, untaken, grown, deleted]
}

async fn within(generation: Generation, kind: &str, most: [u64; 5]) {
    let nas = appliance(generation).await;
    let zfs = if kind.ends_with("nfs") || kind.ends_with("smb") {
        "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n"
    } else {
        ""
    };
    let driver = driver(&nas, kind, zfs);
    // Connecting, and listening to jobs, is once for all.
    create(driver.as_ref(), "warm").await;
    nas.faults().set(|settings| settings.round_trip_ms = 120);
    let few = costs(&nas, &driver, "few").await;
    nas.faults().set(|settings| settings.round_trip_ms = 0);
    for number in 0..20 {
        create(driver.as_ref(), &format!("filler-{number}")).await;
    }
    nas.faults().set(|settings| settings.round_trip_ms = 120);
    let many = costs(&nas, &driver, "many").await;
    let calls = |costs: [(u64, u64); 5]| costs.map(|(_, calls)| calls);
    assert_eq!(
        calls(few),
        calls(many),
        "{kind}: more volumes cost more calls"
    );
    let mut most = most;
    if generation.is_26() {
        // Its answer to a new snapshot does not say what that holds.
        most[1] += 1;
    }
    for costs in [few, many] {
        let costs = costs.map(|(exchanges, _)| exchanges);
        let verbs = ["create", "snapshot", "delete snapshot", "grow", "delete"];
        for (verb, (cost, most)) in verbs.iter().zip(costs.iter().zip(most)) {
            assert!(
                *cost <= most,
                "{kind} on {generation:?}: {verb} took {cost} exchanges: {costs:?}"
            );
        }
    }
}

/// Of a deletion: 26 is asked whether what was deleted is gone.
fn deletion(generation: Generation) -> u64 {
    if generation == Generation::V26Rc {
        4
    } else {
        3
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_costs_four_exchanges_whatever_the_number_of_volumes() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let most = [4, 2, 2, 2, deletion(generation)];
        within(generation, "truenas-api-nfs", most).await;
        within(generation, "truenas-api-smb", most).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_costs_five_exchanges_whatever_the_number_of_volumes() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let most = [5, 2, 2, 2, deletion(generation)];
        within(generation, "truenas-api-iscsi", most).await;
    }
    for generation in [Generation::V25_10, Generation::V26Rc] {
        // Who is connected is asked by the number of the subsystem.
        let most = [5, 2, 2, 2, deletion(generation) + 1];
        within(generation, "truenas-api-nvmeof", most).await;
    }
}
