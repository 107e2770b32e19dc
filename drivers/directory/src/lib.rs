//! Volumes that are directories: democratic-csi's client-common family, here local-hostpath.
//!
//! One algorithm, [`DirectoryDriver`], makes, copies and removes directories below a base; a kind
//! adds its section of the configuration and the attachment by which a node reaches a directory.
//! The truth is the directory tree itself: a volume exists when its directory has its final name.

#![forbid(unsafe_code)]

pub mod accounts;
pub mod config;
pub mod driver;
pub mod id;

pub use config::{ConfigError, HostpathConfig};
pub use driver::{DirectoryDriver, LocalHostpath};
