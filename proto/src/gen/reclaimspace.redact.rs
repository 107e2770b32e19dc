// @generated from reclaimspace.proto by tests/it/bootstrap.rs. Do not edit.

impl ::core::fmt::Debug for ControllerReclaimSpaceRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, parameters, secrets } = self;
        f.debug_struct("ControllerReclaimSpaceRequest")
            .field("volume_id", volume_id)
            .field("parameters", &crate::mask::Keys(parameters))
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for NodeReclaimSpaceRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { volume_id, volume_path, staging_target_path, volume_capability, secrets } = self;
        f.debug_struct("NodeReclaimSpaceRequest")
            .field("volume_id", volume_id)
            .field("volume_path", volume_path)
            .field("staging_target_path", staging_target_path)
            .field("volume_capability", volume_capability)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}
