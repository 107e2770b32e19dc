//! What a call allocates, which must not depend on how many connections there are.
//!
//! The whole road from the gRPC message to the storage and back, without a socket. It is a program of
//! its own: whatever else ran beside it would be counted, too.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use driver_core::NodeId;
use node_utils::Tools;
use omnibus_csi::app::Environment;
use omnibus_csi::csi::identity::PluginName;
use omnibus_csi::csi::plugin::{Modes, Plugin};
use omnibus_csi::csi::spec_version::CsiVersion;
use omnibus_csi::routing::config_file;
use omnibus_csi::routing::folder::Watch;
use omnibus_csi::rpc::{Deadlines, Runner};
use omnibus_csi::telemetry::metrics::Metrics;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tonic::Status;
use tonic::service::Routes;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Calls whose allocations are counted together, and how often.
const CALLS: usize = 20;
const BATCHES: usize = 8;

/// The calls that are counted.
const RPCS: [&str; 11] = [
    "Probe",
    "NodeGetInfo",
    "ControllerGetCapabilities",
    "CreateVolume",
    "ControllerGetVolume",
    "ValidateVolumeCapabilities",
    "GetCapacity",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "DeleteVolume",
    "GetCapacity of two",
];

/// The connection that is called, and one that is asked together with it.
const NAME: &str = "c0000";
const OTHER: &str = "c0001";

/// A process over so many connections of local storage. Its files are read once: whoever looks at them
/// again and again would be counted.
async fn process(folder: &Path, connections: usize) -> Routes {
    let files = folder.join("connections");
    fs::create_dir(&files).expect("a folder");
    for number in 0..connections {
        let (name, base) = (format!("c{number:04}"), folder.join(format!("{number}")));
        fs::create_dir(&base).expect("a folder");
        let base = base.display();
        let text = format!(
            "driver: local-hostpath\nlocal-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}}}\n"
        );
        fs::write(files.join(format!("{name}.yaml")), text).expect("a file");
    }
    let main = folder.join("main.yaml");
    let text = format!(
        "driver: proxy\nproxy: {{configFolder: {}, nodeTopology: {{type: [cluster, node]}}}}\n",
        files.display()
    );
    fs::write(&main, text).expect("a file");
    let modes = Modes {
        controller: true,
        node: true,
    };
    let at = Environment {
        node: NodeId::parse("node-1").expect("a node"),
        version: CsiVersion::minor(12),
        tools: Tools::of_this_machine(),
        modes: Some(modes),
    };
    let (_, mut site) = config_file::open(&main, &at).expect("a configuration");
    let metrics = Metrics::new();
    let served = site.folder.take().expect("a folder");
    Watch::new(served, &site.states, &metrics).first().await;
    assert_eq!(site.connections.len(), connections);
    let name = PluginName::parse("org.example.test").expect("a name");
    let runner = Runner::new(Deadlines::default(), metrics);
    Arc::new(Plugin::new(name, modes, site, runner)).routes()
}

fn capability() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn class() -> BTreeMap<String, String> {
    [("connection".to_owned(), NAME.to_owned())].into()
}

/// Makes one call.
async fn call(routes: &Routes, rpc: &str) -> Result<(), Status> {
    let mut controller = ControllerClient::new(routes.clone());
    match rpc {
        "Probe" => {
            let mut identity = IdentityClient::new(routes.clone());
            identity.probe(v1::ProbeRequest {}).await.map(drop)
        }
        "NodeGetInfo" => {
            let mut node = NodeClient::new(routes.clone());
            let request = v1::NodeGetInfoRequest {};
            node.node_get_info(request).await.map(drop)
        }
        "ControllerGetCapabilities" => {
            let request = v1::ControllerGetCapabilitiesRequest {};
            let reply = controller.controller_get_capabilities(request);
            reply.await.map(drop)
        }
        "GetCapacity of two" => {
            let two = format!("{NAME},{OTHER}");
            let request = v1::GetCapacityRequest {
                parameters: [("connections".to_owned(), two)].into(),
                ..Default::default()
            };
            controller.get_capacity(request).await.map(drop)
        }
        "CreateVolume" => {
            let request = v1::CreateVolumeRequest {
                name: "x".into(),
                volume_capabilities: vec![capability()],
                parameters: class(),
                ..Default::default()
            };
            controller.create_volume(request).await.map(drop)
        }
        "GetCapacity" => {
            let request = v1::GetCapacityRequest {
                parameters: class(),
                ..Default::default()
            };
            controller.get_capacity(request).await.map(drop)
        }
        _ => of_a_volume(controller, rpc).await,
    }
}

