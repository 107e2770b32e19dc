//! Requests without their types: every method, field and string of the wire, found in the
//! descriptor, so that a new one cannot be forgotten.
//!
//! A [`Scene`] is a small world in which every request of the table below succeeds without
//! changing anything; a test then spoils one field at a time.

use std::collections::BTreeSet;
use std::path::PathBuf;

use csi_proto::v1 as csi;
use csi_proto::v1::plugin_capability::Type as PluginType;
use csi_proto::v1::plugin_capability::service::Type as Service;
use csi_proto::v1::volume_capability::access_mode::Mode;
use prost::Message as _;
use prost::bytes::{Buf, BufMut};
use prost_reflect::{
    DescriptorPool, DynamicMessage, Kind, MessageDescriptor, MethodDescriptor, Value,
};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

use super::world::{Outcome, World};
use crate::client::Client;
use crate::volume;

/// A request that succeeds in a [`Scene`] and changes nothing there.
#[derive(Debug, Clone)]
pub struct Known {
    /// Its method.
    pub method: MethodDescriptor,
    /// The request.
    pub message: DynamicMessage,
    /// The fields without which it is invalid.
    pub required: &'static [&'static str],
}

/// One volume with one snapshot, staged and published.
#[derive(Debug)]
pub struct Scene {
    /// The volume.
    pub volume: csi::Volume,
    /// Its snapshot.
    pub snapshot: csi::Snapshot,
    staging: PathBuf,
    pod: PathBuf,
    create: csi::CreateVolumeRequest,
    cut: csi::CreateSnapshotRequest,
    stage: csi::NodeStageVolumeRequest,
    offered: BTreeSet<&'static str>,
}

/// The compiled specification.
pub fn pool() -> DescriptorPool {
    DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).expect("a descriptor set")
}

/// Every method of every service.
pub fn methods() -> Vec<MethodDescriptor> {
    methods_of(&pool())
}

fn methods_of(pool: &DescriptorPool) -> Vec<MethodDescriptor> {
    let services: Vec<_> = pool.services().collect();
    let methods = services
        .iter()
        .flat_map(prost_reflect::ServiceDescriptor::methods);
    methods
        .filter(|method| !method.is_server_streaming())
        .collect()
}

/// Calls a method with a message that only the descriptor knows.
pub async fn call(
    client: &Client,
    method: &MethodDescriptor,
    message: &DynamicMessage,
) -> Outcome<DynamicMessage> {
    let bytes = message.encode_to_vec();
    let reply = call_with_bytes(client, method, bytes).await?;
    let decode = |bytes: Vec<u8>| {
        DynamicMessage::decode(method.output(), bytes.as_slice()).expect("a reply of its type")
    };
    Ok(reply.map(decode))
}

/// Calls a method with bytes that need not be a message.
pub async fn call_with_bytes(
    client: &Client,
    method: &MethodDescriptor,
    bytes: Vec<u8>,
) -> Outcome<Vec<u8>> {
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let path = PathAndQuery::try_from(path).expect("a path");
    let mut grpc = tonic::client::Grpc::new(client.channel.clone());
    if let Err(error) = grpc.ready().await {
        panic!("the connection is gone: {error}");
    }
    grpc.unary(Request::new(bytes), path, Bytes).await
}

/// Messages as bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; source.remaining()];
        source.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}

/// The names of the methods that the plugin says it has.
pub async fn offered(client: &Client) -> BTreeSet<&'static str> {
    let mut names = client.offered().await.expect("capabilities");
    let request = csi::GetPluginCapabilitiesRequest {};
    let plugin = client.get_plugin_capabilities(request).await;
    for one in plugin.expect("services").capabilities {
        let Some(PluginType::Service(service)) = one.r#type else {
            continue;
        };
        match service.r#type() {
            Service::GroupControllerService => names.extend(OF_GROUPS),
            Service::SnapshotMetadataService => names.extend(OF_RANGES),
            _ => {}
        }
    }
    names
}

