//! `move`: a volume of one connection becomes one of another, while it is in use, over a `zfs` that pretends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use csi_proto::v1 as csi;
use integration::client::Client;
use integration::place::Place;
use integration::server::Launch;
use integration::{objects, tools, volume};

const ZFS: &str = include_str!("moved/zfs");

/// A pool in a folder, two connections on it, and one that is no ZFS.
struct World {
    place: Place,
    launch: Launch,
}

/// The answer of the program.
struct Ran {
    code: Option<i32>,
    out: String,
    said: String,
}

impl World {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let place = Place::new();
        let zfs = place.base().join("zfs");
        fs::write(&zfs, ZFS).expect("a program");
        fs::set_permissions(&zfs, fs::Permissions::from_mode(0o755)).expect("a program");
        let of = |parent: &str| {
            format!(
                "driver: zfs-generic-nfs\nzfs:\n  datasetParentName: tank/{parent}\n  \
                 detachedSnapshotsDatasetParentName: tank/{parent}-snapshots\n  datasetEnableQuotas: true\n  \
                 cli: {{paths: {{zfs: {zfs}}}}}\nnfs:\n  shareHost: {parent}.example\n  \
                 shareStrategy: setDatasetProperties\n  \
                 shareStrategySetDatasetProperties: {{properties: {{sharenfs: 'off'}}}}\n",
                zfs = zfs.display()
            )
        };
        let files = place.path().join("files");
        let directory = format!(
            "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {files}\n  controllerBasePath: {files}\n  \
             createBase: true\n",
            files = files.display()
        );
        let folder = place.path().join("connections");
        let (nas, ssd) = (of("nas"), of("ssd"));
        let files = [("nas", &*nas), ("ssd", &*ssd), ("files", &*directory)];
        let launch = Launch::proxy(&folder, "nas", files);
        Self { place, launch }
    }

    /// The content of a dataset or snapshot.
    fn content(&self, object: &str) -> PathBuf {
        let file = object.replace('/', "+");
        self.place.base().join("content").join(file)
    }

    /// All objects of the pool, with their rows.
    fn objects(&self) -> BTreeMap<String, String> {
        let all = fs::read_dir(self.place.base().join("objects")).expect("objects");
        let all = all.map(|entry| entry.expect("an object"));
        all.map(|entry| {
            let name = entry.file_name().into_string().expect("a name");
            (name, fs::read_to_string(entry.path()).expect("rows"))
        })
        .collect()
    }

    fn has(&self, object: &str) -> bool {
        self.objects().contains_key(&object.replace('/', "+"))
    }

    async fn run(&self, handle: &str, more: &[&str]) -> Ran {
        let file = format!("--driver-config-file={}", self.place.config().display());
        let words = ["move", handle, &file, "--csi-name=org.example.csi"];
        let path = std::env::var("PATH").unwrap_or_default();
        let environment = [("CSI_NODE_ID", "node-a"), ("PATH", &*path)];
        let output = tools::omnibus(&[&words[..], more].concat(), &environment).await;
        Ran {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// Nothing was written to standard output, and this was said.
    fn is_refused(&self, code: i32, words: &str) {
        assert_eq!((self.code, &*self.out), (Some(code), ""), "{}", self.said);
        assert!(self.said.contains(words), "{}", self.said);
    }

    fn is_well(&self, words: &str) {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.said);
        let all = format!("{}{}", self.out, self.said);
        assert!(all.contains(words), "{all}");
    }
}

async fn made(client: &Client, name: &str) -> csi::Volume {
    let parameters = volume::parameters(&[
        ("connection", "nas"),
        ("csi.storage.k8s.io/pvc/name", "photos"),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ("csi.storage.k8s.io/pv/name", name),
    ]);
    let mut controller = client.controller.clone();
    let made = controller.create_volume(volume::create(name, &parameters));
    let made = made.await.expect("made").into_inner().volume;
    made.expect("a volume")
}

async fn publish(client: &Client, id: &str) {
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(volume::mounted(
            csi::volume_capability::access_mode::Mode::SingleNodeWriter,
        )),
        ..csi::ControllerPublishVolumeRequest::default()
    };
    let mut controller = client.controller.clone();
    let published = controller.controller_publish_volume(request).await;
    published.expect("published");
}

