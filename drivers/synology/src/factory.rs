//! The drivers of a Synology NAS, built from one document.

use std::sync::Arc;

use driver_core::config::{ConfigError, Document};
use driver_core::{Driver, DriverFactory};

use crate::iscsi::Luns;
use crate::share::Shares;

/// The values of `driver:` that are built here.
pub const KINDS: [&str; 3] = ["synology-iscsi", "synology-nfs", "synology-smb"];

/// The drivers of a Synology NAS.
pub const fn factory<C>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &KINDS,
        sections: &["httpConnection", "iscsi", "nfs", "smb", "synology"],
        example,
        build: |document, _| from_document(document),
    }
}

fn example(kind: &str) -> String {
    let export = match kind {
        "synology-nfs" => "nfs: {shareHost: nas.example, clients: [node-1]}",
        "synology-smb" => "smb: {shareHost: nas.example, users: [csi]}",
        _ => "iscsi: {targetPortal: nas.example, baseiqn: 'iqn.2000-01.com.synology:csi.'}",
    };
    format!(
        "driver: {kind}
httpConnection: {{protocol: https, host: nas.example, username: csi, password: x}}
{export}
"
    )
}

/// Reads a connection and builds its driver. Touches no storage.
pub fn from_document(document: &Document) -> Result<Arc<dyn Driver>, ConfigError> {
    Ok(match document.driver()? {
        "synology-nfs" | "synology-smb" => Arc::new(Shares::from_document(document)?),
        _ => Arc::new(Luns::from_document(document)?),
    })
}