/// Makes one call about a volume that is there.
async fn of_a_volume(mut controller: ControllerClient<Routes>, rpc: &str) -> Result<(), Status> {
    let volume_id = format!("v:{NAME}/x");
    match rpc {
        "ControllerGetVolume" => {
            let request = v1::ControllerGetVolumeRequest { volume_id };
            controller.controller_get_volume(request).await.map(drop)
        }
        "ValidateVolumeCapabilities" => {
            let request = v1::ValidateVolumeCapabilitiesRequest {
                volume_id,
                volume_capabilities: vec![capability()],
                ..Default::default()
            };
            let reply = controller.validate_volume_capabilities(request);
            reply.await.map(drop)
        }
        "ControllerPublishVolume" => {
            let request = v1::ControllerPublishVolumeRequest {
                volume_id,
                node_id: "n=node-1".into(),
                volume_capability: Some(capability()),
                ..Default::default()
            };
            controller
                .controller_publish_volume(request)
                .await
                .map(drop)
        }
        "ControllerUnpublishVolume" => {
            let request = v1::ControllerUnpublishVolumeRequest {
                volume_id,
                node_id: "n=node-1".into(),
                ..Default::default()
            };
            let reply = controller.controller_unpublish_volume(request);
            reply.await.map(drop)
        }
        _ => {
            let request = v1::DeleteVolumeRequest {
                volume_id,
                ..Default::default()
            };
            controller.delete_volume(request).await.map(drop)
        }
    }
}

/// What each call allocates: pieces and bytes of the batch that was disturbed least.
async fn allocations(connections: usize) -> BTreeMap<&'static str, (usize, usize)> {
    let folder = tempfile::tempdir().expect("a folder");
    let routes = process(folder.path(), connections).await;
    let mut found = BTreeMap::new();
    for rpc in RPCS {
        let mut least = (usize::MAX, usize::MAX);
        // The first batch fills what is kept from call to call.
        for batch in 0..=BATCHES {
            let region = Region::new(HEAP);
            for _ in 0..CALLS {
                call(&routes, rpc).await.expect(rpc);
            }
            let change = region.change();
            if batch > 0 {
                // What grows in place is among the bytes: a number with more digits does, too.
                least = (
                    least.0.min(change.allocations),
                    least.1.min(change.bytes_allocated),
                );
            }
        }
        found.insert(rpc, least);
    }
    found
}

#[tokio::test]
async fn what_a_call_allocates_does_not_grow_with_the_number_of_connections() {
    let two = allocations(2).await;
    let thousand = allocations(1_000).await;
    let mut grown = Vec::new();
    for rpc in RPCS {
        let ((few, small), (many, large)) = (two[rpc], thousand[rpc]);
        let text = format!(
            "{rpc}: {few} and {many} allocations in {CALLS} calls, {small} and {large} bytes"
        );
        println!("{text}");
        assert!(few >= CALLS, "{rpc} is not counted");
        // Something that is made now and then, or a longer text, but nothing for each connection.
        if many >= few + CALLS / 2 || large >= small + CALLS * 64 {
            grown.push(text);
        }
    }
    assert!(grown.is_empty(), "{}", grown.join("\n"));
}
