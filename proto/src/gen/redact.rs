// @generated from csi.proto by tests/it/bootstrap.rs. Do not edit.

impl ::core::fmt::Debug for CreateVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { name, capacity_range, volume_capabilities, parameters, secrets, volume_content_source, accessibility_requirements, mutable_parameters } = self;
        f.debug_struct("CreateVolumeRequest")
            .field("name", name)
            .field("capacity_range", capacity_range)
            .field("volume_capabilities", volume_capabilities)
            .field("parameters", parameters)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("volume_content_source", volume_content_source)
            .field("accessibility_requirements", accessibility_requirements)
            .field("mutable_parameters", mutable_parameters)
            .finish()
    }
}

impl ::core::fmt::Debug for volume_capability::MountVolume {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { fs_type, mount_flags, volume_mount_group } = self;
        f.debug_struct("MountVolume")
            .field("fs_type", fs_type)
            .field("mount_flags", &crate::mask::Count(mount_flags.len()))
            .field("volume_mount_group", volume_mount_group)
            .finish()
    }
}

impl ::core::fmt::Debug for Volume {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { capacity_bytes, volume_id, volume_context, content_source, accessible_topology } = self;
        f.debug_struct("Volume")
            .field("capacity_bytes", capacity_bytes)
            .field("volume_id", volume_id)
            .field("volume_context", &crate::mask::Keys(volume_context))
            .field("content_source", content_source)
            .field("accessible_topology", accessible_topology)
            .finish()
    }
}

impl ::core::fmt::Debug for DeleteVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, secrets } = self;
        f.debug_struct("DeleteVolumeRequest")
            .field("volume_id", volume_id)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for ControllerPublishVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, node_id, volume_capability, readonly, secrets, volume_context } = self;
        f.debug_struct("ControllerPublishVolumeRequest")
            .field("volume_id", volume_id)
            .field("node_id", node_id)
            .field("volume_capability", volume_capability)
            .field("readonly", readonly)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("volume_context", &crate::mask::Keys(volume_context))
            .finish()
    }
}

impl ::core::fmt::Debug for ControllerPublishVolumeResponse {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { publish_context } = self;
        f.debug_struct("ControllerPublishVolumeResponse")
            .field("publish_context", &crate::mask::Keys(publish_context))
            .finish()
    }
}

impl ::core::fmt::Debug for ControllerUnpublishVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, node_id, secrets } = self;
        f.debug_struct("ControllerUnpublishVolumeRequest")
            .field("volume_id", volume_id)
            .field("node_id", node_id)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for ValidateVolumeCapabilitiesRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, volume_context, volume_capabilities, parameters, secrets, mutable_parameters } = self;
        f.debug_struct("ValidateVolumeCapabilitiesRequest")
            .field("volume_id", volume_id)
            .field("volume_context", &crate::mask::Keys(volume_context))
            .field("volume_capabilities", volume_capabilities)
            .field("parameters", parameters)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("mutable_parameters", mutable_parameters)
            .finish()
    }
}

impl ::core::fmt::Debug for validate_volume_capabilities_response::Confirmed {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_context, volume_capabilities, parameters, mutable_parameters } = self;
        f.debug_struct("Confirmed")
            .field("volume_context", &crate::mask::Keys(volume_context))
            .field("volume_capabilities", volume_capabilities)
            .field("parameters", parameters)
            .field("mutable_parameters", mutable_parameters)
            .finish()
    }
}

impl ::core::fmt::Debug for ControllerListVolumeHealthRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { max_entries, starting_token, secrets } = self;
        f.debug_struct("ControllerListVolumeHealthRequest")
            .field("max_entries", max_entries)
            .field("starting_token", starting_token)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for ControllerGetVolumeHealthRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, secrets } = self;
        f.debug_struct("ControllerGetVolumeHealthRequest")
            .field("volume_id", volume_id)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for ControllerModifyVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, secrets, mutable_parameters } = self;
        f.debug_struct("ControllerModifyVolumeRequest")
            .field("volume_id", volume_id)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("mutable_parameters", mutable_parameters)
            .finish()
    }
}

