//! What is advertised: from what a driver can do, the declared version, and the configuration.
//!
//! A default list contains what the driver supports and the declared version knows; a list in the
//! configuration replaces it entirely, because the operator knows the orchestrator better. The
//! lists do not limit what is served, except where a capability requires more of the node. compat:
//! "Capabilities".

use csi_proto::v1::{
    self, controller_service_capability as controller, node_service_capability as node,
    plugin_capability as plugin,
};
use driver_core::config::{
    ControllerCapability, NodeCapability, PluginCapability, ServiceConfig, VolumeExpansion,
};
use driver_core::{AccessRules, Capabilities, Expansion};

use crate::csi::spec_version::CsiVersion;
use crate::routing::connections::Connections;

/// The lists of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// What the plugin as a whole does, whichever connections there are.
    pub plugin: Vec<PluginCapability>,
    /// What it also does while a connection offers it.
    pub services: Vec<PluginCapability>,
    /// The way volumes grow.
    pub expansion: Vec<VolumeExpansion>,
    /// The calls the controller serves.
    pub controller: Vec<ControllerCapability>,
    /// Those that it also serves while connections offer them.
    pub calls: Vec<ControllerCapability>,
    /// The calls the node serves, and how.
    pub node: Vec<NodeCapability>,
}

// === impl Advertised ===

impl Advertised {
    /// The lists for a driver under a configuration.
    pub fn new(
        can: Capabilities,
        access: &AccessRules,
        service: &ServiceConfig,
        version: CsiVersion,
    ) -> Self {
        let list = &service.identity.capabilities;
        Self {
            plugin: list.service.clone().unwrap_or_else(|| {
                let all = plugin_capabilities(can);
                all.filter(|c| plugin_since(*c) <= version).collect()
            }),
            services: match list.service {
                Some(_) => Vec::new(),
                None => SERVICES
                    .into_iter()
                    .filter(|c| plugin_since(*c) <= version)
                    .collect(),
            },
            expansion: list.volume_expansion.clone().unwrap_or_else(|| {
                let since = CsiVersion::minor(1);
                let grows = can.expand != Expansion::None && since <= version;
                grows
                    .then_some(VolumeExpansion::Online)
                    .into_iter()
                    .collect()
            }),
            controller: service
                .controller
                .capabilities
                .rpc
                .clone()
                .unwrap_or_else(|| {
                    let all = controller_capabilities(can);
                    all.filter(|c| known(controller_versions(*c), version))
                        .collect()
                }),
            calls: match service.controller.capabilities.rpc {
                Some(_) => Vec::new(),
                None => CALLS
                    .into_iter()
                    .filter(|c| known(controller_versions(*c), version))
                    .filter(|c| !has_call(*c, &can))
                    .collect(),
            },
            node: service.node.capabilities.rpc.clone().unwrap_or_else(|| {
                let all = node_capabilities(can, access);
                all.filter(|c| known(node_versions(*c), version)).collect()
            }),
        }
    }
}

/// The capabilities of all drivers of this build. A process whose connections may change announces
/// all of them, because sidecars ask only once. compat: "The proxy".
pub(crate) const SUPERSET: Capabilities = Capabilities {
    volumes: true,
    list_volumes: true,
    get_volume: true,
    capacity: true,
    snapshots: true,
    list_snapshots: true,
    get_snapshot: true,
    clones: true,
    expand: Expansion::ControllerAndNode,
    publish: true,
    topology: true,
    orphans: true,
    exports: true,
    inline: true,
    adopt: true,
    ..Capabilities::NONE
};

/// The same of drivers whose storage is on a network. Storage of a node is served by a process that reads its file,
/// and so knows more.
pub(crate) const ON_A_NETWORK: Capabilities = Capabilities {
    topology: false,
    ..SUPERSET
};

/// What a driver may have beyond these. It is advertised by another rule: while a connection has it, or where all have it.
#[cfg(test)]
pub(crate) const WHILE_THERE: [&str; 5] = [
    "published_nodes",
    "fence",
    "groups",
    "block_metadata",
    "health",
];

/// Services of their own, which a driver may have or not.
const SERVICES: [PluginCapability; 2] = [
    PluginCapability::GroupControllerService,
    PluginCapability::SnapshotMetadataService,
];

