//! Publishing: shows a staged volume to a pod by one bind mount with the flags of the request.
//!
//! The state of the target is read from the kernel; only the exclusive modes need the mount table. The
//! rules are those of the specification, `NodePublishVolume`; for raw devices they are in `block`.

mod block;

use super::backing::{Backing, backing};
use super::exclusive;
use super::group;
use super::hostpath;
use super::mount_target::{MountTarget, Shape};
use super::request::{PublishRequest, StagingPath};
use super::{Context, mount_access, mount_failed, share};
use crate::mount::{self, Attributes, BindMethod, MountOptions, Place};
use csi_types::attachment::{AbsolutePath, Attachment};
use csi_types::capability::Access;
use csi_types::error::{Error, Kind};

/// Everything that is decided before the target is touched.
struct Plan<'a> {
    request: &'a PublishRequest,
    staged: Place,
    /// The directory of the volume, where it is one of this node.
    source: Option<Place>,
    /// The options of the request, in addition to those of the stage.
    asked: Attributes,
    /// The options of the operator.
    added: Attributes,
    exclusive: bool,
    group: Option<u32>,
}

pub(super) fn publish(context: &Context, request: &PublishRequest) -> Result<(), Error> {
    if request.capability.access == Access::Block && request.attachment.may_be_device() {
        return block::publish(context, request);
    }
    let plan = plan(context, request)?;
    let slot = MountTarget::open(&context.kernel, request.target.path(), Shape::Directory)?;
    if slot.place.is_mount_point() {
        return compare(&plan, &slot.place).map_err(|error| slot.undo(error));
    }
    let shown = slot.check_empty().and_then(|()| show(&plan, &slot.place));
    shown.map_err(|error| slot.undo(error))
}

/// Refuses a target inside the volume, because it would be made there.
pub(super) fn check_target(request: &PublishRequest) -> Result<(), Error> {
    let (staging, target) = (request.staging.path(), request.target.path());
    if !target.as_path().starts_with(staging.as_path()) {
        return Ok(());
    }
    let doing = format!("publish at `{}`", request.target);
    Err(Error::new(Kind::Invalid, doing)
        .advise("that is at or below the staging path; a pod needs a path of its own"))
}

fn plan<'a>(context: &Context, request: &'a PublishRequest) -> Result<Plan<'a>, Error> {
    let access = mount_access(&request.capability, &request.attachment)?;
    check_target(request)?;
    let asked = MountOptions::sort(access.flags.iter());
    let added = MountOptions::sort(context.config.mount_flags.iter());
    warn_of_dropped(request, &asked);
    let mut asked = asked.attributes;
    let mode = request.capability.mode;
    if request.readonly || mode.is_read_only() {
        asked = asked.read_only();
    }
    let staged = staged(&request.staging)?;
    let source = check_staged(context, request, &staged)?;
    Ok(Plan {
        request,
        staged,
        source,
        asked,
        added: added.attributes,
        exclusive: mode.has_one_target(),
        group: access.group,
    })
}

/// Whether what is staged is the volume of the request.
fn check_staged(
    context: &Context,
    request: &PublishRequest,
    staged: &Place,
) -> Result<Option<Place>, Error> {
    let attachment = &request.attachment;
    if let Attachment::Hostpath(hostpath) = attachment {
        return hostpath::check_staged(hostpath, staged).map(Some);
    }
    let is_staged = match backing(&context.kernel, staged)? {
        Backing::Device(device) => context.devices.is_volume(&device, attachment)?,
        Backing::Gone => false,
        Backing::Other => share::is_at(staged, attachment)?,
    };
    if is_staged {
        return Ok(None);
    }
    let doing = format!("publish at `{}`", request.target);
    Err(Error::new(Kind::Busy, doing)
        .advise("the staging path shows something else; stage the volume again"))
}

/// compat: "local-hostpath": a bind mount has no options of a filesystem. Other volumes got theirs when they
/// were staged. The values are left out, because they may be secret.
fn warn_of_dropped(request: &PublishRequest, options: &MountOptions) {
    let dropped = options.not_for_bind();
    if !dropped.is_empty() && matches!(request.attachment, Attachment::Hostpath(_)) {
        let options = dropped.join(",");
        tracing::warn!(target_path = %request.target, options, "mount options that do not apply to a bind mount are ignored; check their spelling");
    }
}

