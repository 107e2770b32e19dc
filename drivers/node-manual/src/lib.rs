//! Volumes that were made by hand: node-manual.
//!
//! There is no controller half: a person writes a `PersistentVolume` whose attributes say
//! everything, and the node attaches what they name. Here are only the rules of how each kind of
//! attachment may be used, and the answer to calls of the controller. compat: "node-manual".

#![forbid(unsafe_code)]

mod driver;
mod factory;
mod rules;

pub use driver::NodeManual;
pub use factory::factory;
