//! The filesystem of a device: probed, made if the device is blank, mounted by a system call.
//!
//! What is on the device decides how it is mounted, not what the request calls it. In a mode in
//! which several nodes read, nothing is written to the device, by us or by the kernel. compat: "Filesystems".

use std::sync::Arc;

use super::super::backing::{Backing, backing};
use super::super::filesystems::{self, Ready};
use super::super::mount_target::{MountTarget, Shape};
use super::super::{Context, mount_failed, record};
use crate::blocking::{self, Doing, Limits};
use crate::device::BlockDevice;
use crate::mount::{self, MountOptions, Place};
use crate::node::StageRequest;
use csi_types::attachment::AbsolutePath;
use csi_types::capability::{AccessMode, MountAccess};
use csi_types::error::{Error, Kind};

/// Prepares the filesystem and mounts it.
pub(in crate::node) async fn stage(
    context: &Arc<Context>,
    limits: &Limits,
    request: &Arc<StageRequest>,
    access: &MountAccess,
    device: BlockDevice,
) -> Result<(), Error> {
    let only_read = request.capability.mode == AccessMode::MultiNodeReaderOnly;
    let ready = if only_read {
        filesystems::find(context, &device, limits.deadline()).await?
    } else {
        let wanted = access.fs_type.as_ref();
        filesystems::prepare(context, &device, wanted, limits.deadline()).await?
    };
    context.changed("filesystem ready");
    let options = options(access, &ready, only_read)?;
    let staging = request.staging.path();
    let device = ready.device.clone();
    let mount = {
        let (context, staging) = (Arc::clone(context), staging.clone());
        move || mount(&context, &staging, &ready, options)
    };
    let doing = Doing::changing(format!("mount {device} at `{staging}`"));
    let is_read_only = blocking::run(limits.clone(), doing, mount).await?;
    if !is_read_only {
        finish(context, limits, staging, &device).await;
    }
    Ok(())
}

/// Grows the filesystem to the size of its device, and records that. If it fails, the volume is usable as it is;
/// an expansion request reports the error.
pub(super) async fn finish(
    context: &Arc<Context>,
    limits: &Limits,
    staging: &AbsolutePath,
    device: &BlockDevice,
) {
    let grown = async {
        grow(context, limits, staging, device).await?;
        context.changed("grown");
        let path = staging.clone();
        let doing = Doing::changing(format!("note that `{staging}` is staged"));
        blocking::run(limits.clone(), doing, move || record::finish(&path)).await
    };
    if let Err(error) = grown.await {
        tracing::warn!(path = %staging, error = %error.chain(), "the filesystem did not grow to the size of its device");
    }
}

/// Grows the mounted filesystem, and the partition it may be on, to the size of the device, which
/// is what it returns.
pub(in crate::node) async fn grow(
    context: &Arc<Context>,
    limits: &Limits,
    path: &AbsolutePath,
    device: &BlockDevice,
) -> Result<u64, Error> {
    filesystems::grow(context, device, path, limits.deadline()).await?;
    let (kernel, of) = (context.kernel.clone(), device.clone());
    let doing = Doing::reading(format!("read the size of {device}"));
    blocking::run(limits.clone(), doing, move || of.size(&kernel)).await
}

/// compat: "Mount flags".
fn options(access: &MountAccess, ready: &Ready, only_read: bool) -> Result<MountOptions, Error> {
    let mut flags: Vec<String> = access.flags.iter().map(str::to_owned).collect();
    if let (Some(group), true) = (access.group, ready.takes_group()) {
        flags.push(format!("gid={group}"));
    }
    if ready.minds_its_twin() && !flags.iter().any(|flag| flag == "nouuid") {
        flags.push("nouuid".to_owned());
    }
    if only_read && ready.clears_its_log() && !flags.iter().any(|flag| flag == "norecovery") {
        flags.push("norecovery".to_owned());
    }
    let mut options = MountOptions::sort(flags.iter().map(String::as_str));
    super::only_mounts(&options).map_err(|advice| {
        Error::invalid(format!("mount the volume as {}", ready.kind)).advise(advice)
    })?;
    if only_read {
        options.attributes = options.attributes.read_only();
    }
    Ok(options)
}

/// Mounts, and checks the result. Returns whether it is read-only.
fn mount(
    context: &Context,
    staging: &AbsolutePath,
    ready: &Ready,
    mut options: MountOptions,
) -> Result<bool, Error> {
    let device = &ready.device;
    let kernel = &context.kernel;
    let slot = MountTarget::open(kernel, staging, Shape::Directory)?;
    if slot.place.is_mount_point() {
        let doing = format!("mount {device} at `{staging}`");
        return Err(Error::new(Kind::Conflict, doing)
            .advise("something else was mounted there at the same time"));
    }
    if !device.exists(kernel)? {
        return Err(slot.undo(device.is_gone("mount")));
    }
    if device.read_only(kernel)? && !options.attributes.is_read_only() {
        // As mount(8) does it.
        tracing::warn!(path = %staging, %device, "the device is write-protected; it is mounted read-only");
        options.attributes = options.attributes.read_only();
    }
    let node = device.node(kernel);
    mount::mount_filesystem(&node, ready.in_kernel(), &options, &slot.place).map_err(|error| {
        let doing = format!("mount {device} at `{staging}` as {}", ready.kind);
        let failed = mount_failed(doing, error);
        slot.undo(if failed.advice().is_some() {
            failed
        } else {
            failed.advise("the log of the kernel says more")
        })
    })?;
    drop(slot);
    context.changed("mounted");
    verify(context, staging, device)?;
    if options.attributes.is_read_only() {
        // Nothing grows there.
        record::finish(staging)?;
    }
    Ok(options.attributes.is_read_only())
}

/// The mounted device has to be this one: its name may have passed on in the last moment.
fn verify(context: &Context, staging: &AbsolutePath, device: &BlockDevice) -> Result<(), Error> {
    let doing = || format!("mount {device} at `{staging}`");
    let place = Place::open(staging.as_path())
        .map_err(|errno| Error::new(Kind::Internal, doing()).because(errno))?;
    if place.is_mount_point()
        && backing(&context.kernel, &place)? == Backing::Device(device.clone())
    {
        return Ok(());
    }
    drop(place);
    let error = Error::new(Kind::Unreachable, doing())
        .advise("another device was found there afterwards, and was unmounted again");
    // If that fails, too, the next call finds it.
    let _ = mount::unmount(staging.as_path());
    Err(error)
}
