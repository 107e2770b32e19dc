//! The domain types that controller and node share: errors, ids, sizes, capabilities, attachments
//! and topology.
//!
//! Pure data: no I/O, no gRPC, no backend. A value cannot be built from bad text, so that nothing
//! below the decoder checks a request again.
#![forbid(unsafe_code)]

pub mod attachment;
pub mod backoff;
pub mod capability;
pub mod dhchap;
mod digits;
mod env_name;
pub mod error;
pub mod filesystem;
pub mod health;
pub mod id;
mod network;
mod node_identity;
pub mod said;
pub mod secrets;
pub mod size;
pub mod topology;

pub use attachment::{AbsolutePath, Attachment, VolumeContext};
pub use backoff::Backoff;
pub use capability::{Access, AccessMode, FsType, MountAccess, MountFlags, VolumeCapability};
pub use dhchap::DhchapKey;
pub use digits::hex;
pub use env_name::{InvalidVariable, Variable};
pub use error::{Effect, Error, Kind};
pub use health::{Condition, ConditionKind, Conditions, Reason};
pub use id::{GroupSnapshotId, NodeId, SnapshotId, SnapshotName, VolumeId, VolumeName};
pub use network::{Network, NetworkError};
pub use node_identity::NodeIdentity;
pub use secrets::StageSecrets;
pub use size::SizeRange;
pub use topology::{Topology, TopologyRequirement};
