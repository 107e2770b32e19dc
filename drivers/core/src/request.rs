//! The requests about objects that exist, one struct for each verb.
//!
//! Each has the secrets of its call: a driver whose storage takes other credentials for each class
//! needs them. A new field changes no signature. [`CreateVolume`](crate::CreateVolume) and
//! [`CreateSnapshot`](crate::CreateSnapshot) are requests, too.

use csi_types::{NodeIdentity, VolumeCapability};

use crate::parameters::Parameters;
use crate::size::SizeRange;
use crate::text::{GroupSnapshotId, SnapshotId, SnapshotName, VolumeId};
use crate::volume::Secrets;

static NO_SECRETS: Secrets = Secrets::new();

/// Structs of borrowed fields and the secrets of the call, with a constructor for a call without secrets.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub struct $name<'a> {
                $($(#[$field_doc])* pub $field: $ty,)*
                /// The secrets of the call.
                pub secrets: &'a Secrets,
            }

            impl<'a> $name<'a> {
                /// The request without secrets.
                pub fn new($($field: $ty),*) -> Self {
                    Self { $($field,)* secrets: &NO_SECRETS }
                }
            }
        )*
    };
}

/// See [`Health::conditions`](crate::Health::conditions).
#[derive(Debug, Clone, Copy)]
pub struct HealthQuery<'a> {
    /// The volumes.
    pub ids: &'a [VolumeId],
    /// The depth of the look.
    pub depth: HealthDepth,
}

/// The depth of a look at the health of volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthDepth {
    /// Only facts that are read of all volumes at once: the pool, the dataset. For lists that are asked for every minute.
    Storage,
    /// The export of each volume as well, where that takes no further questions to the storage.
    Exports,
    /// The export of each volume, by questions for each.
    Each,
}

impl HealthDepth {
    /// Whether exports are looked at.
    pub fn has_exports(self) -> bool {
        self != Self::Storage
    }
}

impl<'a> HealthQuery<'a> {
    /// All that can be known of one volume.
    pub fn of_one(id: &'a VolumeId) -> Self {
        Self {
            ids: std::slice::from_ref(id),
            depth: HealthDepth::Each,
        }
    }

    /// All that can be known of volumes by questions for all of them.
    pub fn whole(ids: &'a [VolumeId]) -> Self {
        Self {
            ids,
            depth: HealthDepth::Exports,
        }
    }

    /// The part that is cheap to know.
    pub fn of_storage(ids: &'a [VolumeId]) -> Self {
        Self {
            ids,
            depth: HealthDepth::Storage,
        }
    }
}

requests! {
    /// See [`Driver::delete_volume`](crate::Driver::delete_volume).
    DeleteVolume {
        /// The volume.
        id: &'a VolumeId,
    }

    /// See [`Driver::find_volume`](crate::Driver::find_volume).
    FindVolume {
        /// The volume.
        id: &'a VolumeId,
    }

    /// See [`Expander::expand_volume`](crate::Expander::expand_volume).
    ExpandVolume {
        /// The volume.
        id: &'a VolumeId,
        /// The requested size.
        size: SizeRange,
    }

    /// See [`Modifier::modify_volume`](crate::Modifier::modify_volume).
    ModifyVolume {
        /// The volume.
        id: &'a VolumeId,
        /// What changes: mutable keys only.
        parameters: &'a Parameters,
    }

    /// See [`Publisher::publish_volume`](crate::Publisher::publish_volume).
    PublishVolume {
        /// The volume.
        id: &'a VolumeId,
        /// The node.
        node: &'a NodeIdentity,
        /// The way in which it will be used there.
        capability: &'a VolumeCapability,
        /// Whether the node may only read it.
        readonly: bool,
    }

    /// See [`Publisher::unpublish_volume`](crate::Publisher::unpublish_volume).
    UnpublishVolume {
        /// The volume.
        id: &'a VolumeId,
        /// The node; `None` means every node.
        node: Option<&'a NodeIdentity>,
    }

    /// See [`Snapshots::delete_snapshot`](crate::Snapshots::delete_snapshot).
    DeleteSnapshot {
        /// The snapshot.
        id: &'a SnapshotId,
    }

    /// See [`Snapshots::get_snapshot`](crate::Snapshots::get_snapshot).
    GetSnapshot {
        /// The snapshot.
        id: &'a SnapshotId,
    }

    /// See [`Groups::create_group`](crate::Groups::create_group).
    CreateGroup {
        /// The caller's name: the idempotency key, together with the volumes.
        name: &'a SnapshotName,
        /// The volumes to be snapshotted.
        volumes: &'a [VolumeId],
        /// Parameters of the class.
        parameters: &'a Parameters,
    }

    /// See [`Groups::get_group`](crate::Groups::get_group) and
    /// [`Groups::delete_group`](crate::Groups::delete_group).
    GroupMembers {
        /// The group.
        id: &'a GroupSnapshotId,
        /// Its snapshots, as the caller knows them.
        snapshots: &'a [SnapshotId],
    }

    /// See [`BlockMetadata::block_ranges`](crate::BlockMetadata::block_ranges).
    BlockRangesQuery {
        /// The snapshot.
        snapshot: &'a SnapshotId,
        /// The older snapshot that it is compared with.
        base: Option<&'a SnapshotId>,
        /// The first byte of interest.
        offset: u64,
    }
}
