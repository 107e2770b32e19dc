//! Objects that belong to others, or may, stay; and a change is seen before it counts.

use std::time::Duration;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver, Effect, Error, Kind, Parameters,
    Secrets, Snapshot, SnapshotName, VolumeId,
};
use driver_truenas::from_document;
use serde_json::{Value, json};
use truenas_sim::{Action, Generation, Rule, Simulator};

use crate::costs::{call, create, request};
use crate::taken_over::{own, rows, run};
use crate::volumes::{appliance, config, driver};

async fn is_there(nas: &Simulator, dataset: &str) -> bool {
    let found = run(nas, "pool.dataset.query", json!([[["id", "=", dataset]]])).await;
    !found.as_array().expect("rows").is_empty()
}

/// Asks for a snapshot that is a dataset of its own.
async fn detached(driver: &dyn Driver, of: &VolumeId) -> Result<Snapshot, Error> {
    detached_within(&call(), driver, of).await
}

async fn detached_within(
    call: &Call,
    driver: &dyn Driver,
    of: &VolumeId,
) -> Result<Snapshot, Error> {
    let parameters = [("detachedSnapshots".to_owned(), "true".to_owned())];
    let asked = CreateSnapshot {
        name: SnapshotName::parse("s-1").expect("a name"),
        source: of.clone(),
        parameters: Parameters::new(parameters.into()),
        secrets: Secrets::new(),
    };
    let snapshots = driver.snapshots().expect("snapshots");
    snapshots.create_snapshot(call, &asked).await
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
        done(
            snapshots
                .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
                .await,
        );
        assert!(!is_there(&nas, "tank/csi/s/pvc-1/s-1").await, "{method}");
        assert!(is_there(&nas, "tank/csi/s/pvc-1").await, "{method}");
        // Once it can be, it goes.
        nas.faults().clear();
        done(
            snapshots
                .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
                .await,
        );
        assert!(!is_there(&nas, "tank/csi/s/pvc-1").await, "{method}");
    }
}

const GROUP: &str = r#"{"portal": 1, "initiator": 1, "authmethod": "NONE", "auth": null}"#;

