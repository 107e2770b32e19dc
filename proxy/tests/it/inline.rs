//! A pod's own volume, by the program as a process behind the proxy: published, killed, unpublished. A
//! script that mounts a tmpfs stands in for `ctr`; the real one is tried in `drivers/inline`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use csi_proto::v1;
use csi_proto::v1::node_client::NodeClient;
use rustix::process::Signal;
use tonic::Code;
use tonic::transport::Channel;

use super::harness::{Place, Server, by_one_writer, node_client};

const CTR: &str = include_str!("inline/ctr.sh");

/// The folders of a node, unmounted with the value.
struct Node {
    place: Place,
}

// === impl Node ===

impl Node {
    fn new() -> Self {
        let this = Self {
            place: Place::new(),
        };
        let place = &this.place;
        for folder in [
            "connections",
            "state",
            "pods/u-1/volumes/kubernetes.io~csi/s",
        ] {
            fs::create_dir_all(place.path(folder)).unwrap();
        }
        let ctr = CTR.replace("STATE", place.path("state").to_str().unwrap());
        fs::write(place.path("ctr"), ctr).unwrap();
        fs::set_permissions(place.path("ctr"), fs::Permissions::from_mode(0o755)).unwrap();
        let folder = place.path("connections");
        let main = format!(
            "driver: proxy\nproxy: {{configFolder: {}, inlineVolumes: true}}\n",
            folder.display()
        );
        fs::write(place.path("config.yaml"), main).unwrap();
        let connection = format!(
            "driver: containerd-oci-ephemeral-inline\n\
             containerd: {{cli: {{paths: {{ctr: {}}}}}}}\ninline: {{namespaces: [build]}}\n",
            place.path("ctr").display()
        );
        fs::write(folder.join("images.yaml"), connection).unwrap();
        this
    }

    fn start(&self) -> Server {
        Server::of(self.place.command().arg("--csi-mode=node"))
    }

    async fn client(&self) -> NodeClient<Channel> {
        node_client(&self.place.socket()).await
    }

    fn target(&self) -> PathBuf {
        self.place
            .path("pods/u-1/volumes/kubernetes.io~csi/s/mount")
    }

    fn snapshots(&self) -> usize {
        fs::read_dir(self.place.path("state")).unwrap().count()
    }

    fn publish(&self, namespace: &str) -> v1::NodePublishVolumeRequest {
        let attributes = [
            ("connection", "images"),
            ("image.reference", "registry.example/hello:1"),
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/pod.namespace", namespace),
            ("csi.storage.k8s.io/pod.uid", "u-1"),
        ];
        v1::NodePublishVolumeRequest {
            volume_id: id(),
            target_path: self.target().display().to_string(),
            volume_capability: Some(by_one_writer()),
            volume_context: attributes.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..Default::default()
        }
    }

    fn unpublish(&self) -> v1::NodeUnpublishVolumeRequest {
        v1::NodeUnpublishVolumeRequest {
            volume_id: id(),
            target_path: self.target().display().to_string(),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(fs::remove_file(self.place.path("state/hang")));
        drop(node_utils::mount::unmount_all_layers(&self.target()));
    }
}

fn id() -> String {
    format!("csi-{}", "0a".repeat(32))
}

fn may_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        node_utils::requirement::this_test_could_not_run("it mounts, and needs root");
    }
    is_root
}

#[tokio::test]
async fn a_pods_own_volume_outlives_kill_9_and_goes_when_it_is_unpublished() {
    if !may_mount() {
        return;
    }
    let node = Node::new();
    let mut server = node.start();
    let mut client = node.client().await;
    let refused = client.node_publish_volume(node.publish("other")).await;
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    client
        .node_publish_volume(node.publish("build"))
        .await
        .unwrap();
    let hello = node.target().join("hello");
    assert_eq!(fs::read_to_string(&hello).unwrap(), "hello\n");
    server.signal(Signal::KILL);
    assert_eq!(server.ended(), None);
    let _server = node.start();
    let mut client = node.client().await;
    client
        .node_publish_volume(node.publish("build"))
        .await
        .unwrap();
    client
        .node_unpublish_volume(node.unpublish())
        .await
        .unwrap();
    assert!(!node.target().exists(), "mounted once, and gone");
    assert_eq!(node.snapshots(), 0);
    client
        .node_unpublish_volume(node.unpublish())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_process_that_is_killed_while_it_publishes_leaves_what_the_next_one_removes() {
    if !may_mount() {
        return;
    }
    for retried in [false, true] {
        let node = Node::new();
        fs::write(node.place.path("state/hang"), "").unwrap();
        let mut server = node.start();
        let mut client = node.client().await;
        let request = node.publish("build");
        let call = tokio::spawn(async move { client.node_publish_volume(request).await });
        while node.snapshots() < 2 {
            tokio::task::yield_now().await;
        }
        server.signal(Signal::KILL);
        assert_eq!(server.ended(), None);
        call.await.unwrap().unwrap_err();
        fs::remove_file(node.place.path("state/hang")).unwrap();
        let _server = node.start();
        let mut client = node.client().await;
        if retried {
            client
                .node_publish_volume(node.publish("build"))
                .await
                .unwrap();
            assert!(node.target().join("hello").exists());
        }
        client
            .node_unpublish_volume(node.unpublish())
            .await
            .unwrap();
        assert!(!node.target().exists());
        assert_eq!(node.snapshots(), 0);
    }
}
