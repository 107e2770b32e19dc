//! The drivers of the node's own ZFS, built from one document.

use std::sync::Arc;

use driver_core::config::{ConfigError, Document};
use driver_core::{Driver, DriverFactory, DriverHost, NodeId};
use driver_zfs::ZfsConfig;
use driver_zfs::observed::VolumeKind;
use driver_zfs_cli::{Cli, ZfsTools};
use node_utils::Tools;

use crate::driver::NodeZfs;

/// The values of `driver:` that are built here.
pub const KINDS: [&str; 2] = ["zfs-local-dataset", "zfs-local-zvol"];

/// Why paths of programs have no effect. compat: "ZFS of the node".
const HOST_FINDS: &str = "the host finds its own programs";

/// The drivers of the node's own ZFS.
pub const fn factory<C: DriverHost + AsRef<Tools>>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &KINDS,
        sections: &["zfs"],
        example: |kind| format!("driver: {kind}\nzfs: {{datasetParentName: tank/v}}\n"),
        build: |document, host| from_document(document, host.node(), host.as_ref()),
    }
}

/// Reads a connection and builds its driver for `node`, whose host is reached by `tools`, without
/// contacting the storage.
pub fn from_document(
    document: &Document,
    node: &NodeId,
    tools: &Tools,
) -> Result<Arc<dyn Driver>, ConfigError> {
    document.without_effect(&[
        ("zfs.cli.paths.zfs", HOST_FINDS),
        ("zfs.cli.paths.sudo", HOST_FINDS),
        ("sshConnection", "datasets are those of the node itself"),
    ]);
    let common = document.common()?;
    let kind = match common.driver.as_str() {
        "zfs-local-dataset" => {
            document.without_effect(&[
                ("node.format", "a dataset is never formatted"),
                ("node.mount.checkFilesystem", "a dataset is never checked"),
            ]);
            VolumeKind::Filesystem
        }
        "zfs-local-zvol" => VolumeKind::Zvol,
        _ => return Err(ConfigError::at("driver", "is no driver of ZFS of the node")),
    };
    let zfs = ZfsConfig::read(document)?;
    let settings = zfs.settings(&common, kind, None)?;
    let programs = ZfsTools::found_by_host(&zfs)?;
    let identity = settings.layout.identity(&format!("node {node}"));
    let backend = Cli::new(tools.place_of_host(), programs, identity);
    Ok(Arc::new(NodeZfs::new(settings, backend, node)))
}
