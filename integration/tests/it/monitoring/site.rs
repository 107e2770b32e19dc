//! The processes that are scraped, and what is asked of them.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use csi_proto::fence::FenceClusterNetworkRequest;
use csi_proto::fence::fence_controller_client::FenceControllerClient;
use csi_proto::reclaimspace::ControllerReclaimSpaceRequest;
use csi_proto::reclaimspace::reclaim_space_controller_client::ReclaimSpaceControllerClient;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{
    ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    CreateVolumeGroupSnapshotRequest, CreateVolumeRequest, DeleteVolumeGroupSnapshotRequest,
    GetCapacityRequest, GetMetadataAllocatedRequest, NodeStageVolumeRequest, ProbeRequest,
    Topology, TopologyRequirement,
};
use integration::client::{Answer, Client};
use integration::observe::free_port;
use integration::place::Place;
use integration::prometheus::{Prometheus, Series};
use integration::server::{Launch, Server};
use integration::{volume, wait};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Channel;

/// The number of times that the proxy is started: `OmnibusCsiRestarts` wants more than three in an hour.
const STARTS: u32 = 5;
/// Connections whose storage never answers. Their calls end at different times, so that one is always in flight.
const SILENT: [&str; 2] = ["mute", "slow"];
/// Volumes that are there at once.
const KEPT: usize = 20;

pub(super) struct Site {
    proxy: Place,
    plain: Place,
    ports: [u16; 2],
    /// It accepts connections, and never says anything.
    silent: TcpListener,
}

pub(super) struct Running<'a> {
    site: &'a Site,
    proxy: Server,
    plain: Server,
    hanging: JoinSet<()>,
}

// === impl Site ===

impl Site {
    pub(super) fn new() -> Self {
        Self {
            proxy: Place::new(),
            plain: Place::new(),
            ports: [free_port(), free_port()],
            silent: TcpListener::bind("127.0.0.1:0").expect("a port"),
        }
    }

    pub(super) fn jobs(&self) -> [(&str, u16); 2] {
        [("proxy", self.ports[0]), ("plain", self.ports[1])]
    }

    /// Starts them, the proxy several times: Prometheus sees each start.
    pub(super) async fn start(&self, prometheus: &Prometheus) -> Running<'_> {
        let metrics = |port: u16| format!("127.0.0.1:{port}");
        let plain = Launch::local_hostpath(&self.plain)
            .set("--metrics-address", &metrics(self.ports[1]))
            .set("--csi-addons-address", &addons(&self.plain));
        let plain = plain.start(&self.plain).await;
        let launch = self
            .launch()
            .set("--metrics-address", &metrics(self.ports[0]))
            .set("--csi-addons-address", &addons(&self.proxy));
        let mut proxy = launch.start(&self.proxy).await;
        for number in 1..=STARTS {
            wait::until_answered("Prometheus to see a start", async || {
                let changes = r#"changes(process_start_time_seconds{job="proxy"}[1h])"#;
                let seen = prometheus.now(changes).await;
                let seen = seen.first().and_then(Series::last)?;
                (seen >= f64::from(number - 1)).then_some(())
            })
            .await;
            if number < STARTS {
                assert!(proxy.terminate().await.success());
                proxy = launch.start(&self.proxy).await;
            }
        }
        let mut running = Running {
            site: self,
            proxy,
            plain,
            hanging: JoinSet::new(),
        };
        running.hang();
        running
    }

    fn launch(&self) -> Launch {
        let root = self.proxy.path();
        let folder = root.join("connections");
        let local = |name: &str| {
            format!(
                "driver: local-hostpath\nlocal-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}, createBase: true}}\n",
                base = root.join(name).display()
            )
        };
        let silent = self.silent.local_addr().expect("its address").port();
        let files = [
            ("near", local("near")),
            ("far", local("far")),
            ("nas", storage_host(free_port())),
            (SILENT[0], storage_host(silent)),
            (SILENT[1], storage_host(silent)),
            ("odd", "driver: [".to_owned()),
        ];
        let files = files.iter().map(|(name, text)| (*name, text.as_str()));
        let mut launch = Launch::proxy(&folder, "none", files);
        let folders = format!("[{}, {}]", folder.display(), root.join("missing").display());
        launch.config = launch
            .config
            .replace(&folder.display().to_string(), &folders);
        // What a node runs for a share fails, as where no server answers.
        let programs = root.join("programs");
        fs::create_dir(&programs).expect("a folder");
        fs::write(
            programs.join("mount"),
            "#!/bin/sh\necho 'Connection refused' >&2\nexit 32\n",
        )
        .expect("a file");
        fs::set_permissions(programs.join("mount"), fs::Permissions::from_mode(0o755))
            .expect("a program");
        let path = std::env::var("PATH").unwrap_or_default();
        launch.env("PATH", &format!("{}:{path}", programs.display()))
    }
}

