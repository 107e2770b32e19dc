//! Every request as bytes from the wire, decoded as its service does.
//!
//! Input: a byte that chooses the call, then the message. An accepted message must follow the rules
//! of the specification, written here independently; an error must contain no secret.
#![no_main]

use csi_proto::v1::volume_capability::AccessType;
use csi_proto::{fence, reclaimspace, v1};
use driver_core::{Effect, Kind};
use fuzz::{SECRET, is_csi_text, is_plain_path, one_line, presentable};
use libfuzzer_sys::fuzz_target;
use omnibus_csi::csi::decode;
use omnibus_csi::rpc::Rpc;
use prost::Message;
use std::collections::BTreeMap;
use std::fmt::Debug;

type Map = BTreeMap<String, String>;

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let rpc = Rpc::ALL[usize::from(*first) % Rpc::ALL.len()];
    let Some(outcome) = decode::request(rpc, bytes) else {
        return;
    };
    if let Err(error) = &outcome {
        let special = match rpc {
            Rpc::ListVolumes | Rpc::ListSnapshots | Rpc::ControllerListVolumeHealth => {
                Some(Kind::Pending)
            }
            Rpc::GetMetadataAllocated | Rpc::GetMetadataDelta => Some(Kind::OutOfRange),
            _ => None,
        };
        assert!(error.kind() == Kind::Invalid || Some(error.kind()) == special);
        assert_eq!(error.effect(), Effect::None, "nothing was done yet");
        one_line(error.chain());
    }
    judge(rpc, bytes, outcome.is_ok());
});

/// The checks for one kind of message.
trait Request: Message + Default + Debug {
    /// Asserts the rules for an accepted message.
    fn is_sound(&self);
    /// Puts a secret into every field that may have one.
    fn hide(&mut self) {}
}

