//! Making a volume ready at its staging path.
//!
//! A directory of the node needs no child process, and neither does a volume that is staged already.
//! For a device the steps are: record, attach, prepare, mount, verify; a share or a dataset is only
//! mounted. Each step finds in the kernel what an earlier, killed call left. A call that fails with a
//! known outcome detaches what it attached.

mod dataset;
mod device;
mod local;
mod share;

pub(super) use device::is_elsewhere;
pub(super) use local::{grow, stage as mount_device};

use std::sync::Arc;
use std::time::Duration;

use super::hostpath;
use super::mount_target::{MountTarget, Shape};
use super::overdue::OverdueReads;
use super::request::StageRequest;
use super::{Context, mount_access};
use crate::blocking::{self, Doing, Limits};
use crate::mount::MountOptions;
use csi_types::attachment::{Attachment, Hostpath};
use csi_types::error::Error;

/// What taking away what a failed call made may take beyond the deadline of the call.
pub(super) const UNDOING: Duration = Duration::from_secs(20);

pub(super) async fn stage(
    context: &Arc<Context>,
    overdue: &OverdueReads,
    limits: Limits,
    request: StageRequest,
) -> Result<(), Error> {
    match &request.attachment {
        Attachment::Hostpath(hostpath) => {
            let hostpath = hostpath.clone();
            let context = Arc::clone(context);
            let doing = Doing::changing(format!("stage at `{}`", request.staging));
            let work = move || directory(&context, &hostpath, &request);
            blocking::run(limits, doing, work).await
        }
        Attachment::Iscsi(_) | Attachment::Nvmeof(_) => {
            device::stage(context, overdue, limits, Arc::new(request)).await
        }
        Attachment::ZfsLocal(zfs) => {
            let zfs = zfs.clone();
            dataset::stage(context, overdue, limits, &zfs, Arc::new(request)).await
        }
        Attachment::Nfs(_)
        | Attachment::Smb(_)
        | Attachment::Lustre(_)
        | Attachment::Objectivefs(_)
        | Attachment::Oneclient(_) => share::stage(context, limits, Arc::new(request)).await,
    }
}

/// Whether a volume can be mounted with these options; else why not.
fn only_mounts(options: &MountOptions) -> Result<(), &'static str> {
    if options.operations.is_empty() {
        return Ok(());
    }
    Err(
        "a mount option asks for another operation than mounting: bind, remount, shared or the like",
    )
}

fn directory(context: &Context, hostpath: &Hostpath, request: &StageRequest) -> Result<(), Error> {
    mount_access(&request.capability, &request.attachment)?;
    // Before the staging path is made: a volume that does not exist leaves nothing behind.
    let source = hostpath::source(hostpath)?;
    let slot = MountTarget::open(&context.kernel, request.staging.path(), Shape::Directory)?;
    hostpath::stage(hostpath, &source, &slot).map_err(|error| slot.undo(error))
}
