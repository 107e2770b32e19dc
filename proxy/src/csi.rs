//! The CSI services: what each answers, with decoding and encoding beside it.

pub mod addons;
pub mod advertise;
pub(crate) mod controller;
pub mod decode;
mod encode;
pub mod environment;
pub(crate) mod group_controller;
pub mod identity;
pub mod node;
pub mod plugin;
pub mod registration;
pub(crate) mod snapshot_metadata;
pub mod spec_version;
