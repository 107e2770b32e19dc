//! Volumes that were made by hand: node-manual.
//!
//! There is no controller half: a person writes a `PersistentVolume` whose attributes say
//! everything, and the node attaches what they name. Here are only the rules of how each kind of
//! attachment may be used, and the answer to calls of the controller. compat: "node-manual".

#![forbid(unsafe_code)]

mod driver;
mod rules;

use std::sync::Arc;

use driver_core::DriverFactory;

pub use driver::NodeManual;

/// The driver of volumes that were made by hand.
pub const fn factory<C>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &[NodeManual::KIND],
        sections: &[],
        example: |kind| format!("driver: {kind}\n"),
        build: |document, _| Ok(Arc::new(NodeManual::from_document(document)?)),
    }
}