/// Whether a driver has what such a service needs.
fn has_service(service: PluginCapability, can: &Capabilities) -> bool {
    match service {
        PluginCapability::GroupControllerService => can.groups,
        PluginCapability::SnapshotMetadataService => can.block_metadata,
        _ => false,
    }
}

/// Calls that a connection of a driver may have or not, as its configuration says.
const CALLS: [ControllerCapability; 5] = [
    ControllerCapability::ModifyVolume,
    ControllerCapability::VolumeCondition,
    ControllerCapability::GetVolumeHealth,
    ControllerCapability::ListVolumeHealth,
    ControllerCapability::ListVolumesPublishedNodes,
];

/// Whether a connection has what such a call needs.
fn has_call(call: ControllerCapability, can: &Capabilities) -> bool {
    match call {
        ControllerCapability::ModifyVolume => can.modify,
        ControllerCapability::VolumeCondition => can.health && can.get_volume,
        ControllerCapability::GetVolumeHealth => can.health,
        ControllerCapability::ListVolumeHealth => can.health && can.list_volumes,
        ControllerCapability::ListVolumesPublishedNodes => can.published_nodes && attaches(can),
        _ => false,
    }
}

/// Whether these connections have it: one of them, or all together where a volume of one without it would look as if no
/// node had it.
fn is_offered(call: ControllerCapability, over: &Connections) -> bool {
    match call {
        ControllerCapability::ListVolumesPublishedNodes => over.record_nodes(),
        _ => over.offer(|can| has_call(call, can)) == Some(true),
    }
}

fn known((since, until): (u8, u8), version: CsiVersion) -> bool {
    CsiVersion::minor(since) <= version && version <= CsiVersion::minor(until)
}

/// Whether volumes are attached to nodes: they are on a network or a device. The orchestrator then deletes none
/// that a node still has, also where every node may reach every volume and there is nothing to let in.
pub(crate) fn attaches(can: &Capabilities) -> bool {
    can.publish || (can.volumes && !can.topology && !can.inline)
}

/// What is true of every driver or follows from what it can do.
fn when<C>(list: impl IntoIterator<Item = (C, bool)>) -> impl Iterator<Item = C> {
    list.into_iter().filter(|(_, has)| *has).map(|(c, _)| c)
}

fn plugin_capabilities(can: Capabilities) -> impl Iterator<Item = PluginCapability> {
    use PluginCapability as C;
    when([
        (C::ControllerService, can.volumes),
        (C::VolumeAccessibilityConstraints, can.topology),
    ])
}

fn controller_capabilities(can: Capabilities) -> impl Iterator<Item = ControllerCapability> {
    use ControllerCapability as C;
    when([
        (C::CreateDeleteVolume, can.volumes),
        (C::PublishUnpublishVolume, attaches(&can)),
        (C::ListVolumes, can.list_volumes),
        (
            C::ListVolumesPublishedNodes,
            has_call(C::ListVolumesPublishedNodes, &can),
        ),
        (C::GetCapacity, can.capacity),
        (C::CreateDeleteSnapshot, can.snapshots),
        (C::ListSnapshots, can.list_snapshots),
        (C::CloneVolume, can.clones),
        (
            C::ExpandVolume,
            matches!(
                can.expand,
                Expansion::Controller | Expansion::ControllerAndNode
            ),
        ),
        (C::VolumeCondition, has_call(C::VolumeCondition, &can)),
        (C::GetVolume, can.get_volume),
        (C::SingleNodeMultiWriter, can.volumes),
        (C::GetSnapshot, can.get_snapshot),
        (C::ModifyVolume, can.modify),
        (C::GetVolumeHealth, has_call(C::GetVolumeHealth, &can)),
        (C::ListVolumeHealth, has_call(C::ListVolumeHealth, &can)),
    ])
}

