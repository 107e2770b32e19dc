//! A proxy with the console: a NAS with volumes of all kinds, directories with many, a storage that never answers, and
//! a file that cannot be used.

use std::fs;
use std::net::TcpListener;

use csi_proto::v1::{self as csi, ControllerPublishVolumeRequest};
use integration::observe::free_port;
use integration::place::Place;
use integration::server::{Launch, Server};
use integration::{volume, wait};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

/// Texts that would do harm if a page took them for HTML.
pub(super) const HOSTILE: [&str; 2] = [
    "<img src=x onerror=alert(1)>",
    "\"><script>alert(2)</script>",
];
/// A claim that is called so.
pub(super) const CLAIM: &str = "<img src=x onerror=alert(1)>/\"><script>alert(2)</script>";
/// The password of a storage.
pub(super) const SECRET: &str = "c4n4ry-of-the-storage";

pub(super) struct Site {
    place: Place,
    port: u16,
    /// It accepts connections, and never says anything.
    silent: TcpListener,
}

pub(super) struct Running {
    site: Site,
    nas: Simulator,
    server: Server,
}

// === impl Site ===

impl Site {
    pub(super) fn new() -> Self {
        Self {
            place: Place::new(),
            port: free_port(),
            silent: TcpListener::bind("127.0.0.1:0").expect("a port"),
        }
    }

    /// Starts it with so many directories.
    pub(super) async fn start(self, directories: usize) -> Running {
        let mut options = Options::new(Generation::V25_10);
        SECRET.clone_into(&mut options.root_password);
        let nas = Simulator::start(options).await.expect("a NAS");
        nas.set_up("10.0.0.5").await.expect("set up");
        for number in 0..directories {
            let name = format!("archive/v/pvc-{number:05}");
            fs::create_dir_all(self.place.path().join(name)).expect("a folder");
        }
        let server = self.launch(&nas).start(&self.place).await;
        let running = Running {
            site: self,
            nas,
            server,
        };
        running.fill().await;
        running
    }

    fn launch(&self, nas: &Simulator) -> Launch {
        let archive = self.place.path().join("archive");
        let archive = format!(
            "driver: local-hostpath\nlocal-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}, createBase: true}}\n",
            base = archive.display()
        );
        let of_nas = json!({
            "driver": "truenas-api-nfs",
            "httpConnection": {
                "protocol": "https", "host": "127.0.0.1", "port": nas.https().port(), "allowInsecure": true,
                "username": "root", "apiKey": nas.api_key(), "apiKeyLogin": "plain",
            },
            "zfs": {"datasetParentName": "tank/csi/v", "detachedSnapshotsDatasetParentName": "tank/csi/s", "datasetEnableQuotas": true},
            "nfs": {"shareHost": "10.0.0.5", "shareAllowedNetworks": ["10.0.0.0/8"]},
        })
        .to_string();
        let silent = self.silent.local_addr().expect("its address").port();
        let mute = format!(
            "driver: zfs-generic-nfs\nsshConnection: {{host: 127.0.0.1, port: {silent}, username: root, password: {SECRET}}}\n\
             zfs: {{datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}}\n\
             nfs: {{shareHost: 127.0.0.1, shareStrategy: setDatasetProperties, shareStrategySetDatasetProperties: {{properties: {{sharenfs: \"on\"}}}}}}\n"
        );
        let files = [
            ("nas", of_nas.as_str()),
            ("archive", &archive),
            ("mute", &mute),
            ("odd", "driver: ["),
        ];
        let folder = self.place.path().join("connections");
        let address = format!("127.0.0.1:{}", self.port);
        Launch::proxy(&folder, "none", files).set("--console-address", &address)
    }
}

// === impl Running ===

