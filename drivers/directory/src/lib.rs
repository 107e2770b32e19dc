//! Volumes that are directories: democratic-csi's client-common family, here local-hostpath.
//!
//! One algorithm, [`DirectoryDriver`], makes, copies and removes directories below a base; a kind
//! adds its section of the configuration and the attachment by which a node reaches a directory.
//! The truth is the directory tree itself: a volume exists when its directory has its final name.

#![forbid(unsafe_code)]

mod accounts;
mod attachment;
mod base;
pub mod config;
mod copy;
mod crash_points;
#[cfg(test)]
mod crash_tests;
mod disk;
mod driver;
mod failure;
pub mod id;
mod page;
mod record;
mod snapshots;
mod staging_area;
mod store;
mod transfer;
mod volumes;

pub use base::BaseError;
pub use config::HostpathConfig;
pub use driver::{DirectoryDriver, LocalHostpath};
