// @generated from fence.proto by tests/it/bootstrap.rs. Do not edit.

impl ::core::fmt::Debug for FenceClusterNetworkRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { parameters, secrets, cidrs } = self;
        f.debug_struct("FenceClusterNetworkRequest")
            .field("parameters", parameters)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("cidrs", cidrs)
            .finish()
    }
}

impl ::core::fmt::Debug for UnfenceClusterNetworkRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { parameters, secrets, cidrs } = self;
        f.debug_struct("UnfenceClusterNetworkRequest")
            .field("parameters", parameters)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .field("cidrs", cidrs)
            .finish()
    }
}

impl ::core::fmt::Debug for ListClusterFenceRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { parameters, secrets } = self;
        f.debug_struct("ListClusterFenceRequest")
            .field("parameters", parameters)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}

impl ::core::fmt::Debug for GetFenceClientsRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        let Self { parameters, secrets } = self;
        f.debug_struct("GetFenceClientsRequest")
            .field("parameters", parameters)
            .field("secrets", &crate::mask::Count(secrets.len()))
            .finish()
    }
}