impl ::core::fmt::Debug for CreateSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { source_volume_id, name, secrets, parameters, accessibility_requirements } = self;
        f.debug_struct("CreateSnapshotRequest")
            .field("source_volume_id", source_volume_id)
            .field("name", name)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("parameters", parameters)
            .field("accessibility_requirements", accessibility_requirements)
            .finish()
    }
}

impl ::core::fmt::Debug for DeleteSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { snapshot_id, secrets } = self;
        f.debug_struct("DeleteSnapshotRequest")
            .field("snapshot_id", snapshot_id)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for ListSnapshotsRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { max_entries, starting_token, source_volume_id, snapshot_id, secrets } = self;
        f.debug_struct("ListSnapshotsRequest")
            .field("max_entries", max_entries)
            .field("starting_token", starting_token)
            .field("source_volume_id", source_volume_id)
            .field("snapshot_id", snapshot_id)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for GetSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { snapshot_id, secrets } = self;
        f.debug_struct("GetSnapshotRequest")
            .field("snapshot_id", snapshot_id)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for ControllerExpandVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, capacity_range, secrets, volume_capability } = self;
        f.debug_struct("ControllerExpandVolumeRequest")
            .field("volume_id", volume_id)
            .field("capacity_range", capacity_range)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("volume_capability", volume_capability)
            .finish()
    }
}

impl ::core::fmt::Debug for NodeStageVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, publish_context, staging_target_path, volume_capability, secrets, volume_context } = self;
        f.debug_struct("NodeStageVolumeRequest")
            .field("volume_id", volume_id)
            .field("publish_context", &crate::mask::Keys(publish_context))
            .field("staging_target_path", staging_target_path)
            .field("volume_capability", volume_capability)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("volume_context", &crate::mask::Keys(volume_context))
            .finish()
    }
}

impl ::core::fmt::Debug for NodePublishVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, publish_context, staging_target_path, target_path, volume_capability, readonly, secrets, volume_context } = self;
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", volume_id)
            .field("publish_context", &crate::mask::Keys(publish_context))
            .field("staging_target_path", staging_target_path)
            .field("target_path", target_path)
            .field("volume_capability", volume_capability)
            .field("readonly", readonly)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("volume_context", &crate::mask::Keys(volume_context))
            .finish()
    }
}

impl ::core::fmt::Debug for NodeGetStorageHealthRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { secrets } = self;
        f.debug_struct("NodeGetStorageHealthRequest")
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for NodeExpandVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, volume_path, capacity_range, staging_target_path, volume_capability, secrets } = self;
        f.debug_struct("NodeExpandVolumeRequest")
            .field("volume_id", volume_id)
            .field("volume_path", volume_path)
            .field("capacity_range", capacity_range)
            .field("staging_target_path", staging_target_path)
            .field("volume_capability", volume_capability)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for CreateVolumeGroupSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { name, source_volume_ids, secrets, parameters } = self;
        f.debug_struct("CreateVolumeGroupSnapshotRequest")
            .field("name", name)
            .field("source_volume_ids", source_volume_ids)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("parameters", parameters)
            .finish()
    }
}

impl ::core::fmt::Debug for DeleteVolumeGroupSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { group_snapshot_id, snapshot_ids, secrets } = self;
        f.debug_struct("DeleteVolumeGroupSnapshotRequest")
            .field("group_snapshot_id", group_snapshot_id)
            .field("snapshot_ids", snapshot_ids)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for GetVolumeGroupSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { group_snapshot_id, snapshot_ids, secrets } = self;
        f.debug_struct("GetVolumeGroupSnapshotRequest")
            .field("group_snapshot_id", group_snapshot_id)
            .field("snapshot_ids", snapshot_ids)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for GetMetadataAllocatedRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { snapshot_id, starting_offset, max_results, secrets } = self;
        f.debug_struct("GetMetadataAllocatedRequest")
            .field("snapshot_id", snapshot_id)
            .field("starting_offset", starting_offset)
            .field("max_results", max_results)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for GetMetadataDeltaRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { base_snapshot_id, target_snapshot_id, starting_offset, max_results, secrets } = self;
        f.debug_struct("GetMetadataDeltaRequest")
            .field("base_snapshot_id", base_snapshot_id)
            .field("target_snapshot_id", target_snapshot_id)
            .field("starting_offset", starting_offset)
            .field("max_results", max_results)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}