fn judge(rpc: Rpc, bytes: &[u8], accepted: bool) {
    match rpc {
        Rpc::CreateVolume => message::<v1::CreateVolumeRequest>(rpc, bytes, accepted),
        Rpc::DeleteVolume => message::<v1::DeleteVolumeRequest>(rpc, bytes, accepted),
        Rpc::ControllerPublishVolume => {
            message::<v1::ControllerPublishVolumeRequest>(rpc, bytes, accepted);
        }
        Rpc::ControllerUnpublishVolume => {
            message::<v1::ControllerUnpublishVolumeRequest>(rpc, bytes, accepted);
        }
        Rpc::ValidateVolumeCapabilities => {
            message::<v1::ValidateVolumeCapabilitiesRequest>(rpc, bytes, accepted);
        }
        Rpc::ListVolumes => message::<v1::ListVolumesRequest>(rpc, bytes, accepted),
        Rpc::GetCapacity => message::<v1::GetCapacityRequest>(rpc, bytes, accepted),
        Rpc::CreateSnapshot => message::<v1::CreateSnapshotRequest>(rpc, bytes, accepted),
        Rpc::DeleteSnapshot => message::<v1::DeleteSnapshotRequest>(rpc, bytes, accepted),
        Rpc::ListSnapshots => message::<v1::ListSnapshotsRequest>(rpc, bytes, accepted),
        Rpc::GetSnapshot => message::<v1::GetSnapshotRequest>(rpc, bytes, accepted),
        Rpc::ControllerExpandVolume => {
            message::<v1::ControllerExpandVolumeRequest>(rpc, bytes, accepted);
        }
        Rpc::ControllerGetVolume => message::<v1::ControllerGetVolumeRequest>(rpc, bytes, accepted),
        Rpc::ControllerGetVolumeHealth => {
            message::<v1::ControllerGetVolumeHealthRequest>(rpc, bytes, accepted);
        }
        Rpc::ControllerListVolumeHealth => {
            message::<v1::ControllerListVolumeHealthRequest>(rpc, bytes, accepted);
        }
        Rpc::ControllerModifyVolume => {
            message::<v1::ControllerModifyVolumeRequest>(rpc, bytes, accepted);
        }
        Rpc::CreateVolumeGroupSnapshot => {
            message::<v1::CreateVolumeGroupSnapshotRequest>(rpc, bytes, accepted);
        }
        Rpc::DeleteVolumeGroupSnapshot => {
            message::<v1::DeleteVolumeGroupSnapshotRequest>(rpc, bytes, accepted);
        }
        Rpc::GetVolumeGroupSnapshot => {
            message::<v1::GetVolumeGroupSnapshotRequest>(rpc, bytes, accepted);
        }
        Rpc::GetMetadataAllocated => {
            message::<v1::GetMetadataAllocatedRequest>(rpc, bytes, accepted);
        }
        Rpc::GetMetadataDelta => message::<v1::GetMetadataDeltaRequest>(rpc, bytes, accepted),
        Rpc::NodeStageVolume => message::<v1::NodeStageVolumeRequest>(rpc, bytes, accepted),
        Rpc::NodeUnstageVolume => message::<v1::NodeUnstageVolumeRequest>(rpc, bytes, accepted),
        Rpc::NodePublishVolume => message::<v1::NodePublishVolumeRequest>(rpc, bytes, accepted),
        Rpc::NodeUnpublishVolume => message::<v1::NodeUnpublishVolumeRequest>(rpc, bytes, accepted),
        Rpc::NodeGetVolumeHealth => message::<v1::NodeGetVolumeHealthRequest>(rpc, bytes, accepted),
        Rpc::NodeGetVolumeStats => message::<v1::NodeGetVolumeStatsRequest>(rpc, bytes, accepted),
        Rpc::NodeExpandVolume => message::<v1::NodeExpandVolumeRequest>(rpc, bytes, accepted),
        Rpc::FenceClusterNetwork => {
            message::<fence::FenceClusterNetworkRequest>(rpc, bytes, accepted);
        }
        Rpc::UnfenceClusterNetwork => {
            message::<fence::UnfenceClusterNetworkRequest>(rpc, bytes, accepted);
        }
        Rpc::ListClusterFence => message::<fence::ListClusterFenceRequest>(rpc, bytes, accepted),
        Rpc::GetFenceClients => message::<fence::GetFenceClientsRequest>(rpc, bytes, accepted),
        Rpc::ControllerReclaimSpace => {
            message::<reclaimspace::ControllerReclaimSpaceRequest>(rpc, bytes, accepted);
        }
        Rpc::NodeReclaimSpace => {
            message::<reclaimspace::NodeReclaimSpaceRequest>(rpc, bytes, accepted);
        }
        // No field of these is used.
        Rpc::GetPluginInfo
        | Rpc::GetPluginCapabilities
        | Rpc::Probe
        | Rpc::ControllerGetCapabilities
        | Rpc::GroupControllerGetCapabilities
        | Rpc::NodeGetStorageHealth
        | Rpc::NodeGetCapabilities
        | Rpc::NodeGetInfo
        | Rpc::GetIdentity
        | Rpc::GetCapabilities => assert!(accepted),
    }
}

fn message<M: Request>(rpc: Rpc, bytes: &[u8], accepted: bool) {
    let mut message = M::decode(bytes).expect("it was decoded before");
    if accepted {
        message.is_sound();
    }
    // The encoding of the sender makes no difference.
    let again = decode::request(rpc, &message.encode_to_vec()).expect("a message");
    assert_eq!(again.is_ok(), accepted, "{message:?}");
    if bytes
        .windows(SECRET.len())
        .any(|bytes| bytes == SECRET.as_bytes())
    {
        // Where it stands it is none.
        return;
    }
    message.hide();
    presentable(format!("{message:?}").escape_debug());
    if let Some(Err(error)) = decode::request(rpc, &message.encode_to_vec()) {
        presentable(error.chain());
    }
}

fn is_id(id: &str) {
    assert!(is_csi_text(id, 512), "{id:?}");
}

fn are_ids<'a>(ids: impl IntoIterator<Item = &'a String>) {
    ids.into_iter().for_each(|id| is_id(id));
}

