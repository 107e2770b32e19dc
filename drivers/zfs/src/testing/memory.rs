//! Settings for drivers over a pool in memory.

use driver_core::config::{ConfigError, Document, NoEnvironment};

use crate::config::ZfsConfig;
use crate::driver::Settings;
use crate::observed::VolumeKind;

/// Settings of a configuration with these lines in its section `zfs`; volumes are below
/// `tank/csi/v` and detached snapshots below `tank/csi/s`.
pub fn settings(kind: VolumeKind, zfs: &str) -> Result<Settings, ConfigError> {
    let text = format!(
        "driver: zfs-in-memory\nzfs:\n  datasetParentName: tank/csi/v\n  \
         detachedSnapshotsDatasetParentName: tank/csi/s\n{zfs}"
    );
    let document = Document::parse(&text, &NoEnvironment)?;
    ZfsConfig::read(&document)?.settings(&document.common()?, kind, None)
}
