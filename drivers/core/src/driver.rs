//! The contract of a driver: the controller half of one kind of backend.
//!
//! A driver knows its storage and nothing of gRPC, connections or other drivers. Every method runs
//! to its end even if the caller goes away, may be called again with the same arguments at any
//! time, and finds all state in the backend: a retry completes what a killed process left behind.
//!
//! [`Driver`] is what every driver has. Everything else is a facet: a trait of its own, returned by
//! an accessor. What is advertised to the orchestrator is computed from the facets that are there,
//! so a driver cannot advertise what it lacks, and a new RPC costs existing drivers nothing.

mod facets;
mod verbs;

use std::fmt::Debug;

use async_trait::async_trait;
use csi_types::{Access, AccessMode, Attachment, VolumeCapability};

pub use self::facets::*;
use crate::call::Call;
use crate::config::Finding;
use crate::error::Error;
use crate::parameters::Parameters;
use crate::request::{DeleteVolume, FindVolume};
use crate::text::{VolumeId, VolumeName};
use crate::topology::Topology;
use crate::volume::{BackendIdentity, CreateVolume, Found, Volume};

macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The verbs that a driver has, computed from its facets by `<dyn Driver>::capabilities`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(clippy::struct_excessive_bools, reason = "a set of independent yes-or-no facts")]
        pub struct Capabilities {
            /// `expand_volume`.
            pub expand: Expansion,
            $($(#[$doc])* pub $name: bool,)*
        }

        impl Capabilities {
            /// No verb at all: volumes are made by hand.
            pub const NONE: Self = Self {
                expand: Expansion::None,
                $($name: false,)*
            };

            /// The names of those that are there, but for `expand`.
            pub fn names(&self) -> Vec<&'static str> {
                let all = [$((stringify!($name), self.$name)),*];
                let there = all.into_iter().filter(|(_, is_there)| *is_there);
                there.map(|(name, _)| name).collect()
            }
        }
    };
}

capabilities! {
    /// `create_volume`, `delete_volume`.
    volumes,
    /// `list_volumes`.
    list_volumes,
    /// `get_volume`.
    get_volume,
    /// `capacity`.
    capacity,
    /// `create_snapshot`, `delete_snapshot`, and volumes from snapshots.
    snapshots,
    /// `list_snapshots`.
    list_snapshots,
    /// `get_snapshot`.
    get_snapshot,
    /// Volumes from volumes.
    clones,
    /// `publish_volume`, `unpublish_volume`.
    publish,
    /// Lists of volumes have the nodes that each is published to.
    published_nodes,
    /// `fence_networks` and its kin.
    fence,
    /// Volumes of this driver are reachable from some nodes only.
    topology,
    /// `modify_volume`.
    modify,
    /// Snapshots of several volumes at one moment.
    groups,
    /// Allocated and changed ranges of snapshots.
    block_metadata,
    /// `orphans`, `remove_orphan`: for operators only.
    orphans,
    /// `is_exported`, `repair_export`: for operators only.
    exports,
    /// Volumes that live and die with a pod.
    inline,
    /// `plan_adoption`, `adopt_volume`: for operators only.
    adopt,
    /// `conditions`, and with `list_volumes` also `list_unhealthy`.
    health,
}

/// Whether and where volumes grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    /// Not at all.
    None,
    /// In the backend, while in use.
    Controller,
    /// In the backend, while in use, and then on the node.
    ControllerAndNode,
    /// On the node that has the volume, where `expand_volume` is called: the volume is storage of that node.
    Node,
}

/// The capabilities of the volumes of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRules {
    /// Whether they can be raw devices.
    pub block: bool,
    /// Whether they can be mounted.
    pub mount: bool,
    /// The filesystems that may be named; naming none is always right.
    pub fs_types: &'static [&'static str],
    /// The modes that are offered, for mounted volumes.
    pub mount_modes: Vec<AccessMode>,
    /// The modes that are offered, for raw devices.
    pub block_modes: Vec<AccessMode>,
}

