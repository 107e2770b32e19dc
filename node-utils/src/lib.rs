//! Everything that a node does to a device or a mount.
//!
//! This crate knows no gRPC and no backend: a volume context goes in, a mounted directory comes
//! out. The truth about what is mounted is the kernel's, read from it each time; nothing is
//! remembered in the process.

// The workspace denies `unsafe`; `sys` is the one module that is allowed it.
#![deny(unsafe_code)]

pub mod addresses;
pub mod beneath;
pub mod blocking;
pub mod device;
pub mod filesystem;
pub mod iscsi;
pub mod kernel;
mod loops;
pub mod mount;
pub mod mount_namespace;
pub mod mounting;
pub mod node;
pub mod nvme;
pub mod shares;
mod sys;
#[cfg(test)]
mod testing;
pub mod tools;

pub use beneath::{Component, Root};
pub use blocking::Limits;
#[cfg(any(test, feature = "testing"))]
pub use exec::testing::{CutMoment, Cutter, host, requirement};
pub use node::{
    ExpandRequest, Node, NodeConfig, PublishRequest, StageRequest, StagingPath, TargetPath, Usage,
    VolumeStats,
};
pub use sys::{memory, projects, subvolumes};
pub use tools::{Timeouts, Tools};
