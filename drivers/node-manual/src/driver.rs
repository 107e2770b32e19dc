//! The driver: it has no verb, and says what to do instead.

use async_trait::async_trait;
use csi_types::Attachment;
use driver_core::config::{ConfigError, Document};
use driver_core::{
    AccessRules, BackendIdentity, Call, CreateVolume, DeleteVolume, Driver, Error, Parameters,
    Volume, VolumeId, VolumeName,
};

use crate::rules;

/// The kind `node-manual`: what a person wrote into a `PersistentVolume`.
#[derive(Debug, Clone, Copy)]
pub struct NodeManual;

const BY_HAND: &str = "node-manual makes no volumes: write a PersistentVolume whose \
                       `volumeAttributes` name what the node attaches, and have no StorageClass \
                       and no provisioner, resizer or snapshotter for this driver";

/// Keys that say how volumes are made, or that democratic-csi does not read here.
const IDLE: [(&str, &str); 4] = [
    (
        "csi.access_modes",
        "which modes there are depends on each volume's `node_attach_driver`",
    ),
    ("_private.csi.volume.idTemplate", NO_VOLUMES),
    ("_private.csi.volume.idHash", NO_VOLUMES),
    ("_private.csi.volume.deleteStrategy", NO_VOLUMES),
];

const NO_VOLUMES: &str = "this driver makes and deletes no volumes";

// === impl NodeManual ===

impl NodeManual {
    /// The value of `driver:`.
    pub const KIND: &'static str = "node-manual";

    /// Makes the driver of one connection. It has no section of its own.
    pub fn from_document(document: &Document) -> Result<Self, ConfigError> {
        document.without_effect(&IDLE);
        document.common()?;
        Ok(Self)
    }
}

#[async_trait]
impl Driver for NodeManual {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn access_rules(&self) -> AccessRules {
        rules::of_any()
    }

    fn access_rules_of(&self, attachment: &Attachment) -> AccessRules {
        rules::of(attachment)
    }

    fn unsupported(&self, verb: &'static str) -> Error {
        Error::unsupported(verb).advise(BY_HAND)
    }

    fn backend_identity(&self) -> BackendIdentity {
        BackendIdentity(Self::KIND.to_owned())
    }

    fn name_volume(&self, _: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        Err(self.unsupported("name volume"))
    }

    /// There is no storage to ask: each volume names its own.
    async fn probe(&self, _: &Call) -> Vec<Error> {
        Vec::new()
    }

    fn makes_volumes(&self) -> bool {
        false
    }

    async fn create_volume(&self, _: &Call, _: &CreateVolume) -> Result<Volume, Error> {
        Err(self.unsupported("create volume"))
    }

    async fn delete_volume(&self, _: &Call, _: DeleteVolume<'_>) -> Result<(), Error> {
        Err(self.unsupported("delete volume"))
    }
}
