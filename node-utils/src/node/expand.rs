//! The node part of an expansion: the device, its partition, its filesystem.
//!
//! The kernel refreshes the size of the device, and the call waits for the requested size. Then the
//! partition and the filesystem grow. A directory and a share have no size on the node, so nothing is
//! done. The path may be the staged or the published one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backing::{Backing, backing, is_whole};
use super::overdue::OverdueReads;
use super::request::ExpandRequest;
use super::{Context, kata, stats};
use crate::blocking::{self, Doing, Limits};
use crate::device::{self, BlockDevice};
use crate::loops::Loop;
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Effect, Error, Kind};

/// The time that a device may take to show a size that its storage has already.
const LATENCY: Duration = Duration::from_secs(20);

/// What is mounted at a path.
pub(super) enum Found {
    /// Nothing: no device of ours.
    Nothing,
    /// A device that a pod uses as a raw device.
    Raw(BlockDevice),
    /// A mounted filesystem on a device.
    Filesystem(BlockDevice),
}

pub(super) async fn expand(
    context: &Arc<Context>,
    overdue: &OverdueReads,
    limits: Limits,
    request: ExpandRequest,
) -> Result<Option<u64>, Error> {
    let doing = format!("expand `{}`", request.path);
    let find = {
        let (context, path, doing) = (Arc::clone(context), request.path.clone(), doing.clone());
        move || find(&context, &path, &doing)
    };
    let reading = overdue.read(limits.clone(), doing.clone(), &request.path, find);
    let found = reading.await?;
    let (device, is_raw) = match found {
        Found::Nothing => return Ok(None),
        Found::Raw(device) => (device, true),
        Found::Filesystem(device) => (device, false),
    };
    let grown = async {
        let required = request.required;
        let rescanned = context.devices.rescan(&device, required, limits.deadline());
        rescanned.await?;
        wait(context, &limits, &device, &request).await?;
        if is_raw {
            let (context, device) = (Arc::clone(context), device.clone());
            let refresh = move || refresh(&context, &device);
            blocking::run(limits.clone(), Doing::changing(doing), refresh).await
        } else {
            super::stage::grow(context, &limits, &request.path, &device).await
        }
    };
    grown
        .await
        .map(Some)
        .map_err(|error| error.with_effect(Effect::Possible))
}

/// Finds the volume that is mounted at a path. `NotFound`: nothing is.
pub(super) fn find(context: &Context, path: &AbsolutePath, doing: &str) -> Result<Found, Error> {
    let place = match stats::mounted(path) {
        Ok(place) => place,
        Err(stats::Failure::Other(error)) => return Err(error),
        Err(stats::Failure::Dead(errno)) => {
            return Err(Error::new(Kind::Internal, doing).because(errno));
        }
    };
    match backing(&context.kernel, &place)? {
        Backing::Other => Ok(Found::Nothing),
        Backing::Gone => Err(Error::new(Kind::Unreachable, doing)
            .advise("the device of the volume has disappeared from this node")),
        Backing::Device(device) if place.block_device().is_some() => {
            kata::check_raw(path, doing)?;
            Ok(Found::Raw(device))
        }
        Backing::Device(device) => {
            let is_ours = context.devices.brings(&device)? && is_whole(&place)?;
            Ok(if is_ours {
                Found::Filesystem(device)
            } else {
                Found::Nothing
            })
        }
    }
}

/// Waits until the device has the size that was asked for.
pub(super) async fn wait(
    context: &Arc<Context>,
    limits: &Limits,
    device: &BlockDevice,
    request: &ExpandRequest,
) -> Result<(), Error> {
    let Some(required) = request.required else {
        return Ok(());
    };
    let reading = {
        let (kernel, device) = (context.kernel.clone(), device.clone());
        move || {
            let size = device.disk(&kernel)?.size(&kernel)?;
            Ok((size >= required).then_some(()))
        }
    };
    let doing = format!("wait until {device} has {required} bytes");
    let deadline = limits.deadline().min(Instant::now() + LATENCY);
    device::until(deadline, &doing, reading)
        .await?
        .ok_or_else(|| {
            Error::new(Kind::Timeout, doing).advise("its storage shows less to this node")
        })
}

/// Refreshes the read-only loop devices, too; returns the size of the device.
fn refresh(context: &Context, device: &BlockDevice) -> Result<u64, Error> {
    for face in Loop::all_over(&context.kernel, device)? {
        face.refresh(&context.kernel)?;
    }
    device.size(&context.kernel)
}
