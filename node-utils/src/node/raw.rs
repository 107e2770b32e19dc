//! A raw device as a pod sees it: its device node, bound to a file.
//!
//! compat: "Raw block volumes".

use rustix::fs::FileType;

use super::mount_failed;
use crate::device::BlockDevice;
use crate::kernel::Kernel;
use crate::mount::{self, Attributes, Place};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// The file in the staging directory that a block volume is shown at.
pub(super) const BLOCK_DEVICE: &str = "block_device";

/// Binds the node of a device to an opened file.
pub(super) fn bind(
    kernel: &Kernel,
    device: &BlockDevice,
    target: &Place,
    path: &AbsolutePath,
) -> Result<(), Error> {
    let node = device.node(kernel);
    let doing = || format!("bind {device} to `{path}`");
    let source = Place::open(&node)
        .map_err(|errno| Error::new(Kind::Unreachable, doing()).because(errno))?;
    if source.kind != FileType::BlockDevice || source.block_device() != Some(device.number()) {
        return Err(device.is_gone("find the node of"));
    }
    mount::bind(&source, target, Attributes::default())
        .map_err(|error| mount_failed(doing(), error))
}