/// The controller half of one kind of backend.
///
/// About every verb, here and in the facets:
/// - it may return `Invalid`, `Unreachable`, `Timeout`, `Denied`, `Internal` in addition to the errors it names;
/// - it calls [`Call::changing`] before its first change and [`Call::check`] in long work;
/// - an object that already has the requested state is success; an outcome that was not observed is
///   never success.
///
/// About threads: what may block runs in `node_utils::blocking::spawn_on_account`, in the task that
/// called the verb. Threads are counted per connection, and a task of its own (`tokio::spawn`),
/// `spawn_blocking` and `tokio::fs` have no connection: there, one connection that hangs could take
/// the threads of all. A task of its own may keep a session; it must not block.
///
/// A value is dropped on a thread that may block, outside of the runtime.
#[async_trait]
pub trait Driver: Send + Sync + Debug {
    /// The value of `driver:` in the configuration, verbatim.
    fn kind(&self) -> &str;

    /// The capabilities of its volumes.
    fn access_rules(&self) -> AccessRules;

    /// The same for volumes with one kind of attachment, if that makes a difference.
    fn access_rules_of(&self, _attachment: &Attachment) -> AccessRules {
        self.access_rules()
    }

    /// Rejects an attachment that this driver does not create for the volume `id`. Nodes call it: a
    /// volume context may have been written by hand. Every kind is accepted if the driver creates
    /// no attachments.
    fn check_attachment(&self, id: &VolumeId, attachment: &Attachment) -> Result<(), Error> {
        match self.longest_attachment() {
            Some(own) if own.kind() != attachment.kind() => Err(Error::invalid(format!(
                "attach volume `{id}` as `{}`",
                attachment.kind()
            ))
            .advise(format!(
                "the driver `{}` of this process attaches volumes as `{}`; use the driver `node-manual` for \
                 volumes that are described by hand",
                self.kind(),
                own.kind()
            ))),
            _ => Ok(()),
        }
    }

    /// The error for a verb that this driver does not have.
    fn unsupported(&self, verb: &'static str) -> Error {
        Error::unsupported(verb)
    }

    /// The storage below it.
    fn backend_identity(&self) -> BackendIdentity;

    /// The id for a volume of this name. Pure and stable.
    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error>;

    /// Checks without changes whether the backend can be used. Each problem is one error.
    async fn probe(&self, call: &Call) -> Vec<Error>;

    /// A check for operators before the first volume: all of [`Driver::probe`], and what is too
    /// expensive for every liveness probe. Changes nothing.
    async fn examine(&self, call: &Call) -> Vec<Error> {
        self.probe(call).await
    }

    /// What answers, for operators: its version, how it is spoken to, and what is doubtful about that. Empty:
    /// nothing does, or there is nothing to say.
    async fn describe(&self, _call: &Call) -> Vec<Finding> {
        Vec::new()
    }

    /// Whether it creates volumes at all. If not, create, delete and find are `Unsupported`.
    fn makes_volumes(&self) -> bool {
        true
    }

    /// Creates a volume. Idempotent by `request.id`.
    ///
    /// `Conflict`: it exists and was created by another request. `NotFound`: the source does not
    /// exist. `OutOfRange`, `OutOfSpace`. After any error a retry with the same request converges;
    /// a volume that is not complete is never returned and never listed.
    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error>;

    /// Deletes a volume. Success if it does not exist. Snapshots survive, or the error is `Busy`
    /// and the volume is unchanged.
    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error>;

