//! `adopt`: what others made on the storage is a volume of a pod, by the objects that are written.

use std::path::Path;

use csi_proto::v1 as csi;
use integration::place::Place;
use integration::requirement::root;
use integration::server::Launch;
use integration::{objects, tools, volume};
use serde_json::{Value, json};
use truenas_sim::{Generation, Options, Simulator};

use crate::truenas::{by_key, config, nas};

/// The answer of the program for the configuration of `place`.
struct Ran {
    code: Option<i32>,
    out: String,
    said: String,
}

async fn adopt(place: &Place, source: &str, more: &[&str]) -> Ran {
    let file = format!("--driver-config-file={}", place.config().display());
    let words = ["adopt", &file, "--csi-name=org.example.csi", source];
    let node = [("CSI_NODE_ID", "node-a")];
    let output = tools::omnibus(&[&words[..], more].concat(), &node).await;
    Ran {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Ran {
    /// The persistent volume and the claim that it has written.
    fn objects(&self) -> [Value; 2] {
        assert_eq!(self.code, Some(0), "{}", self.said);
        let objects: Result<[Value; 2], _> = objects::read(&self.out).try_into();
        objects.unwrap_or_else(|all| panic!("{all:#?}"))
    }
}

async fn made_by_hand(nas: &Simulator, dataset: Value) {
    let made = nas.call("pool.dataset.create", vec![dataset]).await;
    made.expect("a dataset");
}

/// All datasets, with all of their properties.
async fn datasets(nas: &Simulator) -> Value {
    let all = nas.call("pool.dataset.query", vec![]).await;
    all.expect("datasets")
}

async fn rows(nas: &Simulator, table: &str) -> usize {
    let all = nas.call(&format!("{table}.query"), vec![]).await;
    all.expect("rows").as_array().expect("rows").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datasets_and_zvols_of_a_nas_become_volumes_and_live_as_such() {
    for (kind, table, generation) in [
        ("truenas-api-nfs", "sharing.nfs", Generation::V25_10),
        ("truenas-api-nfs", "sharing.nfs", Generation::V26Beta),
        ("truenas-api-smb", "sharing.smb", Generation::V25_10),
        ("truenas-api-iscsi", "iscsi.target", Generation::V25_10),
        ("truenas-api-iscsi", "iscsi.target", Generation::V26Beta),
        ("truenas-api-nvmeof", "nvmet.subsys", Generation::V25_10),
    ] {
        let what = format!("{kind} {generation:?}");
        let nas = nas(Options::new(generation)).await;
        let place = Place::new();
        let config = config(&nas, kind, by_key(&nas));
        std::fs::write(place.config(), config.to_string()).expect("written");
        let mut dataset = json!({"name": "tank/csi/v/photos"});
        let more = if table == "sharing.nfs" || table == "sharing.smb" {
            json!({"refquota": 2_i64 << 30})
        } else {
            json!({"type": "VOLUME", "volsize": 2_i64 << 30})
        };
        let dataset_map = dataset.as_object_mut().expect("a map");
        dataset_map.extend(more.as_object().expect("a map").clone());
        made_by_hand(&nas, dataset).await;
        let before = datasets(&nas).await;

        let source = "tank/csi/v/photos";
        let dry = adopt(&place, source, &["--dry-run"]).await;
        assert_eq!(dry.code, Some(0), "{what}: {}", dry.said);
        assert!(
            dry.out.starts_with(
                "tank/csi/v/photos would become the volume `photos`:\n  change the export\n"
            ),
            "{what}: {}",
            dry.out
        );
        assert_eq!(datasets(&nas).await, before, "{what}");
        assert_eq!(rows(&nas, table).await, 0, "{what}");

        let flags = ["--claim=shop/photos", "--storage-class=nas"];
        let ran = adopt(&place, source, &flags).await;
        let [found, claim] = ran.objects();
        assert!(ran.said.contains("becomes the volume"), "{}", ran.said);
        assert_eq!(rows(&nas, table).await, 1, "{what}");
        assert_eq!(claim["spec"]["volumeName"], "photos", "{what}");
        let policy = &found["spec"]["persistentVolumeReclaimPolicy"];
        assert_eq!(policy, "Retain", "{what}");
        // Again, without what is recorded: the same objects.
        let again = adopt(&place, source, &["--storage-class=nas"]).await;
        assert_eq!(again.out, ran.out, "{what}");
        assert!(again.said.contains("was adopted"), "{}", again.said);

        let launch = Launch::new(config.to_string());
        let mut server = launch.start(&place).await;
        let mut controller = server.client().controller;
        let listed = controller.list_volumes(csi::ListVolumesRequest::default());
        let listed = listed.await.expect("a list").into_inner().entries;
        let [entry] = &listed[..] else {
            panic!("{what}: {listed:?}");
        };
        let shown = entry.volume.clone().expect("a volume");
        let written = objects::volume(&found);
        assert_eq!(shown.volume_id, written.volume_id, "{what}");
        assert_eq!(shown.volume_context, written.volume_context, "{what}");
        let id = shown.volume_id;
        let grown = controller.controller_expand_volume(volume::expand(&id, 3 << 30));
        assert_eq!(
            grown.await.expect("grown").into_inner().capacity_bytes,
            3 << 30,
            "{what}"
        );
        let taken = controller.create_snapshot(volume::snapshot("snapshot-1", &id));
        let taken = taken.await.expect("taken").into_inner().snapshot;
        let taken = taken.expect("a snapshot").snapshot_id;
        let gone = controller.delete_snapshot(volume::delete_snapshot(&taken));
        gone.await.expect("no snapshot");
        let gone = controller.delete_volume(volume::delete(&id));
        gone.await.expect("no volume");
        assert_eq!(rows(&nas, table).await, 0, "{what}");
        assert!(server.terminate().await.success());
    }
}

/// A volume that a class made is refused by its handle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_not_adopted_and_a_dataset_without_a_size_asks_for_one() {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let place = Place::new();
    let mut config = config(&nas, "truenas-api-nfs", by_key(&nas));
    config["zfs"]["datasetEnableQuotas"] = json!(true);
    let mut server = Launch::new(config.to_string()).start(&place).await;
    let asked = volume::create("pvc-1", &volume::parameters(&[]));
    let made = server.client().controller.create_volume(asked).await;
    made.expect("made");
    assert!(server.terminate().await.success());
    let ran = adopt(&place, "tank/csi/v/pvc-1", &[]).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.said);
    assert!(
        ran.said.contains("the volume `pvc-1` already"),
        "{}",
        ran.said
    );

    made_by_hand(&nas, json!({"name": "tank/csi/v/photos"})).await;
    let ran = adopt(&place, "tank/csi/v/photos", &[]).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.said);
    assert!(ran.said.contains("by --size"), "{}", ran.said);
    let more = ["--size=2Gi", "--claim=shop/photos"];
    let ran = adopt(&place, "tank/csi/v/photos", &more).await;
    let [found, _] = ran.objects();
    assert_eq!(found["spec"]["capacity"]["storage"], "2147483648");
    assert!(ran.said.contains("set refquota=2147483648"), "{}", ran.said);
}

