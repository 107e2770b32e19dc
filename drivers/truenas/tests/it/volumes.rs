//! The driver against simulated appliances: what every driver promises, in every generation.

use std::sync::Arc;

use driver_core::config::{Document, NoEnvironment};
use driver_core::contract::{Fresh, keep_contract};
use driver_core::{
    CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver, Kind, Parameters, Secrets, Snapshot,
    SnapshotName, Source,
};
use driver_truenas::from_document;
use serde_json::json;
use truenas_sim::{Generation, Options, Simulator};

use crate::costs::{call, create, request};

/// An appliance that is set up as an administrator does it before there are volumes.
pub(crate) async fn appliance(generation: Generation) -> Simulator {
    let nas = Simulator::start(Options::new(generation))
        .await
        .expect("an appliance");
    set_up(&nas).await;
    nas
}

/// Makes the portal, the initiators and the port.
pub(crate) async fn set_up(nas: &Simulator) {
    let made = nas.set_up("10.0.0.5").await;
    made.unwrap_or_else(|failure| panic!("{failure:?}"));
}

/// The configuration of a connection to it.
pub(crate) fn config(nas: &Simulator, driver: &str, zfs: &str) -> String {
    let section = match driver.rsplit('-').next() {
        Some("nfs") => "nfs: {shareHost: 10.0.0.5, shareAllowedNetworks: [10.0.0.0/8]}",
        Some("smb") => "smb: {shareHost: 10.0.0.5}",
        Some("iscsi") => {
            "iscsi:
  targetPortal: 10.0.0.5:3260
  targetGroups: [{targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1}]"
        }
        _ => "nvmeof: {transports: ['tcp://10.0.0.5:4420'], ports: [1]}",
    };
    let certificate = serde_json::to_string(&nas.certificate_pem()).expect("a text");
    format!(
        "driver: {driver}
httpConnection:
  protocol: https
  host: 127.0.0.1
  port: {}
  username: root
  apiKey: {}
  apiKeyLogin: plain
  tls: {{ca: {certificate}, serverName: localhost}}
zfs:
  datasetParentName: tank/csi/v
  detachedSnapshotsDatasetParentName: tank/csi/s
{zfs}
{section}
",
        nas.https().port(),
        nas.api_key(),
    )
}

/// A driver for it.
pub(crate) fn driver(nas: &Simulator, kind: &str, zfs: &str) -> Arc<dyn Driver> {
    let text = config(nas, kind, zfs);
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    from_document(&document).unwrap_or_else(|error| panic!("{error}"))
}

async fn keep(generation: Generation, kind: &str, zfs: &str) {
    keep_contract(|| async {
        let nas = appliance(generation).await;
        Fresh::new(driver(&nas, kind, zfs), nas).with_callers(3)
    })
    .await;
}

const QUOTAS: &str = "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n  datasetPermissionsUser: 0\n  datasetPermissionsGroup: 0\n";

macro_rules! contracts {
    ($($name:ident: $generation:ident $kind:literal $zfs:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            keep(Generation::$generation, $kind, $zfs).await;
        }
    )*};
}

contracts! {
    smb_keeps_the_contract_on_24_10: V24_10 "freenas-api-smb" QUOTAS;
    smb_keeps_the_contract_on_25_10: V25_10 "truenas-api-smb" QUOTAS;
    smb_keeps_the_contract_on_26: V26Rc "truenas-api-smb" "";
    nvmeof_keeps_the_contract_on_25_10: V25_10 "freenas-api-nvmeof" "";
    nvmeof_keeps_the_contract_on_26: V26Rc "truenas-api-nvmeof" "";
    nfs_keeps_the_contract_on_the_betas_of_26: V26Beta "truenas-api-nfs" QUOTAS;
    nfs_keeps_the_contract_on_24_10: V24_10 "freenas-api-nfs" QUOTAS;
    nfs_keeps_the_contract_on_25_04: V25_04 "truenas-api-nfs" "";
    nfs_keeps_the_contract_on_25_10: V25_10 "truenas-api-nfs" QUOTAS;
    nfs_keeps_the_contract_on_26: V26Rc "truenas-api-nfs" QUOTAS;
    iscsi_keeps_the_contract_on_22_12: V22_12 "freenas-api-iscsi" "";
    iscsi_keeps_the_contract_on_24_10: V24_10 "freenas-api-iscsi" "";
    iscsi_keeps_the_contract_on_25_10: V25_10 "truenas-api-iscsi" "";
    iscsi_keeps_the_contract_on_26: V26Rc "truenas-api-iscsi" "";
}

