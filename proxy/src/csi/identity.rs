//! The Identity service: who this plugin is. It works before any backend is reachable, and a probe
//! never contacts one: the orchestrator kills a plugin that does not answer. The state of the
//! connections, as known by then, is added to the metadata of the reply.

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::identity_server::Identity;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::csi::plugin::Plugin;
use crate::routing::folder::Summary;
use crate::rpc::Rpc;

/// The Identity service.
#[derive(Debug, Clone)]
pub(crate) struct IdentityHandler(pub(crate) Arc<Plugin>);

// === impl IdentityHandler ===

#[tonic::async_trait]
impl Identity for IdentityHandler {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        self.0.runner.quick(Rpc::GetPluginInfo, || {
            Ok(v1::GetPluginInfoResponse {
                name: self.0.name.as_str().to_owned(),
                vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                manifest: manifest(),
            })
        })
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        self.0.runner.quick(Rpc::GetPluginCapabilities, || {
            Ok(self.0.advertised()?.plugin_reply(&self.0.connections))
        })
    }

    async fn probe(
        &self,
        _: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        let plugin = &self.0;
        let answer = || Ok(v1::ProbeResponse { ready: Some(true) });
        let mut reply = plugin.runner.quick(Rpc::Probe, answer)?;
        if plugin.connections.is_routed() {
            tell_health(
                reply.metadata_mut(),
                &plugin.states.summary(&plugin.connections, MAX_NAMED),
            );
        }
        Ok(reply)
    }
}

/// The most connections that a probe names.
const MAX_NAMED: usize = 16;

/// Says how the connections are, beside an answer that says that this process is well: to end it
/// would help none of them, and would take the others with it.
fn tell_health(to: &mut MetadataMap, health: &Summary) {
    let names: Vec<&str> = health.bad.iter().map(|name| &**name.text()).collect();
    let healthy = format!("{} of {}", health.good, health.all);
    for (key, text) in [(HEALTHY, healthy), (UNHEALTHY, names.join(","))] {
        // Names of connections are plain words.
        if let Ok(value) = text.parse() {
            to.insert(key, value);
        }
    }
}

const HEALTHY: &str = "omnibus-csi-connections-healthy";
const UNHEALTHY: &str = "omnibus-csi-connections-unhealthy";

/// Facts for people: what exactly is running.
pub(crate) fn manifest() -> BTreeMap<String, String> {
    let commit = option_env!("OMNIBUS_CSI_COMMIT").filter(|commit| !commit.is_empty());
    commit
        .map(|commit| ("commit".to_owned(), commit.to_owned()))
        .into_iter()
        .collect()
}
