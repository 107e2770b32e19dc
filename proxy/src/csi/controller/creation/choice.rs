//! Chooses the connection of a class that creates a volume.
//!
//! All are asked for the volume before any of them creates it: a second volume would hide the
//! first. A connection that has a part of it is the only candidate, whatever its file says by then and
//! whatever its capacity.
//! compat: "The proxy".

use std::cmp::Reverse;
use std::sync::Arc;

use driver_core::{Capacity, CapacityQuery, Effect, Error, FindVolume, Found, Kind, Secrets};
use node_utils::blocking::is_for_threads_that_hang;
use tracing::warn;

use super::{Candidate, Filling};
use crate::csi::controller::turns::in_turns;
use crate::csi::decode::CreateVolumeRequest;
use crate::message;
use crate::routing::connection::Connection;
use crate::rpc::Task;

/// What is known of a volume across the connections that may have it.
#[derive(Debug)]
enum Known {
    /// This connection has it.
    There(Box<Candidate>),
    /// No connection has it, and these may create it: those that have started it, if there are any.
    Nowhere(Vec<Candidate>),
}

/// What is searched after a failed creation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sought<'a> {
    pub(super) volume: FindVolume<'a>,
    /// Whether another connection has a part of it: to forget the volume would leave that part behind.
    pub(super) is_elsewhere: bool,
}

/// The known capacity of a connection; the better comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    /// Enough, with this amount; the largest comes first.
    Enough(Reverse<u64>),
    /// Unknown.
    Unknown,
    /// Less than requested.
    Short(Reverse<u64>),
}

/// The connections to try, in order: the one that has the volume, or else only those where it was
/// started. Without such a one, those with enough capacity come first, then the nearest
/// ones, then those with the most capacity.
pub(super) async fn in_order(
    task: &Task,
    candidates: Vec<Candidate>,
    request: &CreateVolumeRequest,
) -> Result<Vec<Candidate>, Error> {
    if candidates.iter().all(|candidate| candidate.able.is_err()) {
        return Err(refused(task, candidates, &request.secrets).await);
    }
    if candidates.len() == 1 && !candidates.iter().any(Candidate::is_closed) {
        return Ok(candidates);
    }
    let candidates = match known(task, candidates, &request.secrets).await? {
        Known::There(candidate) => return Ok(vec![*candidate]),
        Known::Nowhere(candidates) => candidates,
    };
    let rooms = candidates
        .iter()
        .map(|candidate| candidate.room(task, request));
    let rooms = in_turns(rooms).await;
    let mut ordered: Vec<_> = rooms.into_iter().zip(candidates).collect();
    // The first of the list wins among equals: the sort is stable.
    ordered.sort_by_cached_key(|(room, candidate)| {
        let rank = candidate.connection.accessibility().rank(&request.topology);
        let is_short = matches!(room, Room::Short(_));
        // A connection that has the source needs no copy between storages.
        let is_carried = candidate.is_carried();
        (candidate.is_closed(), is_carried, is_short, rank, *room)
    });
    Ok(ordered
        .into_iter()
        .map(|(_, candidate)| candidate)
        .collect())
}

/// The error if no connection may create the volume: final only if none has it or a part of it. An
/// earlier call may have come before the current problem, such as a changed file.
async fn refused(task: &Task, candidates: Vec<Candidate>, secrets: &Secrets) -> Error {
    let looks = candidates
        .iter()
        .map(|candidate| candidate.part(task, secrets));
    let found = in_turns(looks).await;
    let mut refusals = candidates.into_iter().filter_map(|one| one.able.err());
    let missing = || Error::invalid("request field `parameters`");
    let refusal = refusals.next().unwrap_or_else(missing);
    let mut most = [Found::Begun, Found::Whole].into_iter();
    careful(refusal, most.find(|one| found.contains(&Some(*one))))
}

/// The refusal of a volume of which so much exists, which must not be forgotten. Of a complete one a wrong topology
/// alone is final: the caller then chooses another topology, and finds the volume.
pub(super) fn careful(refusal: Error, found: Option<Found>) -> Error {
    match (found, refusal.kind()) {
        (None, _) | (Some(Found::Whole), Kind::OutOfSpace) => refusal,
        (Some(Found::Begun | Found::Whole), _) => refusal.with_effect(Effect::Possible),
    }
}

