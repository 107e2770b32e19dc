//! The driver: the verbs of the contract over one base directory.

use async_trait::async_trait;
use driver_core::{
    AccessRules, BackendIdentity, Call, Capabilities, CreateVolume, Driver, Error, Expansion,
    NodeId, Parameters, Topology, Volume, VolumeId, VolumeName,
};

use crate::config::{ConfigError, HostpathConfig, Layout};
use crate::id::VolumeDir;

/// The kind `local-hostpath`: directories of the node that this process runs on.
#[derive(Debug)]
pub struct LocalHostpath;

/// A driver whose volumes are directories below one base.
#[derive(Debug)]
pub struct DirectoryDriver {
    kind: &'static str,
    layout: Layout,
    place: Option<Topology>,
}

impl LocalHostpath {
    /// The value of `driver:`.
    pub const KIND: &'static str = "local-hostpath";

    /// Makes the driver of one connection on `node`.
    #[expect(
        clippy::new_ret_no_self,
        reason = "a kind is a way to make the one driver"
    )]
    pub fn new(config: &HostpathConfig, node: &NodeId) -> Result<DirectoryDriver, ConfigError> {
        Ok(DirectoryDriver {
            kind: Self::KIND,
            layout: config.layout()?,
            place: Some(Topology::node(node.as_str())),
        })
    }
}

#[async_trait]
impl Driver for DirectoryDriver {
    fn kind(&self) -> &str {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volumes: true,
            list_volumes: true,
            get_volume: true,
            capacity: true,
            snapshots: true,
            list_snapshots: true,
            get_snapshot: true,
            clones: true,
            expand: Expansion::Controller,
            publish: false,
            topology: self.place.is_some(),
        }
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&[])
    }

    fn backend_identity(&self) -> BackendIdentity {
        BackendIdentity(format!("{}:{}", self.kind, self.layout.base))
    }

    fn name_volume(&self, name: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        VolumeDir::new(name.as_str())
            .map(|dir| dir.id())
            .ok_or_else(|| {
                Error::invalid(format!("volume name `{}`", name.as_str().escape_debug()))
            })
    }

    async fn probe(&self, _: &Call) -> Vec<Error> {
        vec![Error::unsupported("probe")]
    }

    async fn create_volume(&self, _: &Call, _: &CreateVolume) -> Result<Volume, Error> {
        Err(Error::unsupported("create volume"))
    }

    async fn delete_volume(&self, _: &Call, _: &VolumeId) -> Result<(), Error> {
        Err(Error::unsupported("delete volume"))
    }

    fn node_topology(&self) -> Option<Topology> {
        self.place.clone()
    }
}