fn is_name(name: &str) {
    assert!(is_csi_text(name, 128), "{name:?}");
}

fn is_path(path: &str) {
    assert!(is_plain_path(path), "{path:?}");
}

/// A relative path never has a volume.
fn may_be_a_volume(path: &str) {
    assert!(!path.is_empty());
    if path.starts_with('/') {
        is_path(path);
    }
}

fn is_place(path: &str) {
    is_path(path);
    assert!(path.bytes().any(|byte| byte != b'/'), "the root directory");
}

fn is_size(range: Option<&v1::CapacityRange>) {
    if let Some(range) = range {
        let (required, limit) = (range.required_bytes, range.limit_bytes);
        assert!(required >= 0 && limit >= 0, "{range:?}");
        assert!(limit == 0 || required <= limit, "{range:?}");
    }
}

fn are_small<'a>(maps: impl IntoIterator<Item = &'a Map>) {
    for map in maps {
        let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(bytes <= 4096, "{bytes} bytes");
    }
}

fn are_secrets(secrets: &Map) {
    are_small([secrets]);
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    assert!(
        secrets
            .keys()
            .all(|key| !key.is_empty() && key.bytes().all(fine))
    );
}

fn are_wishes<'a>(capabilities: impl IntoIterator<Item = &'a v1::VolumeCapability>) {
    for capability in capabilities {
        assert!(capability.access_mode.is_some(), "{capability:?}");
        let Some(access) = &capability.access_type else {
            panic!("no access type");
        };
        if let AccessType::Mount(mount) = access {
            assert!(!mount.fs_type.starts_with('-') && !mount.fs_type.contains(['/', ' ', ',']));
            // A blank at either end is dropped; within an option it could begin another one.
            for flag in mount.mount_flags.iter().flat_map(|flags| flags.split(',')) {
                let odd = |c: char| c.is_whitespace() || c.is_control() || c == '\\';
                assert!(!flag.trim().contains(odd), "a mount option");
            }
        }
    }
}

fn is_use<'a>(
    capability: Option<&v1::VolumeCapability>,
    contexts: impl IntoIterator<Item = &'a Map>,
) {
    are_wishes([capability.expect("it is required")]);
    are_small(contexts);
}

fn are_places(requirement: Option<&v1::TopologyRequirement>) {
    let Some(requirement) = requirement else {
        return;
    };
    for place in requirement.requisite.iter().chain(&requirement.preferred) {
        assert!(!place.segments.is_empty());
        is_somewhere(place);
    }
}

fn is_somewhere(place: &v1::Topology) {
    for (key, value) in &place.segments {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_label = |text: &str| (1..64).contains(&text.len()) && text.bytes().all(fine);
        assert!(key.split('/').all(is_label) && key.matches('/').count() < 2);
        assert!(is_label(value), "{value:?}");
    }
}

fn hide_in(secrets: &mut Map) {
    secrets.insert("key".to_owned(), String::new());
    for value in secrets.values_mut() {
        SECRET.clone_into(value);
    }
}

fn hide_among<'a>(capabilities: impl IntoIterator<Item = &'a mut v1::VolumeCapability>) {
    for capability in capabilities {
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            for flag in &mut mount.mount_flags {
                flag.push_str(SECRET);
            }
        }
    }
}

fn hide_in_use(secrets: &mut Map, capability: &mut Option<v1::VolumeCapability>) {
    hide_in(secrets);
    hide_among(capability);
}

macro_rules! requests {
    ($package:ident: $($name:ident: |$request:ident| $sound:block, |$message:ident| $hide:block)+) => {$(
        impl Request for $package::$name {
            fn is_sound(&self) {
                let $request = self;
                $sound
            }

            fn hide(&mut self) {
                let $message = self;
                $hide
            }
        }
    )+};
}

