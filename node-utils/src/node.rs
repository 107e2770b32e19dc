//! The verbs of a node: stage, publish, their opposites, statistics and growth.
//!
//! Each verb is one hop to a thread that may block, and finds all state in the kernel: a killed
//! process leaves a prefix of the steps, and the retry completes it. What a volume is, is decided
//! by its [`Attachment`]; only directories of the node exist so far.

mod exclusive;
mod group;
mod hostpath;
mod publish;
mod release;
mod request;
mod slot;
mod stats;
mod stuck;
#[cfg(test)]
mod tests;

pub use request::{
    ExpandRequest, Health, NodeConfig, PublishRequest, StageRequest, StagingPath, TargetPath,
    Usage, VolumeStats,
};

use std::sync::Arc;

use crate::attachment::{AbsolutePath, Attachment, Hostpath};
use crate::blocking::{self, Doing, Terms};
use crate::error::{Error, Kind};
use crate::mount::MountError;
use slot::Slot;
use stuck::Stuck;

/// The node half of every kind of volume. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    config: Arc<NodeConfig>,
    stuck: Arc<Stuck>,
}

// === impl Node ===

impl Node {
    /// A node with the operator's wishes.
    pub fn new(config: NodeConfig) -> Self {
        Self {
            config: Arc::new(config),
            stuck: Arc::default(),
        }
    }

    /// Makes a volume ready. Idempotent.
    ///
    /// `NotFound`: it does not exist on this node. `Conflict`: another volume is staged there.
    pub async fn stage(&self, terms: Terms, request: StageRequest) -> Result<(), Error> {
        let doing = Doing::changing(format!("stage at `{}`", request.staging));
        blocking::run(terms, doing, move || stage(&request)).await
    }

    /// Undoes [`Node::stage`]. What is not staged is unstaged.
    pub async fn unstage(&self, terms: Terms, staging: StagingPath) -> Result<(), Error> {
        let doing = Doing::changing(format!("unstage `{staging}`"));
        blocking::run(terms, doing, move || release::release(staging.path())).await
    }

    /// Shows a staged volume at a target. Idempotent.
    ///
    /// `Conflict`: something else is at the target, or the same volume with other arguments.
    /// `Precondition`: not staged, or published elsewhere in an exclusive mode. The caller keeps
    /// two publications of one volume apart: between the look and the mount nothing is locked here.
    pub async fn publish(&self, terms: Terms, request: PublishRequest) -> Result<(), Error> {
        let doing = Doing::changing(format!("publish at `{}`", request.target));
        let config = Arc::clone(&self.config);
        blocking::run(terms, doing, move || publish::publish(&config, &request)).await
    }

    /// Undoes [`Node::publish`] and deletes the target. What is not published is unpublished.
    pub async fn unpublish(&self, terms: Terms, target: TargetPath) -> Result<(), Error> {
        let doing = Doing::changing(format!("unpublish `{target}`"));
        blocking::run(terms, doing, move || release::release(target.path())).await
    }

    /// Space, files and health of the volume that is mounted at `path`. `NotFound`: none is.
    /// `Timeout`, at once: an earlier look at this path is overdue.
    pub async fn stats(&self, terms: Terms, path: AbsolutePath) -> Result<VolumeStats, Error> {
        let doing = format!("read statistics of `{path}`");
        let look = path.clone();
        let look = move || stats::stats(&look);
        self.stuck.look(terms, doing, &path, look).await
    }

    /// Lets the node see a larger volume; the size it has now, where something limits it.
    /// `NotFound`: nothing is mounted at that path.
    pub async fn expand(&self, terms: Terms, request: ExpandRequest) -> Result<Option<u64>, Error> {
        let doing = Doing::changing(format!("expand `{}`", request.path));
        blocking::run(terms, doing, move || expand(&request)).await
    }
}

fn stage(request: &StageRequest) -> Result<(), Error> {
    publish::mount_access(&request.capability)?;
    let hostpath = directory(&request.attachment)?;
    // Before the staging path is made: a volume that does not exist leaves nothing behind.
    let source = hostpath::source(hostpath)?;
    let slot = Slot::open(request.staging.path())?;
    hostpath::stage(hostpath, &source, &slot).map_err(|error| slot.undo(error))
}

/// The one kind of attachment that is served yet.
fn directory(attachment: &Attachment) -> Result<&Hostpath, Error> {
    match attachment {
        Attachment::Hostpath(hostpath) => Ok(hostpath),
        other => {
            let doing = format!("use a volume of the kind `{}`", other.kind());
            Err(Error::new(Kind::Invalid, doing)
                .advise("this build serves directories of the node, kind `hostpath`, only"))
        }
    }
}

/// A directory has no size of its own: there is nothing to grow, but the volume has to be there.
fn expand(request: &ExpandRequest) -> Result<Option<u64>, Error> {
    match stats::mounted(&request.path) {
        Ok(_) => Ok(None),
        Err(stats::Failure::Other(error)) => Err(error),
        Err(stats::Failure::Dead(errno)) => {
            let doing = format!("expand `{}`", request.path);
            Err(Error::new(Kind::Internal, doing).because(errno))
        }
    }
}

/// A failed mount or unmount.
fn mount_failed(doing: String, error: MountError) -> Error {
    let (kind, advice) = if error.is_busy() {
        (
            Kind::Busy,
            "a process still uses it: an open file, or a working directory",
        )
    } else if error.is_denied() {
        (Kind::Internal, "mounting needs the capability SYS_ADMIN")
    } else {
        return Error::new(Kind::Internal, doing).because(error);
    };
    Error::new(kind, doing).because(error).advise(advice)
}
