//! Volumes that move to other connections and come from them, in rounds of `zfs send`.
//!
//! At either end two snapshots alternate: that of the last moment which both ends have, and that of the next one. The
//! target finds its moment by itself, and the source the snapshot with that number. What is asked for may have been cut
//! at any place: both ends say where they are.

use async_trait::async_trait;
use driver_core::transfer::{Bookmark, Bytes, CopyTag, ExportInfo, TransferFormat};
use driver_core::{
    Call, CreateVolume, Error, Kind, Moment, MoveSource, MoveState, Mover, Round, Volume, VolumeId,
};

use super::transfer::LoggedStream;
use super::{ASKED, ZfsDriver};
use crate::backend::{Base, Incoming, Interrupted};
use crate::id;
use crate::name::{DatasetName, SnapshotRef};
use crate::observed::{Guid, Query, Request, State};
use crate::plan::create::{DropHelper, TakeHelper};
use crate::plan::destroy::DestroyVolume;
use crate::plan::moving::{ANEW, Came, EndMove, GiveUpMove, MoveIn, NextRound};
use crate::property::PropertyName;
use crate::step::{Failed, Next, Plan};

/// The number of times the target may change during a round before it fails.
const ATTEMPTS: usize = 4;

/// A source, for one move.
struct Origin<'a> {
    driver: &'a ZfsDriver,
    id: VolumeId,
    of: DatasetName,
    moments: [SnapshotRef; 2],
}

/// The target of a move, and what its verb is made of.
struct Target {
    dataset: DatasetName,
    /// The request as that of an empty volume.
    plain: CreateVolume,
    moments: [SnapshotRef; 2],
}

/// Why an attempt at a round has not ended it.
enum Unfinished {
    /// The target has changed: it is looked at again. The error is returned if that does not help.
    Again(Error),
    /// It failed.
    Failed(Error),
}

// === impl Origin ===

impl std::fmt::Debug for Origin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Origin")
            .field("of", &self.of)
            .finish_non_exhaustive()
    }
}

impl Origin<'_> {
    /// The snapshot of a moment, and the one that comes next.
    async fn base(&self, call: &Call, since: Moment) -> Result<(Base, &SnapshotRef), Error> {
        let [first, second] = &self.moments;
        let queries = vec![
            Query::Snapshot(first.clone()),
            Query::Snapshot(second.clone()),
        ];
        let pool = self.driver.observe(call, queries).await?;
        let has = |name: &SnapshotRef| {
            let found = pool.snapshot(name).filter(|found| !found.is_doomed());
            found.is_some_and(|found| found.guid.0 == since.0)
        };
        let (name, next) = match (has(first), has(second)) {
            (true, _) => (first, second),
            (_, true) => (second, first),
            (false, false) => {
                let why = format!("{} no longer has the snapshot of the last round", self.of);
                return Err(
                    Error::not_found(format!("send what was written to {}", self.of))
                        .because(why)
                        .advise(ANEW),
                );
            }
        };
        let base = Base {
            name: name.clone(),
            guid: Guid(since.0),
        };
        Ok((base, next))
    }
}

#[async_trait]
impl MoveSource for Origin<'_> {
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error> {
        let named = self.of.clone().into();
        self.driver.measure(call, &named).await
    }

    async fn open(
        &self,
        call: &Call,
        since: Option<Moment>,
        from: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        let (base, sent) = match since {
            None => (None, &self.moments[0]),
            Some(since) => {
                let (base, next) = self.base(call, since).await?;
                (Some(base), next)
            }
        };
        if from.is_none() {
            let verb = TakeHelper {
                of: self.of.clone(),
                helper: sent.clone(),
            };
            self.driver.converge(call, &verb).await?;
        }
        let backend = &self.driver.backend;
        backend.send(call, sent, base.as_ref(), from).await
    }

    async fn written_since(&self, call: &Call, since: Moment) -> Result<u64, Error> {
        let (base, _) = self.base(call, since).await?;
        let written = PropertyName::written_since(&base.name.leaf);
        let request = Request {
            properties: vec![written.clone()],
            ..Request::of([Query::Dataset(self.of.clone())])
        };
        let pool = self.driver.observe_with(call, request).await?;
        let found = pool.dataset(&self.of);
        found
            .and_then(|found| found.properties.number(&written))
            .ok_or_else(|| {
                let doing = format!("measure what was written to {}", self.of);
                Error::not_found(doing).because(format!("{} is gone", base.name))
            })
    }

    async fn connected(&self, call: &Call) -> Result<Vec<String>, Error> {
        let export_ref = self.driver.export_ref(&self.id, &self.of);
        let mut asked = State::default();
        for _ in 0..ASKED {
            let request = Request {
                properties: export_ref.export.reads(),
                export: export_ref.commands_to_remove(&asked)?,
                ..Request::of([Query::Dataset(self.of.clone())])
            };
            let seen = self.driver.backend.observe(call, &request).await?;
            self.driver.heard();
            if let Some(status) = export_ref.status(&asked, &seen)? {
                return status.connected();
            }
            asked = seen.pool;
        }
        let doing = format!("look for clients of {}", self.of);
        Err(Error::new(Kind::Pending, doing).because("it keeps changing"))
    }

    async fn close(&self, call: &Call) -> Result<(), Error> {
        for helper in &self.moments {
            let verb = DropHelper {
                of: self.of.clone(),
                helper: helper.clone(),
            };
            self.driver.converge(call, &verb).await?;
        }
        Ok(())
    }
}

