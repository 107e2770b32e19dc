//! Volumes that are directories: democratic-csi's client-common family, here local-hostpath.
//!
//! One algorithm, [`DirectoryDriver`], makes, copies and removes directories below a base; a kind
//! adds its section of the configuration and the attachment by which a node reaches a directory.
//! The truth is the directory tree itself: a volume exists when its directory has its final name.

#![forbid(unsafe_code)]

mod accounts;
mod base;
pub mod config;
mod copy;
#[cfg(test)]
mod crash_tests;
mod disk;
mod driver;
mod failure;
mod flow;
pub mod id;
mod page;
mod reach;
mod record;
mod snapshots;
mod stop;
mod store;
mod volumes;
mod workshop;

pub use base::BaseError;
pub use config::HostpathConfig;
pub use driver::{DirectoryDriver, LocalHostpath};
