// @generated from the files of csi-addons by tests/it/bootstrap.rs. Do not edit.

/// Calls the given macro with `"protobuf name" => RustType,` for every message.
macro_rules! with_every_message_of_identity {
    ($call:ident) => {
        $call! {
            "identity.GetIdentityRequest" => csi_proto::identity::GetIdentityRequest,
            "identity.GetIdentityResponse" => csi_proto::identity::GetIdentityResponse,
            "identity.GetCapabilitiesRequest" => csi_proto::identity::GetCapabilitiesRequest,
            "identity.GetCapabilitiesResponse" => csi_proto::identity::GetCapabilitiesResponse,
            "identity.Capability" => csi_proto::identity::Capability,
            "identity.Capability.Service" => csi_proto::identity::capability::Service,
            "identity.Capability.ReclaimSpace" => csi_proto::identity::capability::ReclaimSpace,
            "identity.Capability.NetworkFence" => csi_proto::identity::capability::NetworkFence,
            "identity.Capability.VolumeReplication" => csi_proto::identity::capability::VolumeReplication,
            "identity.Capability.VolumeGroup" => csi_proto::identity::capability::VolumeGroup,
            "identity.Capability.EncryptionKeyRotation" => csi_proto::identity::capability::EncryptionKeyRotation,
            "identity.ProbeRequest" => csi_proto::identity::ProbeRequest,
            "identity.ProbeResponse" => csi_proto::identity::ProbeResponse,
        }
    };
}
/// Calls the given macro with `"protobuf name" => RustType,` for every message.
macro_rules! with_every_message_of_fence {
    ($call:ident) => {
        $call! {
            "fence.FenceClusterNetworkRequest" => csi_proto::fence::FenceClusterNetworkRequest,
            "fence.FenceClusterNetworkResponse" => csi_proto::fence::FenceClusterNetworkResponse,
            "fence.UnfenceClusterNetworkRequest" => csi_proto::fence::UnfenceClusterNetworkRequest,
            "fence.UnfenceClusterNetworkResponse" => csi_proto::fence::UnfenceClusterNetworkResponse,
            "fence.ListClusterFenceRequest" => csi_proto::fence::ListClusterFenceRequest,
            "fence.ListClusterFenceResponse" => csi_proto::fence::ListClusterFenceResponse,
            "fence.CIDR" => csi_proto::fence::Cidr,
            "fence.GetFenceClientsRequest" => csi_proto::fence::GetFenceClientsRequest,
            "fence.GetFenceClientsResponse" => csi_proto::fence::GetFenceClientsResponse,
            "fence.ClientDetails" => csi_proto::fence::ClientDetails,
        }
    };
}
/// Calls the given macro with `"protobuf name" => RustType,` for every message.
macro_rules! with_every_message_of_reclaimspace {
    ($call:ident) => {
        $call! {
            "reclaimspace.ControllerReclaimSpaceRequest" => csi_proto::reclaimspace::ControllerReclaimSpaceRequest,
            "reclaimspace.ControllerReclaimSpaceResponse" => csi_proto::reclaimspace::ControllerReclaimSpaceResponse,
            "reclaimspace.StorageConsumption" => csi_proto::reclaimspace::StorageConsumption,
            "reclaimspace.NodeReclaimSpaceRequest" => csi_proto::reclaimspace::NodeReclaimSpaceRequest,
            "reclaimspace.NodeReclaimSpaceResponse" => csi_proto::reclaimspace::NodeReclaimSpaceResponse,
        }
    };
}
