//! Making a volume ready at its staging path.
//!
//! A directory of the node is one hop without a child process, and so is a look that finds the
//! volume staged already. Otherwise the steps are: record, attach, prepare, mount, verify. Each
//! finds in the kernel what an earlier, killed call has left; one that fails with a known outcome
//! takes away what this call attached.

mod device;
mod local;

pub(super) use device::bind;
pub(super) use local::grow;

use std::sync::Arc;

use super::Context;
use super::hostpath;
use super::publish;
use super::request::StageRequest;
use super::slot::{Shape, Slot};
use crate::attachment::{Attachment, Hostpath};
use crate::blocking::{self, Doing, Terms};
use crate::error::Error;

pub(super) async fn stage(
    context: &Arc<Context>,
    terms: Terms,
    request: StageRequest,
) -> Result<(), Error> {
    match &request.attachment {
        Attachment::Hostpath(hostpath) => {
            let hostpath = hostpath.clone();
            let context = Arc::clone(context);
            let doing = Doing::changing(format!("stage at `{}`", request.staging));
            let work = move || directory(&context, &hostpath, &request);
            blocking::run(terms, doing, work).await
        }
        _ => device::stage(context, terms, Arc::new(request)).await,
    }
}

fn directory(context: &Context, hostpath: &Hostpath, request: &StageRequest) -> Result<(), Error> {
    publish::mount_access(&request.capability)?;
    // Before the staging path is made: a volume that does not exist leaves nothing behind.
    let source = hostpath::source(hostpath)?;
    let slot = Slot::open(&context.kernel, request.staging.path(), Shape::Directory)?;
    hostpath::stage(hostpath, &source, &slot).map_err(|error| slot.undo(error))
}
