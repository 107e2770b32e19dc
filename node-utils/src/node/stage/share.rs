//! Staging a volume that a program mounts as it is: a share of a server, or what a daemon serves.
//!
//! The mount is the only state there is: a killed call has mounted or it has not, and the look at the
//! staging path tells the next one. A call that fails with a known outcome leaves nothing; after
//! another the directory stays. compat: "Shares and daemons".

use std::sync::Arc;

use tokio::time::Instant;

use super::super::mount_target::{MountTarget, Shape};
use super::super::share;
use super::super::unstage;
use super::super::{Context, mount_access, mount_failed};
use super::UNDOING;
use crate::blocking::{self, Doing, Limits};
use crate::mount;
use crate::mounting::{self, MountRequest};
use crate::node::StageRequest;
use csi_types::attachment::Attachment;
use csi_types::error::{Effect, Error, Kind};

/// The state of the staging path before anything is mounted.
pub(super) enum Found {
    /// This very volume.
    Staged,
    /// A directory for it.
    Empty {
        /// Whether this call made it.
        made: bool,
    },
}

pub(super) async fn stage(
    context: &Arc<Context>,
    limits: Limits,
    request: Arc<StageRequest>,
) -> Result<(), Error> {
    let access = mount_access(&request.capability, &request.attachment)?;
    let Found::Empty { made } = look(context, &limits, &request).await? else {
        return Ok(());
    };
    let wanted = MountRequest {
        attachment: &request.attachment,
        access,
        secrets: &request.secrets,
        staging: request.staging.path(),
    };
    match mounting::mount(&context.tools, wanted, limits.deadline()).await {
        Ok(()) => {
            context.changed("mounted");
            Ok(())
        }
        Err(error) => Err(take_back(&limits, &request, made, error).await),
    }
}

pub(super) async fn look(
    context: &Arc<Context>,
    limits: &Limits,
    request: &Arc<StageRequest>,
) -> Result<Found, Error> {
    let work = {
        let (context, request) = (Arc::clone(context), Arc::clone(request));
        move || look_at(&context, &request)
    };
    let doing = Doing::changing(format!("stage at `{}`", request.staging));
    blocking::run(limits.clone(), doing, work).await
}

fn look_at(context: &Context, request: &StageRequest) -> Result<Found, Error> {
    let slot = MountTarget::open(&context.kernel, request.staging.path(), Shape::Directory)?;
    context.changed("staging directory made");
    if !slot.place.is_mount_point() {
        return Ok(Found::Empty {
            made: slot.is_new(),
        });
    }
    if share::is_at(&slot.place, &request.attachment)? {
        return Ok(Found::Staged);
    }
    let error = Error::new(Kind::Conflict, format!("stage at `{}`", request.staging));
    Err(error.advise("another volume is mounted there; unstage it first"))
}

/// Removes what a failed call made. A mount with an unknown outcome is undone: it is not used before the stage has
/// succeeded.
pub(super) async fn take_back(
    limits: &Limits,
    request: &Arc<StageRequest>,
    made: bool,
    error: Error,
) -> Error {
    let limits = limits.at_least_until(Instant::now() + UNDOING);
    let doing = Doing::changing(format!("clean up `{}`", request.staging));
    let work = {
        let request = Arc::clone(request);
        move || {
            let path = request.staging.path();
            if is_ours(&request)? {
                mount::unmount(path.as_path())
                    .map_err(|error| mount_failed(format!("unmount `{path}`"), error))?;
            }
            unstage::clean_up(path, made)
        }
    };
    match blocking::run(limits, doing, work).await {
        Ok(()) => error,
        Err(_) => error.with_effect(Effect::Possible),
    }
}

/// Whether the mount table shows the volume at the staging path; its server is not asked.
fn is_ours(request: &StageRequest) -> Result<bool, Error> {
    let attachment: &Attachment = &request.attachment;
    share::is_topmost(request.staging.path(), attachment)
}
