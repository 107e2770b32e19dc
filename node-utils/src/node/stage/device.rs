//! Staging a volume that is a block device.
//!
//! The device is compared with what was asked for before anything is written to it and again after
//! it was mounted; nothing is remembered in between. The steps up to the mount lock the target
//! against a detach.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::backing::{Backing, backing};
use super::super::mount_target::{MountTarget, Shape};
use super::super::overdue::OverdueReads;
use super::super::raw::{BLOCK_DEVICE, bind};
use super::super::unstage;
use super::super::{Context, kata, mount_failed, record, stats};
use super::{UNDOING, local};
use crate::blocking::{self, Doing, Limits, Purpose};
use crate::device::{Attached, BlockDevice};
use crate::filesystem;
use crate::mount::{self, MountEntry, MountTable, Place};
use crate::node::StageRequest;
use csi_types::capability::Access;
use csi_types::error::{Effect, Error, Kind};

/// The time of a filesystem to say whether it can be written. One that takes longer waits for its storage.
const WRITABLE: Duration = Duration::from_secs(1);

/// The state of the staging path before anything is attached.
enum Found {
    /// This very volume.
    Staged,
    /// This very volume, which has not grown to the size of its device yet.
    Unfinished(BlockDevice),
    /// This volume, with a filesystem that stopped after an error and is not used elsewhere.
    GaveUp(Created),
    /// A place for it.
    Empty(Created),
}

/// The parts that a call has made so far.
#[derive(Debug, Clone, Copy)]
struct Created {
    directory: bool,
}

pub(super) async fn stage(
    context: &Arc<Context>,
    overdue: &OverdueReads,
    limits: Limits,
    request: Arc<StageRequest>,
) -> Result<(), Error> {
    let look = async |is_stopped| {
        let (context, request) = (Arc::clone(context), Arc::clone(&request));
        let doing = Doing::changing(format!("stage at `{}`", request.staging));
        let work = move || look(&context, &request, is_stopped);
        blocking::run(limits.clone(), doing, work).await
    };
    let mut found = look(false).await?;
    let is_mounted = matches!(found, Found::Staged | Found::Unfinished(_));
    if is_mounted && refuses_writes(overdue, &limits, &request).await {
        found = look(true).await?;
    }
    let created = match found {
        Found::Staged => return Ok(()),
        Found::Unfinished(device) => {
            local::finish(context, &limits, request.staging.path(), &device).await;
            return Ok(());
        }
        Found::Empty(created) | Found::GaveUp(created) => created,
    };
    match bring(context, &limits, &request).await {
        Ok(()) => Ok(()),
        // The outcome is unknown, or another volume of the target is at work: the record is for the next call.
        Err(error) if matches!(error.kind(), Kind::Timeout | Kind::Pending) => Err(error),
        Err(error) => Err(take_back(context, &limits, &request, created, error).await),
    }
}

/// Whether the filesystem of a staged volume refuses to be written. After an error of its journal it does, and its mount
/// does not show it.
async fn refuses_writes(overdue: &OverdueReads, limits: &Limits, request: &StageRequest) -> bool {
    if request.capability.access == Access::Block {
        return false;
    }
    let path = request.staging.path();
    let limits = limits.no_later_than(Instant::now() + WRITABLE);
    let work = {
        let path = path.clone();
        move || Ok(Place::open(path.as_path()).is_ok_and(|place| stats::refuses_files(&place)))
    };
    let asked = overdue.read(limits, format!("write to `{path}`"), path, work);
    // One that hangs leaves the threads that change volumes free.
    let asked = blocking::meant_for(Purpose::Look, asked);
    asked.await.unwrap_or_default()
}

/// Attaches, prepares and mounts.
async fn bring(
    context: &Arc<Context>,
    limits: &Limits,
    request: &Arc<StageRequest>,
) -> Result<(), Error> {
    let (attached, _until_mounted) = context
        .devices
        .attach(&request.attachment, &request.secrets, limits.deadline())
        .await?;
    context.changed("attached");
    let device = attached.device.clone();
    let check = {
        let (context, request) = (Arc::clone(context), Arc::clone(request));
        move || identify(&context, &request, &attached)
    };
    let doing = Doing::reading(format!("identify {device}"));
    blocking::run(limits.clone(), doing, check).await?;
    match &request.capability.access {
        Access::Block => {
            if !request.capability.mode.is_read_only() {
                filesystem::forget_unfinished(&context.kernel, &device, limits.deadline()).await?;
            }
            let (context, request) = (Arc::clone(context), Arc::clone(request));
            let doing = Doing::changing(format!("show {device} at `{}`", request.staging));
            blocking::run(limits.clone(), doing, move || {
                show(&context, &request, &device)
            })
            .await
        }
        Access::Mount(access) => local::stage(context, limits, request, access, device).await,
    }
}