impl ZfsDriver {
    fn source_of(&self, volume: &VolumeId, tag: &CopyTag) -> Result<Origin<'_>, Error> {
        let of = self.layout().volume(volume)?;
        let moments = moments(&of, tag.as_str())?;
        Ok(Origin {
            driver: self,
            id: volume.clone(),
            of,
            moments,
        })
    }

    fn target_of(&self, request: &CreateVolume) -> Result<Target, Error> {
        let dataset = self.layout().volume(&request.id)?;
        self.check_place(request)?;
        Ok(Target {
            moments: moments(&dataset, request.id.as_str())?,
            plain: CreateVolume {
                source: None,
                ..request.clone()
            },
            dataset,
        })
    }

    fn move_to<'a>(
        &'a self,
        request: &'a CreateVolume,
        target: &'a Target,
    ) -> Result<MoveIn<'a>, Error> {
        let mut create = self.creation(&target.plain, &target.dataset)?;
        create.request = request;
        Ok(MoveIn {
            create,
            moments: target.moments.clone(),
        })
    }

    async fn round(
        &self,
        call: &Call,
        verb: &MoveIn<'_>,
        from: &dyn MoveSource,
    ) -> Result<Round, Error> {
        let doing = verb.doing();
        let mut last = None;
        for _ in 0..ATTEMPTS {
            call.check(&doing)?;
            let pool = self.observe_with(call, verb.request()).await?;
            let next = verb.next(&pool)?;
            match self.attempt(call, verb, &pool, &next, from).await {
                Ok(bytes) => {
                    let moment = self.ended_at(call, verb, &next).await?;
                    return Ok(Round { bytes, moment });
                }
                Err(Unfinished::Again(error)) => last = Some(error),
                Err(Unfinished::Failed(error)) => return Err(error),
            }
        }
        let pending = Error::new(Kind::Pending, doing);
        Err(match last {
            Some(last) => pending.because(last),
            None => pending,
        })
    }

    /// One attempt at a round. Returns the bytes that came.
    async fn attempt(
        &self,
        call: &Call,
        verb: &MoveIn<'_>,
        pool: &State,
        next: &NextRound,
        from: &dyn MoveSource,
    ) -> Result<u64, Unfinished> {
        let (mut whole, mut properties) = (None, Vec::new());
        if next.is_new {
            let measure = from.info(call).await.map_err(Unfinished::Failed)?;
            properties = verb.properties(pool).map_err(Unfinished::Failed)?;
            whole = measure.bytes;
        }
        if let Some(plan) = &next.before {
            self.applied(call, plan).await?;
        }
        let since = next.since.map(|guid| Moment(guid.0));
        let opened = from.open(call, since, next.resume.as_ref()).await;
        let stream = match (opened, &next.undo) {
            (Ok(stream), _) => stream,
            // The source of the part is gone.
            (Err(error), Some(undo)) if error.kind() == Kind::NotFound => {
                tracing::info!(
                    to = %next.to.dataset,
                    why = %error.chain(),
                    "an interrupted round cannot resume, and restarts"
                );
                self.applied(call, undo).await?;
                return Err(Unfinished::Again(error));
            }
            (Err(error), _) => return Err(Unfinished::Failed(error)),
        };
        let to = &next.to.dataset;
        tracing::info!(%to, of = whole, goes_on = next.resume.is_some(), "copying");
        let mut stream = LoggedStream::new(stream, to, whole);
        let incoming = Incoming {
            to: next.to.clone(),
            properties,
            goes_on: !next.is_new,
        };
        match self.backend.receive(call, &incoming, &mut stream).await {
            Ok(()) => Ok(stream.bytes()),
            Err(Interrupted::Source(error)) => Err(Unfinished::Failed(error)),
            Err(Interrupted::Here(failed)) => {
                Err(self.not_received(call, verb, next, failed).await)
            }
        }
    }

    /// The next action after a failure of the receiving side.
    async fn not_received(
        &self,
        call: &Call,
        verb: &MoveIn<'_>,
        next: &NextRound,
        failed: Failed,
    ) -> Unfinished {
        let Failed { next: then, error } = failed;
        match (then, &next.undo) {
            // It may be complete by now: the next observation shows it.
            (Next::Observe, _) => Unfinished::Again(error),
            // The existing part may be what fills the pool.
            (Next::Tell, Some(undo)) if error.kind() == Kind::Internal => {
                match self.applied(call, undo).await {
                    Ok(()) => Unfinished::Again(error),
                    Err(unfinished) => unfinished,
                }
            }
            _ => {
                if error.kind() == Kind::OutOfSpace {
                    self.give_room(call, verb).await;
                }
                Unfinished::Failed(error)
            }
        }
    }

    /// Removes the part of a round that ran out of space: it would take the space of others.
    async fn give_room(&self, call: &Call, verb: &MoveIn<'_>) {
        let ended = async {
            let pool = self.observe_with(call, verb.request()).await?;
            match verb.next(&pool)?.undo {
                Some(undo) => self.done(call, &undo).await,
                None => Ok(()),
            }
        };
        if let Err(unknown) = ended.await {
            let why = unknown.chain();
            tracing::warn!(to = %verb.name(), error = why, "cannot determine what is left of it");
        }
    }

    async fn applied(&self, call: &Call, plan: &Plan) -> Result<(), Unfinished> {
        let nothing = Request::of([]);
        let done = self.backend.apply(call, plan, &nothing).await;
        done.map(drop).map_err(|failed| match failed.next {
            Next::Observe => Unfinished::Again(failed.error),
            _ => Unfinished::Failed(failed.error),
        })
    }

    /// The moment of the round that was received.
    async fn ended_at(
        &self,
        call: &Call,
        verb: &MoveIn<'_>,
        round: &NextRound,
    ) -> Result<Moment, Error> {
        let pool = self.observe_with(call, verb.request()).await?;
        match verb.came(&pool)? {
            Came::Rounds { last, .. } if last.name == round.to => Ok(Moment(last.guid.0)),
            _ => {
                let why = format!("{} is missing after its stream", round.to);
                Err(Error::new(Kind::Pending, verb.doing()).because(why))
            }
        }
    }
}