/// Opens the staging path; nothing mounted there means that the volume is not staged.
fn staged(staging: &StagingPath) -> Result<Place, Error> {
    let doing = format!("use the volume that is staged at `{staging}`");
    let error = Error::new(Kind::Busy, doing)
        .advise("nothing usable is mounted there; stage the volume first");
    match Place::open(staging.path().as_path()) {
        Ok(place) if place.is_mount_point() && !place.is_deleted() => Ok(place),
        Ok(_) => Err(error),
        Err(errno) => Err(error.because(errno)),
    }
}

/// Checks an existing mount at the target: it must be this volume, with these arguments.
fn compare(plan: &Plan<'_>, target: &Place) -> Result<(), Error> {
    let path = &plan.request.target;
    let conflict = |doing: String| Error::new(Kind::Conflict, doing);
    if !target.is_same_as(&plan.staged) {
        return Err(conflict(format!(
            "publish at `{path}`, where another volume is mounted"
        ))
        .advise("unpublish that one first"));
    }
    let there = flags(target, path.path())?;
    let staged = flags(&plan.staged, plan.request.staging.path())?;
    let required = staged.and(plan.asked);
    let missing = required.beyond(there);
    let extra = there.beyond(staged.and(plan.added).and(plan.asked));
    if missing.is_empty() && extra.is_empty() {
        return Ok(());
    }
    if extra.is_empty() && BindMethod::best() == BindMethod::TwoSteps {
        // On such a kernel a killed publication looks the same as a weaker one.
        return mount::complete(path.path().as_path(), plan.added.and(plan.asked))
            .map_err(|error| mount_failed(format!("complete `{path}`"), error));
    }
    let doing = format!("publish at `{path}`, where the volume is mounted with other flags");
    Err(conflict(doing).advise(format!(
        "missing there: {}; not asked for: {}; unpublish it first",
        names(&missing),
        names(&extra)
    )))
}

fn names(flags: &[&str]) -> String {
    if flags.is_empty() {
        "none".to_owned()
    } else {
        flags.join(", ")
    }
}

/// Mounts the volume at the opened, empty target.
fn show(plan: &Plan<'_>, target: &Place) -> Result<(), Error> {
    let mut regrouped = false;
    bind(plan, target, &mut regrouped).map_err(|error| error.after_change(regrouped))
}

/// Gives the volume to its group and binds it to the target; `regrouped` says whether its group may have changed.
fn bind(plan: &Plan<'_>, target: &Place, regrouped: &mut bool) -> Result<(), Error> {
    if plan.exclusive {
        exclusive::check(plan.request, &plan.staged, plan.source.as_ref(), target)?;
    }
    let attributes = plan.added.and(plan.asked);
    regroup(plan, attributes, regrouped)?;
    mount::bind(&plan.staged, target, attributes).map_err(|error| {
        let doing = format!("bind the volume to `{}`", plan.request.target);
        mount_failed(doing, error)
    })
}

/// Gives the volume to the group of the request, unless this publication is read-only or the volume is. `changed` says
/// whether anything may have changed.
fn regroup(plan: &Plan<'_>, attributes: Attributes, changed: &mut bool) -> Result<(), Error> {
    let Some(group) = plan.group else {
        return Ok(());
    };
    let staging = &plan.request.staging;
    if matches!(plan.request.attachment, Attachment::Smb(_)) {
        // The group of an SMB share was set when it was mounted.
        if plan.staged.gid != group {
            tracing::warn!(path = %staging, group, "the share was mounted for another group: unstage it first");
        }
        return Ok(());
    }
    if attributes.is_read_only() || flags(&plan.staged, staging.path())?.is_read_only() {
        return Ok(());
    }
    *changed = true;
    group::apply(&plan.staged, staging.path().as_str(), group)
}

fn flags(place: &Place, path: &AbsolutePath) -> Result<Attributes, Error> {
    place.attributes().map_err(|errno| {
        let doing = format!("read the mount flags of `{path}`");
        Error::new(Kind::Internal, doing).because(errno)
    })
}
