//! What a connection offers: only that is asked of it.

use csi_proto::v1::controller_service_capability::{
    Type as ControllerType, rpc::Type as Controller,
};
use csi_proto::v1::node_service_capability::{Type as NodeType, rpc::Type as Node};
use csi_proto::v1::plugin_capability::{Type as PluginType, service::Type as Service};
use csi_proto::v1::{
    ControllerGetCapabilitiesResponse, GetPluginCapabilitiesResponse, NodeGetCapabilitiesResponse,
};

/// What a connection offers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a capability of the specification"
)]
pub(super) struct Offers {
    pub(super) topology: bool,
    pub(super) create: bool,
    pub(super) attach: bool,
    pub(super) list: bool,
    pub(super) capacity: bool,
    pub(super) snapshot: bool,
    pub(super) list_snapshots: bool,
    pub(super) clone: bool,
    pub(super) expand: bool,
    /// Whether volumes grow in the controller, and not on the node only.
    pub(super) expand_controller: bool,
    pub(super) get: bool,
    pub(super) stage: bool,
    pub(super) stats: bool,
    pub(super) expand_node: bool,
}

// === impl Offers ===

impl Offers {
    /// What was advertised.
    pub(super) fn new(
        plugin: &GetPluginCapabilitiesResponse,
        controller: &ControllerGetCapabilitiesResponse,
        node: &NodeGetCapabilitiesResponse,
    ) -> Self {
        let controls = |wanted: Controller| {
            controller
                .capabilities
                .iter()
                .any(|capability| match &capability.r#type {
                    Some(ControllerType::Rpc(rpc)) => rpc.r#type() == wanted,
                    None => false,
                })
        };
        let nodes = |wanted: Node| {
            node.capabilities
                .iter()
                .any(|capability| match &capability.r#type {
                    Some(NodeType::Rpc(rpc)) => rpc.r#type() == wanted,
                    None => false,
                })
        };
        let topology = plugin
            .capabilities
            .iter()
            .any(|capability| match &capability.r#type {
                Some(PluginType::Service(service)) => {
                    service.r#type() == Service::VolumeAccessibilityConstraints
                }
                _ => false,
            });
        Self {
            topology,
            create: controls(Controller::CreateDeleteVolume),
            attach: controls(Controller::PublishUnpublishVolume),
            list: controls(Controller::ListVolumes),
            capacity: controls(Controller::GetCapacity),
            snapshot: controls(Controller::CreateDeleteSnapshot),
            list_snapshots: controls(Controller::ListSnapshots),
            clone: controls(Controller::CloneVolume),
            expand: controls(Controller::ExpandVolume) || nodes(Node::ExpandVolume),
            expand_controller: controls(Controller::ExpandVolume),
            get: controls(Controller::GetVolume),
            stage: nodes(Node::StageUnstageVolume),
            stats: nodes(Node::GetVolumeStats),
            expand_node: nodes(Node::ExpandVolume),
        }
    }

    /// In words.
    pub(super) fn summary(self) -> String {
        let words = [
            ("no volumes", !self.create),
            ("snapshots", self.snapshot),
            ("clones", self.clone),
            ("growth", self.expand),
            ("lists", self.list || self.list_snapshots),
            ("stats", self.stats),
        ];
        let words: Vec<_> = words
            .into_iter()
            .filter(|(_, has)| *has)
            .map(|(word, _)| word)
            .collect();
        words.join(", ")
    }
}