fn node_capabilities(
    can: Capabilities,
    access: &AccessRules,
) -> impl Iterator<Item = NodeCapability> {
    use NodeCapability as C;
    // The node sets the group of directories; kubelet would walk through all files.
    let directories = access.mount && !access.block;
    // Inline volumes are only published.
    let only_inline = can.inline && !can.volumes;
    when([
        (C::StageUnstageVolume, !only_inline),
        (C::GetVolumeStats, true),
        (
            C::ExpandVolume,
            matches!(can.expand, Expansion::Node | Expansion::ControllerAndNode),
        ),
        (C::VolumeCondition, true),
        (C::SingleNodeMultiWriter, true),
        (C::VolumeMountGroup, directories && !only_inline),
        (C::GetVolumeHealth, true),
        (C::GetStorageHealth, true),
    ])
}

/// The version that introduced a capability. None was ever removed.
fn plugin_since(capability: PluginCapability) -> CsiVersion {
    use PluginCapability as C;
    CsiVersion::minor(match capability {
        C::Unknown | C::ControllerService | C::VolumeAccessibilityConstraints => 0,
        C::GroupControllerService => 8,
        C::SnapshotMetadataService => 10,
        C::SnapshotAccessibilityConstraints => 13,
    })
}

const NEWEST: u8 = 13;

/// The first and the last minor version that has a capability.
fn controller_versions(capability: ControllerCapability) -> (u8, u8) {
    use ControllerCapability as C;
    match capability {
        C::Unknown
        | C::CreateDeleteVolume
        | C::PublishUnpublishVolume
        | C::ListVolumes
        | C::GetCapacity
        | C::CreateDeleteSnapshot
        | C::ListSnapshots
        | C::CloneVolume
        | C::PublishReadonly => (0, NEWEST),
        C::ExpandVolume => (1, NEWEST),
        C::ListVolumesPublishedNodes => (2, NEWEST),
        C::GetVolume => (3, NEWEST),
        C::VolumeCondition => (3, 12),
        C::SingleNodeMultiWriter => (5, NEWEST),
        C::ModifyVolume => (9, NEWEST),
        C::GetSnapshot => (12, NEWEST),
        C::GetVolumeHealth | C::ListVolumeHealth => (13, NEWEST),
    }
}

/// The first and the last minor version that has a capability.
fn node_versions(capability: NodeCapability) -> (u8, u8) {
    use NodeCapability as C;
    match capability {
        C::Unknown | C::StageUnstageVolume | C::GetVolumeStats => (0, NEWEST),
        C::ExpandVolume => (1, NEWEST),
        C::VolumeCondition => (3, 12),
        C::SingleNodeMultiWriter | C::VolumeMountGroup => (5, NEWEST),
        C::GetVolumeHealth | C::GetStorageHealth => (13, NEWEST),
    }
}

// === wire forms ===

