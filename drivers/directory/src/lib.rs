//! Volumes that are directories: local-hostpath, nfs-client, smb-client and lustre-client.
//!
//! One algorithm, [`DirectoryDriver`], makes, copies and removes directories below a base; a kind
//! adds its section of the configuration and the attachment by which a node reaches a directory.
//! The truth is the directory tree itself: a volume exists when its directory has its final name.

#![forbid(unsafe_code)]

mod accounts;
mod adopt;
mod backup;
mod base;
mod collection;
pub mod config;
mod copy;
mod crash_points;
#[cfg(test)]
mod crash_tests;
mod digest;
mod disk;
mod driver;
mod factory;
mod failure;
#[cfg(test)]
mod group_tests;
mod groups;
mod health;
pub mod id;
mod kind;
mod kopia;
mod lock;
#[cfg(test)]
mod lost_locks_tests;
mod page;
mod pending;
mod quota;
mod record;
mod repository;
mod restic;
mod share;
#[cfg(test)]
mod share_tests;
mod snapshots;
mod staging_area;
mod store;
mod transfer;
mod volumes;

pub use base::BaseError;
pub use config::DirectoryConfig;
pub use driver::{DirectoryDriver, from_document};
pub use factory::factory;
pub use kind::{DirectoryKind, Location};
