//! `export-pvs`: what it writes is enough for a cluster that knows nothing of the volumes.

use std::collections::BTreeMap;
use std::path::Path;

use integration::place::Place;
use integration::requirement::root;
use integration::server::Launch;
use integration::{objects, tools, volume};
use serde_json::Value;
use truenas_sim::{Generation, Options};

use crate::truenas::{by_key, config, nas};

/// The parameters that the provisioner adds for a claim.
fn claimed(name: &str) -> BTreeMap<String, String> {
    volume::parameters(&[
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ("csi.storage.k8s.io/pvc/name", name),
        ("csi.storage.k8s.io/pv/name", &format!("pvc-of-{name}")),
    ])
}

/// What the program writes for the configuration of `place`, and its exit code.
async fn export(place: &Place, more: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let file = format!("--driver-config-file={}", place.config().display());
    let words = ["export-pvs", &file, "--csi-name=org.example.csi"];
    let node = [("CSI_NODE_ID", "node-a")];
    let output = tools::omnibus(&[&words[..], more].concat(), &node).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), objects::read(&text), said)
}

/// The object of a kind that bears this name.
fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut all = objects.iter();
    let found = all.find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name} in {objects:#?}"))
}

fn mounted(path: &Path) -> String {
    std::fs::read_to_string(path.join("file")).expect("the file of then")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_a_new_cluster_has_its_data_by_what_was_written() {
    if !root("the volumes of a cluster that was lost") {
        return;
    }
    let place = Place::new();
    let mut server = Launch::local_hostpath(&place).start(&place).await;
    let mut client = server.client();
    for name in ["data", "logs"] {
        let asked = volume::create(&format!("pvc-{name}"), &claimed(name));
        let made = client.controller.create_volume(asked).await;
        let made = made.expect("made").into_inner().volume.expect("a volume");
        std::fs::write(
            place.base().join("v").join(&made.volume_id).join("file"),
            name,
        )
        .expect("written");
    }
    // Of democratic-csi, which records no claim.
    std::fs::create_dir(place.base().join("v/pvc-old")).expect("a folder");
    assert!(server.terminate().await.success());

    let (code, objects, said) = export(&place, &["--claim=pvc-old=web/old"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(objects.len(), 6, "{objects:#?}");
    let old = named(&objects, "PersistentVolume", "pvc-old");
    let terms = &old["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let node = &terms[0]["matchExpressions"][0]["values"][0];
    assert_eq!(node, "node-a", "its disk is there: {old:#}");
    let mut server = Launch::local_hostpath(&place).start(&place).await;
    let mut client = server.client();
    for name in ["data", "logs"] {
        let claim = named(&objects, "PersistentVolumeClaim", name);
        assert_eq!(claim["metadata"]["namespace"], "shop");
        let volume_name = claim["spec"]["volumeName"].as_str().expect("a volume");
        assert_eq!(volume_name, format!("pvc-of-{name}"));
        let found = objects::volume(named(&objects, "PersistentVolume", volume_name));
        let (staging, target) = (place.node().join("s"), place.node().join(name));
        let request = volume::stage(&found, &staging);
        client
            .node
            .node_stage_volume(request)
            .await
            .expect("staged");
        let request = volume::publish(&found, &staging, &target);
        client
            .node
            .node_publish_volume(request)
            .await
            .expect("published");
        assert_eq!(mounted(&target), name);
        let request = volume::unpublish(&found, &target);
        client
            .node
            .node_unpublish_volume(request)
            .await
            .expect("unpublished");
        let request = volume::unstage(&found, &staging);
        client
            .node
            .node_unstage_volume(request)
            .await
            .expect("unstaged");
    }
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_and_snapshots_of_a_nas_are_written_as_they_were_answered() {
    for (kind, mode) in [
        ("truenas-api-nfs", "ReadWriteMany"),
        ("truenas-api-iscsi", "ReadWriteOnce"),
    ] {
        let nas = nas(Options::new(Generation::V25_10)).await;
        let place = Place::new();
        let config = config(&nas, kind, by_key(&nas));
        let launch = Launch::new(config.to_string());
        let mut server = launch.start(&place).await;
        let mut controller = server.client().controller;
        let asked = volume::create("pvc-1", &claimed("data"));
        let made = controller.create_volume(asked).await.expect("a volume");
        let made = made.into_inner().volume.expect("a volume");
        let asked = volume::snapshot("snapshot-1", &made.volume_id);
        let taken = controller.create_snapshot(asked).await.expect("a snapshot");
        let taken = taken.into_inner().snapshot.expect("a snapshot");
        assert!(server.terminate().await.success());

        let (code, objects, said) = export(&place, &["--snapshot-class=nas"]).await;
        assert_eq!(code, Some(0), "{kind}: {said}");
        let found = named(&objects, "PersistentVolume", "pvc-of-data");
        let again = objects::volume(found);
        assert_eq!(again.volume_id, made.volume_id, "{kind}");
        assert_eq!(again.volume_context, made.volume_context, "{kind}");
        assert_eq!(found["spec"]["accessModes"][0], mode, "{kind}");
        // Nothing limits a share without a quota.
        let size = match made.capacity_bytes {
            0 => "1Gi".to_owned(),
            bytes => bytes.to_string(),
        };
        assert_eq!(found["spec"]["capacity"]["storage"], size, "{kind}");
        let content = named(&objects, "VolumeSnapshotContent", "snapshot-1");
        let source = &content["spec"]["source"];
        assert_eq!(source["snapshotHandle"], taken.snapshot_id, "{kind}");
        let key = config["httpConnection"]["apiKey"].as_str().expect("a key");
        assert!(!format!("{objects:?}{said}").contains(key), "{kind}");
    }
}
