//! Content to other connections and from them, as streams of `zfs send`.
//!
//! The source sends a snapshot: that of the orchestrator, or a helper that is taken for this copy
//! alone and removed with it. The target receives it under the name of the volume, with its marks;
//! it becomes a volume when it is completed like any other one. An interrupted copy resumes where
//! the storage says, and restarts if that is impossible. compat: "The proxy".

use std::time::Duration;

use async_trait::async_trait;
use driver_core::transfer::{
    Bookmark, Bytes, CopyTag, ExportInfo, ExportStream, Stream, TransferFormat,
};
use driver_core::{Call, CreateVolume, Effect, Error, Kind, Source, Volume};
use tokio::time::Instant;

use super::ZfsDriver;
use crate::backend::{Incoming, Interrupted};
use crate::id::{self, At};
use crate::name::{DatasetName, Object, SnapshotLeaf, SnapshotRef};
use crate::observed::{Dataset, Query, Request, VolumeKind, held};
use crate::plan::create::{Arrival, Create, DropHelper, TakeHelper, content_of, given_up};
use crate::property::PropertyName;
use crate::step::{Next, Plan};

const FILES: &[TransferFormat] = &[TransferFormat::ZfsFilesystem];
const DISKS: &[TransferFormat] = &[TransferFormat::ZfsVolume];

/// The number of times the target may change during a stream before the copy fails.
const ATTEMPTS: usize = 4;
/// The pause between two logs of the progress of a stream. A stream takes minutes to hours.
const EVERY: Duration = Duration::from_mins(1);

/// A source, for one copy.
struct Origin<'a> {
    driver: &'a ZfsDriver,
    named: Object,
    sent: SnapshotRef,
    /// The dataset of the helper, if the snapshot is one.
    helper: Option<DatasetName>,
}

/// A stream that logs its progress.
#[derive(Debug)]
pub(super) struct LoggedStream {
    inner: Box<dyn Bytes>,
    to: DatasetName,
    bytes: u64,
    whole: Option<u64>,
    said: Instant,
}

// === impl LoggedStream ===

impl LoggedStream {
    pub(super) fn new(inner: Box<dyn Bytes>, to: &DatasetName, whole: Option<u64>) -> Self {
        Self {
            inner,
            to: to.clone(),
            bytes: 0,
            whole,
            said: Instant::now(),
        }
    }

    /// The bytes that have come.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[async_trait]
impl Bytes for LoggedStream {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let piece = self.inner.next().await?;
        self.bytes += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        if piece.is_none() || self.said.elapsed() >= EVERY {
            self.said = Instant::now();
            let (bytes, of) = (self.bytes, self.whole);
            tracing::info!(to = %self.to, bytes, of, ended = piece.is_none(), "copying");
        }
        Ok(piece)
    }
}

// === impl Origin ===

impl std::fmt::Debug for Origin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Origin")
            .field("named", &self.named)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ExportStream for Origin<'_> {
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error> {
        self.driver.measure(call, &self.named).await
    }

    async fn open(&self, call: &Call, from: Option<&Bookmark>) -> Result<Stream, Error> {
        if let (None, Some(of)) = (from, &self.helper) {
            let verb = TakeHelper {
                of: of.clone(),
                helper: self.sent.clone(),
            };
            self.driver.converge(call, &verb).await?;
        }
        let backend = &self.driver.backend;
        let sent = backend.send(call, &self.sent, None, from).await?;
        Ok(Stream::Bytes(sent))
    }

    async fn close(&self, call: &Call) -> Result<(), Error> {
        let Some(of) = &self.helper else {
            return Ok(());
        };
        let verb = DropHelper {
            of: of.clone(),
            helper: self.sent.clone(),
        };
        self.driver.converge(call, &verb).await
    }
}