/// Checks the staging path, removes dead mounts from it, and writes the record. `is_stopped` says that what is mounted
/// there refuses to be written.
fn look(context: &Context, request: &StageRequest, is_stopped: bool) -> Result<Found, Error> {
    let staging = request.staging.path();
    let slot = MountTarget::open(&context.kernel, staging, Shape::Directory)?;
    context.changed("staging directory made");
    let found = look_at(context, request, &slot, is_stopped).map_err(|error| slot.undo(error))?;
    match found {
        Found::Staged | Found::Unfinished(_) => Ok(found),
        Found::Empty(created) => {
            keep_record(context, request).map_err(|error| slot.undo(error))?;
            Ok(Found::Empty(created))
        }
        Found::GaveUp(created) => {
            // As long as it is open it cannot be unmounted.
            drop(slot);
            tracing::warn!(path = %staging, "the filesystem stopped after an error; it is mounted again");
            mount::unmount_all_layers(staging.as_path())
                .map_err(|error| mount_failed(format!("unmount `{staging}`"), error))
                .and_then(|_| keep_record(context, request))
                .map_err(|error| error.with_effect(Effect::Possible))?;
            Ok(Found::Empty(created))
        }
    }
}

/// Writes down what is going to be attached, before it is.
fn keep_record(context: &Context, request: &StageRequest) -> Result<(), Error> {
    let staging = request.staging.path();
    let Some(facts) = context.devices.facts(&request.attachment) else {
        return Ok(());
    };
    // Opened anew: something may have been taken away from there.
    let place = Place::open(staging.as_path())
        .map_err(|errno| Error::new(Kind::Internal, format!("open `{staging}`")).because(errno))?;
    let kept = record::add(&place, &facts)?;
    if request.capability.access != Access::Block {
        record::begin(&place)?;
    }
    // Last: a stage needs the others, and the room for attributes is small.
    record::keep_ways(&place, &request.attachment);
    context.changed("record written");
    if !kept {
        tracing::warn!(path = %staging, "the filesystem of the staging path keeps no extended attributes: what is attached is known from sysfs only");
    }
    Ok(())
}

fn look_at(
    context: &Context,
    request: &StageRequest,
    slot: &MountTarget<'_>,
    is_stopped: bool,
) -> Result<Found, Error> {
    let staging = request.staging.path();
    let wants_device = request.capability.access == Access::Block;
    let created = Created {
        directory: slot.is_new(),
    };
    if slot.place.is_mount_point() {
        return match volume(context, request, &slot.place)? {
            Some(device) if !wants_device => mounted(request, slot, created, device, is_stopped),
            _ => Err(conflict(request)),
        };
    }
    if kata::settle(context, request, &slot.place)? {
        return if wants_device {
            Err(conflict(request))
        } else {
            Ok(Found::Staged)
        };
    }
    let block = staging.child(BLOCK_DEVICE);
    if !wants_device {
        let shown = Place::open(block.as_path()).is_ok_and(|place| place.is_mount_point());
        return if shown {
            Err(conflict(request))
        } else {
            Ok(Found::Empty(created))
        };
    }
    // Made only when there is something to show; what is there is freed of dead layers now.
    if Place::open(block.as_path()).is_err() {
        return Ok(Found::Empty(created));
    }
    let file = MountTarget::open(&context.kernel, &block, Shape::File)?;
    if !file.place.is_mount_point() {
        return Ok(Found::Empty(created));
    }
    match volume(context, request, &file.place)? {
        Some(_) => Ok(Found::Staged),
        None => Err(conflict(request)),
    }
}

/// The volume is mounted. If its filesystem stopped after an error and is not used elsewhere, it is mounted again.
fn mounted(
    request: &StageRequest,
    slot: &MountTarget<'_>,
    created: Created,
    device: BlockDevice,
    is_stopped: bool,
) -> Result<Found, Error> {
    let staging = request.staging.path();
    let doing = || format!("stage at `{staging}`");
    let failed = |error: std::io::Error| Error::new(Kind::Internal, doing()).because(error);
    let table = MountTable::read().map_err(failed)?;
    let entry = slot.place.entry(&table);
    // The mounts of other filesystems show it. A volume of btrfs may be read-only because its owner wants it so.
    let hides_it =
        |entry: &MountEntry<'_>| !entry.is_read_only() && entry.fs_type().starts_with("ext");
    let gave_up = |entry: &MountEntry<'_>| stats::gave_up(entry) || is_stopped && hides_it(entry);
    let Some(entry) = entry.filter(gave_up) else {
        return Ok(if record::is_unfinished(staging) {
            Found::Unfinished(device)
        } else {
            Found::Staged
        });
    };
    if is_elsewhere(&table, &entry) {
        return Err(Error::new(Kind::Busy, doing()).advise(
            "its filesystem stopped after an error; stop every pod that uses it, so that it can be \
             checked and mounted again",
        ));
    }
    Ok(Found::GaveUp(created))
}

/// Whether the filesystem of a mount is mounted somewhere else, too.
pub(in crate::node) fn is_elsewhere(table: &MountTable, mount: &MountEntry<'_>) -> bool {
    let mut others = table.entries().filter(|other| other.device == mount.device);
    others.any(|other| !table.is_same_mount(&other, mount))
}

