//! The health of volumes over the socket of the program: in the dialect of the version that it is started for, from the
//! storage and from the node.

use std::fs;
use std::path::{Path, PathBuf};

use csi_proto::v1 as csi;
use integration::client::Client;
use integration::place::Place;
use integration::server::{Launch, Server, log_of};
use integration::{requirement, tools, volume};

const WHAT: &str = "the health of volumes";
/// The size of the storage in KiB.
const SIZE: &str = "size=16384k";

/// A server over a small storage of its own.
struct Small {
    place: Place,
    mount: PathBuf,
    umount: PathBuf,
}

impl Small {
    async fn new() -> Option<Self> {
        if !requirement::root(WHAT) {
            return None;
        }
        let mount = requirement::tool(WHAT, "mount")?;
        let umount = requirement::tool(WHAT, "umount")?;
        let place = Place::new();
        let small = Self {
            place,
            mount,
            umount,
        };
        let base = small.place.base().display().to_string();
        small
            .mount(&["-t", "tmpfs", "-o", SIZE, "tmpfs", &base])
            .await;
        Some(small)
    }

    async fn mount(&self, arguments: &[&str]) {
        let output = tools::run(&self.mount, arguments, Path::new("/")).await;
        assert!(output.status.success(), "{output:?}");
    }

    async fn umount(&self, path: &Path) {
        let output = tools::run(&self.umount, [path], Path::new("/")).await;
        assert!(output.status.success(), "{output:?}");
    }

    async fn remount(&self, how: &str) {
        let base = self.place.base().display().to_string();
        let options = format!("remount,{how}");
        self.mount(&["-o", &options, &base]).await;
    }

    async fn start(&self, version: &str) -> Server {
        let launch = Launch::local_hostpath(&self.place).set("--csi-version", version);
        launch.start(&self.place).await
    }

    /// A file that takes all the room.
    fn filler(&self) -> PathBuf {
        self.place.base().join("filler")
    }

    fn fill(&self) {
        let _ = fs::write(self.filler(), vec![7; 17 << 20]);
        assert!(self.filler().exists());
    }

    fn empty(&self) {
        fs::remove_file(self.filler()).expect("it is there");
    }
}

/// The numbers of the calls of health that the controller and the node say they have.
async fn offered(client: &Client) -> (Vec<i32>, Vec<i32>) {
    use csi::{controller_service_capability as controller, node_service_capability as node};
    let mut clients = client.clone();
    let request = csi::ControllerGetCapabilitiesRequest {};
    let reply = clients
        .controller
        .controller_get_capabilities(request)
        .await;
    let all = reply.expect("a list").into_inner().capabilities.into_iter();
    let numbers = all.filter_map(|one| one.r#type.map(|controller::Type::Rpc(rpc)| rpc.r#type));
    let of_controller = numbers.filter(|number| [11, 16, 17].contains(number));
    let of_controller = of_controller.collect();
    let request = csi::NodeGetCapabilitiesRequest {};
    let reply = clients.node.node_get_capabilities(request).await;
    let all = reply.expect("a list").into_inner().capabilities.into_iter();
    let numbers = all.filter_map(|one| one.r#type.map(|node::Type::Rpc(rpc)| rpc.r#type));
    let of_node = numbers.filter(|number| [4, 7, 8].contains(number));
    (of_controller, of_node.collect())
}

fn reasons(health: Option<csi::VolumeHealth>, id: &str) -> Vec<(i32, String)> {
    let health = health.expect("health");
    assert_eq!(health.volume_id, id);
    let all = health.health_statuses.into_iter();
    all.map(|one| {
        assert!(!one.message.is_empty());
        (one.status, one.reason)
    })
    .collect()
}

/// The conditions as the storage sees them; the list has the volume if it has any.
async fn of_storage(client: &Client, id: &str) -> Vec<(i32, String)> {
    let mut controller = client.controller.clone();
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..csi::ControllerGetVolumeHealthRequest::default()
    };
    let one = controller.controller_get_volume_health(request).await;
    let one = one.expect("health").into_inner().volume_health;
    let request = csi::ControllerListVolumeHealthRequest::default();
    let listed = controller.controller_list_volume_health(request).await;
    let listed = listed.expect("a list").into_inner();
    assert_eq!(listed.next_token, "");
    let listed = listed.entries.into_iter().map(Some).collect::<Vec<_>>();
    let found = reasons(one.clone(), id);
    let expected = if found.is_empty() { vec![] } else { vec![one] };
    assert_eq!(listed, expected);
    found
}

/// The conditions as the node sees them.
async fn of_node(client: &Client, id: &str, paths: [&str; 2]) -> Vec<(i32, String)> {
    let [published, staged] = paths.map(str::to_owned);
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        volume_publish_path: published,
        staging_target_path: staged,
    };
    let mut node = client.node.clone();
    let reply = node.node_get_volume_health(request).await;
    reasons(reply.expect("health").into_inner().volume_health, id)
}

