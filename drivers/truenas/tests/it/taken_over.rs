//! Volumes that democratic-csi has made go on, and ours can go back to it.

use driver_core::{DeleteVolume, ExpandVolume, Kind, SizeRange};
use serde_json::{Value, json};
use truenas_sim::{Generation, Simulator};

use crate::costs::{call, create, request};
use crate::volumes::{appliance, driver};

const PREFIX: &str = "democratic-csi:";
const DATASET: &str = "tank/csi/v/pvc-1";

pub(crate) async fn run(nas: &Simulator, method: &str, params: Value) -> Value {
    let params = params.as_array().expect("arguments").clone();
    let outcome = nas.call(method, params).await;
    outcome.unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
}

/// The properties that democratic-csi leaves on every volume, and these.
fn properties(kind: &str, context: &str, more: &[(&str, String)]) -> Value {
    let mut all = vec![
        ("csi_volume_name", "pvc-1".to_owned()),
        ("managed_resource", "true".to_owned()),
        ("volume_context_provisioner_driver", kind.to_owned()),
        ("csi_share_volume_context", context.to_owned()),
        ("provision_success", "true".to_owned()),
    ];
    all.extend(more.iter().cloned());
    all.iter()
        .map(|(key, value)| json!({"key": format!("{PREFIX}{key}"), "value": value}))
        .collect()
}

pub(crate) async fn own(nas: &Simulator, dataset: &str, key: &str) -> Option<String> {
    let filters = json!([[["id", "=", dataset]]]);
    let found = run(nas, "pool.dataset.query", filters).await;
    let value = &found[0]["user_properties"][format!("{PREFIX}{key}")]["rawvalue"];
    value.as_str().map(str::to_owned)
}

pub(crate) async fn rows(nas: &Simulator, service: &str) -> Vec<Value> {
    let rows = run(nas, &format!("{service}.query"), json!([])).await;
    rows.as_array().expect("rows").clone()
}

/// A volume of `freenas-api-nfs` as democratic-csi leaves it. Its share has the number that is answered.
async fn nfs_volume(nas: &Simulator, stored: Option<i64>) -> i64 {
    let create = json!([{
        "name": DATASET,
        "type": "FILESYSTEM",
        "create_ancestors": true,
        "share_type": "GENERIC",
        "refquota": 2_u64 << 30,
    }]);
    run(nas, "pool.dataset.create", create).await;
    let path = format!("/mnt/{DATASET}");
    let share = json!([{"path": path, "comment": "democratic-csi", "networks": ["10.0.0.0/8"]}]);
    let share = run(nas, "sharing.nfs.create", share).await;
    let id = share["id"].as_i64().expect("a number");
    let context = format!(r#"{{"node_attach_driver":"nfs","server":"10.0.0.5","share":"{path}"}}"#);
    let stored = stored.unwrap_or(id).to_string();
    let set = properties(
        "freenas-api-nfs",
        &context,
        &[("freenas_nfs_share_id", stored)],
    );
    let update = json!([DATASET, {"user_properties_update": set}]);
    run(nas, "pool.dataset.update", update).await;
    id
}

#[tokio::test]
async fn an_nfs_volume_of_democratic_csi_goes_on() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        nfs_volume(&nas, None).await;
        let driver = driver(&nas, "freenas-api-nfs", "  datasetEnableQuotas: true\n");
        let asked = request(driver.as_ref(), "pvc-1", None);
        let lister = driver.lister().expect("lists");
        let shown = lister.get_volume(&call(), &asked.id).await.expect("shown");
        let again = driver.create_volume(&call(), &asked).await.expect("taken");
        assert_eq!(shown, again);
        assert_eq!(rows(&nas, "sharing.nfs").await.len(), 1, "shared once more");
        let exports = driver.exports().expect("exports");
        assert!(exports.is_exported(&call(), &asked.id).await.expect("seen"));
        let expander = driver.expander().expect("growth");
        let size = SizeRange::new(3 << 30, 0).expect("a size");
        let grown = expander
            .expand_volume(&call(), ExpandVolume::new(&asked.id, size))
            .await;
        assert_eq!(grown.expect("grown").capacity, 3 << 30);
        driver
            .delete_volume(&call(), DeleteVolume::new(&asked.id))
            .await
            .expect("deleted");
        assert!(rows(&nas, "sharing.nfs").await.is_empty());
    }
}

