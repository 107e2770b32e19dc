//! The contract between the proxy and its drivers: the [`Driver`] trait, domain types, error kinds,
//! names, templates and configuration.
//!
//! Nothing here touches storage, a network or gRPC. Types cannot be built from a bad value, so that
//! a driver never checks what the proxy decoded.

pub mod adopt;
pub mod byte_budget;
pub mod call;
pub mod civil;
pub mod config;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
pub mod driver;
pub mod factory;
pub mod fence;
pub mod made_for;
pub mod missing;
pub mod moves;
pub mod naming;
pub mod orphan;
pub mod paging;
pub mod parameters;
pub mod request;
pub mod secrets;
pub mod template;
pub mod transfer;
pub mod volume;

pub use adopt::{AdoptVolume, Adoption, AdoptionState};
pub use call::Call;
pub use csi_types::backoff::Backoff;
pub use csi_types::error::{self, Effect, Error, Kind};
pub use csi_types::id as text;
pub use csi_types::{
    Condition, ConditionKind, Conditions, Network, NodeId, Reason, SizeRange, SnapshotId,
    SnapshotName, Topology, TopologyRequirement, VolumeId, VolumeName, size, topology,
};
pub use driver::*;
pub use factory::{DriverFactory, DriverHost};
pub use fence::{FenceClient, FenceNetworks};
pub use made_for::{Claim, MadeFor, ObjectName};
pub use moves::{Moment, MoveSource, MoveState, Round};
pub use orphan::{Orphan, OrphanKind};
pub use parameters::Parameters;
pub use request::*;
pub use transfer::{ExportStream, TransferFormat};
pub use volume::{
    BackendIdentity, Capacity, CapacityQuery, CreateSnapshot, CreateVolume, Elsewhere, Expanded,
    Found, Page, PageRequest, PageToken, Secrets, Snapshot, SnapshotFilter, Source, Volume,
};
