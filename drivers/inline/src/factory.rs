//! The drivers, built from one document.

use std::sync::Arc;

use driver_core::config::{ConfigError, Document};
use driver_core::{Driver, DriverFactory, DriverHost, Error, NodeId};
use driver_zfs_cli::{Cli, ZfsTools};
use node_utils::Tools;

use crate::containerd::ContainerdInline;
use crate::zfs::{self, ZfsInline};

/// The kind whose volumes are datasets.
pub const ZFS: &str = "zfs-local-ephemeral-inline";
/// The kind whose volumes are the content of images.
pub const CONTAINERD: &str = "containerd-oci-ephemeral-inline";
/// The values of `driver:` that are built here.
pub const KINDS: [&str; 2] = [ZFS, CONTAINERD];

/// The drivers of inline volumes.
pub const fn factory<C: DriverHost + AsRef<Tools>>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &KINDS,
        sections: &["containerd", "zfs"],
        example: |kind| match kind {
            ZFS => format!("driver: {kind}\nzfs: {{datasetParentName: tank/inline}}\n"),
            _ => format!("driver: {kind}\n"),
        },
        build: |document, host| from_document(document, host.node(), host.as_ref()),
    }
}

/// Reads a connection and builds its driver for `node`, whose host is reached by `tools`. Touches no
/// storage.
pub fn from_document(
    document: &Document,
    node: &NodeId,
    tools: &Tools,
) -> Result<Arc<dyn Driver>, ConfigError> {
    document.without_effect(&[
        ("node.format", "an inline volume is never formatted"),
        ("node.mount", "a pod cannot be given mount options here"),
        ("_private.csi", "the orchestrator names inline volumes"),
    ]);
    let common = document.common()?;
    match common.driver.as_str() {
        ZFS => {
            let settings = zfs::Settings::read(document, &common)?;
            let programs = ZfsTools::new(None, None, settings.sudo)
                .map_err(|error| ConfigError::at("zfs.cli", error.to_string()))?;
            let identity = settings.layout.identity(&format!("node {node}"));
            let backend = Cli::new(tools.place_of_host(), programs, identity);
            Ok(Arc::new(ZfsInline::new(settings, backend)))
        }
        CONTAINERD => Ok(Arc::new(ContainerdInline::read(document, node, tools)?)),
        _ => Err(ConfigError::at("driver", "is no driver of inline volumes")),
    }
}

/// The error for a verb of the controller.
pub(crate) fn unsupported(verb: &'static str) -> Error {
    Error::unsupported(verb).advise(
        "volumes of this driver are described in pods, under `volumes[].csi`, and made on their nodes",
    )
}
