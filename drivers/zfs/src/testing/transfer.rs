//! Streams between hosts in memory.
//!
//! The content of a snapshot is in tables of the sending host; the stream contains the names of
//! pieces, and a table of this process maps each to its content. So a stream can be interrupted,
//! delayed and mixed up like one of bytes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{Effect, Error, Kind};

use super::MemoryHost;
use super::pool::{Piece, Room};
use super::state::{self, HostState};
use crate::backend::{Base, Incoming, Interrupted};
use crate::name::{Since, SnapshotRef};
use crate::step::{Failed, Next};

/// The content of each started stream, by its number.
static SENT: Mutex<BTreeMap<usize, (SnapshotRef, Vec<Piece>)>> = Mutex::new(BTreeMap::new());

fn sent() -> MutexGuard<'static, BTreeMap<usize, (SnapshotRef, Vec<Piece>)>> {
    SENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stream, as the other side reads it.
#[derive(Debug)]
struct Sending {
    number: usize,
    next: usize,
}

#[async_trait]
impl Bytes for Sending {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        // Other tasks run between two pieces.
        tokio::task::yield_now().await;
        let sent = sent();
        let piece = sent
            .get(&self.number)
            .and_then(|(_, all)| all.get(self.next));
        self.next += 1;
        Ok(piece.map(|piece| format!("{} {}", self.number, piece.text()).into_bytes()))
    }
}

pub(super) fn send(
    state: &mut HostState,
    from: &SnapshotRef,
    since: Option<&Base>,
    resume: Option<&Bookmark>,
) -> Result<Box<dyn Bytes>, Error> {
    state.exchanges += 1;
    if state.is_cut() {
        return Err(state::cut());
    }
    let token = resume.map(Bookmark::as_str);
    let pieces = state.pool.pieces(from, since, token)?;
    let mut sent = sent();
    let number = sent.len();
    sent.insert(number, (from.clone(), pieces));
    Ok(Box::new(Sending { number, next: 0 }))
}

/// The content of a piece of a stream.
fn read(bytes: &[u8]) -> Option<(SnapshotRef, Piece)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (number, text) = text.split_once(' ')?;
    let sent = sent();
    let (snapshot, pieces) = sent.get(&number.parse::<usize>().ok()?)?;
    let piece = pieces.iter().find(|piece| piece.is(text))?;
    Some((snapshot.clone(), piece.clone()))
}

fn here(error: Error) -> Interrupted {
    let next = match error.kind() {
        Kind::Conflict | Kind::NotFound => Next::Observe,
        _ => Next::Tell,
    };
    Interrupted::Here(Failed { next, error })
}

pub(super) async fn receive(
    host: &MemoryHost,
    incoming: &Incoming,
    stream: &mut dyn Bytes,
) -> Result<(), Interrupted> {
    let received = received(host, incoming, stream).await;
    // What has come stays.
    received.map_err(|interrupted| match interrupted {
        Interrupted::Here(failed) => Interrupted::Here(failed.with_effect(Effect::Possible)),
        source @ Interrupted::Source(_) => source,
    })
}

async fn received(
    host: &MemoryHost,
    incoming: &Incoming,
    stream: &mut dyn Bytes,
) -> Result<(), Interrupted> {
    host.state().exchanges += 1;
    let mut started = false;
    while let Some(bytes) = stream.next().await.map_err(Interrupted::Source)? {
        let mut state = host.state();
        if state.is_cut() {
            return Err(here(state::cut()));
        }
        let foreign = || Error::new(Kind::Internal, "receive a stream").because("it is none");
        let (snapshot, piece) = read(&bytes).ok_or_else(|| here(foreign()))?;
        if !started {
            let began = state.pool.begin_receive(incoming, &piece, &snapshot);
            began.map_err(Interrupted::Here)?;
            started = true;
        } else if state.pool.room == Room::None {
            let full = Error::new(Kind::OutOfSpace, "receive a stream").because("it is full");
            return Err(here(full));
        }
        state.pool.receive_piece(incoming, &piece);
        state.steps += 1;
    }
    if host.state().is_cut() {
        return Err(here(state::cut()));
    }
    if started {
        return Ok(());
    }
    Err(here(
        Error::new(Kind::Internal, "receive a stream").because("it is empty"),
    ))
}

/// Records in one piece.
#[derive(Debug)]
struct Recorded(Option<Vec<u8>>);

#[async_trait]
impl Bytes for Recorded {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        tokio::task::yield_now().await;
        Ok(self.0.take())
    }
}

pub(super) fn send_records(
    state: &mut HostState,
    of: &SnapshotRef,
    since: Option<&Since>,
) -> Result<Box<dyn Bytes>, Error> {
    state.exchanges += 1;
    if state.is_cut() {
        return Err(state::cut());
    }
    let bytes = state.pool.records(of, since)?;
    Ok(Box::new(Recorded(Some(bytes))))
}