requests! {
    v1:
    CreateVolumeRequest: |r| {
        is_name(&r.name);
        is_size(r.capacity_range.as_ref());
        assert!(!r.volume_capabilities.is_empty());
        are_wishes(&r.volume_capabilities);
        are_small([&r.parameters, &r.mutable_parameters]);
        are_secrets(&r.secrets);
        are_places(r.accessibility_requirements.as_ref());
        if let Some(source) = &r.volume_content_source {
            assert!(source.r#type.is_some());
        }
    }, |m| {
        hide_in(&mut m.secrets);
        hide_among(&mut m.volume_capabilities);
    }
    DeleteVolumeRequest: |r| {
        is_id(&r.volume_id);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    ControllerPublishVolumeRequest: |r| {
        is_id(&r.volume_id);
        assert!(is_csi_text(&r.node_id, 256));
        is_use(r.volume_capability.as_ref(), [&r.volume_context]);
        are_secrets(&r.secrets);
    }, |m| { hide_in_use(&mut m.secrets, &mut m.volume_capability); }
    ControllerUnpublishVolumeRequest: |r| {
        is_id(&r.volume_id);
        assert!(r.node_id.is_empty() || is_csi_text(&r.node_id, 256));
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    ValidateVolumeCapabilitiesRequest: |r| {
        is_id(&r.volume_id);
        assert!(!r.volume_capabilities.is_empty());
        are_wishes(&r.volume_capabilities);
        are_small([&r.volume_context, &r.parameters, &r.mutable_parameters]);
        are_secrets(&r.secrets);
    }, |m| {
        hide_in(&mut m.secrets);
        hide_among(&mut m.volume_capabilities);
    }
    ListVolumesRequest: |r| {
        assert!(r.max_entries >= 0);
        assert!(r.starting_token.is_empty() || is_csi_text(&r.starting_token, 128));
    }, |_m| {}
    GetCapacityRequest: |r| {
        are_wishes(&r.volume_capabilities);
        are_small([&r.parameters]);
        if let Some(place) = &r.accessible_topology {
            is_somewhere(place);
        }
    }, |m| { hide_among(&mut m.volume_capabilities); }
    CreateSnapshotRequest: |r| {
        is_name(&r.name);
        is_id(&r.source_volume_id);
        are_small([&r.parameters]);
        are_secrets(&r.secrets);
        are_places(r.accessibility_requirements.as_ref());
    }, |m| { hide_in(&mut m.secrets); }
    DeleteSnapshotRequest: |r| {
        is_id(&r.snapshot_id);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    ListSnapshotsRequest: |r| {
        assert!(r.max_entries >= 0);
        assert!(r.starting_token.is_empty() || is_csi_text(&r.starting_token, 128));
        for id in [&r.source_volume_id, &r.snapshot_id] {
            assert!(id.is_empty() || is_csi_text(id, 512));
        }
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    GetSnapshotRequest: |r| {
        is_id(&r.snapshot_id);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    ControllerExpandVolumeRequest: |r| {
        is_id(&r.volume_id);
        is_size(r.capacity_range.as_ref());
        are_wishes(&r.volume_capability);
        are_secrets(&r.secrets);
    }, |m| { hide_in_use(&mut m.secrets, &mut m.volume_capability); }
    ControllerGetVolumeRequest: |r| { is_id(&r.volume_id); }, |_m| {}
    ControllerGetVolumeHealthRequest: |r| {
        is_id(&r.volume_id);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    ControllerListVolumeHealthRequest: |r| {
        assert!(r.max_entries >= 0);
        assert!(r.starting_token.is_empty() || is_csi_text(&r.starting_token, 128));
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    ControllerModifyVolumeRequest: |r| {
        is_id(&r.volume_id);
        are_small([&r.mutable_parameters]);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    CreateVolumeGroupSnapshotRequest: |r| {
        is_name(&r.name);
        assert!(!r.source_volume_ids.is_empty());
        are_ids(&r.source_volume_ids);
        are_small([&r.parameters]);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    DeleteVolumeGroupSnapshotRequest: |r| {
        are_ids(r.snapshot_ids.iter().chain([&r.group_snapshot_id]));
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    GetVolumeGroupSnapshotRequest: |r| {
        are_ids(r.snapshot_ids.iter().chain([&r.group_snapshot_id]));
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    GetMetadataAllocatedRequest: |r| {
        is_id(&r.snapshot_id);
        assert!(r.starting_offset >= 0 && r.max_results >= 0);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    GetMetadataDeltaRequest: |r| {
        are_ids([&r.base_snapshot_id, &r.target_snapshot_id]);
        assert!(r.starting_offset >= 0 && r.max_results >= 0);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    NodeStageVolumeRequest: |r| {
        is_id(&r.volume_id);
        is_place(&r.staging_target_path);
        is_use(r.volume_capability.as_ref(), [&r.volume_context, &r.publish_context]);
        are_secrets(&r.secrets);
    }, |m| { hide_in_use(&mut m.secrets, &mut m.volume_capability); }
    NodeUnstageVolumeRequest: |r| {
        is_id(&r.volume_id);
        is_place(&r.staging_target_path);
    }, |_m| {}
    NodePublishVolumeRequest: |r| {
        is_id(&r.volume_id);
        is_place(&r.target_path);
        if !r.staging_target_path.is_empty() {
            is_place(&r.staging_target_path);
        }
        is_use(r.volume_capability.as_ref(), [&r.volume_context, &r.publish_context]);
        are_secrets(&r.secrets);
    }, |m| { hide_in_use(&mut m.secrets, &mut m.volume_capability); }
    NodeUnpublishVolumeRequest: |r| {
        is_id(&r.volume_id);
        is_place(&r.target_path);
    }, |_m| {}
    NodeGetVolumeHealthRequest: |r| {
        is_id(&r.volume_id);
        for path in [&r.volume_publish_path, &r.staging_target_path] {
            assert!(path.is_empty() || is_plain_path(path), "{path:?}");
        }
    }, |_m| {}
    NodeGetVolumeStatsRequest: |r| {
        is_id(&r.volume_id);
        may_be_a_volume(&r.volume_path);
    }, |_m| {}
    NodeExpandVolumeRequest: |r| {
        is_id(&r.volume_id);
        may_be_a_volume(&r.volume_path);
        is_size(r.capacity_range.as_ref());
        are_wishes(&r.volume_capability);
        are_secrets(&r.secrets);
    }, |m| { hide_in_use(&mut m.secrets, &mut m.volume_capability); }
}

fn are_networks(cidrs: &[fence::Cidr]) {
    assert!(!cidrs.is_empty());
    for fence::Cidr { cidr } in cidrs {
        let (address, bits) = cidr.split_once('/').expect("a network");
        let address: std::net::IpAddr = address.parse().expect("an address");
        let width = if address.is_ipv4() { 32 } else { 128 };
        assert!(bits.parse::<u32>().expect("a number") <= width, "{cidr:?}");
    }
}

requests! {
    fence:
    FenceClusterNetworkRequest: |r| {
        are_networks(&r.cidrs);
        are_small([&r.parameters]);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    UnfenceClusterNetworkRequest: |r| {
        are_networks(&r.cidrs);
        are_small([&r.parameters]);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    ListClusterFenceRequest: |r| {
        are_small([&r.parameters]);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    GetFenceClientsRequest: |r| {
        are_small([&r.parameters]);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
}

requests! {
    reclaimspace:
    ControllerReclaimSpaceRequest: |r| {
        is_id(&r.volume_id);
        are_small([&r.parameters]);
        are_secrets(&r.secrets);
    }, |m| { hide_in(&mut m.secrets); }
    NodeReclaimSpaceRequest: |r| {
        is_id(&r.volume_id);
        match r.staging_target_path.as_str() {
            "" => is_path(&r.volume_path),
            path => is_place(path),
        }
        are_wishes(&r.volume_capability);
        are_secrets(&r.secrets);
    }, |m| { hide_in_use(&mut m.secrets, &mut m.volume_capability); }
}
