//! Configuration: parses text to a document, and a document to typed sections, and reports
//! suspicious keys and values.
//!
//! A [`Document`] is one file, parsed within budgets, with `${VAR}` expanded. Drivers read their
//! typed sections from it; it records which keys any of them knows, so that a key unknown to all is
//! found. No message of this module holds a value that could be a secret. `docs/compatibility.md`,
//! "Configuration", lists the rules that differ from democratic-csi.

mod common;
mod document;
mod error;
mod expand;
mod finding;
mod layers;
mod node_options;
mod notes;
mod read;
pub mod scalar;
mod whole;
mod yaml;

pub use common::{
    CommonConfig, ControllerCapabilities, ControllerCapability, ControllerService, CsiConfig,
    CsiProxy, CsiProxyService, DeleteStrategy, FilesystemCheck, FilesystemFormat, IdHash,
    IdHashConfig, IdRoom, IdentityCapabilities, IdentityService, KataConfig, MountConfig,
    NodeCapabilities, NodeCapability, NodeConfig, NodeService, PluginCapability, PrivateConfig,
    PrivateCsi, PrivateVolume, ServiceConfig, VolumeContextConfig, VolumeContextSource,
    VolumeExpansion, mount_flags,
};
pub use document::Document;
pub use error::ConfigError;
pub use expand::{Environment, NoEnvironment, ProcessEnvironment};
pub use finding::{Finding, Severity};
pub use node_options::{NodeOptions, NodeSettings};
pub use whole::Unusable;

/// Parses YAML that is not a configuration, within the same budgets and without expansion.
pub fn plain_yaml(text: &str) -> Result<serde_json::Value, ConfigError> {
    yaml::parse(text)
}

/// The largest document, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// The deepest nesting of a document.
pub const MAX_DEPTH: usize = 64;
