//! Volumes of any host with ZFS, on Linux or FreeBSD, here or over SSH, and how it exports them.
//!
//! Each target stack has one script. Its arguments are the wanted state, and it finds out by itself
//! what is missing; observing and changing are the same script. Nothing here knows how datasets are
//! made: that is `driver-zfs`. compat: "Exports of a ZFS host".

#![forbid(unsafe_code)]

pub mod config;
mod disk;
mod factory;
mod facts;
pub mod iscsi;
pub mod nvmeof;
mod scripts;
mod share;

pub use disk::DiskExport;
pub use factory::{KINDS, factory, from_document};
pub use facts::Facts;
pub use scripts::HostPaths;
pub use share::{Protocol, ShareExport};