/// The error of a connection that does not create a volume. A problem of the request or of the
/// configuration, and a refusal by the storage before the first change, are final only if no earlier call
/// left a part there: otherwise that part would be forgotten. A storage that is not reached is not asked,
/// and a conflict means that the volume is another one.
pub(super) async fn unless_partial(
    task: &Task,
    connection: &Arc<Connection>,
    sought: Sought<'_>,
    error: Error,
) -> Error {
    let (is_refusal, is_passing) = match error.kind() {
        Kind::Invalid
        | Kind::NotFound
        | Kind::OutOfRange
        | Kind::OutOfSpace
        | Kind::Busy
        | Kind::Unsupported => (true, false),
        Kind::Denied | Kind::Internal => (task.call.effect() == Effect::None, true),
        Kind::Conflict | Kind::Pending | Kind::Unreachable | Kind::Timeout => (false, true),
    };
    let is_final = error.effect() == Effect::None;
    if !is_refusal || !is_final {
        return error;
    }
    if sought.is_elsewhere {
        return careful(error, Some(Found::Begun));
    }
    let found = has(task, connection, sought.volume).await;
    // A judgement needs no proof, and what one connection has says nothing about the next.
    if is_passing && matches!(found, Ok(None)) {
        task.call.found_nothing();
    }
    careful(error, at_most(connection, found))
}

/// The most that exists of a volume after this answer.
fn at_most(connection: &Connection, found: Result<Option<Found>, Error>) -> Option<Found> {
    match found {
        Ok(found) => found,
        // Such a driver cannot answer, so it was not asked.
        Err(error) if error.kind() == Kind::Unsupported => None,
        Err(error) => {
            let error = message::of(&error);
            warn!(connection = %connection.name(), error, "cannot determine whether this connection has the volume");
            Some(Found::Begun)
        }
    }
}

