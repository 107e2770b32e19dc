//! The health of volumes through the API: seen in few calls, however many volumes there are.

use std::slice;

use driver_core::config::Severity;
use driver_core::{Conditions, Driver, HealthQuery, VolumeId};
use serde_json::json;
use truenas_sim::{Generation, Simulator};

use crate::checks::{OF_ALL, with_key, with_roles};
use crate::costs::{call, create, exchanges, request};
use crate::volumes::{QUOTAS, appliance, config, driver, of_text};

const GENERATIONS: [Generation; 5] = [
    Generation::V22_12,
    Generation::V24_10,
    Generation::V25_04,
    Generation::V25_10,
    Generation::V26Rc,
];
const PROTOCOLS: [&str; 4] = ["nfs", "smb", "iscsi", "nvmeof"];
const VOLUME: &str = "tank/csi/v/pvc-1";

type Reasons = Vec<Option<Vec<&'static str>>>;

fn reasons(found: Vec<Option<Conditions>>) -> Reasons {
    let one = |found: Conditions| found.iter().map(|one| one.reason().as_str()).collect();
    found.into_iter().map(|found| found.map(one)).collect()
}

/// The reasons of each of these volumes; `None` for one that does not exist.
async fn health(driver: &dyn Driver, ids: &[VolumeId]) -> Reasons {
    let found = driver.conditions(&call(), HealthQuery::whole(ids)).await;
    reasons(found.unwrap_or_else(|error| panic!("health: {}", error.chain())))
}

/// Those of one volume.
async fn health_of(driver: &dyn Driver, id: &VolumeId) -> Vec<&'static str> {
    let found = health(driver, slice::from_ref(id)).await.pop();
    found.flatten().expect("it exists")
}

fn quotas(protocol: &str) -> &'static str {
    if ["nfs", "smb"].contains(&protocol) {
        QUOTAS
    } else {
        ""
    }
}