/// A snapshot that stands on its own, and a volume that is a copy of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detached_copies_stand_on_their_own_and_leave_nothing() {
    for (generation, kind) in [
        (Generation::V24_10, "freenas-api-nfs"),
        (Generation::V25_10, "truenas-api-iscsi"),
        (Generation::V26Rc, "truenas-api-nfs"),
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, kind, "");
        let volume = create(driver.as_ref(), "pvc-1").await;
        let snapshots = driver.snapshots().expect("snapshots");
        let says = |key: &str| Parameters::new([(key.to_owned(), "true".to_owned())].into());
        let asked = CreateSnapshot {
            name: SnapshotName::parse("s-1").expect("a name"),
            source: volume.id.clone(),
            parameters: says("detachedSnapshots"),
            secrets: Secrets::new(),
        };
        let fail = |error: driver_core::Error| -> Snapshot {
            panic!("{kind} on {generation:?}: {}", error.chain())
        };
        let taken = snapshots.create_snapshot(&call(), &asked).await;
        let taken = taken.unwrap_or_else(fail);
        assert_eq!(taken.id.as_str(), "pvc-1/s-1");
        let again = snapshots.create_snapshot(&call(), &asked).await;
        assert_eq!(again.unwrap_or_else(fail), taken);
        let gone = driver
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
        let from = Some(Source::Snapshot(taken.id.clone()));
        let mut copy = request(driver.as_ref(), "pvc-2", from);
        copy.parameters = says("detachedVolumesFromSnapshots");
        let made = driver.create_volume(&call(), &copy).await;
        made.unwrap_or_else(|error| panic!("{kind} on {generation:?}: {}", error.chain()));
        let gone = snapshots
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{kind} on {generation:?}: {}", error.chain()));
        let gone = driver
            .delete_volume(&call(), DeleteVolume::new(&copy.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{kind} on {generation:?}: {}", error.chain()));
        let left = nas.call("pool.dataset.query", vec![]).await;
        let left = left.expect("datasets");
        let left = left.as_array().expect("datasets").iter();
        let left: Vec<_> = left.map(|dataset| dataset["id"].to_string()).collect();
        assert!(
            !left.iter().any(|id| id.contains("pvc")),
            "{kind}: {left:?}"
        );
    }
}

/// Names of SMB shares ignore case, those of datasets do not.
#[tokio::test]
async fn a_volume_whose_share_is_that_of_another_but_for_case_is_refused_before_it_is_made() {
    for generation in [Generation::V22_12, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "freenas-api-smb", "");
        let first = create(driver.as_ref(), "pvc-a").await;
        let asked = request(driver.as_ref(), "PVC-A", None);
        for _ in 0..2 {
            let twin = driver.create_volume(&call(), &asked).await;
            let twin = twin.expect_err("its share has another volume");
            assert_eq!(twin.kind(), Kind::Conflict, "{}", twin.chain());
            assert!(
                twin.chain().contains("/mnt/tank/csi/v/pvc-a"),
                "{}",
                twin.chain()
            );
        }
        let gone = driver
            .delete_volume(&call(), DeleteVolume::new(&asked.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
        let left = nas.call("pool.dataset.query", vec![]).await;
        let left = left.expect("datasets").to_string();
        assert!(left.contains("pvc-a") && !left.contains("PVC-A"), "{left}");
        let shares = nas.call("sharing.smb.query", vec![]).await;
        let shares = shares.expect("shares");
        assert_eq!(shares.as_array().map(Vec::len), Some(1), "{shares}");
        let again = create(driver.as_ref(), "pvc-a").await;
        assert_eq!(again.id, first.id);
        let gone = driver
            .delete_volume(&call(), DeleteVolume::new(&first.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
    }
}

/// What a periodic task takes goes with it; what lies below it keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_snapshot_with_something_on_or_below_it_is_looked_at_before_it_goes() {
    for (generation, method) in [
        (Generation::V24_10, "zfs.snapshot.create"),
        (Generation::V25_10, "pool.snapshot.create"),
        (Generation::V26Rc, "pool.snapshot.create"),
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", "");
        let volume = create(driver.as_ref(), "pvc-1").await;
        let snapshots = driver.snapshots().expect("snapshots");
        let detached = [("detachedSnapshots".to_owned(), "true".to_owned())];
        let asked = CreateSnapshot {
            name: SnapshotName::parse("s-1").expect("a name"),
            source: volume.id.clone(),
            parameters: Parameters::new(detached.into()),
            secrets: Secrets::new(),
        };
        let taken = snapshots.create_snapshot(&call(), &asked).await;
        let taken = taken.unwrap_or_else(|error| panic!("{generation}: {}", error.chain()));
        let auto = json!({"dataset": "tank/csi/s/pvc-1/s-1", "name": "auto-1"});
        nas.call(method, vec![auto]).await.expect("taken");
        let below = json!({"name": "tank/csi/s/pvc-1/s-1/below"});
        nas.call("pool.dataset.create", vec![below])
            .await
            .expect("made");
        let kept = snapshots
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await;
        let kept = kept.expect_err("there is something below it");
        assert_eq!(kept.kind(), Kind::Busy, "{generation}: {}", kept.chain());
        let below = vec![json!("tank/csi/s/pvc-1/s-1/below")];
        nas.call("pool.dataset.delete", below).await.expect("gone");
        let gone = snapshots
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{generation}: {}", error.chain()));
        let left = nas.call("pool.dataset.query", vec![]).await;
        let left = left.expect("datasets").to_string();
        assert!(!left.contains("tank/csi/s/pvc-1"), "{generation}: {left}");
    }
}

/// The specification asks for names of 128 characters, and TrueNAS takes 64 for an extent.
#[tokio::test]
async fn a_disk_with_a_name_too_long_for_an_extent_gets_a_shorter_one() {
    let nas = appliance(Generation::V25_10).await;
    let driver = driver(&nas, "truenas-api-iscsi", "");
    let long = "a".repeat(120);
    let first = create(driver.as_ref(), &format!("{long}1")).await;
    let other = create(driver.as_ref(), &format!("{long}2")).await;
    assert_ne!(first.attachment, other.attachment);
    assert_eq!(create(driver.as_ref(), &format!("{long}1")).await, first);
    for volume in [first, other] {
        let gone = driver
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
    }
    let left = nas.call("iscsi.extent.query", vec![]).await;
    assert_eq!(left.expect("extents"), json!([]));
}
