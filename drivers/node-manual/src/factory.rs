//! The driver, for a process that serves it.

use std::sync::Arc;

use driver_core::DriverFactory;

use crate::driver::NodeManual;

/// The driver of volumes that were made by hand.
pub const fn factory<C>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &[NodeManual::KIND],
        sections: &[],
        example: |kind| format!("driver: {kind}\n"),
        build: |document, _| Ok(Arc::new(NodeManual::from_document(document)?)),
    }
}
