//! Volumes that are datasets and zvols of the node itself: `zfs-local-dataset` and `zfs-local-zvol`.
//!
//! Datasets are made by `driver-zfs`, with the host's own `zfs`; nothing is exported. What is added is
//! the place: volumes are reachable on one node, and a call that arrives at another one is told so
//! instead of finding nothing. compat: "ZFS of the node".

#![forbid(unsafe_code)]

mod driver;
mod export;
mod mark;
mod open;

pub use driver::NodeZfs;
pub use export::NodeExport;
pub use mark::NodeMark;
pub use open::{KINDS, factory, from_document};
