//! Volumes that are datasets and zvols of the node itself: `zfs-local-dataset` and `zfs-local-zvol`.
//!
//! `driver-zfs` manages the datasets, with the host's own `zfs`; nothing is exported. This crate
//! adds the location: a volume is reachable on one node, and a call to another node is rejected
//! with that reason instead of `NotFound`. compat: "ZFS of the node".

#![forbid(unsafe_code)]

mod driver;
mod export;
mod factory;
mod mark;

pub use driver::NodeZfs;
pub use export::NodeExport;
pub use factory::{KINDS, factory, from_document};
pub use mark::NodeMark;
