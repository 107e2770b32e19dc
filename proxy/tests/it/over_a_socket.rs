//! The services for what only some drivers have, over a real socket: a client, the server, the fake
//! driver with every facet. Alone, and as two connections of one process.

mod absent;
mod addons;
mod groups;
mod health;
mod modes;
mod nodes;
mod ranges;

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use driver_core::contract::fake::FakeDriver;
use driver_core::{Capabilities, Driver, VolumeId};
use omnibus_csi::app::App;
use omnibus_csi::csi::plugin::Plugin;
use omnibus_csi::routing::connections::Names;
use omnibus_csi::rpc::server;
use omnibus_csi::rpc::server::socket::{Bound, Listeners, UnixSocket};
use omnibus_csi::telemetry::metrics::Metrics;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::served::{of_one, of_several, process};

/// The text that no answer, error or log may show.
const SECRET: &str = "hunter2";

/// The main file of two connections: the orchestrator asks for all that the fake driver has.
const MAIN: &str = "
driver: proxy
proxy:
  configFolder: /none
  nodeId:
    parts: {nodeName: true, hostname: true, iqn: true, nqn: true, addresses: true}
    networks: [10.0.0.0/8]
    iqnPrefix: [{shortName: d, prefix: 'iqn.1993-08.org.debian:01:'}]
    nqnPrefix: [{shortName: u, prefix: 'nqn.2014-08.org.nvmexpress:uuid:'}]
service: {controller: {capabilities: {rpc: [PUBLISH_UNPUBLISH_VOLUME, MODIFY_VOLUME]}}}
";

/// The main file of connections whose capabilities are advertised while they have them.
const PLAIN: &str = "{driver: proxy, proxy: {configFolder: /none}}";

/// A plugin behind a socket. It stops with the runtime of the test.
struct Served {
    plugin: Arc<Plugin>,
    metrics: Metrics,
    channel: Channel,
    _folder: tempfile::TempDir,
}

async fn serve(app: App) -> Served {
    let metrics = Metrics::new();
    let plugin = process(app, &metrics);
    let (channel, folder) = behind_a_socket(plugin.clone().routes()).await;
    Served {
        plugin,
        metrics,
        channel,
        _folder: folder,
    }
}

async fn behind_a_socket(routes: Routes) -> (Channel, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("csi.sock");
    let socket = UnixSocket {
        path: path.clone(),
        mode: 0o600,
    };
    let unix = Some(Bound::listen(&socket).expect("a socket"));
    let never = std::future::pending::<()>;
    tokio::spawn(server::serve(Listeners { unix, tcp: None }, routes, never));
    let uri = format!("unix:{}", path.display());
    let endpoint = Endpoint::from_shared(uri).expect("an address");
    (endpoint.connect().await.expect("a server"), folder)
}

/// The fake driver alone.
async fn alone() -> (Served, Arc<FakeDriver>) {
    let driver = Arc::new(FakeDriver::new());
    (serve_alone(&driver).await, driver)
}

async fn serve_alone(driver: &Arc<FakeDriver>) -> Served {
    serve(of_one(driver.clone(), "driver: fake")).await
}

/// Two connections, `a` and `b`.
async fn two() -> (Served, [Arc<FakeDriver>; 2]) {
    let drivers = [FakeDriver::new(), FakeDriver::new()].map(Arc::new);
    (pair(&drivers).await, drivers)
}

async fn pair([a, b]: &[Arc<FakeDriver>; 2]) -> Served {
    let all: [(&str, Arc<dyn Driver>); 2] = [("a", a.clone()), ("b", b.clone())];
    serve(of_several(MAIN, &all, Names::default())).await
}

/// The fake driver without what has a service of its own.
fn without_services() -> FakeDriver {
    let all = (&FakeDriver::new() as &dyn Driver).capabilities();
    FakeDriver::new().with_capabilities(Capabilities {
        groups: false,
        block_metadata: false,
        modify: false,
        publish: false,
        health: false,
        ..all
    })
}

fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).expect("an id")
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn secrets() -> BTreeMap<String, String> {
    [("password".to_owned(), SECRET.to_owned())].into()
}

fn mounted() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn is(status: &Status, code: Code, text: &str) {
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(text), "{status:?}");
    assert!(!format!("{status:?}").contains(SECRET), "{status:?}");
}

// === impl Served ===

impl Served {
    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    fn groups(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    fn ranges(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.channel.clone())
    }

    /// Makes a volume of so many bytes; of a connection if it has a slash.
    async fn volume(&self, name: &str, bytes: i64) -> String {
        let (connection, name) = name.split_once('/').unwrap_or(("", name));
        let class = (!connection.is_empty()).then(|| ("connection".into(), connection.into()));
        let request = v1::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(v1::CapacityRange {
                required_bytes: bytes,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![mounted()],
            parameters: class.into_iter().collect(),
            ..Default::default()
        };
        let reply = self.controller().create_volume(request).await;
        let reply = reply.expect("a volume").into_inner();
        reply.volume.expect("a volume").volume_id
    }

    async fn snapshot(&self, volume: &str, name: &str) -> String {
        let request = v1::CreateSnapshotRequest {
            source_volume_id: volume.to_owned(),
            name: name.to_owned(),
            ..Default::default()
        };
        let reply = self.controller().create_snapshot(request).await;
        let reply = reply.expect("a snapshot").into_inner();
        reply.snapshot.expect("a snapshot").snapshot_id
    }

    async fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        let request = v1::DeleteSnapshotRequest {
            snapshot_id: id.to_owned(),
            ..Default::default()
        };
        self.controller().delete_snapshot(request).await.map(drop)
    }

    async fn snapshots(&self) -> Vec<v1::Snapshot> {
        let request = v1::ListSnapshotsRequest::default();
        let reply = self.controller().list_snapshots(request).await;
        let entries = reply.expect("a list").into_inner().entries;
        entries
            .into_iter()
            .filter_map(|entry| entry.snapshot)
            .collect()
    }

    /// The numbers of the services that the plugin says it has.
    async fn advertised(&self) -> Vec<i32> {
        use v1::plugin_capability::Type;
        let mut client = IdentityClient::new(self.channel.clone());
        let request = v1::GetPluginCapabilitiesRequest {};
        let reply = client.get_plugin_capabilities(request).await;
        let all = reply.expect("a list").into_inner().capabilities;
        let services = all.into_iter().filter_map(|one| match one.r#type {
            Some(Type::Service(service)) => Some(service.r#type),
            _ => None,
        });
        services.collect()
    }

    /// Waits until no work is left.
    async fn idle(&self) {
        let tracker = self.plugin.runner.tracker();
        tracker.close();
        tracker.wait().await;
        tracker.reopen();
    }

    fn counts(&self, line: &str) {
        let page = self.metrics.encode().expect("metrics");
        assert!(page.lines().any(|l| l == line), "{line} in {page}");
    }
}
