//! `explain` of volumes of a NAS, here the simulator: each fault names its link, and a sound volume none.

use integration::observe::free_port;
use integration::place::Place;
use integration::server::Launch;
use integration::{tools, volume};
use serde_json::{Value, json};
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

use crate::truenas::{by_key, config, nas};

const DATASET: &str = "tank/csi/v/pvc-1";

/// A NAS with one volume that is served, and the configuration of its connection.
async fn served(kind: &str, service: &str) -> (Simulator, Place, Value, String) {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let start = vec![json!("START"), json!(service), json!({})];
    let started = nas.call("service.control", start).await;
    started.expect("a service that runs");
    let place = Place::new();
    let config = config(&nas, kind, by_key(&nas));
    let launch = Launch::new(config.to_string());
    let mut server = launch.start(&place).await;
    let mut controller = server.client().controller.clone();
    let asked = volume::create("pvc-1", &volume::parameters(&[]));
    let made = controller.create_volume(asked).await.expect("a volume");
    let handle = made.into_inner().volume.expect("a volume").volume_id;
    assert!(server.terminate().await.success());
    (nas, place, config, handle)
}

async fn explain(place: &Place, config: &Value, handle: &str) -> (Option<i32>, Value) {
    std::fs::write(place.config(), config.to_string()).expect("a file");
    let file = format!("--driver-config-file={}", place.config().display());
    let kubelet = format!("--kubelet-dir={}", place.path().join("none").display());
    let words = ["explain", &file, &kubelet, "--json", handle];
    let output = tools::omnibus(&words, &[]).await;
    let said = String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned();
    let key = config["httpConnection"]["apiKey"].as_str().expect("a key");
    let (_, secret) = key.split_once('-').expect("a key");
    assert!(!said.contains(secret), "a secret is printed: {said}");
    let chain = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    (output.status.code(), chain)
}

/// Checks that this link is the first that is broken, and has a remedy.
async fn breaks(place: &Place, config: &Value, handle: &str, link: &str) -> Value {
    let (code, chain) = explain(place, config, handle).await;
    assert_eq!(
        (code, &chain["broken"]),
        (Some(1), &json!(link)),
        "{chain:#}"
    );
    let all = chain["links"].as_array().expect("links");
    let broken = all.iter().find(|one| one["link"] == link);
    let broken = broken.expect("the link that is named").clone();
    assert!(broken["remedy"].is_string(), "{broken:#}");
    broken
}

async fn holds(place: &Place, config: &Value, handle: &str) {
    let (code, chain) = explain(place, config, handle).await;
    assert_eq!(
        (code, &chain["broken"]),
        (Some(0), &Value::Null),
        "{chain:#}"
    );
}

/// The id of the only row of a table.
async fn only(nas: &Simulator, table: &str) -> Value {
    let rows = nas.call(&format!("{table}.query"), vec![]).await;
    let rows = rows.expect("rows");
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    rows[0]["id"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_volumes_of_each_protocol_a_lost_export_and_a_lost_dataset_are_named() {
    for (kind, service, table, disabled) in [
        (
            "truenas-api-nfs",
            "nfs",
            "sharing.nfs",
            Some(json!({"enabled": false})),
        ),
        (
            "truenas-api-smb",
            "cifs",
            "sharing.smb",
            Some(json!({"enabled": false})),
        ),
        (
            "truenas-api-iscsi",
            "iscsitarget",
            "iscsi.targetextent",
            None,
        ),
        (
            "truenas-api-nvmeof",
            "nvmet",
            "nvmet.namespace",
            Some(json!({"enabled": false})),
        ),
    ] {
        let (nas, place, config, handle) = served(kind, service).await;
        holds(&place, &config, &handle).await;
        let id = only(&nas, table).await;
        if let Some(disabled) = disabled {
            let update = format!("{table}.update");
            let done = nas.call(&update, vec![id.clone(), disabled]).await;
            done.expect("it is disabled");
            let broken = breaks(&place, &config, &handle, "export").await;
            let remedy = broken["remedy"].as_str().expect("a remedy");
            assert!(remedy.contains("exports --driver-config-file="), "{remedy}");
            let enabled = vec![id.clone(), json!({"enabled": true})];
            nas.call(&update, enabled).await.expect("it is enabled");
            holds(&place, &config, &handle).await;
        }
        let delete = format!("{table}.delete");
        nas.call(&delete, vec![id]).await.expect("it is deleted");
        breaks(&place, &config, &handle, "export").await;
        let gone = vec![json!(DATASET), json!({"recursive": true, "force": true})];
        let gone = nas.call("pool.dataset.delete", gone).await;
        gone.unwrap_or_else(|error| panic!("{kind}: {error:?}"));
        breaks(&place, &config, &handle, "volume").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_nas_itself_login_service_parent_pool_and_silence_are_named() {
    let (nas, place, config, handle) = served("truenas-api-nfs", "nfs").await;
    holds(&place, &config, &handle).await;
    breaks(&place, &config, "pvc-of-another", "volume").await;
    let mut wrong = config.clone();
    let of_another = format!("1-{}", "a".repeat(64));
    wrong["httpConnection"]["apiKey"] = of_another.into();
    breaks(&place, &wrong, &handle, "storage").await;
    let mut elsewhere = config.clone();
    elsewhere["httpConnection"]["port"] = free_port().into();
    breaks(&place, &elsewhere, &handle, "storage").await;
    let mut untrusted = config.clone();
    untrusted["httpConnection"]["allowInsecure"] = json!(false);
    breaks(&place, &untrusted, &handle, "storage").await;
    let mut pool = config.clone();
    pool["zfs"]["datasetParentName"] = json!("lake/csi/v");
    pool["zfs"]["detachedSnapshotsDatasetParentName"] = json!("lake/csi/s");
    breaks(&place, &pool, &handle, "parent").await;
    let mut parent = config.clone();
    parent["zfs"]["datasetParentName"] = json!("tank/other");
    breaks(&place, &parent, &handle, "parent").await;
    let stop = vec![json!("STOP"), json!("nfs"), json!({})];
    nas.call("service.control", stop).await.expect("it stops");
    breaks(&place, &config, &handle, "export").await;
    // It takes calls, and answers none.
    nas.faults().add(Rule::new("*", Action::Hold));
    let silent = breaks(&place, &config, &handle, "storage").await;
    let text = silent["text"].as_str().expect("a text");
    assert!(text.contains("did not answer in 10 s"), "{text}");
    nas.faults().clear();
    nas.faults().release();
    drop(nas);
    breaks(&place, &config, &handle, "storage").await;
}