fn moments(of: &DatasetName, tag: &str) -> Result<[SnapshotRef; 2], Error> {
    let [first, second] = id::helpers_for_move(tag);
    let named = |leaf| {
        let long = || Error::invalid(format!("move {of} to another connection"));
        of.at(leaf).map_err(|error| long().because(error))
    };
    Ok([named(&first)?, named(&second)?])
}

#[async_trait]
impl Mover for ZfsDriver {
    fn move_formats(&self) -> &'static [TransferFormat] {
        self.forms()
    }

    fn move_out(
        &self,
        volume: &VolumeId,
        tag: &CopyTag,
    ) -> Result<Box<dyn MoveSource + '_>, Error> {
        Ok(Box::new(self.source_of(volume, tag)?))
    }

    async fn move_state(&self, call: &Call, request: &CreateVolume) -> Result<MoveState, Error> {
        let target = self.target_of(request)?;
        let verb = self.move_to(request, &target)?;
        let mut asked = verb.request();
        asked.properties.extend(self.of_access());
        let pool = self.observe_with(call, asked).await?;
        Ok(match verb.came(&pool)? {
            Came::Nothing => MoveState::Nothing,
            Came::Part(_) => MoveState::Part,
            Came::Rounds { last, .. } => MoveState::At(Moment(last.guid.0)),
            Came::Ending(guid) => MoveState::Ending(Moment(guid.0)),
            Came::Volume(dataset) => MoveState::Volume(Box::new(self.volume(dataset)?)),
        })
    }

    async fn move_in(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn MoveSource,
    ) -> Result<Round, Error> {
        let target = self.target_of(request)?;
        let verb = self.move_to(request, &target)?;
        call.outcome(self.round(call, &verb, from).await)
    }

    async fn moved_in(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        let target = self.target_of(request)?;
        let mut verb = self.move_to(request, &target)?;
        let last = self.converge(call, &EndMove { target: &verb }).await?;
        verb.create.received = Some(last);
        self.shown(call, &verb.create, |made| self.volume(made))
            .await
    }

    async fn give_up_move(&self, call: &Call, request: &CreateVolume) -> Result<(), Error> {
        let target = self.target_of(request)?;
        let verb = self.move_to(request, &target)?;
        let deletion = DestroyVolume {
            layout: self.layout(),
            export_ref: self.export_ref(&request.id, &target.dataset),
            keep_foreign: true,
        };
        let given_up = GiveUpMove {
            target: &verb,
            deletion,
        };
        self.converge(call, &given_up).await
    }
}