/// The parts of a volume that exist.
async fn has(
    task: &Task,
    connection: &Arc<Connection>,
    volume: FindVolume<'_>,
) -> Result<Option<Found>, Error> {
    let found = connection.driver().find_volume(&task.call, volume);
    match task.ask_patiently(connection, "find_volume", found).await {
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Asks all connections whether they have the volume, including those that may not create it now:
/// an earlier attempt may have had another topology, and a second volume would hide the first.
async fn known(task: &Task, candidates: Vec<Candidate>, secrets: &Secrets) -> Result<Known, Error> {
    let looks = candidates
        .iter()
        .map(|candidate| candidate.has(task, secrets));
    let found = in_turns(looks).await;
    let (mut owners, mut others) = (Vec::new(), Vec::new());
    let mut partial = Vec::new();
    let (mut silent, mut unheard) = (None, None);
    for (candidate, found) in candidates.into_iter().zip(found) {
        match found {
            Ok(Some(Found::Whole)) => owners.push(candidate),
            Ok(found) => {
                let likewise = if found.is_some() {
                    &mut partial
                } else {
                    &mut others
                };
                likewise.push(candidate);
            }
            // The operator closed this connection, so the others do not wait for it.
            Err(error) if candidate.is_closed() && is_silence(&error) => {
                unheard = unheard.or(Some(candidate.in_doubt(&error)));
            }
            // One that does not answer may have the volume, too.
            Err(error) => drop(silent.get_or_insert(candidate.in_doubt(&error))),
        }
    }
    if let Some(owner) = only_owner(owners)? {
        return Ok(Known::There(Box::new(owner)));
    }
    if let Some(error) = silent {
        return Err(error);
    }
    if !partial.is_empty() {
        let many = partial.len();
        for candidate in &mut partial {
            candidate.is_partial = true;
            candidate.is_elsewhere = many > 1;
        }
        return finishing(partial).map(Known::Nowhere);
    }
    match (able(others), unheard) {
        (Ok(able), unheard) => {
            if let Some(error) = unheard {
                let error = message::of(&error);
                warn!(
                    error,
                    "it accepts no new volumes: the volume is created elsewhere"
                );
            }
            Ok(Known::Nowhere(able))
        }
        (Err(_), Some(unheard)) => Err(unheard),
        (Err(refusal), None) => Err(refusal),
    }
}

/// Whether the storage did not answer, as opposed to rejecting the query with a reason.
fn is_silence(error: &Error) -> bool {
    matches!(error.kind(), Kind::Timeout | Kind::Unreachable) || is_for_threads_that_hang(error)
}

/// The candidates that may finish a started volume, even if they accept no new volumes.
fn finishing(started: Vec<Candidate>) -> Result<Vec<Candidate>, Error> {
    let (able, unable): (Vec<_>, Vec<_>) = started
        .into_iter()
        .partition(|candidate| candidate.able.is_ok());
    let refusal = unable.into_iter().find_map(|one| one.able.err());
    match refusal.filter(|_| able.is_empty()) {
        // The problem of this call did not exist for the call that started the volume.
        Some(refusal) => Err(careful(refusal, Some(Found::Begun))),
        None => Ok(able),
    }
}

/// The connection that has the volume. Two names of one storage count as one; on two storages it is
/// ambiguous which of the two is meant.
fn only_owner(mut owners: Vec<Candidate>) -> Result<Option<Candidate>, Error> {
    let Some(first) = owners.first() else {
        return Ok(None);
    };
    let here = first.connection.scope();
    if let Some(other) = owners.iter().find(|other| other.connection.scope() != here) {
        let (one, other) = (first.connection.name(), other.connection.name());
        let refusal = Error::new(Kind::Busy, "choose one of the connections of the class")
            .because(format!(
                "both connection `{one}` and connection `{other}` have the volume"
            ))
            .advise("delete it by hand at the storage where it is not wanted");
        // Forgetting it would lose both.
        return Err(careful(refusal, Some(Found::Whole)));
    }
    let at = owners.iter().position(|owner| owner.able.is_ok());
    Ok(Some(owners.swap_remove(at.unwrap_or_default())))
}

/// The connections that may create a volume that none has.
fn able(candidates: Vec<Candidate>) -> Result<Vec<Candidate>, Error> {
    let (closed, open): (Vec<_>, Vec<_>) = candidates.into_iter().partition(Candidate::is_closed);
    let (able, unable): (Vec<_>, Vec<_>) = open
        .into_iter()
        .partition(|candidate| candidate.able.is_ok());
    if !able.is_empty() {
        return Ok(able);
    }
    let refusals = unable.into_iter().filter_map(|one| one.able.err());
    let closed = closed.iter().map(Candidate::closed);
    let missing = || Error::invalid("request field `parameters`");
    Err(refusals.chain(closed).next().unwrap_or_else(missing))
}

// === impl Candidate ===

impl Candidate {
    /// Whether the connection accepts no new volumes.
    fn is_closed(&self) -> bool {
        !self.connection.makes_new_volumes()
    }

    /// Whether its content must be copied from another storage.
    fn is_carried(&self) -> bool {
        let filling = self.able.as_ref().ok().and_then(Option::as_ref);
        filling.is_some_and(Filling::is_carried)
    }

    /// The error in that case.
    fn closed(&self) -> Error {
        let name = self.connection.name();
        Error::new(Kind::Busy, format!("connection `{name}`"))
            .because("it accepts no new volumes")
            .advise("`proxy.perDriver.newVolumes` in its file says so")
    }

    /// What exists of the volume already.
    async fn has(&self, task: &Task, secrets: &Secrets) -> Result<Option<Found>, Error> {
        let id = &self.id;
        has(task, &self.connection, FindVolume { id, secrets }).await
    }

    /// The part of the volume that exists. A connection that does not answer counts as one that has started it.
    async fn part(&self, task: &Task, secrets: &Secrets) -> Option<Found> {
        at_most(&self.connection, self.has(task, secrets).await)
    }

    /// The error while this connection cannot say whether it has the volume.
    fn in_doubt(&self, error: &Error) -> Error {
        let name = self.connection.name();
        let refusal = Error::new(error.kind(), "choose one of the connections of the class")
            .because(format!(
                "connection `{name}` may have the volume: {}",
                error.chain()
            ))
            .advise(format!(
                "repair its storage, or set `proxy.perDriver.newVolumes: false` in the file of `{name}`"
            ));
        // Not by this call: an earlier one may have created it, and must not be forgotten.
        careful(refusal, Some(Found::Begun))
    }

    /// The free space, as far as it is known.
    async fn room(&self, task: &Task, request: &CreateVolumeRequest) -> Room {
        let query = CapacityQuery {
            parameters: request.parameters.clone(),
            topology: None,
        };
        if !self.connection.can().capacity {
            return Room::Unknown;
        }
        let room = self.connection.driver().capacity(&task.call, &query);
        let room = task.ask_patiently(&self.connection, "capacity", room).await;
        let wanted = request.size.required().unwrap_or_default();
        room.map_or(Room::Unknown, |room| Room::of(&room, wanted))
    }
}

// === impl Room ===

impl Room {
    fn of(room: &Capacity, wanted: u64) -> Self {
        let largest = room.maximum_volume_size.unwrap_or(u64::MAX);
        let available = Reverse(room.available);
        if wanted > room.available || wanted > largest {
            Self::Short(available)
        } else {
            Self::Enough(available)
        }
    }
}
