//! Volumes that live and die with a pod: `zfs-local-ephemeral-inline` and
//! `containerd-oci-ephemeral-inline`.
//!
//! A pod describes such a volume in its manifest, and the kubelet asks only the node to publish it. So
//! there is no controller half, and no text of a pod is trusted. The state is read from the node itself.
//! compat: "Inline volumes".

#![forbid(unsafe_code)]

mod containerd;
mod factory;
pub mod zfs;

pub use containerd::ContainerdInline;
pub use factory::{CONTAINERD, KINDS, ZFS, factory, from_document};
pub use zfs::ZfsInline;