/// The calls of the service of groups.
const OF_GROUPS: [&str; 4] = [
    "GroupControllerGetCapabilities",
    "CreateVolumeGroupSnapshot",
    "DeleteVolumeGroupSnapshot",
    "GetVolumeGroupSnapshot",
];
/// The calls of the service of ranges, which are streams.
const OF_RANGES: [&str; 2] = ["GetMetadataAllocated", "GetMetadataDelta"];

// === impl Scene ===

impl Scene {
    /// Sets it up.
    pub async fn set(world: &World<'_>) -> Self {
        let create = world.create("scene");
        let volume = world.make(create.clone()).await;
        let pod = world.mount(&volume).await;
        std::fs::write(pod.join("file"), "content").expect("a published volume can be written");
        let cut = world.snapshot("cut", &volume.volume_id);
        let snapshot = world.cut("cut", &volume.volume_id).await;
        let staging = world.staging(&volume);
        Self {
            stage: world.stage(&volume, &staging),
            volume,
            snapshot,
            staging,
            pod,
            create,
            cut,
            offered: offered(&world.client).await,
        }
    }

    /// Takes it down.
    pub async fn clear(self, world: &World<'_>) {
        world.unmount(&self.volume).await;
        world.remove_snapshot(&self.snapshot.snapshot_id).await;
        world.remove(&self.volume.volume_id).await;
    }

    /// A request for every method that this build may have.
    pub fn requests(&self) -> Vec<Known> {
        let mut known = self.controller_requests();
        known.extend(self.node_requests());
        // Which of the two services grows volumes depends on the driver.
        known.retain(|known| {
            let name = known.method.name();
            !name.ends_with("ExpandVolume") || self.offered.contains(name)
        });
        known
    }