fn group() -> Value {
    serde_json::from_str(GROUP).expect("a group")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_or_subsystem_of_our_name_without_our_disk_stays() {
    let nas = appliance(Generation::V25_10).await;
    let target = json!([{"name": "pvc-1", "mode": "ISCSI", "groups": [group()]}]);
    run(&nas, "iscsi.target.create", target).await;
    run(&nas, "nvmet.subsys.create", json!([{"name": "pvc-1"}])).await;
    for (kind, service) in [
        ("truenas-api-iscsi", "iscsi.target"),
        ("truenas-api-nvmeof", "nvmet.subsys"),
    ] {
        let driver = driver(&nas, kind, "");
        let id = request(driver.as_ref(), "pvc-1", None).id;
        done(driver.delete_volume(&call(), DeleteVolume::new(&id)).await);
        assert_eq!(rows(&nas, service).await.len(), 1, "{service}");
        // What is made takes it, and then it is ours.
        create(driver.as_ref(), "pvc-1").await;
        assert_eq!(rows(&nas, service).await.len(), 1, "{service}");
        done(driver.delete_volume(&call(), DeleteVolume::new(&id)).await);
        assert!(rows(&nas, service).await.is_empty(), "{service}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_was_left_behind_goes_although_its_volume_is_gone() {
    let nas = appliance(Generation::V24_10).await;
    let driver = driver(&nas, "truenas-api-iscsi", "");
    let volume = create(driver.as_ref(), "pvc-1").await;
    let extent = rows(&nas, "iscsi.extent").await[0]["id"].clone();
    run(&nas, "iscsi.extent.delete", json!([extent])).await;
    run(&nas, "pool.dataset.delete", json!(["tank/csi/v/pvc-1"])).await;
    assert_eq!(rows(&nas, "iscsi.target").await.len(), 1);
    done(
        driver
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await,
    );
    assert!(rows(&nas, "iscsi.target").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_says_nothing_is_known_by_its_number_or_its_extent() {
    for forgotten in [false, true] {
        let nas = appliance(Generation::V24_10).await;
        let driver = driver(&nas, "truenas-api-iscsi", "");
        let volume = create(driver.as_ref(), "pvc-1").await;
        let target = rows(&nas, "iscsi.target").await[0]["id"].clone();
        run(
            &nas,
            "iscsi.target.update",
            json!([target, {"alias": null}]),
        )
        .await;
        if forgotten {
            let key = "democratic-csi:freenas_iscsi_target_id";
            let update = json!({"user_properties_update": [{"key": key, "remove": true}]});
            let params = json!(["tank/csi/v/pvc-1", update]);
            run(&nas, "pool.dataset.update", params).await;
        }
        done(
            driver
                .delete_volume(&call(), DeleteVolume::new(&volume.id))
                .await,
        );
        for service in ["iscsi.target", "iscsi.extent"] {
            assert!(
                rows(&nas, service).await.is_empty(),
                "{service} {forgotten}"
            );
        }
        assert!(!is_there(&nas, "tank/csi/v/pvc-1").await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_with_an_extent_of_others_stays() {
    let nas = appliance(Generation::V24_10).await;
    let driver = driver(&nas, "truenas-api-iscsi", "");
    let volume = create(driver.as_ref(), "pvc-1").await;
    let target = rows(&nas, "iscsi.target").await[0]["id"].clone();
    let zvol =
        json!([{"name": "tank/other", "type": "VOLUME", "volsize": 1 << 30, "sparse": true}]);
    run(&nas, "pool.dataset.create", zvol).await;
    let extent = json!([{"name": "other", "type": "DISK", "disk": "zvol/tank/other"}]);
    let extent = run(&nas, "iscsi.extent.create", extent).await["id"].clone();
    let link = json!([{"target": target, "extent": extent, "lunid": 1}]);
    run(&nas, "iscsi.targetextent.create", link).await;
    done(
        driver
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await,
    );
    assert!(!is_there(&nas, "tank/csi/v/pvc-1").await);
    for (service, key, left) in [
        ("iscsi.target", "id", &target),
        ("iscsi.extent", "id", &extent),
        ("iscsi.targetextent", "extent", &extent),
    ] {
        let rows = rows(&nas, service).await;
        assert_eq!(rows.len(), 1, "{service}");
        assert_eq!(rows[0][key], *left, "{service}");
    }
}

/// The betas of 26 say that a dataset in use is destroyed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_snapshot_in_use_is_not_taken_for_gone() {
    for busy in ["tank/csi/s/pvc-1/s-1", "tank/csi/s/pvc-1"] {
        for generation in [Generation::V24_10, Generation::V26Beta] {
            let nas = appliance(generation).await;
            let driver = driver(&nas, "truenas-api-nfs", "");
            let volume = create(driver.as_ref(), "pvc-1").await;
            let taken = done(detached(driver.as_ref(), &volume.id).await);
            nas.faults().busy(busy, 2);
            let snapshots = driver.snapshots().expect("snapshots");
            done(
                snapshots
                    .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
                    .await,
            );
            for gone in ["tank/csi/s/pvc-1/s-1", "tank/csi/s/pvc-1"] {
                assert!(!is_there(&nas, gone).await, "{gone} on {generation:?}");
            }
        }
    }
}

/// A copy has its name long before it has its content and its marks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_snapshot_that_was_cut_is_taken_up_and_leaves_nothing() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", "");
        let volume = create(driver.as_ref(), "pvc-1").await;
        nas.faults()
            .add(Rule::new("replication.run_onetime", Action::JobHold).times(1));
        let short = Call::within(Duration::from_secs(3));
        let cut = detached_within(&short, driver.as_ref(), &volume.id).await;
        assert_eq!(cut.expect_err("held").effect(), Effect::Possible);
        // What the job has received so far.
        run(
            &nas,
            "pool.dataset.create",
            json!([{"name": "tank/csi/s/pvc-1/s-1"}]),
        )
        .await;
        let running = detached(driver.as_ref(), &volume.id).await;
        let running = running.expect_err("it still runs");
        assert_eq!(
            running.kind(),
            Kind::Pending,
            "{generation:?}: {}",
            running.chain()
        );
        // The job ends after the call that would have marked what it made.
        nas.faults().release();
        for _ in 0..100 {
            let state = run(&nas, "core.get_jobs", json!([])).await;
            let jobs = state.as_array().expect("jobs").iter();
            if jobs
                .rev()
                .any(|job| job["method"] == "replication.run_onetime" && job["state"] == "SUCCESS")
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let taken = done(detached(driver.as_ref(), &volume.id).await);
        let left = run(&nas, snapshots_of(generation), json!([])).await;
        assert_eq!(left, json!([]), "{generation:?}");
        let name = own(&nas, "tank/csi/s/pvc-1/s-1", "csi_snapshot_name").await;
        assert_eq!(name.as_deref(), Some("s-1"), "{generation:?}");
        let snapshots = driver.snapshots().expect("snapshots");
        done(
            snapshots
                .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
                .await,
        );
        assert!(!is_there(&nas, "tank/csi/s/pvc-1").await, "{generation:?}");
    }
}

pub(crate) fn snapshots_of(generation: Generation) -> &'static str {
    if generation >= Generation::V25_10 {
        "pool.snapshot.query"
    } else {
        "zfs.snapshot.query"
    }
}

/// The dataset is of an earlier attempt: that the share alone is refused is no proof that nothing is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_that_is_refused_again_does_not_deny_its_dataset() {
    let nas = appliance(Generation::V25_10).await;
    let text = config(&nas, "truenas-api-nfs", "").replace(
        "shareAllowedNetworks: [10.0.0.0/8]",
        "shareAllowedHosts: [nowhere.invalid]",
    );
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    let driver = from_document(&document).expect("a driver");
    let asked = request(driver.as_ref(), "pvc-1", None);
    for attempt in 0..3 {
        let refused = driver.create_volume(&call(), &asked).await;
        let refused = refused.expect_err("no such host");
        let why = refused.chain();
        assert_eq!(refused.effect(), Effect::Possible, "{attempt}: {why}");
        assert!(is_there(&nas, "tank/csi/v/pvc-1").await);
    }
}

/// A namespace that is refused comes after the subsystem that was just made for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_several_calls_does_not_speak_for_the_others() {
    let nas = appliance(Generation::V25_10).await;
    let kind = "truenas-api-nvmeof";
    let volume = create(driver(&nas, kind, "").as_ref(), "pvc-1").await;
    let id = rows(&nas, "nvmet.subsys").await[0]["id"].clone();
    run(&nas, "nvmet.subsys.delete", json!([id, {"force": true}])).await;
    let odd = "ports: [1], namespaceTemplate: {nsid: 4294967295}}";
    let text = config(&nas, kind, "").replace("ports: [1]}", odd);
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    let driver = from_document(&document).expect("a driver");
    let exports = driver.exports().expect("exports");
    let refused = exports.repair_export(&call(), &volume.id).await;
    let refused = refused.expect_err("no namespace");
    let why = refused.chain();
    assert_eq!(refused.kind(), Kind::Invalid, "{why}");
    assert_eq!(refused.effect(), Effect::Possible, "{why}");
    assert_eq!(rows(&nas, "nvmet.subsys").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_follows_the_groups_of_the_configuration_and_no_further() {
    let nas = appliance(Generation::V24_10).await;
    let kind = "truenas-api-iscsi";
    let volume = create(driver(&nas, kind, "").as_ref(), "pvc-1").await;
    run(
        &nas,
        "iscsi.portal.create",
        json!([{"listen": [{"ip": "10.0.0.6"}]}]),
    )
    .await;
    run(&nas, "iscsi.initiator.create", json!([{"initiators": []}])).await;
    let auth = json!([{"tag": 7, "user": "csi", "secret": "sesame-sesame"}]);
    run(&nas, "iscsi.auth.create", auth).await;
    let first = "targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1";
    for groups in [
        "targetGroupPortalGroup: 2, targetGroupInitiatorGroup: 1",
        "targetGroupPortalGroup: 2, targetGroupInitiatorGroup: 2",
        "targetGroupPortalGroup: 2, targetGroupInitiatorGroup: 2, targetGroupAuthType: CHAP, targetGroupAuthGroup: 7",
        "targetGroupPortalGroup: 2, targetGroupInitiatorGroup: 2}, {targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1",
        "targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 2}, {targetGroupPortalGroup: 2, targetGroupInitiatorGroup: 1",
    ] {
        let text = config(&nas, kind, "").replace(first, groups);
        let document = Document::parse(&text, &NoEnvironment).expect("a document");
        let driver = from_document(&document).expect("a driver");
        let exports = driver.exports().expect("exports");
        assert!(
            !done(exports.is_exported(&call(), &volume.id).await),
            "{groups}"
        );
        done(exports.repair_export(&call(), &volume.id).await);
        assert!(
            done(exports.is_exported(&call(), &volume.id).await),
            "{groups}"
        );
        // Also in the call that a retry of the orchestrator is, and with nothing more to write.
        nas.faults()
            .add(Rule::new("iscsi.target.update", Action::CutBefore));
        let asked = request(driver.as_ref(), "pvc-1", None);
        done(driver.create_volume(&call(), &asked).await);
        nas.faults().clear();
        let found = rows(&nas, "iscsi.target").await[0]["groups"].clone();
        assert_eq!(
            found.as_array().map(Vec::len),
            Some(groups.split('{').count()),
            "{found}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_disabled_is_not_exported_and_is_enabled_again() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        for (kind, service) in [
            ("truenas-api-nfs", "sharing.nfs"),
            ("truenas-api-smb", "sharing.smb"),
            ("truenas-api-iscsi", "iscsi.extent"),
            ("truenas-api-nvmeof", "nvmet.namespace"),
        ] {
            if service.starts_with("nvmet") && generation < Generation::V25_10 {
                continue;
            }
            let nas = appliance(generation).await;
            let driver = driver(&nas, kind, "");
            let volume = create(driver.as_ref(), "pvc-1").await;
            let exports = driver.exports().expect("exports");
            let row = rows(&nas, service).await[0].clone();
            let params = json!([row["id"], {"enabled": false}]);
            run(&nas, &format!("{service}.update"), params).await;
            let seen = done(exports.is_exported(&call(), &volume.id).await);
            assert!(!seen, "{kind} on {generation:?}");
            done(exports.repair_export(&call(), &volume.id).await);
            // Enabled, and nothing else of it is another one.
            assert_eq!(rows(&nas, service).await, [row], "{kind} on {generation:?}");
            assert!(done(exports.is_exported(&call(), &volume.id).await));
        }
    }
}

/// One that others have made in its place since it was looked at is theirs. The NAS takes its time to remove the
/// export, as one does that reloads a service with many of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_that_was_replaced_while_the_nas_removed_its_export_is_not_destroyed() {
    const NAME: &str = "tank/csi/v/pvc-1";
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", "");
        let id = create(driver.as_ref(), "pvc-1").await.id;
        let held = Rule::new("sharing.nfs.delete", Action::Hold).times(1);
        nas.faults().add(held);
        let replace = async {
            while nas.faults().holding() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            run(&nas, "pool.dataset.delete", json!([NAME])).await;
            // Longer than a look is good for.
            tokio::time::sleep(Duration::from_secs(6)).await;
            run(&nas, "pool.dataset.create", json!([{"name": NAME}])).await;
            nas.faults().release();
        };
        let call = call();
        let (deleted, ()) =
            tokio::join!(driver.delete_volume(&call, DeleteVolume::new(&id)), replace);
        let refused = deleted.expect_err("it is of another");
        let why = refused.chain();
        assert!(why.contains("is not a volume of this driver"), "{why}");
        assert!(is_there(&nas, NAME).await, "{generation:?}");
    }
}
