//! One verb from its first question to its end.
//!
//! What was changed in the meantime is observed and planned again, a bounded number of times. What is
//! in use is waited for, with growing pauses, for as long as the call may take and no longer than
//! half a minute; until it is free, where that is known; for its turn at what all volumes share a call
//! waits as long as it may. One that has changed something and fails puts back what callers would miss;
//! one that found no room says so for good only where nothing of it is there. An end that was not seen
//! is an error, and never done twice.

use std::time::Duration;

use driver_core::{Call, Effect, Error, Kind};
use tokio::time::Instant;

use super::ZfsDriver;
use crate::backend::{Backend, Tried};
use crate::export::Export;
use crate::observed::{Observed, Request, State};
use crate::plan::{Leftover, Outcome, Verb};
use crate::step::{Failed, Guess, Next};

/// How often a verb is planned before it is a defect that it does not end.
const ROUNDS: usize = 24;
/// How long what is in use is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first pause; each one is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(250);

/// How long it may take to put something back, also when the call is over.
const REGRET: Duration = Duration::from_mins(2);

/// The longest pause before something that changed is looked at once more.
const LONGEST: Duration = Duration::from_secs(2);
/// How often it is looked at what is left of a volume that found no room.
const LOOKS: usize = 3;
/// How often what changed meanwhile is looked at again at once.
const AT_ONCE: usize = 2;

/// How long somebody has waited for what is in use, or changes all the time.
struct Wait {
    since: Option<Instant>,
    pause: Duration,
    changes: usize,
}

/// What a failed plan leaves to be done.
enum Then {
    /// Another look, and another plan. Why the last one failed is told if none succeeds.
    Again(Error),
    /// To tell.
    Tell(Error),
}

/// How a guess ended.
enum Guessed<T, A> {
    /// It was the whole plan.
    Done(T),
    /// It was not right, or not all; what was seen, if it still holds.
    Seen(Option<Observed<A>>),
    /// It failed.
    Failed(Failed),
}

/// What a call has done so far, for the case that it fails.
#[derive(Default)]
struct RunState {
    /// What the last question was made of.
    asked: State,
    /// Whether something may have been changed.
    changed: bool,
    /// Whether the end of a plan was not seen: it may go on, unseen, with whatever it does.
    unseen: bool,
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
            pause: PAUSE,
            changes: 0,
        }
    }

    /// What a failed plan leaves to be done; waits if that is what it takes.
    async fn after(&mut self, call: &Call, failed: Failed) -> Then {
        let over = call.remaining().is_zero();
        match failed.next {
            Next::Observe => {
                self.changes += 1;
                if self.changes > AT_ONCE {
                    let pause = self.pause.min(LONGEST);
                    self.sleep(call, pause).await;
                }
                Then::Again(failed.error)
            }
            Next::Wait if !over && self.is_patient() => {
                self.sleep(call, self.pause).await;
                Then::Again(failed.error)
            }
            // Another try before its end would be in vain.
            Next::WaitFor(known) if known < call.remaining() => {
                let error = failed.error.chain();
                tracing::info!(error, "waiting until it is free");
                tokio::time::sleep(known).await;
                Then::Again(failed.error)
            }
            // It has waited there already.
            Next::Queue if !over => Then::Again(failed.error),
            Next::Wait | Next::WaitFor(_) | Next::Queue | Next::Tell => Then::Tell(failed.error),
        }
    }

    /// Whether what is in use is still waited for, from when it was first seen to be.
    fn is_patient(&mut self) -> bool {
        let since = self.since.get_or_insert_with(Instant::now);
        since.elapsed() < PATIENCE
    }

    async fn sleep(&mut self, call: &Call, pause: Duration) {
        tokio::time::sleep(pause.min(call.remaining())).await;
        self.pause = self.pause.saturating_mul(2);
    }
}

