//! The driver against simulated appliances: volumes, their copies and snapshots.

use std::sync::Arc;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver, GetSnapshot, Kind, PageRequest,
    Parameters, Secrets, Snapshot, SnapshotFilter, SnapshotId, SnapshotName, Source,
};
use driver_truenas::from_document;
use serde_json::json;
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

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
    of_text(&config(nas, kind, zfs))
}

/// A driver of this configuration.
pub(crate) fn of_text(text: &str) -> Arc<dyn Driver> {
    let document = Document::parse(text, &NoEnvironment).expect("a document");
    from_document(&document).unwrap_or_else(|error| panic!("{error}"))
}

/// 26 before it took native properties of clones.
async fn first_beta() -> Simulator {
    let nas = appliance(Generation::V26Beta).await;
    nas.faults()
        .set(|settings| settings.clones_without_properties = true);
    nas
}

/// Of a snapshot and of a volume, so that each kind of clone is made, found again and deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clones_are_made_bare_on_the_first_beta_of_26() {
    for (kind, zfs) in [
        ("truenas-api-nfs", QUOTAS),
        ("truenas-api-smb", QUOTAS),
        ("truenas-api-iscsi", ""),
        ("truenas-api-nvmeof", ""),
    ] {
        let nas = first_beta().await;
        let driver = driver(&nas, kind, zfs);
        let driver = driver.as_ref();
        let time = call();
        let before = crate::faults::everything(&nas, Generation::V26Beta).await;
        let source = create(driver, "pvc-1").await;
        let taken = crate::costs::snapshot(driver, &source, "s-1").await;
        let mut made = Vec::new();
        for (name, source) in [
            ("pvc-2", Source::Snapshot(taken.id.clone())),
            ("pvc-3", Source::Volume(source.id.clone())),
        ] {
            let asked = request(driver, name, Some(source.clone()));
            let volume = driver.create_volume(&call(), &asked).await;
            let volume = volume.unwrap_or_else(|error| panic!("{kind}: {name}: {}", error.chain()));
            assert_eq!(volume.source, Some(source), "{kind}: {name}");
            assert_eq!(volume.capacity, Some(2 << 30), "{kind}: {name}");
            let again = driver.create_volume(&call(), &asked).await;
            assert_eq!(again.expect("it is there"), volume, "{kind}: {name}");
            let lister = driver.lister().expect("lists");
            let shown = lister.get_volume(&call(), &volume.id).await;
            assert_eq!(shown.expect("shown"), volume, "{kind}: {name}");
            made.push(volume.id);
        }
        for id in &made {
            let gone = driver.delete_volume(&time, DeleteVolume::new(id));
            gone.await
                .unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
        }
        let snapshots = driver.snapshots().expect("snapshots");
        let gone = snapshots.delete_snapshot(&time, DeleteSnapshot::new(&taken.id));
        gone.await
            .unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
        let gone = driver.delete_volume(&time, DeleteVolume::new(&source.id));
        gone.await
            .unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
        let left = crate::faults::everything(&nas, Generation::V26Beta).await;
        let left: Vec<_> = left
            .difference(&before)
            .filter(|row| row.contains("pvc"))
            .collect();
        assert!(left.is_empty(), "{kind}: {left:?}");
    }
}

