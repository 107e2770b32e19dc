//! The CSI services: what each answers, with decoding and encoding beside it.

pub mod advertise;
pub(crate) mod controller;
pub mod decode;
mod encode;
pub mod identity;
pub mod node;
pub mod plugin;
pub mod registration;
pub mod spec_version;