impl<B, E> ZfsDriver<B, E>
where
    B: Backend,
    E: Export<Command = B::Command, Output = B::Output>,
{
    /// Asks, plans and applies until the verb is done.
    pub(super) async fn converge<V: Verb<B::Command, B::Output>>(
        &self,
        call: &Call,
        verb: &V,
    ) -> Result<V::Done, Error> {
        let mut run = RunState::default();
        let end = self.rounds(call, verb, &mut run).await;
        let Err(error) = end else { return end };
        if V::COMPENSATES && run.changed && !run.unseen {
            self.compensate(call, verb, &run.asked).await;
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

    /// Whether nothing is left of what a call has begun that found no room, so that its caller may have
    /// it made elsewhere. It is looked at when its turn has come: nothing that was cut off goes on then.
    async fn is_undone<V: Verb<B::Command, B::Output>>(
        &self,
        call: &Call,
        verb: &V,
        asked: &State,
    ) -> bool {
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
                    tracing::warn!(verb = %verb.doing(), error, "it is not known what is left of it");
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

    async fn rounds<V: Verb<B::Command, B::Output>>(
        &self,
        call: &Call,
        verb: &V,
        run: &mut RunState,
    ) -> Result<V::Done, Error> {
        // Whatever goes wrong after the first plan, something may have been changed. A verb may know that
        // an earlier call has begun it.
        let in_call = |error: Error| match call.effect() {
            Effect::None => error,
            Effect::Possible => error.with_effect(Effect::Possible),
        };
        let doing = verb.doing();
        let (mut seen, mut done) = (None, 0);
        let (mut wait, mut last) = (Wait::new(), None);
        let mut guess = verb.guess();
        let mut rounds = 0;
        while rounds < ROUNDS {
            rounds += 1;
            call.check(&doing)?;
            let before = call.effect();
            let failed = if let Some(guess) = guess.take() {
                match self.guessed(call, verb, &guess, run).await? {
                    Guessed::Done(end) => return Ok(end),
                    Guessed::Seen(observed) => {
                        seen = observed;
                        continue;
                    }
                    Guessed::Failed(failed) => failed,
                }
            } else {
                let observed = match seen.take() {
                    Some(observed) => observed,
                    None => self.looked(call, verb, run).await.map_err(in_call)?,
                };
                self.heard();
                let outcome = verb.plan(&run.asked, &observed, done).map_err(in_call)?;
                run.asked = observed.pool;
                let (plan, end) = match outcome {
                    Outcome::Done(end) => return Ok(end),
                    Outcome::Ask => continue,
                    Outcome::Do(plan) => (plan, None),
                    Outcome::End(plan, end) => (plan, Some(end)),
                };
                tracing::debug!(verb = %doing, steps = plan.steps.len(), "plan");
                let then = match &end {
                    Some(_) => Request::of([]),
                    None => verb.request_after(&run.asked).map_err(in_call)?,
                };
                match self.backend.apply(call, &plan, &then).await {
                    Ok(observed) => {
                        done += 1;
                        run.changed = true;
                        if let Some(end) = end {
                            return Ok(end);
                        }
                        seen = Some(observed);
                        continue;
                    }
                    Err(failed) => failed,
                }
            };
            run.failed(&failed.error);
            if matches!(failed.next, Next::Queue | Next::WaitFor(_)) {
                // Nothing was planned in vain: it was too early. The call's time ends that.
                rounds -= 1;
            }
            // A plan that provably did nothing proves nothing for those before it.
            let all = |error: Error| match before {
                Effect::None => error,
                Effect::Possible => error.with_effect(before),
            };
            match wait.after(call, failed).await {
                Then::Again(error) => last = Some(error),
                Then::Tell(error) => return Err(all(error)),
            }
        }
        let why = "what was done is not seen as done, time and again";
        Err(in_call(match last {
            // What it means by itself, as that something is missing, is not what the caller asked.
            Some(last) => Error::new(Kind::Pending, doing).because(last),
            None => Error::new(Kind::Internal, doing)
                .because(why)
                .advise("see whether something else changes the same dataset on the storage host"),
        }))
    }

    /// What a verb has to know.
    async fn looked<V: Verb<B::Command, B::Output>>(
        &self,
        call: &Call,
        verb: &V,
        run: &RunState,
    ) -> Result<Observed<B::Output>, Error> {
        let request = verb.request(&run.asked)?;
        self.backend.observe(call, &request).await
    }

    /// Tries what a verb guesses. What was done counts only if the plan, made of what was seen, is just that.
    async fn guessed<V: Verb<B::Command, B::Output>>(
        &self,
        call: &Call,
        verb: &V,
        guess: &Guess<B::Command>,
        run: &mut RunState,
    ) -> Result<Guessed<V::Done, B::Output>, Error> {
        let (request, before) = (verb.request(&run.asked)?, call.effect());
        let Some(tried) = self.backend.look_and_do(call, &request, guess).await else {
            return Ok(Guessed::Seen(None));
        };
        let tried = match tried {
            Ok(tried) => tried,
            Err(failed) => {
                if failed.error.effect() == Effect::None && before == Effect::None {
                    call.undone();
                }
                return Ok(Guessed::Failed(failed));
            }
        };
        self.heard();
        let (seen, done) = match tried {
            Tried::Seen { seen, done } => (Some(seen), done),
            Tried::Done => (None, true),
        };
        if !done {
            if before == Effect::None {
                call.undone();
            }
            return Ok(Guessed::Seen(seen));
        }
        run.changed = true;
        let Some(seen) = seen else {
            return Ok(verb.guessed().map_or(Guessed::Seen(None), Guessed::Done));
        };
        let outcome = verb.plan(&run.asked, &seen, 0);
        Ok(
            match outcome.map_err(|error| error.with_effect(Effect::Possible))? {
                Outcome::End(plan, end) if guess.is_all_of(&plan.steps) => Guessed::Done(end),
                // There is more to do: it is looked at again.
                _ => Guessed::Seen(None),
            },
        )
    }

    /// Puts right what a call that fails has changed. If that fails, too, the next call that asks for
    /// the object does it.
    async fn compensate<V>(&self, call: &Call, verb: &V, asked: &State)
    where
        V: Verb<B::Command, B::Output>,
    {
        let call = &call.part(REGRET);
        let regretted = async {
            let request = verb.request(asked)?;
            loop {
                let observed = self.backend.observe(call, &request).await?;
                let Some(plan) = verb.compensate(asked, &observed)? else {
                    return Ok(());
                };
                let then = verb.request_after(&observed.pool)?;
                let Err(failed) = self.backend.apply(call, &plan, &then).await else {
                    return Ok(());
                };
                if failed.next == Next::Tell || call.remaining().is_zero() {
                    return Err(failed.error);
                }
                // Others were at it.
                tokio::time::sleep(PAUSE).await;
            }
        };
        if let Err(error) = regretted.await {
            let error: Error = error;
            tracing::warn!(verb = %verb.doing(), error = %error.chain(), "given up half done");
        }
    }
}
