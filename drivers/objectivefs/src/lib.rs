//! Volumes that are filesystems of ObjectiveFS: the driver `objectivefs`.
//!
//! A volume is a filesystem of one pool of an object store. It is made, listed and destroyed by
//! `mount.objectivefs`, which is proprietary: what it prints and how it exits is taken from its manual
//! and from democratic-csi. Nodes mount it by the same program. compat: "ObjectiveFS".

#![forbid(unsafe_code)]

mod config;
mod driver;
mod factory;
mod name;
mod tool;

pub use driver::{KIND, ObjectiveFs, from_document};
pub use factory::factory;