/// Whether the volume is abnormal in the dialect up to 1.12: by itself, in the list, at its path.
async fn abnormal(client: &Client, id: &str, path: &str) -> [bool; 3] {
    let mut clients = client.clone();
    let request = csi::ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    };
    let one = clients.controller.controller_get_volume(request).await;
    let one = one.expect("a volume").into_inner().status;
    let request = csi::ListVolumesRequest::default();
    let listed = clients.controller.list_volumes(request).await;
    let mut entries = listed.expect("a list").into_inner().entries;
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        ..csi::NodeGetVolumeStatsRequest::default()
    };
    let stats = clients.node.node_get_volume_stats(request).await;
    let found = [
        one.expect("a status").volume_condition,
        entries.remove(0).status.expect("a status").volume_condition,
        stats.expect("statistics").into_inner().volume_condition,
    ];
    found.map(|condition| {
        let condition = condition.expect("a condition");
        assert!(!condition.message.is_empty());
        condition.abnormal
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_told_in_the_dialect_of_the_declared_version_by_storage_and_node() {
    let Some(small) = Small::new().await else {
        return;
    };
    let server = small.start("1.13.0").await;
    let client = server.client();
    assert_eq!(offered(&client).await, (vec![16, 17], vec![7, 8]));
    let mut asked = volume::create("pvc-1", &volume::parameters(&[]));
    asked.capacity_range = None;
    let made = client.controller.clone().create_volume(asked).await;
    let made = made.expect("made").into_inner().volume.expect("a volume");
    let id = &*made.volume_id;
    assert_eq!(of_storage(&client, id).await, []);

    let node = small.place.node();
    let (staging, target) = (node.join("s"), node.join("pod/t"));
    for folder in [&staging, &node.join("pod")] {
        fs::create_dir_all(folder).expect("a folder");
    }
    let mut nodes = client.node.clone();
    let staged = nodes
        .node_stage_volume(volume::stage(&made, &staging))
        .await;
    staged.expect("staged");
    let published = volume::publish(&made, &staging, &target);
    let published = nodes.node_publish_volume(published).await;
    published.expect("published");
    let (at, below) = (target.display().to_string(), staging.display().to_string());
    for paths in [[&*at, &*below], [&at, ""], ["", &below], ["", ""]] {
        assert_eq!(of_node(&client, id, paths).await, [], "{paths:?}");
    }

    small.fill();
    let full = [(1, "FilesystemFull".to_owned())];
    assert_eq!(of_storage(&client, id).await, full);
    small.empty();
    assert_eq!(of_storage(&client, id).await, []);
    small.remount("ro").await;
    let read_only = [(1, "FilesystemReadOnly".to_owned())];
    assert_eq!(of_node(&client, id, [&at, &below]).await, read_only);
    small.remount("rw").await;
    small.umount(&target).await;
    let missing = [(2, "NotMounted".to_owned())];
    assert_eq!(of_node(&client, id, [&at, &below]).await, missing);
    assert_eq!(of_node(&client, id, ["", &below]).await, []);
    let gone = csi::ControllerGetVolumeHealthRequest {
        volume_id: "pvc-2".to_owned(),
        ..csi::ControllerGetVolumeHealthRequest::default()
    };
    let gone = client
        .controller
        .clone()
        .controller_get_volume_health(gone)
        .await;
    assert_eq!(gone.expect_err("missing").code(), tonic::Code::NotFound);
    drop(server);

    let server = small.start("1.12.0").await;
    let client = server.client();
    assert_eq!(
        offered(&client).await,
        (vec![11], vec![4]),
        "{}",
        log_of(&small.place)
    );
    assert_eq!(abnormal(&client, id, &below).await, [false; 3]);
    small.fill();
    assert_eq!(abnormal(&client, id, &below).await, [true; 3]);
    small.empty();
    small.remount("ro").await;
    assert_eq!(abnormal(&client, id, &below).await, [true; 3]);
    small.remount("rw").await;
}