/// The device that is mounted or shown there, if it is the volume's.
fn volume(
    context: &Context,
    request: &StageRequest,
    place: &Place,
) -> Result<Option<BlockDevice>, Error> {
    let Backing::Device(device) = backing(&context.kernel, place)? else {
        return Ok(None);
    };
    let is_volume = context.devices.is_volume(&device, &request.attachment)?;
    Ok(is_volume.then_some(device))
}

fn conflict(request: &StageRequest) -> Error {
    Error::new(Kind::Conflict, format!("stage at `{}`", request.staging))
        .advise("another volume is there, or this one in another way; unstage it first")
}

/// Whether the device is still the volume that was attached. A name passes on; this does not.
fn identify(context: &Context, request: &StageRequest, attached: &Attached) -> Result<(), Error> {
    let device = &attached.device;
    let kernel = &context.kernel;
    if !device.exists(kernel)? {
        return Err(device.is_gone("use"));
    }
    let is_same = device.wwid(kernel)? == attached.identity;
    if is_same && context.devices.is_volume(device, &request.attachment)? {
        return Ok(());
    }
    let doing = format!("use {device}, which is another volume than a moment ago");
    Err(Error::new(Kind::Unreachable, doing).advise("a retry attaches the volume again"))
}

/// Shows the device node at the file below the staging path.
fn show(context: &Context, request: &StageRequest, device: &BlockDevice) -> Result<(), Error> {
    let kernel = &context.kernel;
    let path = request.staging.path().child(BLOCK_DEVICE);
    let slot = MountTarget::open(kernel, &path, Shape::File)?;
    context.changed("file for the device made");
    if slot.place.is_mount_point() {
        return if slot.place.block_device() == Some(device.number()) {
            Ok(())
        } else {
            Err(slot.undo(conflict(request)))
        };
    }
    bind(kernel, device, &slot.place, &path).map_err(|error| slot.undo(error))?;
    context.changed("device shown");
    let there = Place::open(path.as_path()).ok();
    if there.and_then(|place| place.block_device()) == Some(device.number()) {
        return Ok(());
    }
    let _ = mount::unmount(path.as_path());
    let error = Error::new(Kind::Internal, format!("show {device} at `{path}`"));
    Err(slot.undo(error.advise("another device was found there afterwards")))
}

/// Detaches what a failed call attached and removes what it made. What cannot be undone stays in
/// the record, for the next call.
async fn take_back(
    context: &Arc<Context>,
    limits: &Limits,
    request: &Arc<StageRequest>,
    created: Created,
    error: Error,
) -> Error {
    let limits = limits.at_least_until(Instant::now() + UNDOING);
    let path = request.staging.path().clone();
    let doing = Doing::reading(format!("read what is recorded at `{path}`"));
    // The record is deleted as a whole, so all of it has to be detached: an earlier call may have had other
    // portals.
    let recorded = blocking::run(limits.clone(), doing, move || unstage::recorded(&path)).await;
    let left_behind = |error: Error| error.with_effect(Effect::Possible);
    let Ok(mut attached) = recorded else {
        return left_behind(error);
    };
    let facts = context.devices.facts(&request.attachment);
    attached.extend(facts.filter(|facts| !attached.contains(facts)));
    if let Err(left) = unstage::detach(context, &limits, &attached).await {
        tracing::warn!(path = %request.staging, error = %left.chain(), "a failed stage leaves its device attached, until it is staged or unstaged");
        return left_behind(error);
    }
    let doing = Doing::changing(format!("clean up `{}`", request.staging));
    let path = request.staging.path().clone();
    let cleaned = blocking::run(limits, doing, move || {
        unstage::clean_up(&path, created.directory)
    });
    match cleaned.await {
        Ok(()) => error,
        Err(_) => left_behind(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a node plugin sees it, with the host's root at `/host`.
    const TABLE: &str = "\
20 1 8:1 / / rw - overlay overlay rw
21 20 8:1 / /host rw - ext4 /dev/sda1 rw
30 20 8:16 / /k/stage rw - ext4 /dev/sdb rw,emergency_ro
31 21 8:16 / /host/k/stage rw - ext4 /dev/sdb rw,emergency_ro
";

    #[test]
    fn a_mount_seen_through_the_hosts_root_is_no_second_user_and_a_pod_is_one() {
        let elsewhere = |text: String| {
            let table = MountTable::from_text(text);
            let mount = table.by_id(30).expect("entry");
            assert!(stats::gave_up(&mount));
            is_elsewhere(&table, &mount)
        };
        assert!(!elsewhere(TABLE.to_owned()));
        let kubelet = "\
50 20 8:1 /data/kubelet /k rw - ext4 /dev/sda1 rw
30 50 8:16 / /k/stage rw - ext4 /dev/sdb rw,emergency_ro
31 20 8:16 / /data/kubelet/stage rw - ext4 /dev/sdb rw,emergency_ro
";
        assert!(!elsewhere(
            kubelet.replace("50 20", "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n50 20")
        ));
        let pod = "40 20 8:16 / /k/pod rw - ext4 /dev/sdb rw,emergency_ro\n";
        assert!(elsewhere(format!("{TABLE}{pod}")));
    }
}