impl Running {
    /// Volumes, snapshots and copies of the NAS, and calls that fail.
    async fn fill(&self) {
        let client = self.server.client();
        let claimed = |name: &str, namespace: &str, claim: &str| csi::CreateVolumeRequest {
            capacity_range: volume::at_least(2 << 30),
            ..volume::create(
                name,
                &volume::parameters(&[
                    ("connection", "nas"),
                    ("csi.storage.k8s.io/pvc/namespace", namespace),
                    ("csi.storage.k8s.io/pvc/name", claim),
                ]),
            )
        };
        let (namespace, claim) = CLAIM.split_once(">/").expect("both");
        let hostile = claimed("pvc-hostile", &format!("{namespace}>"), claim);
        let shop = claimed("pvc-shop", "shop", "database");
        for request in [&hostile, &shop, &claimed("pvc-lost", "media", "library")] {
            client.volume(request.clone()).await.expect("a volume");
        }
        let publish = ControllerPublishVolumeRequest {
            volume_id: "v:nas/pvc-shop".to_owned(),
            node_id: "worker-1".to_owned(),
            volume_capability: shop.volume_capabilities.first().cloned(),
            ..ControllerPublishVolumeRequest::default()
        };
        let mut controller = client.controller.clone();
        controller
            .controller_publish_volume(publish)
            .await
            .expect("published");
        for name in ["snapshot-monday", "snapshot-tuesday"] {
            let snapshot = volume::snapshot(name, "v:nas/pvc-shop");
            let snapshot = client.snapshot(snapshot).await.expect("a snapshot");
            if name == "snapshot-monday" {
                let restored = csi::CreateVolumeRequest {
                    volume_content_source: volume::from_snapshot(&snapshot.snapshot_id),
                    ..claimed("pvc-restored", "shop", "database-restored")
                };
                client.volume(restored).await.expect("a copy");
            }
        }
        let clone = csi::CreateVolumeRequest {
            volume_content_source: volume::from_volume("v:nas/pvc-shop"),
            ..claimed("pvc-clone", "shop", "database-test")
        };
        client.volume(clone).await.expect("a copy");
        self.lose("pvc-lost").await;
        for reason in HOSTILE
            .iter()
            .map(|text| (*text).to_owned())
            .chain([format!("it quotes {}", self.api_key())])
        {
            let fails = Action::Fail { errno: 14, reason };
            self.nas
                .faults()
                .add(Rule::new("pool.dataset.create", fails).times(1));
            let failed = client.volume(claimed("pvc-failed", "shop", "failed")).await;
            assert!(failed.is_err(), "{failed:?}");
            self.nas.faults().clear();
        }
    }

    /// The NAS loses the share of a volume.
    async fn lose(&self, id: &str) {
        let shares = self
            .nas
            .call("sharing.nfs.query", Vec::new())
            .await
            .expect("shares");
        let of_volume = |share: &&Value| {
            share["path"]
                .as_str()
                .is_some_and(|path| path.ends_with(id))
        };
        let share = shares
            .as_array()
            .and_then(|all| all.iter().find(of_volume))
            .expect("a share");
        let deleted = self
            .nas
            .call("sharing.nfs.delete", vec![share["id"].clone()])
            .await;
        deleted.expect("deleted");
    }

    pub(super) fn api_key(&self) -> String {
        let key = self.nas.api_key();
        key.split_once('-')
            .map_or(key, |(_, secret)| secret)
            .to_owned()
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.site.port)
    }

    /// The body of an answer.
    pub(super) async fn raw(&self, target: &str) -> String {
        let mut stream = TcpStream::connect(self.address())
            .await
            .expect("the console");
        let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address());
        stream.write_all(request.as_bytes()).await.expect("asked");
        let mut answer = Vec::new();
        let read = tokio::time::timeout(wait::PATIENCE, stream.read_to_end(&mut answer));
        read.await.expect("an answer in time").expect("an answer");
        let answer = String::from_utf8(answer).expect("text");
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
        body.to_owned()
    }

    pub(super) async fn api(&self, target: &str) -> Value {
        let body = self.raw(target).await;
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{target}: {error}: {body}"))
    }
}
