//! The names of capabilities, as the specification spells them.

use std::fmt;

use serde::Deserialize;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
        #[expect(missing_docs, reason = "the names are those of the specification")]
        pub enum $name {
            $(#[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// Every name, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name as the specification spells it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

names! {
    /// `PluginCapability.Service.Type` of the specification.
    PluginCapability {
        Unknown = "UNKNOWN",
        ControllerService = "CONTROLLER_SERVICE",
        VolumeAccessibilityConstraints = "VOLUME_ACCESSIBILITY_CONSTRAINTS",
        GroupControllerService = "GROUP_CONTROLLER_SERVICE",
        SnapshotMetadataService = "SNAPSHOT_METADATA_SERVICE",
        SnapshotAccessibilityConstraints = "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
    }
}

names! {
    /// `PluginCapability.VolumeExpansion.Type` of the specification.
    VolumeExpansion {
        Unknown = "UNKNOWN",
        Online = "ONLINE",
        Offline = "OFFLINE",
    }
}

names! {
    /// `ControllerServiceCapability.RPC.Type` of the specification. `VOLUME_CONDITION` is the one of
    /// version 1.12 and earlier.
    ControllerCapability {
        Unknown = "UNKNOWN",
        CreateDeleteVolume = "CREATE_DELETE_VOLUME",
        PublishUnpublishVolume = "PUBLISH_UNPUBLISH_VOLUME",
        ListVolumes = "LIST_VOLUMES",
        GetCapacity = "GET_CAPACITY",
        CreateDeleteSnapshot = "CREATE_DELETE_SNAPSHOT",
        ListSnapshots = "LIST_SNAPSHOTS",
        CloneVolume = "CLONE_VOLUME",
        PublishReadonly = "PUBLISH_READONLY",
        ExpandVolume = "EXPAND_VOLUME",
        ListVolumesPublishedNodes = "LIST_VOLUMES_PUBLISHED_NODES",
        VolumeCondition = "VOLUME_CONDITION",
        GetVolume = "GET_VOLUME",
        SingleNodeMultiWriter = "SINGLE_NODE_MULTI_WRITER",
        ModifyVolume = "MODIFY_VOLUME",
        GetSnapshot = "GET_SNAPSHOT",
        GetVolumeHealth = "GET_VOLUME_HEALTH",
        ListVolumeHealth = "LIST_VOLUME_HEALTH",
    }
}

names! {
    /// `NodeServiceCapability.RPC.Type` of the specification. `VOLUME_CONDITION` is the one of
    /// version 1.12 and earlier.
    NodeCapability {
        Unknown = "UNKNOWN",
        StageUnstageVolume = "STAGE_UNSTAGE_VOLUME",
        GetVolumeStats = "GET_VOLUME_STATS",
        ExpandVolume = "EXPAND_VOLUME",
        VolumeCondition = "VOLUME_CONDITION",
        SingleNodeMultiWriter = "SINGLE_NODE_MULTI_WRITER",
        VolumeMountGroup = "VOLUME_MOUNT_GROUP",
        GetVolumeHealth = "GET_VOLUME_HEALTH",
        GetStorageHealth = "GET_STORAGE_HEALTH",
    }
}
