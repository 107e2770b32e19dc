//! The commands of the program.

pub mod adopt;
pub mod args;
pub mod attacher_finalizers;
pub mod check;
pub mod connections;
pub mod explain;
pub mod export_pvs;
pub mod exports;
pub mod liveness_probe;
pub mod migrate_values;
pub mod move_volume;
pub mod orphans;
mod selection;
pub mod serve;
#[cfg(feature = "truenas")]
pub mod truenas;
pub mod try_out;
pub mod version;
mod yaml;
