//! Showing a staged raw device to a pod: its device node, bound to a file.
//!
//! Read-only is a device of its own, see [`Loop`]; everything else is as for directories. What is
//! at the target is recognised by its device number, so that a publication by an older driver, once
//! or stacked, is as good as our own. compat: "Raw block volumes".

use std::path::Path;

use super::super::backing::{Backing, backing};
use super::super::exclusive;
use super::super::mount_target::{MountTarget, Shape};
use super::super::raw::{BLOCK_DEVICE, bind};
use super::super::request::PublishRequest;
use super::super::{Context, kata, mount_failed};
use super::check_target;
use crate::device::{BlockDevice, DeviceNumber};
use crate::loops::{Label, Loop};
use crate::mount::{self, Attributes, MountTable, Place};
use csi_types::error::{Error, Kind};

pub(super) fn publish(context: &Context, request: &PublishRequest) -> Result<(), Error> {
    check_target(request)?;
    let (staged, device) = staged(context, request)?;
    let kernel = &context.kernel;
    let mode = request.capability.mode;
    let wants_read_only = request.readonly || mode.is_read_only();
    let slot = MountTarget::open(kernel, request.target.path(), Shape::File)?;
    context.changed("target made");
    if let Some(there) = slot.place.block_device() {
        return compare(context, request, &device, there, wants_read_only)
            .map_err(|error| slot.undo(error));
    }
    let show = || {
        if mode.has_one_target() {
            check_alone(context, request, &staged, &device, &slot.place)?;
        }
        // A read-only device needs no loop device.
        if wants_read_only && !device.read_only(kernel)? {
            show_read_only(context, request, &device, &slot.place)
        } else {
            bind(kernel, &device, &slot.place, request.target.path())
        }
    };
    show().map_err(|error| slot.undo(error))
}

/// The device that is staged; it has to be that of the volume.
fn staged(context: &Context, request: &PublishRequest) -> Result<(Place, BlockDevice), Error> {
    let path = request.staging.path().child(BLOCK_DEVICE);
    let doing = format!("use the device that is staged at `{path}`");
    kata::check_raw(request.staging.path(), &doing)?;
    let error = Error::new(Kind::Busy, doing)
        .advise("no usable device of this volume is there; stage the volume first");
    let place = match Place::open(path.as_path()) {
        Ok(place) if place.is_mount_point() && place.block_device().is_some() => place,
        Ok(_) => return Err(error),
        Err(errno) => return Err(error.because(errno)),
    };
    match backing(&context.kernel, &place)? {
        Backing::Device(device) if context.devices.is_volume(&device, &request.attachment)? => {
            Ok((place, device))
        }
        _ => Err(error),
    }
}

/// The target holds a device already: it has to be this one, as writable as is asked for.
fn compare(
    context: &Context,
    request: &PublishRequest,
    device: &BlockDevice,
    there: DeviceNumber,
    wants_read_only: bool,
) -> Result<(), Error> {
    let kernel = &context.kernel;
    let face = Loop::below(kernel, there)?;
    let (is_face, shown) = match &face {
        Some((_, below)) => (true, below.as_ref().map(BlockDevice::number)),
        None => (false, Some(there)),
    };
    let doing = format!("publish at `{}`", request.target);
    if shown != Some(device.number()) {
        return Err(Error::new(Kind::Conflict, doing)
            .advise("another volume is there; unpublish that one first"));
    }
    let as_asked = if wants_read_only {
        is_face || device.read_only(kernel)?
    } else {
        !is_face
    };
    if as_asked {
        return Ok(());
    }
    Err(Error::new(Kind::Conflict, doing).advise(
        "the volume is there, and read-only where it should not be or the other way round; \
         unpublish it first",
    ))
}

/// Fails if the device is published at another path.
fn check_alone(
    context: &Context,
    request: &PublishRequest,
    staged: &Place,
    device: &BlockDevice,
    target: &Place,
) -> Result<(), Error> {
    exclusive::check(request, staged, None, target)?;
    let failed = |error: std::io::Error| {
        let doing = format!("find where `{}` is published", request.staging);
        Error::new(Kind::Internal, doing).because(error)
    };
    let faces = Loop::all_over(&context.kernel, device)?;
    if faces.is_empty() {
        return Ok(());
    }
    let table = MountTable::read().map_err(failed)?;
    for face in faces {
        if let Some(other) = face.shown_at(&context.kernel, &table)? {
            return Err(exclusive::refused(request, Path::new(&other)));
        }
    }
    Ok(())
}

/// Publishes the read-only loop device; removes it again if that fails.
fn show_read_only(
    context: &Context,
    request: &PublishRequest,
    device: &BlockDevice,
    target: &Place,
) -> Result<(), Error> {
    let kernel = &context.kernel;
    let path = request.target.path();
    let face = Loop::over(kernel, device, &Label::of(path.as_str()))?;
    context.changed("read-only device made");
    let doing = || format!("bind the read-only device to `{path}`");
    let shown = Place::open(&face.node(kernel))
        .map_err(|errno| Error::new(Kind::Internal, doing()).because(errno))
        .and_then(|node| {
            mount::bind(&node, target, Attributes::default())
                .map_err(|error| mount_failed(doing(), error))
        });
    shown.inspect_err(|_| {
        if let Err(error) = face.remove(kernel) {
            tracing::warn!(error = %error.chain(), "cannot remove an unused read-only loop device; unpublishing the volume removes it");
        }
    })
}