/// As tns-csi leaves a share: its properties say the claim. While its NFS share is there, nothing is changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_claim_that_tns_csi_records_is_written_once_its_share_is_gone() {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let place = Place::new();
    let config = config(&nas, "truenas-api-nfs", by_key(&nas));
    std::fs::write(place.config(), config.to_string()).expect("written");
    let properties: Vec<Value> = [
        ("tns-csi:managed_by", "tns-csi"),
        ("tns-csi:csi_volume_name", "pvc-0a1b"),
        ("tns-csi:capacity_bytes", "2147483648"),
        ("tns-csi:pvc_namespace", "web"),
        ("tns-csi:pvc_name", "logs"),
    ]
    .iter()
    .map(|(key, value)| json!({"key": key, "value": value}))
    .collect();
    let dataset = json!({
        "name": "tank/csi/v/pvc-0a1b",
        "refquota": 2_i64 << 30,
        "user_properties": properties,
    });
    made_by_hand(&nas, dataset).await;
    let share = json!({"path": "/mnt/tank/csi/v/pvc-0a1b", "comment": "of tns-csi"});
    let shared = nas.call("sharing.nfs.create", vec![share]).await;
    let shared = shared.expect("a share");
    let refused = adopt(&place, "tank/csi/v/pvc-0a1b", &[]).await;
    assert_eq!(refused.code, Some(1), "{}", refused.said);
    assert!(
        refused.said.contains("exported already"),
        "{}",
        refused.said
    );
    let removed = nas.call("sharing.nfs.delete", vec![shared["id"].clone()]);
    removed.await.expect("removed");
    let ran = adopt(&place, "tank/csi/v/pvc-0a1b", &[]).await;
    let [found, claim] = ran.objects();
    assert_eq!(found["spec"]["claimRef"]["namespace"], "web");
    assert_eq!(claim["metadata"]["name"], "logs");
    assert_eq!(rows(&nas, "sharing.nfs").await, 1);
}

fn content(path: &Path) -> String {
    std::fs::read_to_string(path.join("one")).expect("the file of then")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_has_the_data_of_a_directory_that_was_there_before() {
    if !root("the data of a directory that was there before") {
        return;
    }
    let place = Place::new();
    let mut server = Launch::local_hostpath(&place).start(&place).await;
    let asked = volume::create("pvc-1", &volume::parameters(&[]));
    let made = server.client().controller.create_volume(asked).await;
    made.expect("the base is in use");
    assert!(server.terminate().await.success());
    let photos = place.base().join("v/photos");
    std::fs::create_dir(&photos).expect("a folder");
    std::fs::write(photos.join("one"), "1").expect("a file");

    let more = ["--size=1Gi", "--claim=shop/photos"];
    let ran = adopt(&place, &photos.display().to_string(), &more).await;
    let [found, claim] = ran.objects();
    assert_eq!(claim["spec"]["volumeName"], "photos");
    let terms = &found["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchExpressions"][0]["values"][0], "node-a");
    let refused = adopt(&place, "v/pvc-1", &["--size=1Gi"]).await;
    assert_eq!(refused.code, Some(1), "{}", refused.said);
    assert!(refused.said.contains("`pvc-1` already"), "{}", refused.said);

    let mut server = Launch::local_hostpath(&place).start(&place).await;
    let mut client = server.client();
    let found = objects::volume(&found);
    let (staging, target) = (place.node().join("s"), place.node().join("photos"));
    let staged = client
        .node
        .node_stage_volume(volume::stage(&found, &staging));
    staged.await.expect("staged");
    let request = volume::publish(&found, &staging, &target);
    let published = client.node.node_publish_volume(request);
    published.await.expect("published");
    assert_eq!(content(&target), "1");
    let request = volume::unpublish(&found, &target);
    let unpublished = client.node.node_unpublish_volume(request);
    unpublished.await.expect("unpublished");
    let request = volume::unstage(&found, &staging);
    let unstaged = client.node.node_unstage_volume(request);
    unstaged.await.expect("unstaged");
    let deleted = client.controller.delete_volume(volume::delete("photos"));
    deleted.await.expect("deleted");
    assert!(!photos.exists());
    assert!(server.terminate().await.success());
}
