//! The services of csi-addons, on a socket of their own: fences, and space that goes back to the storage.
//!
//! They are served if a flag says so, by the same process, and run as all other calls do: within a deadline, logged,
//! measured. compat: "csi-addons".

pub(crate) mod decode;
mod fence;
mod identity;
mod reclaim;

use std::sync::Arc;

use csi_proto::fence::fence_controller_server::{self, FenceController, FenceControllerServer};
use csi_proto::identity::identity_server::{self, Identity, IdentityServer};
use csi_proto::reclaimspace::reclaim_space_controller_server::{
    self, ReclaimSpaceController, ReclaimSpaceControllerServer,
};
use csi_proto::reclaimspace::reclaim_space_node_server::{
    self, ReclaimSpaceNode, ReclaimSpaceNodeServer,
};
use csi_proto::{fence as wire, identity as who, reclaimspace};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::csi::plugin::{Modes, Plugin};
use crate::rpc::Rpc;

/// All services of csi-addons.
#[derive(Debug, Clone)]
struct Addons(Arc<Plugin>);

type Reply<T> = Result<Response<T>, Status>;

/// The names of the services of [`routes`].
pub fn services(modes: Modes) -> Vec<&'static str> {
    let mut names = vec![identity_server::SERVICE_NAME];
    if modes.controller {
        names.push(fence_controller_server::SERVICE_NAME);
        names.push(reclaim_space_controller_server::SERVICE_NAME);
    }
    if modes.node {
        names.push(reclaim_space_node_server::SERVICE_NAME);
    }
    names
}

/// The services of csi-addons for a plugin.
pub fn routes(plugin: Arc<Plugin>) -> Routes {
    let modes = plugin.modes;
    let addons = Addons(plugin);
    let mut routes = Routes::new(IdentityServer::new(addons.clone()));
    if modes.controller {
        routes = routes
            .add_service(FenceControllerServer::new(addons.clone()))
            .add_service(ReclaimSpaceControllerServer::new(addons.clone()));
    }
    if modes.node {
        routes = routes.add_service(ReclaimSpaceNodeServer::new(addons));
    }
    routes
}

#[tonic::async_trait]
impl Identity for Addons {
    async fn get_identity(
        &self,
        _: Request<who::GetIdentityRequest>,
    ) -> Reply<who::GetIdentityResponse> {
        let name = || Ok(identity::identity(&self.0));
        self.0.runner.quick(Rpc::GetIdentity, name)
    }

    async fn get_capabilities(
        &self,
        _: Request<who::GetCapabilitiesRequest>,
    ) -> Reply<who::GetCapabilitiesResponse> {
        let list = || Ok(identity::capabilities(&self.0));
        self.0.runner.quick(Rpc::GetCapabilities, list)
    }

    async fn probe(&self, _: Request<who::ProbeRequest>) -> Reply<who::ProbeResponse> {
        let ready = || Ok(who::ProbeResponse { ready: Some(true) });
        self.0.runner.quick(Rpc::Probe, ready)
    }
}

#[tonic::async_trait]
impl FenceController for Addons {
    async fn fence_cluster_network(
        &self,
        request: Request<wire::FenceClusterNetworkRequest>,
    ) -> Reply<wire::FenceClusterNetworkResponse> {
        self.0
            .answer(Rpc::FenceClusterNetwork, request, fence::fence)
            .await
    }

    async fn unfence_cluster_network(
        &self,
        request: Request<wire::UnfenceClusterNetworkRequest>,
    ) -> Reply<wire::UnfenceClusterNetworkResponse> {
        self.0
            .answer(Rpc::UnfenceClusterNetwork, request, fence::unfence)
            .await
    }

    async fn list_cluster_fence(
        &self,
        request: Request<wire::ListClusterFenceRequest>,
    ) -> Reply<wire::ListClusterFenceResponse> {
        self.0
            .answer(Rpc::ListClusterFence, request, fence::list)
            .await
    }

    async fn get_fence_clients(
        &self,
        request: Request<wire::GetFenceClientsRequest>,
    ) -> Reply<wire::GetFenceClientsResponse> {
        self.0
            .answer(Rpc::GetFenceClients, request, fence::clients)
            .await
    }
}

#[tonic::async_trait]
impl ReclaimSpaceController for Addons {
    async fn controller_reclaim_space(
        &self,
        request: Request<reclaimspace::ControllerReclaimSpaceRequest>,
    ) -> Reply<reclaimspace::ControllerReclaimSpaceResponse> {
        self.0
            .answer(Rpc::ControllerReclaimSpace, request, reclaim::controller)
            .await
    }
}

#[tonic::async_trait]
impl ReclaimSpaceNode for Addons {
    async fn node_reclaim_space(
        &self,
        request: Request<reclaimspace::NodeReclaimSpaceRequest>,
    ) -> Reply<reclaimspace::NodeReclaimSpaceResponse> {
        self.0
            .answer(Rpc::NodeReclaimSpace, request, reclaim::node)
            .await
    }
}
