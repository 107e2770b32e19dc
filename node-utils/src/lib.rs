//! Everything that a node does to a device or a mount, and the typed [`Attachment`].
//!
//! This crate knows no gRPC and no backend: a volume context goes in, a mounted directory comes
//! out. The truth about what is mounted is the kernel's, read from `/proc/self/mountinfo`; nothing
//! is remembered in the process.

pub mod attachment;
pub mod capability;

pub use attachment::{AbsolutePath, Attachment, VolumeContext};
pub use capability::{Access, AccessMode, FsType, MountAccess, MountFlags, VolumeCapability};