async fn unpublish(client: &Client, id: &str) {
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "node-a".to_owned(),
        ..csi::ControllerUnpublishVolumeRequest::default()
    };
    let mut controller = client.controller.clone();
    let gone = controller.controller_unpublish_volume(request).await;
    gone.expect("unpublished");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("content")
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("content");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_goes_to_another_connection_while_it_is_in_use_and_its_objects_are_written_at_the_end()
 {
    let world = World::new();
    let mut server = world.launch.start(&world.place).await;
    let client = server.client();
    let handle = made(&client, "pvc-1").await.volume_id;
    assert_eq!(handle, "v:nas/pvc-1");
    publish(&client, &handle).await;
    let (old, new) = (
        world.content("tank/nas/pvc-1"),
        world.content("tank/ssd/pvc-1"),
    );
    write(&old, "one");

    let before = world.objects();
    let dry = world.run(&handle, &["--to=ssd", "--dry-run"]).await;
    dry.is_well("v:nas/pvc-1 would become `v:ssd/pvc-1`:\n  send all of it");
    assert!(dry.out.contains("attached to node-a"), "{}", dry.out);
    assert_eq!(world.objects(), before);

    let ran = world.run(&handle, &["--to=ssd"]).await;
    ran.is_well("0 B were written to it since the last round");
    assert!(ran.said.contains("round 1: "), "{}", ran.said);
    assert_eq!(read(&new), "one");
    write(&old, "two");
    let dry = world.run(&handle, &["--to=ssd", "--dry-run"]).await;
    dry.is_well("send what was written since the last round: about 4.0 KiB");
    world.run(&handle, &["--to=ssd"]).await.is_well("round 1: ");
    assert_eq!(read(&new), "two");

    write(&old, "three");
    let refused = world.run(&handle, &["--to=ssd", "--finish"]).await;
    refused.is_refused(1, "it is attached to node-a");
    assert_eq!(read(&new), "two");
    unpublish(&client, &handle).await;
    let finish = ["--to=ssd", "--finish", "--storage-class=ssd"];
    let ran = world.run(&handle, &finish).await;
    ran.is_well("is now `v:ssd/pvc-1`");
    assert_eq!((read(&old), read(&new)), ("three".into(), "three".into()));
    let objects = objects::read(&ran.out);
    let [found, claim] = &objects[..] else {
        panic!("{objects:#?}");
    };
    assert_eq!(found["metadata"]["name"], "pvc-1");
    assert_eq!(found["spec"]["csi"]["volumeHandle"], "v:ssd/pvc-1");
    assert_eq!(
        found["spec"]["csi"]["volumeAttributes"]["server"],
        "ssd.example"
    );
    assert_eq!(found["spec"]["claimRef"]["name"], "photos");
    assert_eq!(claim["metadata"]["namespace"], "shop");
    assert_eq!(claim["spec"]["storageClassName"], "ssd");
    let left = world.objects();
    assert!(
        left.keys().all(|name| !name.contains("volume-source-for-")),
        "{left:?}"
    );
    // A pod that has come back to the old volume writes what the new one never gets.
    publish(&client, &handle).await;
    let refused = world.run(&handle, &finish).await;
    refused.is_refused(1, "it is attached to node-a");
    assert!(refused.said.contains("was moved"), "{}", refused.said);
    unpublish(&client, &handle).await;
    let again = world.run(&handle, &finish).await;
    again.is_well("nothing of what was written to the old one since");
    assert_eq!(again.out, ran.out);
    let refused = world.run(&handle, &["--to=ssd"]).await;
    refused.is_refused(1, "is a volume already");
    let refused = world.run(&handle, &["--to=ssd", "--give-up"]).await;
    refused.is_refused(1, "is a volume");

    publish(&client, "v:ssd/pvc-1").await;
    unpublish(&client, "v:ssd/pvc-1").await;
    let mut controller = client.controller.clone();
    for id in [&handle, "v:ssd/pvc-1"] {
        let gone = controller.delete_volume(volume::delete(id)).await;
        gone.expect("deleted");
    }
    assert!(!world.has("tank/nas/pvc-1") && !world.has("tank/ssd/pvc-1"));
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_is_given_up_and_what_cannot_be_moved_is_refused_by_its_name() {
    let world = World::new();
    let mut server = world.launch.start(&world.place).await;
    let client = server.client();
    let handle = made(&client, "pvc-1").await.volume_id;
    write(&world.content("tank/nas/pvc-1"), "one");
    let before = world.objects();
    world.run(&handle, &["--to=ssd"]).await.is_well("round 1: ");
    assert!(world.has("tank/ssd/pvc-1"));
    // What has come was changed by others.
    write(&world.content("tank/ssd/pvc-1"), "theirs");
    let refused = world.run(&handle, &["--to=ssd"]).await;
    refused.is_refused(1, "has been modified");
    let given_up = world.run(&handle, &["--to=ssd", "--give-up"]).await;
    given_up.is_well("nothing is left of the move");
    let mut after = world.objects();
    // The parent of volumes was made.
    assert!(after.remove("tank+ssd").is_some());
    assert_eq!(after, before);
    let given_up = world.run(&handle, &["--to=ssd", "--give-up"]).await;
    given_up.is_well("nothing is left of the move");

    for (handle, to, code, words) in [
        (
            "v:nas/pvc-1",
            "--to=files",
            1,
            "files: the driver `local-hostpath` sends and receives no",
        ),
        (
            "v:files/a",
            "--to=ssd",
            1,
            "a claim whose class names `ssd` and whose dataSource is",
        ),
        ("v:nas/pvc-1", "--to=nas", 64, "in `nas` already"),
        ("v:nas/pvc-1", "--to=moon", 64, "moon"),
        ("v:moon/pvc-1", "--to=ssd", 64, "moon"),
        ("v:nas/pvc-9", "--to=ssd", 1, "pvc-9"),
    ] {
        world.run(handle, &[to]).await.is_refused(code, words);
    }
    assert!(server.terminate().await.success());
}