impl Advertised {
    /// The reply of `GetPluginCapabilities` over these connections.
    pub(crate) fn plugin_reply(&self, over: &Connections) -> v1::GetPluginCapabilitiesResponse {
        let offered = |c: &&PluginCapability| over.offer(|can| has_service(**c, can)) == Some(true);
        let services = self
            .plugin
            .iter()
            .chain(self.services.iter().filter(offered));
        let services = services.map(|c| {
            let r#type = plugin::service::Type::from_str_name(c.name())
                .unwrap_or_default()
                .into();
            plugin::Type::Service(plugin::Service { r#type })
        });
        let expansion = self.expansion.iter().map(|c| {
            use plugin::volume_expansion::Type;
            let r#type = Type::from_str_name(c.name()).unwrap_or_default().into();
            plugin::Type::VolumeExpansion(plugin::VolumeExpansion { r#type })
        });
        let all = services.chain(expansion);
        v1::GetPluginCapabilitiesResponse {
            capabilities: all
                .map(|c| v1::PluginCapability { r#type: Some(c) })
                .collect(),
        }
    }

    /// Whether lists of volumes have the nodes that each is published to.
    pub(crate) fn lists_nodes(&self, over: &Connections) -> bool {
        self.has(ControllerCapability::ListVolumesPublishedNodes, over)
    }

    /// Whether the controller says of volumes how they are, in the dialect up to 1.12.
    pub(crate) fn has_condition(&self, over: &Connections) -> bool {
        self.has(ControllerCapability::VolumeCondition, over)
    }

    fn has(&self, call: ControllerCapability, over: &Connections) -> bool {
        let is_offered = self.calls.contains(&call) && is_offered(call, over);
        self.controller.contains(&call) || is_offered
    }

    /// The reply of `ControllerGetCapabilities` over these connections.
    pub(crate) fn controller_reply(
        &self,
        over: &Connections,
    ) -> v1::ControllerGetCapabilitiesResponse {
        let one = |c: &ControllerCapability| {
            use controller::rpc::Type;
            let r#type = Type::from_str_name(c.name()).unwrap_or_default().into();
            v1::ControllerServiceCapability {
                r#type: Some(controller::Type::Rpc(controller::Rpc { r#type })),
            }
        };
        let offered = |call: &&ControllerCapability| is_offered(**call, over);
        v1::ControllerGetCapabilitiesResponse {
            capabilities: self
                .controller
                .iter()
                .chain(self.calls.iter().filter(offered))
                .map(one)
                .collect(),
        }
    }

    /// The reply of `NodeGetCapabilities`.
    pub(crate) fn node_reply(&self) -> v1::NodeGetCapabilitiesResponse {
        let one = |c: &NodeCapability| {
            let r#type = node::rpc::Type::from_str_name(c.name())
                .unwrap_or_default()
                .into();
            v1::NodeServiceCapability {
                r#type: Some(node::Type::Rpc(node::Rpc { r#type })),
            }
        };
        v1::NodeGetCapabilitiesResponse {
            capabilities: self.node.iter().map(one).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use driver_core::config::{Document, NoEnvironment};

    use super::*;
    use crate::routing::connections::Names;

    const HOSTPATH: Capabilities = Capabilities {
        volumes: true,
        list_volumes: true,
        get_volume: true,
        capacity: true,
        snapshots: true,
        list_snapshots: true,
        get_snapshot: true,
        clones: true,
        expand: Expansion::Controller,
        topology: true,
        health: true,
        ..Capabilities::NONE
    };

    fn advertised(yaml: &str, minor: u8) -> Advertised {
        let config = Document::parse(yaml, &NoEnvironment).expect("yaml");
        let config = config.common().expect("config");
        let access = AccessRules::filesystem(&[]);
        Advertised::new(HOSTPATH, &access, &config.service, CsiVersion::minor(minor))
    }

    #[test]
    fn the_newest_orchestrator_hears_of_everything_but_what_was_taken_away() {
        use {ControllerCapability as C, NodeCapability as N, PluginCapability as P};
        let lists = advertised("driver: local-hostpath", 13);
        assert_eq!(
            lists.plugin,
            [P::ControllerService, P::VolumeAccessibilityConstraints]
        );
        assert_eq!(lists.expansion, [VolumeExpansion::Online]);
        assert_eq!(
            lists.controller,
            [
                C::CreateDeleteVolume,
                C::ListVolumes,
                C::GetCapacity,
                C::CreateDeleteSnapshot,
                C::ListSnapshots,
                C::CloneVolume,
                C::ExpandVolume,
                C::GetVolume,
                C::SingleNodeMultiWriter,
                C::GetSnapshot,
                C::GetVolumeHealth,
                C::ListVolumeHealth,
            ]
        );
        assert_eq!(
            lists.node,
            [
                N::StageUnstageVolume,
                N::GetVolumeStats,
                N::SingleNodeMultiWriter,
                N::VolumeMountGroup,
                N::GetVolumeHealth,
                N::GetStorageHealth,
            ]
        );
    }

    #[test]
    fn storage_of_the_node_grows_on_the_node_only() {
        let config = Document::parse("driver: local-hostpath", &NoEnvironment).expect("yaml");
        let config = config.common().expect("config");
        let can = Capabilities {
            expand: Expansion::Node,
            ..HOSTPATH
        };
        let access = AccessRules::filesystem(&[]);
        let lists = Advertised::new(can, &access, &config.service, CsiVersion::minor(13));
        assert_eq!(lists.expansion, [VolumeExpansion::Online]);
        assert!(
            !lists
                .controller
                .contains(&ControllerCapability::ExpandVolume)
        );
        assert!(lists.node.contains(&NodeCapability::ExpandVolume));
    }

    #[test]
    fn volumes_that_every_node_may_reach_are_attached_so_that_none_is_deleted_in_use() {
        let config = Document::parse("driver: zfs-generic-iscsi", &NoEnvironment).expect("yaml");
        let config = config.common().expect("config");
        let offers = |can| {
            let access = AccessRules::filesystem(&[]);
            let lists = Advertised::new(can, &access, &config.service, CsiVersion::minor(0));
            let publish = ControllerCapability::PublishUnpublishVolume;
            lists.controller.contains(&publish)
        };
        let on_a_network = Capabilities {
            topology: false,
            ..HOSTPATH
        };
        assert!(offers(on_a_network));
        assert!(!offers(HOSTPATH), "storage of the node is not attached");
        assert!(!offers(Capabilities::NONE), "nothing is made here");
    }

    #[test]
    fn what_lives_with_a_pod_is_never_staged() {
        let config = Document::parse("driver: x", &NoEnvironment).expect("yaml");
        let config = config.common().expect("config");
        let can = Capabilities {
            inline: true,
            adopt: false,
            ..Capabilities::NONE
        };
        let access = AccessRules::filesystem(&[]);
        let lists = Advertised::new(can, &access, &config.service, CsiVersion::minor(13));
        assert_eq!((lists.plugin, lists.controller), (Vec::new(), Vec::new()));
        let node = [
            NodeCapability::GetVolumeStats,
            NodeCapability::SingleNodeMultiWriter,
            NodeCapability::GetVolumeHealth,
            NodeCapability::GetStorageHealth,
        ];
        assert_eq!(lists.node, node);
    }

    #[test]
    fn an_older_orchestrator_never_hears_a_number_it_does_not_know() {
        let has = |minor, c| advertised("driver: x", minor).controller.contains(&c);
        for (capability, first, last) in [
            (ControllerCapability::CloneVolume, 0, 13),
            (ControllerCapability::ExpandVolume, 1, 13),
            (ControllerCapability::GetVolume, 3, 13),
            (ControllerCapability::VolumeCondition, 3, 12),
            (ControllerCapability::SingleNodeMultiWriter, 5, 13),
            (ControllerCapability::GetSnapshot, 12, 13),
            (ControllerCapability::GetVolumeHealth, 13, 13),
            (ControllerCapability::ListVolumeHealth, 13, 13),
        ] {
            for minor in 0..=13 {
                let known = (first..=last).contains(&minor);
                assert_eq!(has(minor, capability), known, "{capability} in 1.{minor}");
            }
        }
        let old = advertised("driver: x", 0);
        assert_eq!(old.expansion, []);
        assert_eq!(
            old.node,
            [
                NodeCapability::StageUnstageVolume,
                NodeCapability::GetVolumeStats
            ]
        );
    }

    #[test]
    fn a_list_in_the_configuration_replaces_the_default_word_for_word() {
        let yaml = "
            driver: local-hostpath
            service:
              identity: {capabilities: {service: [UNKNOWN], volume_expansion: []}}
              controller: {capabilities: {rpc: [PUBLISH_UNPUBLISH_VOLUME, LIST_VOLUME_HEALTH]}}
              node: {capabilities: {rpc: []}}";
        let lists = advertised(yaml, 0);
        assert_eq!(lists.plugin, [PluginCapability::Unknown]);
        assert_eq!(lists.expansion, []);
        assert_eq!(lists.node, []);
        let reply = lists.controller_reply(&Connections::named(Names::default()));
        let numbers: Vec<i32> = reply
            .capabilities
            .into_iter()
            .map(|c| match c.r#type {
                Some(controller::Type::Rpc(rpc)) => rpc.r#type,
                None => -1,
            })
            .collect();
        assert_eq!(numbers, [2, 17]);
    }

    #[test]
    fn every_name_of_the_configuration_has_a_number_on_the_wire() {
        for c in PluginCapability::ALL {
            assert!(
                plugin::service::Type::from_str_name(c.name()).is_some(),
                "{c}"
            );
        }
        for c in VolumeExpansion::ALL {
            assert!(
                plugin::volume_expansion::Type::from_str_name(c.name()).is_some(),
                "{c}"
            );
        }
        for c in ControllerCapability::ALL {
            assert!(
                controller::rpc::Type::from_str_name(c.name()).is_some(),
                "{c}"
            );
        }
        for c in NodeCapability::ALL {
            assert!(node::rpc::Type::from_str_name(c.name()).is_some(), "{c}");
        }
    }
}
