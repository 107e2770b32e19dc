//! Runs one verb from its first observation to its end.
//!
//! After a concurrent change the verb observes and plans again, a bounded number of times. It waits
//! for an object in use with growing pauses, until the deadline of the call but no longer once half a
//! minute has passed, or until the object is free if that is known. It waits for the lock of a stack until the
//! deadline of the call. A call that changed something and fails restores what callers would miss;
//! one that ran out of space reports that as final only if nothing of the volume exists. An end
//! that was not observed is an error, and never repeated.

use std::time::Duration;

use driver_core::{Backoff, Call, Effect, Error, Kind};
use tokio::time::Instant;

use super::ZfsDriver;
use crate::backend::Tried;
use crate::export::Opaque;
use crate::observed::{Observed, Request, State};
use crate::plan::{Leftover, Outcome, Verb};
use crate::step::{Failed, FirstTry, Next};

/// The number of plans a verb may need before this counts as a defect. Verbs need a few; the others are for concurrent
/// changes.
const ROUNDS: usize = 24;
/// The time to wait for an object in use. udev lets go within seconds; what a pod uses stays, and the caller asks
/// again.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time of the look after a pause: no pause begins with less left, so that the caller hears what is in use.
const AGAIN: Duration = Duration::from_secs(1);
/// The pauses before an object in use is tried again. What lets go does so within a second.
const IN_USE: Backoff = Backoff::new(Duration::from_millis(250), PATIENCE);
/// The pauses before a changed object is observed again. Another process that works on the same dataset ends its plan
/// within it.
const CHANGED: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(2));

/// The time that restoring may take, even after the deadline of the call. As long as one command may take.
const REGRET: Duration = Duration::from_mins(2);

/// The number of times that the rest of a volume that ran out of space is checked. A helper snapshot and a part are
/// removed in between.
const LOOKS: usize = 3;
/// The number of concurrent changes that lead to an immediate retry. The first shows what changed; a third is no
/// coincidence.
const AT_ONCE: usize = 2;

/// The time that a call has waited for an object that is in use or keeps changing.
struct Wait {
    since: Option<Instant>,
    in_use: Backoff,
    changed: Backoff,
    changes: usize,
}

/// The next action after a failed plan.
enum Then {
    /// Observe and plan again. The error is returned if no later plan succeeds.
    Again(Error),
    /// Return the error.
    Tell(Error),
}

/// The outcome of one round of a verb.
enum Round<T> {
    /// The verb is done.
    Done(T),
    /// There is more to do; what was seen, if it still holds.
    Seen(Option<Observed>),
    /// A plan, or the first try, failed.
    Failed(Failed),
}

/// The progress of a call so far, for the case that it fails.
#[derive(Default)]
struct RunState {
    /// The state that the last request was made from.
    asked: State,
    /// The number of plans that were applied.
    plans: usize,
    /// Whether something may have been changed.
    changed: bool,
    /// Whether something of what the verb is about was started before the step that failed, by this call or an earlier
    /// one.
    is_begun: bool,
    /// Whether the end of a plan was not observed: it may still be running.
    unseen: bool,
    /// The part of an observation that was not enough, as the backend keeps it.
    kept: Option<Opaque>,
}

impl RunState {
    /// Notes that a plan failed.
    fn failed(&mut self, error: &Error) {
        self.changed |= error.effect() == Effect::Possible;
        self.unseen |= matches!(error.kind(), Kind::Unreachable | Kind::Timeout);
    }
}

// === impl Wait ===

impl Wait {
    fn new() -> Self {
        Self {
            since: None,
            in_use: IN_USE,
            changed: CHANGED,
            changes: 0,
        }
    }

    /// The next action after a failed plan; waits if necessary.
    async fn after(&mut self, call: &Call, failed: Failed) -> Then {
        let over = call.remaining().is_zero();
        match failed.next {
            Next::Observe => {
                self.changes += 1;
                if self.changes > AT_ONCE {
                    sleep(call, self.changed.pause()).await;
                }
                Then::Again(failed.error)
            }
            Next::Wait | Next::WaitFrom(_) if !over && self.is_patient() => {
                if let Next::WaitFrom(first) = failed.next {
                    self.in_use.no_shorter_than(first);
                }
                let pause = self.in_use.pause();
                if pause + AGAIN >= call.remaining() {
                    // The caller hears what it is before its time is over.
                    return Then::Tell(failed.error);
                }
                tokio::time::sleep(pause).await;
                Then::Again(failed.error)
            }
            // A retry before that would fail.
            Next::WaitFor(known) if known < call.remaining() => {
                let error = failed.error.chain();
                tracing::info!(error, "waiting until it is free");
                tokio::time::sleep(known).await;
                Then::Again(failed.error)
            }
            // It has waited on the host already.
            Next::Queue if !over => Then::Again(failed.error),
            Next::Wait | Next::WaitFrom(_) | Next::WaitFor(_) | Next::Queue | Next::Tell => {
                Then::Tell(failed.error)
            }
        }
    }