    fn controller_requests(&self) -> Vec<Known> {
        let volume_id = self.volume.volume_id.clone();
        let snapshot_id = self.snapshot.snapshot_id.clone();
        let capability = volume::mounted(Mode::SingleNodeWriter);
        let here = self.volume.accessible_topology.clone();
        let [create, child, twin] = self.create_requests();
        let validate = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.clone(),
            volume_context: self.volume.volume_context.clone(),
            volume_capabilities: vec![capability.clone()],
            ..Default::default()
        };
        let capacity = csi::GetCapacityRequest {
            volume_capabilities: vec![capability],
            accessible_topology: here.first().cloned(),
            ..Default::default()
        };
        let list = csi::ListSnapshotsRequest {
            source_volume_id: volume_id.clone(),
            ..Default::default()
        };
        let get = csi::ControllerGetVolumeRequest {
            volume_id: volume_id.clone(),
        };
        let health = csi::ControllerGetVolumeHealthRequest {
            volume_id: volume_id.clone(),
            ..Default::default()
        };
        let get_snapshot = csi::GetSnapshotRequest {
            snapshot_id,
            ..Default::default()
        };
        vec![
            known("CreateVolume", &create, &["name", "volume_capabilities"]),
            known("CreateVolume", &child, &[]),
            known("CreateVolume", &twin, &[]),
            known(
                "DeleteVolume",
                &volume::delete("nothing-of-this-name"),
                &["volume_id"],
            ),
            known(
                "ValidateVolumeCapabilities",
                &validate,
                &["volume_id", "volume_capabilities"],
            ),
            known("ListVolumes", &csi::ListVolumesRequest::default(), &[]),
            known("GetCapacity", &capacity, &[]),
            known("CreateSnapshot", &self.cut, &["source_volume_id", "name"]),
            known(
                "DeleteSnapshot",
                &volume::delete_snapshot("nothing-of-this-name"),
                &["snapshot_id"],
            ),
            known("ListSnapshots", &list, &[]),
            known("GetSnapshot", &get_snapshot, &["snapshot_id"]),
            known(
                "ControllerExpandVolume",
                &volume::expand(&volume_id, volume::SIZE),
                &["volume_id", "capacity_range"],
            ),
            known("ControllerGetVolume", &get, &["volume_id"]),
            known("ControllerGetVolumeHealth", &health, &["volume_id"]),
            known(
                "ControllerListVolumeHealth",
                &csi::ControllerListVolumeHealthRequest::default(),
                &[],
            ),
        ]
    }

    /// Volumes: the scene's own, and copies that do not exist yet.
    fn create_requests(&self) -> [csi::CreateVolumeRequest; 3] {
        let here = self.volume.accessible_topology.clone();
        let create = csi::CreateVolumeRequest {
            accessibility_requirements: (!here.is_empty()).then(|| csi::TopologyRequirement {
                requisite: here.clone(),
                preferred: here.clone(),
            }),
            ..self.create.clone()
        };
        let child = csi::CreateVolumeRequest {
            name: "child".into(),
            volume_content_source: volume::from_snapshot(&self.snapshot.snapshot_id),
            ..self.create.clone()
        };
        let twin = csi::CreateVolumeRequest {
            name: "twin".into(),
            volume_content_source: volume::from_volume(&self.volume.volume_id),
            ..self.create.clone()
        };
        [create, child, twin]
    }

    fn node_requests(&self) -> Vec<Known> {
        let volume = &self.volume;
        let (staging, pod) = (&self.staging, &self.pod);
        let nothing = self.pod.with_file_name("pod-of-nothing");
        let unstaged = self.pod.with_file_name("stage-of-nothing");
        let text = |path: &PathBuf| path.display().to_string();
        let stats = csi::NodeGetVolumeStatsRequest {
            volume_id: volume.volume_id.clone(),
            volume_path: text(pod),
            staging_target_path: text(staging),
        };
        let health = csi::NodeGetVolumeHealthRequest {
            volume_id: volume.volume_id.clone(),
            volume_publish_path: text(pod),
            staging_target_path: text(staging),
        };
        vec![
            known(
                "NodeStageVolume",
                &self.stage,
                &["volume_id", "staging_target_path", "volume_capability"],
            ),
            known(
                "NodeUnstageVolume",
                &volume::unstage(volume, &unstaged),
                &["volume_id", "staging_target_path"],
            ),
            known(
                "NodePublishVolume",
                &volume::publish(volume, staging, pod),
                &["volume_id", "target_path", "volume_capability"],
            ),
            known(
                "NodeUnpublishVolume",
                &volume::unpublish(volume, &nothing),
                &["volume_id", "target_path"],
            ),
            known("NodeGetVolumeStats", &stats, &["volume_id", "volume_path"]),
            known("NodeGetVolumeHealth", &health, &["volume_id"]),
            known(
                "NodeExpandVolume",
                &volume::expand_on_node(&volume::expand(&volume.volume_id, volume::SIZE), pod),
                &["volume_id", "volume_path"],
            ),
        ]
    }
}

/// A request of a method, also of csi-addons.
pub(super) fn known(
    name: &str,
    request: &impl prost::Message,
    required: &'static [&'static str],
) -> Known {
    let addons = DescriptorPool::decode(csi_proto::ADDONS_DESCRIPTOR_SET).expect("descriptors");
    let method = methods()
        .into_iter()
        .chain(methods_of(&addons))
        .find(|method| method.name() == name)
        .expect("a method");
    let message = dynamic(method.input(), request);
    Known {
        method,
        message,
        required,
    }
}

/// A message in which every string and every capability is there.
pub fn complete(descriptor: &MessageDescriptor) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let value = match field.kind() {
            Kind::Message(inner) if inner.name() == "VolumeCapability" => {
                let capability = volume::mounted(Mode::SingleNodeWriter);
                Value::Message(dynamic(inner, &capability))
            }
            Kind::String if field.name().ends_with("_path") => Value::String("/nowhere".into()),
            Kind::String if !field.name().ends_with("token") => Value::String("scene".into()),
            _ => continue,
        };
        let value = if field.is_list() {
            Value::List(vec![value])
        } else {
            value
        };
        message.set_field(&field, value);
    }
    message
}

/// A typed message as one that only the descriptor knows.
pub fn dynamic(descriptor: MessageDescriptor, message: &impl prost::Message) -> DynamicMessage {
    DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())
        .expect("the same message")
}
