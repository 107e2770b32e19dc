//! Copies from one storage to another, without bytes: only the exchange of requests counts, and
//! what is left at the source.

use async_trait::async_trait;
use driver_core::contract::fake::Verb;
use driver_core::transfer::{
    Bookmark, Bytes, CopyTag, ExportInfo, ExportStream, Stream, TransferFormat,
};
use driver_core::{
    Call, CreateVolume, Driver, Elsewhere, Error, GetSnapshot, Kind, Lister as _, Snapshots as _,
    Source, Volume,
};

use super::{Storage, inner};
use crate::csi::controller::model::flaws::Flaw;

/// The export of one storage for a copy in another one.
#[derive(Debug)]
pub(super) struct Given<'a> {
    storage: &'a Storage,
    source: Source,
    tag: CopyTag,
}

/// A finished stream.
#[derive(Debug)]
struct Nothing;

impl Storage {
    /// Creates a volume from the export of another storage.
    pub(super) async fn take_in(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn ExportStream,
    ) -> Result<Volume, Error> {
        let id = &request.id;
        let handle = match &request.source {
            Some(Source::Elsewhere(Elsewhere::Volume(handle))) => handle.as_str(),
            Some(Source::Elsewhere(Elsewhere::Snapshot(handle))) => handle.as_str(),
            _ => return Err(Error::new(Kind::Internal, "take in what is not elsewhere")),
        };
        let is_there = self.inner.get_volume(&inner(), id).await.is_ok();
        if is_there && !self.agrees(id, Some(handle)) {
            return Err(Error::new(Kind::Conflict, "create volume"));
        }
        if !is_there {
            if self.state().full {
                return Err(Error::new(Kind::OutOfSpace, "create volume"));
            }
            from.info(call).await?;
            drop(from.open(call, None).await?);
        }
        call.changing();
        let plain = CreateVolume {
            source: None,
            ..request.clone()
        };
        let made = self.inner.create_volume(&inner(), &plain).await?;
        let mut state = self.state();
        state.halves.remove(id.as_str());
        let id = id.as_str().to_owned();
        state.carried.insert(id, handle.to_owned());
        Ok(made)
    }
}

// === impl Given ===

impl<'a> Given<'a> {
    pub(super) fn new(storage: &'a Storage, source: Source, tag: CopyTag) -> Self {
        Self {
            storage,
            source,
            tag,
        }
    }
}

#[async_trait]
impl ExportStream for Given<'_> {
    async fn info(&self, _: &Call) -> Result<ExportInfo, Error> {
        let found = ExportInfo {
            format: self
                .storage
                .forms
                .first()
                .copied()
                .unwrap_or(TransferFormat::Tree),
            minimum_size: 0,
            bytes: None,
        };
        match &self.source {
            Source::Volume(id) => {
                let all = async { self.storage.inner.get_volume(&inner(), id).await };
                self.storage.look(Verb::GetVolume, all).await?;
            }
            Source::Snapshot(id) => {
                let all = async {
                    self.storage
                        .inner
                        .get_snapshot(&inner(), GetSnapshot::new(id))
                        .await
                };
                self.storage.look(Verb::GetSnapshot, all).await?;
            }
            Source::Elsewhere(_) => {
                return Err(Error::new(Kind::Internal, "give what is elsewhere"));
            }
        }
        Ok(found)
    }

    async fn open(&self, _: &Call, _: Option<&Bookmark>) -> Result<Stream, Error> {
        let tag = self.tag.as_str().to_owned();
        self.storage.state().opened.insert(tag);
        Ok(Stream::Bytes(Box::new(Nothing)))
    }

    async fn close(&self, _: &Call) -> Result<(), Error> {
        let mut state = self.storage.state();
        if state.down {
            return Err(Error::new(Kind::Unreachable, "close a copy"));
        }
        if self.storage.flaw != Some(Flaw::KeepsCopiesOpen) {
            state.opened.remove(self.tag.as_str());
        }
        Ok(())
    }
}

#[async_trait]
impl Bytes for Nothing {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        Ok(None)
    }
}
