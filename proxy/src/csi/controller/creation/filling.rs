//! The content of a new volume, and how it gets there.
//!
//! If source and target are two names of one storage, its driver copies by itself. Between two
//! storages the content passes through this process: the driver of the target imports what the
//! driver of the source exports, if they have a format in common, and each uses the threads of its
//! own connection. compat: "The proxy".

use std::sync::Arc;

use async_trait::async_trait;
use driver_core::transfer::{Bookmark, CopyTag, ExportInfo, ExportStream, Stream, TransferFormat};
use driver_core::{Call, CreateVolume, Elsewhere, Error, Kind, Source, Volume};
use tracing::{info, warn};

use crate::csi::decode::SourceHandle;
use crate::routing::connection::Connection;
use crate::routing::connections::Connections;
use crate::rpc::Task;
use crate::rpc::in_flight::Object;

/// The content of a new volume.
#[derive(Debug)]
pub(super) struct Filling {
    home: Arc<Connection>,
    source: Source,
    /// The handle of the caller, if it must be copied from another storage.
    carried: Option<Elsewhere>,
}

/// The source, with the connection whose threads, metrics and errors its work counts for.
#[derive(Debug)]
struct Drawn<'a> {
    inner: Box<dyn ExportStream + 'a>,
    home: &'a Connection,
    task: &'a Task,
}

// === impl Filling ===

impl Filling {
    /// The content of a new volume of `connection`, or why it is impossible.
    pub(super) async fn of(
        connections: &Connections,
        connection: &Arc<Connection>,
        handle: &SourceHandle,
    ) -> Result<Self, Error> {
        let can = connection.can();
        let (home, source, elsewhere, able) = match handle {
            SourceHandle::Snapshot(handle) => {
                let (home, id) = connections.of_snapshot(handle).await.map_err(not_yet)?;
                let elsewhere = Elsewhere::Snapshot(handle.whole().clone());
                (home, Source::Snapshot(id), elsewhere, can.snapshots)
            }
            SourceHandle::Volume(handle) => {
                let (home, id) = connections.of_volume(handle).await.map_err(not_yet)?;
                let elsewhere = Elsewhere::Volume(handle.whole().clone());
                (home, Source::Volume(id), elsewhere, can.clones)
            }
        };
        // Two names of one backend share volumes and ids.
        let is_same = home.name() == connection.name()
            || home.driver().backend_identity() == connection.driver().backend_identity();
        let filling = Self {
            home,
            source,
            carried: (!is_same).then_some(elsewhere),
        };
        if is_same && !able {
            // Not UNIMPLEMENTED: the call itself is served.
            return Err(filling
                .refused()
                .advise("this driver cannot make volumes of such a source"));
        }
        if !is_same {
            filling.check_forms(connection)?;
        }
        Ok(filling)
    }

    /// The connection of the source.
    pub(super) fn home(&self) -> &Connection {
        &self.home
    }

    /// The source, which must not be deleted during the creation.
    pub(super) fn object(&self) -> Object {
        match &self.source {
            Source::Snapshot(id) | Source::Elsewhere(Elsewhere::Snapshot(id)) => {
                Object::Snapshot(id.clone())
            }
            Source::Volume(id) | Source::Elsewhere(Elsewhere::Volume(id)) => {
                Object::Volume(id.clone())
            }
        }
    }

    /// The source, as the driver of the new volume sees it.
    pub(super) fn source(&self) -> Source {
        match &self.carried {
            Some(elsewhere) => Source::Elsewhere(elsewhere.clone()),
            None => self.source.clone(),
        }
    }

    /// Whether it must be copied from another storage.
    pub(super) fn is_carried(&self) -> bool {
        self.carried.is_some()
    }

    fn refused(&self) -> Error {
        Error::invalid(format!("fill a volume from {}", self.object()))
    }

    /// Rejects a source that cannot be copied to `target`.
    fn check_forms(&self, target: &Connection) -> Result<(), Error> {
        let (gives, takes) = (
            self.home.driver().export_formats(),
            target.driver().import_formats(),
        );
        if gives.iter().any(|form| takes.contains(form)) {
            return Ok(());
        }
        let (here, there) = (self.home.name(), target.name());
        let elsewhere = format!("the source is in another connection, `{here}`");
        let all =
            |forms: &[TransferFormat], block| forms.iter().all(|form| form.is_block() == block);
        let why = if gives.is_empty() {
            format!(
                "and its driver, `{}`, exports no content",
                self.home.driver().kind()
            )
        } else if takes.is_empty() {
            let kind = target.driver().kind();
            format!("and the driver of `{there}`, `{kind}`, imports no content")
        } else if all(gives, true) && all(takes, false) {
            "which has disks, and a disk cannot become a volume of files".to_owned()
        } else if all(gives, false) && all(takes, true) {
            "which has files, and files cannot become a disk".to_owned()
        } else {
            let listed = |forms: &[TransferFormat]| {
                let words: Vec<_> = forms.iter().map(TransferFormat::to_string).collect();
                words.join(" and ")
            };
            let (given, taken) = (listed(gives), listed(takes));
            format!("it exports {given}, and `{there}` imports {taken}")
        };
        Err(self
            .refused()
            .because(format!("{elsewhere}, {why}"))
            .advise(
                "create the volume in the connection of its source, or copy the content in a pod",
            ))
    }

    /// Creates the volume.
    pub(super) async fn make(
        &self,
        task: &Task,
        connection: &Connection,
        wanted: &CreateVolume,
    ) -> Result<Volume, Error> {
        let driver = connection.driver();
        if !self.is_carried() {
            let made = driver.create_volume(&task.call, wanted);
            return task.ask_for_copy(connection, "create_volume", made).await;
        }
        let tag = CopyTag::of(connection.volume_handle(&wanted.id));
        let inner = self.home.driver().export(&self.source, &tag);
        let from = Drawn {
            inner: inner.map_err(|error| self.home.explain(error))?,
            home: &self.home,
            task,
        };
        info!(
            origin = %self.home.name(),
            to = %connection.name(),
            source = %self.object(),
            "a copy from another connection"
        );
        let made = driver.import(&task.call, wanted, &from);
        let made = task.ask_for_copy(connection, "inflow", made).await?;
        // The volume is complete, so the call succeeds: what is left at the source is an orphan
        // there.
        if let Err(error) = from.close(&task.call).await {
            warn!(
                origin = %self.home.name(),
                error = %error.chain(),
                "the volume is complete; the helper at its source was not removed"
            );
        }
        Ok(made)
    }
}

/// The error about a source whose driver cannot be built now: it may be there later, and the new volume is
/// not refused for good.
fn not_yet(error: Error) -> Error {
    match error.kind() {
        Kind::Internal => Error::new(Kind::Pending, "find the source of the volume").because(error),
        _ => error,
    }
}

#[async_trait]
impl ExportStream for Drawn<'_> {
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error> {
        let work = self.inner.info(call);
        self.task.ask(self.home, "measure", work).await
    }

    async fn open(&self, call: &Call, from: Option<&Bookmark>) -> Result<Stream, Error> {
        let work = self.inner.open(call, from);
        self.task.ask_for_copy(self.home, "outflow", work).await
    }

    async fn close(&self, call: &Call) -> Result<(), Error> {
        let work = self.inner.close(call);
        self.task.ask(self.home, "close", work).await
    }
}
