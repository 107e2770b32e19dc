//! A volume on its way to another connection.
//!
//! It goes in rounds while it is in use: the first one carries all of it, each further one what was written since. A
//! round ends at a moment that both ends have. All that is known is on the storage of both ends, so an interrupted
//! round goes on when the same call is made again. An operator asks for it, no orchestrator does.

use std::fmt;

use async_trait::async_trait;

use crate::call::Call;
use crate::error::Error;
use crate::transfer::{Bookmark, Bytes, ExportInfo};
use crate::volume::Volume;

/// A moment of a volume, by the number that its storage gives it. The same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(pub u64);

/// The progress of a move, as its target shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveState {
    /// Nothing has come.
    Nothing,
    /// The first round was interrupted.
    Part,
    /// The last round ended at this moment. The next one may have been interrupted.
    At(Moment),
    /// It has the content of this moment and is being made a volume. No round can follow.
    Ending(Moment),
    /// It is a volume.
    Volume(Box<Volume>),
}

/// A round that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// The bytes of its stream; of one that went on, those that came last.
    pub bytes: u64,
    /// Its moment.
    pub moment: Moment,
}

/// The source of one move. Creating it costs nothing and touches nothing.
#[async_trait]
pub trait MoveSource: Send + Sync + fmt::Debug {
    /// Describes the volume. `NotFound`.
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error>;

    /// Opens what was written since a moment, or all of the volume: up to a new moment, or, from a bookmark, up to the
    /// moment of the interrupted round. Only that moment and `since` are kept. `NotFound`: there is no volume, or one of
    /// the two moments is gone.
    async fn open(
        &self,
        call: &Call,
        since: Option<Moment>,
        from: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error>;

    /// About how many bytes were written since a moment; none only if nothing was. `NotFound`: it is gone.
    async fn written_since(&self, call: &Call, since: Moment) -> Result<u64, Error>;

    /// The clients that are connected to the volume now, as its server names them. Empty where the server cannot tell.
    async fn connected(&self, call: &Call) -> Result<Vec<String>, Error>;

    /// Removes what was made at the source for this move. Idempotent. The volume stays.
    async fn close(&self, call: &Call) -> Result<(), Error>;
}