#[tokio::test]
async fn a_stored_number_of_another_share_is_repaired_and_that_share_is_left_alone() {
    let nas = appliance(Generation::V25_10).await;
    run(&nas, "pool.dataset.create", json!([{"name": "tank/other"}])).await;
    let other = run(
        &nas,
        "sharing.nfs.create",
        json!([{"path": "/mnt/tank/other"}]),
    )
    .await;
    let other = other["id"].as_i64().expect("a number");
    let id = nfs_volume(&nas, Some(other)).await;
    let driver = driver(&nas, "freenas-api-nfs", "  datasetEnableQuotas: true\n");
    let volume = request(driver.as_ref(), "pvc-1", None).id;
    let exports = driver.exports().expect("exports");
    exports
        .repair_export(&call(), &volume)
        .await
        .expect("repaired");
    assert_eq!(
        own(&nas, DATASET, "freenas_nfs_share_id").await,
        Some(id.to_string())
    );
    driver
        .delete_volume(&call(), DeleteVolume::new(&volume))
        .await
        .expect("deleted");
    let left = rows(&nas, "sharing.nfs").await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["id"], other);
}

#[tokio::test]
async fn an_iscsi_volume_of_democratic_csi_goes_on() {
    let nas = appliance(Generation::V24_10).await;
    let create = json!([{
        "name": DATASET,
        "type": "VOLUME",
        "create_ancestors": true,
        "volsize": 2_u64 << 30,
        "sparse": true,
    }]);
    run(&nas, "pool.dataset.create", create).await;
    let group = json!({"portal": 1, "initiator": 1, "authmethod": "NONE", "auth": null});
    let target =
        json!([{"name": "csi-pvc-1-a", "alias": null, "mode": "ISCSI", "groups": [group]}]);
    let target = run(&nas, "iscsi.target.create", target).await;
    let extent = json!([{
        "name": "csi-pvc-1-a",
        "type": "DISK",
        "disk": format!("zvol/{DATASET}"),
        "blocksize": 512,
    }]);
    let extent = run(&nas, "iscsi.extent.create", extent).await;
    let link = json!([{"target": target["id"], "extent": extent["id"], "lunid": 0}]);
    let link = run(&nas, "iscsi.targetextent.create", link).await;
    let context = r#"{"node_attach_driver":"iscsi","portal":"10.0.0.5:3260","portals":"","interface":"","iqn":"iqn.2005-10.org.freenas.ctl:csi-pvc-1-a","lun":0}"#;
    let text = |row: &Value| row["id"].to_string();
    let set = properties(
        "freenas-api-iscsi",
        context,
        &[
            ("freenas_iscsi_target_id", text(&target)),
            ("freenas_iscsi_extent_id", text(&extent)),
            ("freenas_iscsi_targettoextent_id", text(&link)),
            ("freenas_iscsi_assets_name", "csi-pvc-1-a".to_owned()),
        ],
    );
    let update = json!([DATASET, {"user_properties_update": set}]);
    run(&nas, "pool.dataset.update", update).await;
    let driver = driver(&nas, "freenas-api-iscsi", "");
    let asked = request(driver.as_ref(), "pvc-1", None);
    let again = driver.create_volume(&call(), &asked).await.expect("taken");
    let context = again.attachment.to_context();
    assert_eq!(context["iqn"], "iqn.2005-10.org.freenas.ctl:csi-pvc-1-a");
    assert_eq!(rows(&nas, "iscsi.extent").await.len(), 1);
    // The target is deleted on the NAS. The retry creates it again and corrects what is stored.
    run(&nas, "iscsi.target.delete", json!([target["id"]])).await;
    let exports = driver.exports().expect("exports");
    assert!(!exports.is_exported(&call(), &asked.id).await.expect("seen"));
    exports
        .repair_export(&call(), &asked.id)
        .await
        .expect("repaired");
    let targets = rows(&nas, "iscsi.target").await;
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0]["name"], "csi-pvc-1-a");
    assert_eq!(
        own(&nas, DATASET, "freenas_iscsi_target_id").await,
        Some(targets[0]["id"].to_string())
    );
    driver
        .delete_volume(&call(), DeleteVolume::new(&asked.id))
        .await
        .expect("deleted");
    for service in ["iscsi.target", "iscsi.extent", "iscsi.targetextent"] {
        assert!(rows(&nas, service).await.is_empty(), "{service}");
    }
}

