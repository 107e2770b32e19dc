//! The way a process makes drivers: each crate of drivers exports one [`DriverFactory`], and what a process has
//! to know about the drivers of its build is a fold over a list of them.

use std::sync::Arc;

use csi_types::AbsolutePath;

use crate::config::{ConfigError, Document};
use crate::driver::Driver;
use crate::text::NodeId;

/// Makes the drivers of one family. `C` is what the process gives them; a family that needs more of it
/// than [`DriverHost`] says so by a bound of its own.
#[derive(Debug)]
pub struct DriverFactory<C> {
    /// The values of `driver:` that it builds.
    pub kinds: &'static [&'static str],
    /// The sections of the configuration that its drivers read.
    pub sections: &'static [&'static str],
    /// The least configuration of one of its kinds, in YAML.
    pub example: fn(kind: &str) -> String,
    /// Reads a connection and builds its driver.
    pub build: Build<C>,
}

/// Builds the driver that a document describes. Touches no storage.
pub type Build<C> = fn(&Document, &C) -> Result<Arc<dyn Driver>, ConfigError>;

/// What a process gives to its drivers.
pub trait DriverHost {
    /// The node that it runs on.
    fn node(&self) -> &NodeId;

    /// The directory where drivers keep what has to survive a restart of the process, if there is such a directory.
    fn records(&self) -> Option<&AbsolutePath>;

    /// Whether the process uses the storage for the calls of a controller. One that does not only attaches
    /// volumes.
    fn is_controller(&self) -> bool;
}
