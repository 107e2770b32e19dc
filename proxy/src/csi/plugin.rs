//! The plugin as a whole: its name, its connections, and the gRPC services made of them.
//!
//! State that lives as long as the process is here and is passed down; nothing is static. Binding
//! sockets, signals and metrics endpoints are not known here.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use csi_proto::v1::controller_server::{self, ControllerServer};
use csi_proto::v1::group_controller_server::{self, GroupControllerServer};
use csi_proto::v1::identity_server::{self, IdentityServer};
use csi_proto::v1::node_server::{self, NodeServer};
use csi_proto::v1::snapshot_metadata_server::{self, SnapshotMetadataServer};
use driver_core::Error;
use futures_util::FutureExt;
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::csi::advertise::Advertised;
use crate::csi::controller::ControllerHandler;
use crate::csi::group_controller::GroupControllerHandler;
use crate::csi::identity::IdentityHandler;
use crate::csi::node::NodeHandler;
use crate::csi::node::info::NodeInfo;
use crate::csi::node::service::NodeService;
use crate::csi::snapshot_metadata::SnapshotMetadataHandler;
use crate::csi::spec_version::CsiVersion;
use crate::routing::connections::Connections;
use crate::routing::folder::States;
use crate::routing::plugin_name::PluginName;
use crate::rpc::{Incoming, Outlet, Rpc, Runner};

/// Everything that answers calls.
#[derive(Debug)]
pub struct Plugin {
    /// The name under which the orchestrator knows it.
    pub name: PluginName,
    /// The services it serves.
    pub modes: Modes,
    /// The abilities that it tells the orchestrator, unless `alone` is set and its connection is known.
    pub(crate) advertised: Advertised,
    /// The version at which it advertises what its connection would advertise alone, unless it advertises one list.
    pub(crate) alone: Option<CsiVersion>,
    /// The backends that it serves.
    pub connections: Connections,
    /// What it does on the node that it runs on.
    pub node: NodeService,
    /// The facts about that node.
    pub info: NodeInfo,
    /// The states of those that come and go.
    pub states: States,
    /// Runs its calls.
    pub runner: Runner,
}

/// The services that are served in addition to Identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes {
    /// The Controller service.
    pub controller: bool,
    /// The Node service.
    pub node: bool,
}

// === impl Plugin ===

impl Plugin {
    /// The abilities that it tells the orchestrator; an error if that depends on a connection that is not
    /// served.
    pub(crate) fn advertised(&self) -> Result<Cow<'_, Advertised>, Error> {
        let always = Ok(Cow::Borrowed(&self.advertised));
        let Some(version) = self.alone else {
            return always;
        };
        let Some(lazy) = self.connections.of_legacy_name()? else {
            return always;
        };
        lazy.offer().map_or(always, |(access, service)| {
            Ok(Cow::Owned(Advertised::new(
                *lazy.can(),
                access,
                service,
                version,
            )))
        })
    }

    /// The same for a node, which mounts volumes of a connection that is not served, too.
    pub(crate) fn advertised_on_node(&self) -> Cow<'_, Advertised> {
        self.advertised().unwrap_or(Cow::Borrowed(&self.advertised))
    }

    /// The names of the gRPC services of [`Plugin::routes`].
    pub fn services(&self) -> Vec<&'static str> {
        let optional = [
            (self.modes.controller, controller_server::SERVICE_NAME),
            (self.modes.controller, group_controller_server::SERVICE_NAME),
            (
                self.modes.controller,
                snapshot_metadata_server::SERVICE_NAME,
            ),
            (self.modes.node, node_server::SERVICE_NAME),
        ];
        let served = optional.into_iter().filter(|(served, _)| *served);
        std::iter::once(identity_server::SERVICE_NAME)
            .chain(served.map(|(_, name)| name))
            .collect()
    }

    /// The gRPC services. Calls of a service that is not served are answered with UNIMPLEMENTED.
    pub fn routes(self: Arc<Self>) -> Routes {
        let mut routes = Routes::new(IdentityServer::new(IdentityHandler(self.clone())));
        if self.modes.controller {
            let groups = GroupControllerHandler(self.clone());
            let ranges = SnapshotMetadataHandler(self.clone());
            routes = routes
                .add_service(ControllerServer::new(ControllerHandler(self.clone())))
                .add_service(GroupControllerServer::new(groups))
                .add_service(SnapshotMetadataServer::new(ranges));
        }
        if self.modes.node {
            routes = routes.add_service(NodeServer::new(NodeHandler(self)));
        }
        routes
    }

    /// Answers `request` with the outcome of `work`.
    pub(crate) async fn answer<Q, T, F>(
        self: &Arc<Self>,
        rpc: Rpc,
        request: Request<Q>,
        work: impl FnOnce(Arc<Self>, Incoming, Q) -> F,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (plugin, request) = (self.clone(), request.into_inner());
        let work = |incoming| work(plugin, incoming, request).boxed();
        self.runner.detached(rpc, work).await
    }

    /// Answers `request` with the messages that `work` puts into its outlet.
    pub(crate) async fn stream<Q, M, F>(
        self: &Arc<Self>,
        rpc: Rpc,
        request: Request<Q>,
        work: impl FnOnce(Arc<Self>, Incoming, Q, Outlet<M>) -> F,
    ) -> Result<Response<BoxStream<M>>, Status>
    where
        M: Send + 'static,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (plugin, request) = (self.clone(), request.into_inner());
        let work = |incoming, outlet| work(plugin, incoming, request, outlet).boxed();
        self.runner.streamed(rpc, work).await
    }
}
