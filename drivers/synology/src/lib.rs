//! Volumes of a Synology NAS, by the web API of its operating system, DSM: iSCSI LUNs, and shared
//! folders over NFS and SMB.
//!
//! Synology documents the login and no more; the calls are those of Synology's own CSI driver and of
//! democratic-csi, whose volumes are taken over and given back. compat: "Synology".

#![forbid(unsafe_code)]

mod answer;
mod api;
mod client;
mod config;
mod error;
mod factory;
mod health;
mod iscsi;
mod lenient;
mod login;
mod lun_name;
mod page;
mod share;
mod snapshot_id;
mod source;
mod template;

pub use factory::{KINDS, factory, from_document};