/// The export of a volume is there, and is not served.
async fn disable(nas: &Simulator, protocol: &str, name: &str) {
    let dataset = format!("tank/csi/v/{name}");
    let (path, device) = (format!("/mnt/{dataset}"), format!("zvol/{dataset}"));
    let (service, filter) = match protocol {
        "nfs" => ("sharing.nfs", json!(["path", "=", path])),
        "smb" => ("sharing.smb", json!(["path", "=", path])),
        "iscsi" => ("iscsi.extent", json!(["disk", "=", device])),
        _ => ("nvmet.namespace", json!(["device_path", "=", device])),
    };
    let query = format!("{service}.query");
    let found = nas.call(&query, vec![json!([filter])]).await;
    let id = found.expect("rows")[0]["id"].clone();
    let update = format!("{service}.update");
    let disabled = nas.call(&update, vec![id, json!({"enabled": false})]).await;
    disabled.expect("disabled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disabled_export_is_a_condition_of_its_volume_alone() {
    for generation in [Generation::V22_12, Generation::V25_10, Generation::V26Rc] {
        for protocol in PROTOCOLS {
            if protocol == "nvmeof" && generation < Generation::V25_10 {
                continue;
            }
            let nas = appliance(generation).await;
            let kind = format!("truenas-api-{protocol}");
            let driver = driver(&nas, &kind, quotas(protocol));
            let driver = driver.as_ref();
            let one = create(driver, "pvc-1").await.id;
            let two = create(driver, "pvc-2").await.id;
            let missing = request(driver, "pvc-3", None).id;
            let ids = [one.clone(), missing, two];
            let well = [Some(vec![]), None, Some(vec![])];
            assert_eq!(health(driver, &ids).await, well, "{kind} on {generation}");
            disable(&nas, protocol, "pvc-1").await;
            let lost = [Some(vec!["ExportMissing"]), None, Some(vec![])];
            assert_eq!(health(driver, &ids).await, lost, "{kind} on {generation}");
            let alone = health_of(driver, &one).await;
            assert_eq!(alone, ["ExportMissing"], "{kind} on {generation}");
            let of_lists = HealthQuery::of_storage(&ids);
            let found = driver.conditions(&call(), of_lists).await;
            assert_eq!(reasons(found.expect("health")), well, "{kind}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_the_pool_is_a_condition_of_all_its_volumes() {
    for generation in GENERATIONS {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", QUOTAS);
        let driver = driver.as_ref();
        let one = create(driver, "pvc-1").await.id;
        let two = create(driver, "pvc-2").await.id;
        let ids = [one, two];
        for (status, reason) in [
            ("DEGRADED", "PoolDegraded"),
            ("SUSPENDED", "PoolUnusable"),
            ("OFFLINE", "PoolUnusable"),
        ] {
            nas.model()
                .expect("a model")
                .set_pool_status("tank", status);
            let all = [Some(vec![reason]), Some(vec![reason])];
            assert_eq!(health(driver, &ids).await, all, "{status} on {generation}");
        }
        nas.model()
            .expect("a model")
            .set_pool_status("tank", "ONLINE");
        let well = [Some(vec![]), Some(vec![])];
        assert_eq!(health(driver, &ids).await, well, "{generation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_dataset_is_a_condition() {
    for generation in GENERATIONS {
        let nas = appliance(generation).await;
        let encrypted = json!({
            "name": "tank/enc", "encryption": true, "inherit_encryption": false,
            "encryption_options": {"passphrase": "a long passphrase"},
        });
        let made = nas.call("pool.dataset.create", vec![encrypted]).await;
        made.expect("a dataset");
        let text = config(&nas, "truenas-api-nfs", QUOTAS).replace(
            "datasetParentName: tank/csi/v",
            "datasetParentName: tank/enc",
        );
        let driver = of_text(&text);
        let id = create(driver.as_ref(), "pvc-1").await.id;
        let well = health_of(driver.as_ref(), &id).await;
        assert!(well.is_empty(), "{generation}: {well:?}");
        let locked = nas
            .call("pool.dataset.lock", vec![json!("tank/enc"), json!({})])
            .await;
        locked.expect("locked");
        let found = health_of(driver.as_ref(), &id).await;
        assert_eq!(found, ["KeyNotLoaded"], "{generation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filesystem_that_is_not_mounted_is_a_condition_from_25_10_on() {
    for (generation, expected) in [
        (Generation::V25_04, vec![]),
        (Generation::V25_10, vec!["NotMountedOnStorage"]),
        (Generation::V26Rc, vec!["NotMountedOnStorage"]),
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", QUOTAS);
        let id = create(driver.as_ref(), "pvc-1").await.id;
        nas.model().expect("a model").set_mounted(VOLUME, false);
        let found = health_of(driver.as_ref(), &id).await;
        assert_eq!(found, expected, "{generation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_quota_is_a_condition() {
    for generation in GENERATIONS {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", QUOTAS);
        let id = create(driver.as_ref(), "pvc-1").await.id;
        nas.model().expect("a model").write(VOLUME, 2 << 30);
        let found = health_of(driver.as_ref(), &id).await;
        assert_eq!(found, ["QuotaFull"], "{generation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_may_not_see_pools_is_told_by_the_check_and_not_by_each_volume() {
    let more = ["SHARING_NFS_WRITE", "FILESYSTEM_ATTRS_WRITE"];
    for (roles, sees) in [(vec![], false), (vec!["POOL_READ"], true)] {
        let roles = [OF_ALL.as_slice(), &more, roles.as_slice()].concat();
        let (nas, key) = with_roles(Generation::V25_10, &roles).await;
        let driver = with_key(&nas, "truenas-api-nfs", &key, QUOTAS);
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        assert!(health_of(driver, &id).await.is_empty(), "{roles:?}");
        let described = driver.describe(&call()).await;
        let notes = described.iter().map(|one| (one.severity, &*one.message));
        let named = notes.filter(|(severity, message)| {
            *severity == Severity::Remark && message.contains("POOL_READ")
        });
        assert_eq!(named.count(), usize::from(!sees), "{described:?}");
        nas.model()
            .expect("a model")
            .set_pool_status("tank", "DEGRADED");
        let found = health_of(driver, &id).await;
        assert_eq!(found.contains(&"PoolDegraded"), sees, "{roles:?}");
        disable(&nas, "nfs", "pvc-1").await;
        let found = health_of(driver, &id).await;
        assert!(found.contains(&"ExportMissing"), "{roles:?}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_volumes_are_looked_at_in_few_calls() {
    for (generation, protocol, most) in [
        (Generation::V24_10, "nfs", 3),
        (Generation::V24_10, "iscsi", 6),
        (Generation::V25_10, "nfs", 3),
        (Generation::V25_10, "smb", 3),
        (Generation::V25_10, "iscsi", 6),
        (Generation::V25_10, "nvmeof", 5),
        (Generation::V26Rc, "nvmeof", 5),
    ] {
        let nas = appliance(generation).await;
        let kind = format!("truenas-api-{protocol}");
        let driver = driver(&nas, &kind, quotas(protocol));
        let driver = driver.as_ref();
        let mut ids = Vec::new();
        for number in 0..20 {
            ids.push(create(driver, &format!("pvc-{number}")).await.id);
        }
        disable(&nas, protocol, "pvc-7").await;
        let mut found = Vec::new();
        let (_, calls) = exchanges(&nas, async {
            found = health(driver, &ids).await;
        })
        .await;
        let ill = found.iter().position(|one| *one != Some(vec![]));
        let all_ill = found.iter().filter(|one| **one != Some(vec![]));
        assert_eq!((ill, all_ill.count()), (Some(7), 1), "{kind}: {found:?}");
        assert!(calls <= most, "{kind} on {generation}: {calls} calls");
    }
}