    /// Whether a volume exists: needed by `ValidateVolumeCapabilities`, and by a class over several
    /// connections. `NotFound` promises that no volume of that name will appear unless another call
    /// creates it. A driver whose interrupted creations leave something, or continue by themselves,
    /// returns [`Found::Begun`] for those; otherwise they would be created a second time elsewhere.
    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        match self.lister() {
            Some(lister) => lister
                .get_volume(call, request.id)
                .await
                .map(|_| Found::Whole),
            None => Err(self.unsupported("find volume")),
        }
    }

    /// Snapshots, and volumes from snapshots.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Whether a volume can be made from another volume.
    fn clones_volumes(&self) -> bool {
        false
    }

    /// Volumes by id, and lists of them.
    fn lister(&self) -> Option<&dyn Lister> {
        None
    }

    /// Growing volumes.
    fn expander(&self) -> Option<&dyn Expander> {
        None
    }

    /// Free space.
    fn capacity_reporter(&self) -> Option<&dyn CapacityReporter> {
        None
    }

    /// The space that volumes take.
    fn usage_reporter(&self) -> Option<&dyn UsageReporter> {
        None
    }

    /// Granting nodes access to a volume, and revoking it.
    fn publisher(&self) -> Option<&dyn Publisher> {
        None
    }

    /// Shutting networks out.
    fn fencer(&self) -> Option<&dyn Fencer> {
        None
    }

    /// The parameters of classes that set something of its volumes: those of [`Modifier::mutable_keys`], and those that
    /// count at creation only. For messages.
    fn class_keys(&self) -> &[&'static str] {
        &[]
    }

    /// Changing volumes that exist.
    fn modifier(&self) -> Option<&dyn Modifier> {
        None
    }

    /// Snapshots of several volumes at one moment.
    fn groups(&self) -> Option<&dyn Groups> {
        None
    }

    /// Allocated and changed ranges of snapshots.
    fn block_metadata(&self) -> Option<&dyn BlockMetadata> {
        None
    }

    /// Content to and from other connections.
    fn transfer(&self) -> Option<&dyn Transfer> {
        None
    }

    /// Orphans: objects of ours in the backend that no call asks for any more.
    fn maintenance(&self) -> Option<&dyn Maintenance> {
        None
    }

    /// Exports that the backend may have lost.
    fn exports(&self) -> Option<&dyn Exports> {
        None
    }

    /// Volumes that live and die with a pod.
    fn inline(&self) -> Option<&dyn InlineVolumes> {
        None
    }

    /// The health of volumes. None where the storage does not tell.
    fn health(&self) -> Option<&dyn Health> {
        None
    }

    /// Making volumes of what lies on the storage already.
    fn adopter(&self) -> Option<&dyn Adopter> {
        None
    }

    /// Volumes that move to other connections and come from them.
    fn mover(&self) -> Option<&dyn Mover> {
        None
    }

    /// The longest attachment that this driver may return, if known: a context has limited space,
    /// and an attachment that would not fit is rejected before the volume is created.
    fn longest_attachment(&self) -> Option<Attachment> {
        None
    }

    /// The topology that a node reports for this driver, `None` without one.
    fn node_topology(&self) -> Option<Topology> {
        None
    }
}

// === impl AccessRules ===

impl AccessRules {
    /// Every mode for mounted volumes and no raw devices: directories and shares.
    pub fn filesystem(fs_types: &'static [&'static str]) -> Self {
        Self {
            block: false,
            mount: true,
            fs_types,
            mount_modes: AccessMode::ALL.to_vec(),
            block_modes: Vec::new(),
        }
    }

    /// Why a volume does not support this capability, or `None`.
    pub fn refusal(&self, capability: &VolumeCapability) -> Option<String> {
        let modes = match &capability.access {
            Access::Block if !self.block => {
                let why = "block access is not supported: the volumes are directories, not devices";
                return Some(why.into());
            }
            Access::Mount(_) if !self.mount => return Some("mount access is not supported".into()),
            Access::Block => &self.block_modes,
            Access::Mount(mount) => {
                if let Some(fs_type) = &mount.fs_type
                    && !self.fs_types.contains(&fs_type.as_str())
                {
                    return Some(format!("filesystem {fs_type} is not supported"));
                }
                &self.mount_modes
            }
        };
        let mode = capability.mode;
        (!modes.contains(&mode)).then(|| {
            let given = modes.iter().filter(|mode| **mode != AccessMode::Unknown);
            let given: Vec<_> = given.map(|mode| mode.name()).collect();
            format!(
                "access mode {mode} is not supported, only {}",
                given.join(", ")
            )
        })
    }
}
