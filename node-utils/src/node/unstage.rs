//! Undoing a stage: unmounts everything, detaches what was attached, deletes the staging path, in this order.
//!
//! What to detach is known from two sources: the record of the staging directory, and sysfs for the devices that were
//! mounted. The directory is deleted last, so that the record exists as long as anything is attached. A directory of
//! the node has neither and needs one step.

use std::sync::Arc;

use rustix::io::Errno;

use super::backing::{self, Backing, backing, is_whole};
use super::devices::Facts;
use super::raw::BLOCK_DEVICE;
use super::release::release;
use super::request::StagingPath;
use super::unresponsive::unmount_or_force;
use super::{Context, kata, mount_failed, record};
use crate::blocking::{self, Doing, Limits};
use crate::loops::Loop;
use crate::mount::{self, Place};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Effect, Error, Kind};

/// An upper bound of stacked mounts.
const LAYERS: usize = 1000;

pub(super) async fn unstage(
    context: &Arc<Context>,
    limits: Limits,
    staging: StagingPath,
) -> Result<(), Error> {
    let doing = format!("unstage `{staging}`");
    let path = staging.path().clone();
    let work = {
        let (context, path) = (Arc::clone(context), path.clone());
        move || {
            kata::check_unstage(&context, &path)?;
            let mut unmounted = false;
            let attached = uncover(&context, &path, &mut unmounted).and_then(|attached| {
                if attached.is_empty() {
                    release(&path)?;
                }
                Ok(attached)
            });
            attached.map_err(|error| error.after_change(unmounted))
        }
    };
    let attached =
        unmount_or_force(&limits, &doing, &path, context.unmount_timeout(), work).await?;
    if attached.is_empty() {
        return Ok(());
    }
    let finished = async {
        detach(context, &limits, &attached).await?;
        context.changed("detached");
        let work = {
            let context = Arc::clone(context);
            move || {
                forget(&path)?;
                context.changed("record cleared");
                release(&path)
            }
        };
        blocking::run(limits, Doing::changing(doing), work).await
    };
    // Nothing is mounted any more.
    finished
        .await
        .map_err(|error| error.with_effect(Effect::Possible))
}

/// Detaches everything that can be; returns the first failure.
pub(super) async fn detach(
    context: &Context,
    limits: &Limits,
    attached: &[Facts],
) -> Result<(), Error> {
    let mut result = Ok(());
    for facts in attached {
        if let Err(error) = context.devices.detach(facts, limits.deadline()).await {
            tracing::warn!(%facts, error = %error.chain(), "not detached");
            result = result.and(Err(error));
        }
    }
    result
}

/// Unmounts the filesystem or the device node of the volume, all layers; returns what has to be detached. `unmounted`
/// says whether any layer was there.
fn uncover(
    context: &Context,
    path: &AbsolutePath,
    unmounted: &mut bool,
) -> Result<Vec<Facts>, Error> {
    let mut attached = Vec::new();
    let Some(place) = unmount(context, path, &mut attached, unmounted)? else {
        return Ok(attached);
    };
    if !place.is_directory() {
        return Ok(attached);
    }
    for facts in record::read(&place)? {
        note(&mut attached, facts);
    }
    let block = path.child(BLOCK_DEVICE);
    if let Some(file) = unmount(context, &block, &mut attached, unmounted)? {
        drop(file);
        release(&block)?;
        context.changed("file of the device removed");
    }
    Ok(attached)
}

/// Unmounts every layer at `path` and notes what is to be detached; what is there without them,
/// or `None` if there is nothing.
fn unmount(
    context: &Context,
    path: &AbsolutePath,
    attached: &mut Vec<Facts>,
    unmounted: &mut bool,
) -> Result<Option<Place>, Error> {
    for _ in 0..LAYERS {
        let place = match Place::open(path.as_path()) {
            Ok(place) if !place.is_mount_point() => return Ok(Some(place)),
            Ok(place) => {
                note_device(context, &place, attached, unmounted)?;
                Some(place)
            }
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            // It does not respond; the mount table still knows its device.
            Err(_) => {
                if let Some(Backing::Device(device)) = backing::topmost(&context.kernel, path)?
                    && backing::is_whole_at(path)?
                {
                    attached.extend(context.devices.facts_of(&device)?);
                }
                None
            }
        };
        drop(place);
        let was_mounted = mount::unmount(path.as_path())
            .map_err(|error| mount_failed(format!("unmount `{path}`"), error))?;
        if !was_mounted {
            return Ok(None);
        }
        *unmounted = true;
        context.changed("unmounted");
    }
    Ok(None)
}

fn note_device(
    context: &Context,
    place: &Place,
    attached: &mut Vec<Facts>,
    changed: &mut bool,
) -> Result<(), Error> {
    let Backing::Device(device) = backing(&context.kernel, place)? else {
        return Ok(());
    };
    // A read-only loop device that a killed publication left would keep the device open.
    if place.block_device().is_some() {
        for face in Loop::all_over(&context.kernel, &device)? {
            if !face.is_shown(&context.kernel)? {
                face.remove(&context.kernel)?;
                *changed = true;
            }
        }
    }
    if let Some(facts) = context.devices.facts_of(&device)?
        && is_whole(place)?
    {
        note(attached, facts);
    }
    Ok(())
}

fn note(attached: &mut Vec<Facts>, facts: Facts) {
    if !attached.contains(&facts) {
        attached.push(facts);
    }
}

/// After a failed stage that detached everything: clears the record and removes what that call made. What is
/// mounted there by now, or not empty, stays.
pub(super) fn clean_up(path: &AbsolutePath, directory: bool) -> Result<(), Error> {
    forget(path)?;
    let failed =
        |errno: Errno| Error::new(Kind::Internal, format!("remove `{path}`")).because(errno);
    if directory {
        match rustix::fs::rmdir(path.as_path()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
    } else if let Ok(place) = Place::open(path.as_path()) {
        record::unmark(&place)?;
    }
    Ok(())
}

/// The record at a path where nothing is mounted.
pub(super) fn recorded(path: &AbsolutePath) -> Result<Vec<Facts>, Error> {
    match Place::open(path.as_path()) {
        Ok(place) if place.is_directory() && !place.is_mount_point() => record::read(&place),
        _ => Ok(Vec::new()),
    }
}

/// Clears the record: nothing is attached any more, whatever becomes of the directory.
fn forget(path: &AbsolutePath) -> Result<(), Error> {
    match Place::open(path.as_path()) {
        Ok(place) => record::clear(&place),
        Err(_) => Ok(()),
    }
}