/// The clone of an attempt that was cut off before it got its properties is taken for one of ours by the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_clone_of_the_first_beta_of_26_is_found_again() {
    for action in [Action::CutBefore, Action::CutAfter] {
        let nas = first_beta().await;
        nas.faults().set(|settings| settings.idle_timeout = false);
        let open = || driver(&nas, "truenas-api-nfs", QUOTAS);
        let first = open();
        let source = create(first.as_ref(), "pvc-1").await;
        let taken = crate::costs::snapshot(first.as_ref(), &source, "s-1").await;
        for method in ["pool.snapshot.clone", "pool.dataset.update"] {
            let what = format!("{method} {action:?}");
            // A driver of its own does not wait longer for each cut, nor does the NAS count its logins.
            nas.clock().advance(std::time::Duration::from_mins(2));
            let driver = open();
            let driver = driver.as_ref();
            let asked = request(driver, "pvc-2", Some(Source::Snapshot(taken.id.clone())));
            nas.faults().add(Rule::new(method, action.clone()).times(1));
            crate::faults::retried(&what, async || driver.create_volume(&call(), &asked).await)
                .await;
            assert!(
                nas.faults()
                    .rules()
                    .iter()
                    .all(|rule| rule.times == Some(0)),
                "{what}: never"
            );
            nas.faults().clear();
            crate::faults::retried(&what, async || {
                let gone = DeleteVolume::new(&asked.id);
                driver.delete_volume(&call(), gone).await
            })
            .await;
        }
    }
}

pub(crate) const QUOTAS: &str = "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n  datasetPermissionsUser: 0\n  datasetPermissionsGroup: 0\n";

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

/// A misspelt key, or another NAS behind the address: the first detached snapshot makes that parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_snapshot_in_a_parent_that_does_not_exist_is_not_taken_for_deleted() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", "");
        let call = call();
        let volume = create(driver.as_ref(), "pvc-1").await;
        let snapshots = driver.snapshots().expect("snapshots");
        let id = SnapshotId::parse("pvc-1/s-1").expect("an id");
        let gone = snapshots.delete_snapshot(&call, DeleteSnapshot::new(&id));
        let gone = gone.await.expect_err("not deleted");
        let found = snapshots.get_snapshot(&call, GetSnapshot::new(&id));
        let found = found.await.expect_err("not found");
        for error in [gone, found] {
            let why = format!("{generation}: {}", error.chain());
            assert_eq!(error.kind(), Kind::Unreachable, "{why}");
            assert!(why.contains("tank/csi/s does not exist"), "{why}");
            let key = "zfs.detachedSnapshotsDatasetParentName";
            assert!(why.contains(key), "{why}");
        }
        // On a storage with volumes there may never have been one.
        let (all, page) = (SnapshotFilter::default(), PageRequest::default());
        let of_one = SnapshotFilter {
            source: Some(volume.id.clone()),
            ..SnapshotFilter::default()
        };
        for filter in [all, of_one] {
            let listed = snapshots.list_snapshots(&call, &filter, &page).await;
            assert!(listed.expect("a list").entries.is_empty(), "{generation}");
        }
        let made = json!({"name": "tank/csi/s"});
        nas.call("pool.dataset.create", vec![made])
            .await
            .expect("made");
        let gone = snapshots.delete_snapshot(&call, DeleteSnapshot::new(&id));
        gone.await.expect("deleted");
        let found = snapshots.get_snapshot(&call, GetSnapshot::new(&id));
        let found = found.await.expect_err("there is none").kind();
        assert_eq!(found, Kind::NotFound, "{generation}");
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

/// A snapshot that a periodic task takes goes with it; a dataset that lies below it keeps it.
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

/// TrueNAS takes no NQN in which something follows a UUID of that form, and makes them where NQNs begin so.
#[tokio::test]
async fn a_subsystem_is_made_where_nqns_begin_with_a_uuid() {
    let base = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111";
    for generation in [Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let settings = vec![json!({"basenqn": base})];
        nas.call("nvmet.global.update", settings)
            .await
            .expect("set");
        let driver = driver(&nas, "truenas-api-nvmeof", "");
        let made = create(driver.as_ref(), "pvc-1").await;
        let context = made.attachment.to_context();
        assert_eq!(context["nqn"], format!("{base}:pvc-1"), "{generation}");
        let subsystems = nas.call("nvmet.subsys.query", vec![]).await;
        let subsystems = subsystems.expect("subsystems");
        assert_eq!(subsystems[0]["subnqn"], context["nqn"], "{generation}");
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