    /// Whether to keep waiting for an object in use, from when it was first seen to be.
    fn is_patient(&mut self) -> bool {
        let since = self.since.get_or_insert_with(Instant::now);
        since.elapsed() < PATIENCE
    }
}

async fn sleep(call: &Call, pause: Duration) {
    tokio::time::sleep(pause.min(call.remaining())).await;
}

impl ZfsDriver {
    /// Converges, and shows what the verb has made. It exists then, whichever call made it: that it cannot be shown is
    /// no proof that nothing was done.
    pub(super) async fn shown<V: Verb, T>(
        &self,
        call: &Call,
        verb: &V,
        show: impl FnOnce(&V::Done) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let made = self.converge(call, verb).await?;
        show(&made).map_err(|error| error.with_effect(Effect::Possible))
    }

    /// Observes, plans and applies until the verb is done.
    pub(super) async fn converge<V: Verb>(&self, call: &Call, verb: &V) -> Result<V::Done, Error> {
        let mut run = RunState::default();
        let end = self.rounds(call, verb, &mut run).await;
        let Err(error) = end else { return end };
        // That the last step provably did nothing says nothing about those before it.
        let error = error.after_change(run.is_begun);
        if V::COMPENSATES && run.changed && !run.unseen {
            let is_given_back = self.compensate(call, verb, &run.asked).await;
            // What an earlier plan of this call changed is not given back.
            if is_given_back && error.kind() == Kind::Invalid && !run.is_begun {
                call.undone();
                return Err(error.with_effect(Effect::None));
            }
        }
        if error.kind() == Kind::OutOfSpace
            && error.effect() == Effect::Possible
            && !run.unseen
            && self.is_undone(call, verb, &run.asked).await
        {
            call.undone();
            return Err(error.with_effect(Effect::None));
        }
        Err(error)
    }

    /// Whether nothing is left of what a call started before it ran out of space, so that its
    /// caller may create it elsewhere. This checks under the lock, so that no interrupted command
    /// still runs.
    async fn is_undone<V: Verb>(&self, call: &Call, verb: &V, asked: &State) -> bool {
        let Ok(request) = verb.request(asked) else {
            return false;
        };
        let mut plan = verb.noop_under_lock();
        for _ in 0..LOOKS {
            let Some(next) = plan.take() else {
                return false;
            };
            let seen = match self.backend.apply(call, &next, &request).await {
                Ok(seen) => seen,
                Err(failed) => {
                    let error = failed.error.chain();
                    tracing::warn!(verb = %verb.doing(), error, "cannot determine what is left of it");
                    return false;
                }
            };
            match verb.leftover(&seen.pool) {
                Leftover::Nothing => return true,
                Leftover::OnTheWay(rest) => plan = Some(rest),
                Leftover::Something => return false,
            }
        }
        false
    }

    async fn rounds<V: Verb>(
        &self,
        call: &Call,
        verb: &V,
        run: &mut RunState,
    ) -> Result<V::Done, Error> {
        let doing = verb.doing();
        let (mut first, mut seen) = (verb.first_try(), None);
        let (mut wait, mut last) = (Wait::new(), None);
        let mut rounds = 0;
        while rounds < ROUNDS {
            rounds += 1;
            call.check(&doing)?;
            // After the first plan, any failure may have changed something.
            run.is_begun = call.effect() == Effect::Possible;
            let round = if let Some(first) = first.take() {
                self.first_round(call, verb, &first, run).await
            } else {
                self.planned(call, verb, seen.take(), run).await
            };
            let failed = match round? {
                Round::Done(end) => return Ok(end),
                Round::Seen(observed) => {
                    seen = observed;
                    continue;
                }
                Round::Failed(failed) => failed,
            };
            run.failed(&failed.error);
            if matches!(failed.next, Next::Queue | Next::WaitFor(_)) {
                // Not a wasted plan, only too early. The deadline of the call ends this.
                rounds -= 1;
            }
            match wait.after(call, failed).await {
                Then::Again(error) => last = Some(error),
                Then::Tell(error) => return Err(error),
            }
        }
        run.is_begun = call.effect() == Effect::Possible;
        let why = "the applied changes are repeatedly missing in the next observation";
        Err(match last {
            // The kind of this error, such as a missing object, does not answer the request of the
            // caller.
            Some(last) => Error::new(Kind::Pending, doing).because(last),
            None => Error::new(Kind::Internal, doing)
                .because(why)
                .advise("see whether something else changes the same dataset on the storage host"),
        })
    }