#[tokio::test]
async fn what_democratic_csi_needs_is_on_our_volumes() {
    let nas = appliance(Generation::V25_10).await;
    let iscsi = driver(&nas, "freenas-api-iscsi", "");
    create(iscsi.as_ref(), "pvc-i").await;
    let dataset = "tank/csi/v/pvc-i";
    for (key, service) in [
        ("freenas_iscsi_target_id", "iscsi.target"),
        ("freenas_iscsi_extent_id", "iscsi.extent"),
        ("freenas_iscsi_targettoextent_id", "iscsi.targetextent"),
    ] {
        let id = rows(&nas, service).await[0]["id"].to_string();
        assert_eq!(own(&nas, dataset, key).await, Some(id), "{key}");
    }
    let name = own(&nas, dataset, "freenas_iscsi_assets_name").await;
    assert_eq!(name.as_deref(), Some("pvc-i"));
    let nvme = driver(&nas, "freenas-api-nvmeof", "");
    create(nvme.as_ref(), "pvc-n").await;
    let dataset = "tank/csi/v/pvc-n";
    for (key, service) in [
        ("freenas_nvmeof_subsystem_id", "nvmet.subsys"),
        ("freenas_nvmeof_namespace_id", "nvmet.namespace"),
    ] {
        let id = rows(&nas, service).await[0]["id"].to_string();
        assert_eq!(own(&nas, dataset, key).await, Some(id), "{key}");
    }
    let smb = driver(&nas, "freenas-api-smb", "");
    create(smb.as_ref(), "pvc-s").await;
    let id = rows(&nas, "sharing.smb").await[0]["id"].to_string();
    let stored = own(&nas, "tank/csi/v/pvc-s", "freenas_smb_share_id").await;
    assert_eq!(stored, Some(id));
    for key in ["csi_volume_name", "managed_resource", "provision_success"] {
        assert!(own(&nas, dataset, key).await.is_some(), "{key}");
    }
}

#[tokio::test]
async fn what_is_of_another_volume_is_never_taken() {
    let nas = appliance(Generation::V25_10).await;
    run(
        &nas,
        "pool.dataset.create",
        json!([{"name": "tank/z", "type": "VOLUME", "volsize": 1 << 30, "sparse": true}]),
    )
    .await;
    let extent = json!([{"name": "pvc-1", "type": "DISK", "disk": "zvol/tank/z"}]);
    run(&nas, "iscsi.extent.create", extent).await;
    let driver = driver(&nas, "freenas-api-iscsi", "");
    let asked = request(driver.as_ref(), "pvc-1", None);
    let refused = driver.create_volume(&call(), &asked).await;
    let refused = refused.expect_err("the name is taken");
    assert_eq!(refused.kind(), Kind::Conflict, "{}", refused.chain());
    driver
        .delete_volume(&call(), DeleteVolume::new(&asked.id))
        .await
        .expect("deleted");
    let extents = rows(&nas, "iscsi.extent").await;
    assert_eq!(extents.len(), 1);
    assert_eq!(extents[0]["disk"], "zvol/tank/z");
}