impl ZfsDriver {
    pub(super) fn forms(&self) -> &'static [TransferFormat] {
        match self.kind() {
            _ if !self.backend.streams() => &[],
            VolumeKind::Filesystem => FILES,
            VolumeKind::Zvol => DISKS,
        }
    }

    /// Describes what is sent.
    pub(super) async fn measure(&self, call: &Call, named: &Object) -> Result<ExportInfo, Error> {
        let pool = self.observe(call, vec![Query::of(named.clone())]).await?;
        let found = content_of(named, &pool).filter(|(kind, _)| *kind == self.kind());
        let Some((kind, properties)) = found else {
            return Err(Error::not_found(format!("send {named}")));
        };
        let bytes = held(properties);
        let size = properties.number(&PropertyName::VOLSIZE);
        Ok(match kind {
            VolumeKind::Filesystem => ExportInfo {
                format: TransferFormat::ZfsFilesystem,
                minimum_size: bytes,
                bytes: Some(bytes),
            },
            VolumeKind::Zvol => ExportInfo {
                format: TransferFormat::ZfsVolume,
                minimum_size: size.unwrap_or_default(),
                bytes: Some(bytes),
            },
        })
    }

    pub(super) fn origin(
        &self,
        source: &Source,
        tag: &CopyTag,
    ) -> Result<Box<dyn ExportStream + '_>, Error> {
        use driver_core::Driver as _;
        if self.forms().is_empty() {
            return Err(self.unsupported("export content to another connection"));
        }
        let of = match source {
            Source::Volume(id) => At::Detached(self.layout().volume(id)?),
            Source::Snapshot(id) => self.layout().snapshot(id)?.at,
            Source::Elsewhere(source) => {
                return Err(Error::invalid(format!(
                    "export {source} to another connection"
                )));
            }
        };
        let (named, sent, helper) = match of {
            At::Attached(snapshot) => (snapshot.clone().into(), snapshot, None),
            At::Detached(dataset) => {
                let sent = dataset.at(&id::helper_for_copy(tag)).map_err(|error| {
                    Error::invalid(format!("export {dataset} to another connection")).because(error)
                })?;
                (dataset.clone().into(), sent, Some(dataset))
            }
        };
        Ok(Box::new(Origin {
            driver: self,
            named,
            sent,
            helper,
        }))
    }

    pub(super) async fn filled_from(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn ExportStream,
    ) -> Result<Volume, Error> {
        use driver_core::Driver as _;
        if self.forms().is_empty() {
            return Err(self.unsupported("fill a volume from another connection"));
        }
        let dataset = self.layout().volume(&request.id)?;
        self.check_place(request)?;
        let leaf = id::helper_for_volume(&request.id).map_err(|error| {
            Error::invalid(format!("create volume `{}`", request.id)).because(error)
        })?;
        let plain = CreateVolume {
            source: None,
            ..request.clone()
        };
        let mut verb = self.creation(&plain, &dataset)?;
        (verb.request, verb.received) = (request, Some(leaf.clone()));
        call.outcome(self.arrive(call, &verb, &leaf, from).await)?;
        self.shown(call, &verb, |made| self.volume(made)).await
    }

    /// Ensures that all of the content exists, under the volume's name.
    async fn arrive(
        &self,
        call: &Call,
        verb: &Create<'_>,
        leaf: &SnapshotLeaf,
        from: &dyn ExportStream,
    ) -> Result<(), Error> {
        let doing = format!("create volume `{}`", verb.request.id);
        let mut last = None;
        for _ in 0..ATTEMPTS {
            call.check(&doing)?;
            let pool = self.observe(call, verb.queries_before()).await?;
            let part = match verb.arrival(&pool)? {
                Arrival::Content => return Ok(()),
                Arrival::Nothing => {
                    verb.check_place(&pool)?;
                    None
                }
                Arrival::Part(part) => Some(part),
            };
            let bookmark = part.as_ref().and_then(Dataset::resumes);
            let (mut whole, mut properties) = (None, Vec::new());
            if part.is_none() {
                let measure = from.info(call).await?;
                properties = verb.properties_of(&pool, measure.minimum_size)?;
                whole = measure.bytes;
            }
            if let Some(plan) = verb.parent(&pool)
                && let Err(error) = self.done(call, &plan).await
            {
                return Err(self.given_room(call, verb, error).await);
            }
            let stream = match (from.open(call, bookmark.as_ref()).await, &part) {
                (Ok(Stream::Bytes(stream)), _) => stream,
                (Ok(Stream::Tree(_)), _) => {
                    return Err(Error::invalid(doing).because("the content is not a stream"));
                }
                // The source of the part is gone.
                (Err(error), Some(part)) if error.kind() == Kind::NotFound => {
                    tracing::info!(
                        to = %part.name,
                        why = %error.chain(),
                        "an interrupted copy cannot resume, and restarts"
                    );
                    self.done(call, &given_up(part)).await?;
                    last = Some(error);
                    continue;
                }
                (Err(error), _) => return Err(error),
            };
            let to = verb.export_ref.dataset;
            let mut stream = LoggedStream::new(stream, to, whole);
            tracing::info!(%to, of = stream.whole, goes_on = part.is_some(), "copying");
            let incoming = Incoming {
                to: to
                    .at(leaf)
                    .map_err(|error| Error::invalid(doing.clone()).because(error))?,
                properties,
                goes_on: part.is_some(),
            };
            match self.backend.receive(call, &incoming, &mut stream).await {
                Ok(()) => return Ok(()),
                Err(Interrupted::Source(error)) => return Err(error),
                Err(Interrupted::Here(failed)) => match (failed.next, &part) {
                    // It may be complete or have another owner by now: the next observation shows
                    // it.
                    (Next::Observe, _) => last = Some(failed.error),
                    // The existing part may be what fills the pool.
                    (Next::Tell, Some(part)) if failed.error.kind() == Kind::Internal => {
                        self.done(call, &given_up(part)).await?;
                        last = Some(failed.error);
                    }
                    _ => return Err(self.given_room(call, verb, failed.error).await),
                },
            }
        }
        let pending = Error::new(Kind::Pending, doing);
        Err(match last {
            Some(last) => pending.because(last),
            None => pending,
        })
    }

    /// Removes the part of a copy that ran out of space: it would take the space of others, and the
    /// caller may use another connection if nothing of the volume is left. Any other error is
    /// returned unchanged.
    async fn given_room(&self, call: &Call, verb: &Create<'_>, error: Error) -> Error {
        if error.kind() != Kind::OutOfSpace {
            return error;
        }
        let ended = async {
            let pool = self.observe(call, verb.queries_before()).await?;
            match verb.arrival(&pool)? {
                Arrival::Nothing => Ok(true),
                Arrival::Part(part) => self.done(call, &given_up(&part)).await.map(|()| true),
                Arrival::Content => Ok(false),
            }
        };
        match ended.await {
            Ok(true) => {
                call.undone();
                error.with_effect(Effect::None)
            }
            Ok(false) => error,
            Err(unknown) => {
                let why = unknown.chain();
                tracing::warn!(to = %verb.export_ref.dataset, error = why, "cannot determine what is left of it");
                error
            }
        }
    }

    /// Applies a plan without an observation afterwards.
    pub(super) async fn done(&self, call: &Call, plan: &Plan) -> Result<(), Error> {
        let nothing = Request::of([]);
        let done = self.backend.apply(call, plan, &nothing).await;
        done.map(drop).map_err(|failed| failed.error)
    }
}