    /// Plans from what was seen, or observes first, and applies the plan.
    async fn planned<V: Verb>(
        &self,
        call: &Call,
        verb: &V,
        seen: Option<Observed>,
        run: &mut RunState,
    ) -> Result<Round<V::Done>, Error> {
        let observed = if let Some(observed) = seen {
            observed
        } else {
            let request = Request {
                known: run.kept.take(),
                ..verb.request(&run.asked)?
            };
            self.backend.observe(call, &request).await?
        };
        self.heard();
        let outcome = verb.plan(&run.asked, &observed, run.plans)?;
        run.asked = observed.pool;
        let (plan, end) = match outcome {
            Outcome::Done(end) => return Ok(Round::Done(end)),
            Outcome::Ask => {
                run.kept = observed.kept;
                return Ok(Round::Seen(None));
            }
            Outcome::InUse(error) => {
                return Ok(Round::Failed(Failed {
                    next: Next::Wait,
                    error,
                }));
            }
            Outcome::Do(plan) => (plan, None),
            Outcome::End(plan, end) => (plan, Some(end)),
        };
        tracing::debug!(verb = %verb.doing(), steps = plan.steps.len(), "plan");
        let then = match &end {
            Some(_) => Request::of([]),
            None => verb.request_after(&run.asked)?,
        };
        let then = Request {
            known: observed.kept,
            ..then
        };
        match self.backend.apply(call, &plan, &then).await {
            Ok(observed) => {
                run.plans += 1;
                run.changed = true;
                Ok(end.map_or(Round::Seen(Some(observed)), Round::Done))
            }
            Err(failed) => {
                // A verb may know that an earlier call has started the work.
                if verb.is_begun(&run.asked) {
                    (run.is_begun, run.changed) = (true, true);
                }
                Ok(Round::Failed(failed))
            }
        }
    }

    /// Observes, with the first try of a verb. The verb is done only if the plan, made from the observed state, has no
    /// other step.
    async fn first_round<V: Verb>(
        &self,
        call: &Call,
        verb: &V,
        first: &FirstTry,
        run: &mut RunState,
    ) -> Result<Round<V::Done>, Error> {
        let request = verb.request(&run.asked)?;
        let is_first_change = call.effect() == Effect::None;
        let tried = self.backend.try_first(call, &request, first).await;
        let did_nothing = match &tried {
            Ok(Tried::Seen(_)) => true,
            Ok(Tried::Done(_)) => false,
            Err(failed) => failed.error.effect() == Effect::None,
        };
        if did_nothing && is_first_change {
            call.undone();
        }
        let tried = match tried {
            Ok(tried) => tried,
            Err(failed) => return Ok(Round::Failed(failed)),
        };
        self.heard();
        let before = match tried {
            Tried::Seen(seen) => return Ok(Round::Seen(Some(seen))),
            Tried::Done(before) => before,
        };
        (run.is_begun, run.changed) = (true, true);
        let Some(before) = before else {
            return Ok(verb
                .result_of_first_try()
                .map_or(Round::Seen(None), Round::Done));
        };
        let outcome = verb.plan(&run.asked, &before, 0)?;
        // The one step is that of the first try: a state that lets it be done has it in its plan.
        if let Outcome::End(plan, end) = outcome
            && let [only] = plan.steps.as_slice()
        {
            debug_assert_eq!(
                format!("{:?}", only.step),
                format!("{:?}", first.step),
                "the step of the plan and that of the first try, {}",
                verb.doing()
            );
            return Ok(Round::Done(end));
        }
        // There is more to do: observe again, by what is recorded.
        run.asked = before.pool;
        Ok(Round::Seen(None))
    }

    /// Restores what a failing call has changed, and says whether nothing is left of it. If that fails as well, the
    /// next call for the object does it.
    async fn compensate<V>(&self, call: &Call, verb: &V, asked: &State) -> bool
    where
        V: Verb,
    {
        let (call, mut changed) = (&call.part(REGRET), CHANGED);
        let regretted = async {
            let request = verb.request(asked)?;
            loop {
                let observed = self.backend.observe(call, &request).await?;
                let Some(plan) = verb.compensate(asked, &observed)? else {
                    return Ok(observed.pool);
                };
                let then = Request {
                    known: observed.kept,
                    ..verb.request_after(&observed.pool)?
                };
                let failed = match self.backend.apply(call, &plan, &then).await {
                    Ok(after) => return Ok(after.pool),
                    Err(failed) => failed,
                };
                if failed.next == Next::Tell || call.remaining().is_zero() {
                    return Err(failed.error);
                }
                // Concurrent changes.
                tokio::time::sleep(changed.pause()).await;
            }
        };
        let regretted: Result<State, Error> = regretted.await;
        match regretted {
            Ok(seen) => verb.is_given_back(asked, &seen),
            Err(error) => {
                tracing::warn!(verb = %verb.doing(), error = %error.chain(), "failed after some changes");
                false
            }
        }
    }
}
