//! The driver, for a process that serves it.

use std::sync::Arc;

use driver_core::DriverFactory;
use node_utils::Tools;

use crate::driver::{KIND, from_document};

/// The driver of ObjectiveFS.
pub const fn factory<C: AsRef<Tools>>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &[KIND],
        sections: &[KIND],
        example: |kind| {
            format!("driver: {kind}\nobjectivefs: {{pool: csi, env: {{OBJECTSTORE: 's3://'}}}}\n")
        },
        build: |document, host| Ok(Arc::new(from_document(document, host.as_ref())?)),
    }
}
