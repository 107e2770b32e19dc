//! Who this plugin is for csi-addons, and what it can.
//!
//! A job that reclaims space takes any process on the node of the volume that says `ONLINE`, and then the leader among the
//! controllers, which has to say `OFFLINE`. So each half says its own way: a controller that said `ONLINE` could be taken for
//! the node, and what it does not serve counts as done.

use csi_proto::identity::capability::{NetworkFence, ReclaimSpace, Service, Type};
use csi_proto::identity::capability::{network_fence, reclaim_space, service};
use csi_proto::identity::{Capability, GetCapabilitiesResponse, GetIdentityResponse};

use crate::csi::identity::manifest;
use crate::csi::plugin::Plugin;

pub(super) fn identity(plugin: &Plugin) -> GetIdentityResponse {
    GetIdentityResponse {
        name: plugin.name.as_str().to_owned(),
        vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        manifest: manifest(),
    }
}

/// The services of this process. Fences are offered while a connection may have them: sidecars ask once, and connections
/// come and go.
pub(super) fn capabilities(plugin: &Plugin) -> GetCapabilitiesResponse {
    let modes = plugin.modes;
    let mut all = Vec::new();
    if modes.controller {
        all.push(of_service(service::Type::ControllerService));
        all.push(of_reclaiming(reclaim_space::Type::Offline));
    }
    if modes.node {
        all.push(of_service(service::Type::NodeService));
        all.push(of_reclaiming(reclaim_space::Type::Online));
    }
    if modes.controller && plugin.connections.offer(|can| can.fence) != Some(false) {
        for what in [
            network_fence::Type::NetworkFence,
            network_fence::Type::GetClientsToFence,
        ] {
            let r#type = what.into();
            all.push(Type::NetworkFence(NetworkFence { r#type }));
        }
    }
    let one = |capability| Capability {
        r#type: Some(capability),
    };
    GetCapabilitiesResponse {
        capabilities: all.into_iter().map(one).collect(),
    }
}

fn of_service(which: service::Type) -> Type {
    let r#type = which.into();
    Type::Service(Service { r#type })
}

fn of_reclaiming(way: reclaim_space::Type) -> Type {
    let r#type = way.into();
    Type::ReclaimSpace(ReclaimSpace { r#type })
}