/// The address of csi-addons.
fn addons(place: &Place) -> String {
    format!("unix://{}", addons_socket(place).display())
}

fn addons_socket(place: &Place) -> PathBuf {
    place.path().join("addons.sock")
}

/// A connection to a storage host at a port of the loopback.
fn storage_host(port: u16) -> String {
    format!(
        "driver: zfs-generic-nfs
sshConnection: {{host: 127.0.0.1, port: {port}, username: root, password: none}}
zfs: {{datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}}
nfs:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {{properties: {{sharenfs: 'on'}}}}
"
    )
}

// === impl Running ===

impl Running<'_> {
    /// Keeps calls in flight that end with their deadline only.
    fn hang(&mut self) {
        for (number, name) in (0..).zip(SILENT) {
            let client = self.proxy.client();
            self.hanging.spawn(async move {
                tokio::time::sleep(Duration::from_secs(5 * number)).await;
                loop {
                    let id = format!("v:{name}/pvc-1");
                    let _ = client
                        .controller_expand_volume(volume::expand(&id, 1 << 30))
                        .await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            });
        }
    }

    /// Asks what an orchestrator asks, some of it in vain, for a while.
    pub(super) async fn load(&mut self, length: Duration) {
        let end = Instant::now() + length;
        let proxy = self.proxy.client();
        let plain = self.plain.client();
        let proxy_addons = Client::connect(&addons_socket(&self.site.proxy)).await;
        let proxy_addons = proxy_addons.expect("a socket").channel;
        let plain_addons = Client::connect(&addons_socket(&self.site.plain)).await;
        let plain_addons = plain_addons.expect("a socket").channel;
        let mut kept: Vec<String> = Vec::new();
        let mut round = 0_u32;
        while Instant::now() < end {
            // Busier and quieter by turns, so that a graph has a shape.
            for number in 0..=(round / 40 % 4) {
                let class = ["near", "far"][usize::from(round.is_multiple_of(3))];
                let made = made(&proxy, &format!("pvc-{round}-{number}"), class).await;
                kept.push(made.expect("a volume"));
            }
            while kept.len() > KEPT {
                let oldest = kept.remove(0);
                proxy
                    .delete_volume(volume::delete(&oldest))
                    .await
                    .expect("deleted");
            }
            if round.is_multiple_of(5) {
                let id = kept.last().expect("a volume");
                let cut = proxy
                    .snapshot(volume::snapshot(&format!("snap-{round}"), id))
                    .await;
                let id = cut.expect("a snapshot").snapshot_id;
                let gone = proxy.delete_snapshot(volume::delete_snapshot(&id)).await;
                gone.expect("deleted");
            }
            if let Some(id) = kept.iter().rfind(|id| id.starts_with("v:near/")) {
                services(&proxy, &proxy_addons, id, round).await;
            }
            proxy.probe(ProbeRequest {}).await.expect("an answer");
            self.in_vain(&proxy).await;
            plain.probe(ProbeRequest {}).await.expect("an answer");
            // Of the proxy these would wait for the storage that never answers.
            let room = plain.get_capacity(GetCapacityRequest::default()).await;
            room.expect("an answer");
            plain.volume_ids().await.expect("a list");
            let one = plain
                .volume(volume::create("pvc-1", &BTreeMap::new()))
                .await;
            let one = one.expect("a volume").volume_id;
            services(&plain, &plain_addons, &one, round).await;
            plain
                .delete_volume(volume::delete(&one))
                .await
                .expect("deleted");
            round += 1;
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Calls that fail: by the storage, for lack of space, and on the node.
    async fn in_vain(&self, client: &Client) {
        let refused = made(client, "pvc", "nas").await;
        refused.expect_err("nothing listens there");
        let elsewhere = Topology {
            segments: volume::parameters(&[("org.democratic-csi.topology/node", "node-b")]),
        };
        let request = CreateVolumeRequest {
            accessibility_requirements: Some(TopologyRequirement {
                requisite: vec![elsewhere.clone()],
                preferred: vec![elsewhere],
            }),
            ..volume::create("elsewhere", &volume::parameters(&[("connection", "near")]))
        };
        let refused = client.volume(request).await;
        refused.expect_err("its storage is on another node");
        let staging = self.site.proxy.node().join("staging");
        fs::create_dir_all(&staging).expect("a folder");
        let context = [
            ("node_attach_driver", "nfs"),
            ("server", "127.0.0.1"),
            ("share", "/a"),
        ];
        let request = NodeStageVolumeRequest {
            volume_id: "v:far/by-hand".into(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(volume::mounted(Mode::SingleNodeWriter)),
            volume_context: volume::parameters(&context),
            ..NodeStageVolumeRequest::default()
        };
        let staged = client.node_stage_volume(request).await;
        staged.expect_err("nothing is mounted");
    }

    pub(super) async fn end(mut self) {
        self.hanging.shutdown().await;
        assert!(self.plain.terminate().await.success());
        assert!(self.proxy.is_alive());
        self.proxy.kill().await;
    }
}

/// Calls about access and data services. Some are refused: a call counts whatever it is answered.
async fn services(client: &Client, addons: &Channel, id: &str, round: u32) {
    let request = ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(volume::mounted(Mode::SingleNodeWriter)),
        ..ControllerPublishVolumeRequest::default()
    };
    let _ = client.controller_publish_volume(request).await;
    let request = ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: volume::parameters(&[("compression", "lz4")]),
        ..ControllerModifyVolumeRequest::default()
    };
    let mut controller = client.controller.clone();
    let _ = controller.controller_modify_volume(request).await;
    let mut groups = GroupControllerClient::new(client.channel.clone());
    let request = CreateVolumeGroupSnapshotRequest {
        name: format!("group-{round}"),
        source_volume_ids: vec![id.to_owned()],
        parameters: volume::parameters(&[("consistency", "none")]),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let taken = groups.create_volume_group_snapshot(request).await;
    if let Some(group) = taken
        .ok()
        .and_then(|taken| taken.into_inner().group_snapshot)
    {
        let snapshots = group.snapshots.into_iter();
        let request = DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id,
            snapshot_ids: snapshots.map(|one| one.snapshot_id).collect(),
            ..DeleteVolumeGroupSnapshotRequest::default()
        };
        let _ = groups.delete_volume_group_snapshot(request).await;
    }
    let request = GetMetadataAllocatedRequest {
        snapshot_id: format!("{id}@moment"),
        ..GetMetadataAllocatedRequest::default()
    };
    let mut blocks = SnapshotMetadataClient::new(client.channel.clone());
    let _ = blocks.get_metadata_allocated(request).await;
    // Without a network it asks no storage.
    let mut fences = FenceControllerClient::new(addons.clone());
    let request = FenceClusterNetworkRequest::default();
    let _ = fences.fence_cluster_network(request).await;
    let request = ControllerReclaimSpaceRequest {
        volume_id: id.to_owned(),
        ..ControllerReclaimSpaceRequest::default()
    };
    let mut reclaims = ReclaimSpaceControllerClient::new(addons.clone());
    let _ = reclaims.controller_reclaim_space(request).await;
}

async fn made(client: &Client, name: &str, connection: &str) -> Answer<String> {
    let request = volume::create(name, &volume::parameters(&[("connection", connection)]));
    Ok(client.volume(request).await?.volume_id)
}
