//! Who this plugin is for csi-addons, and what it can.
//!
//! A job that reclaims space asks the leader among the controllers for `OFFLINE`, also if the volume is on a node: so both
//! halves say both.

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
    }
    if modes.node {
        all.push(of_service(service::Type::NodeService));
    }
    for way in [reclaim_space::Type::Offline, reclaim_space::Type::Online] {
        all.push(Type::ReclaimSpace(ReclaimSpace { r#type: way.into() }));
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
