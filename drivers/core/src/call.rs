//! The context of one call: its deadline, and whether it has started to change anything.
//!
//! A driver calls [`Call::check`] between steps of long work, and [`Call::changing`] right before
//! its first change, so that an error or a panic after it is never reported as "nothing happened".
//! A call is independent of gRPC; the proxy creates one for each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Effect, Error, Kind};

/// One call in progress. Clones share the same state.
#[derive(Debug, Clone)]
pub struct Call {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    deadline: Instant,
    changed: AtomicBool,
    absent: AtomicBool,
    cancelled: AtomicBool,
}

// === impl Call ===

impl Call {
    /// A call with the deadline `time` from now.
    pub fn within(time: Duration) -> Self {
        let began = Instant::now();
        Self::new(began, began + time)
    }

    /// A part of it with its own deadline `time` from now, which has changed nothing yet.
    #[must_use]
    pub fn part(&self, time: Duration) -> Self {
        Self::new(self.began(), Instant::now() + time)
    }

    /// The same call, without changes so far.
    fn new(began: Instant, deadline: Instant) -> Self {
        let state = State {
            began,
            deadline,
            changed: AtomicBool::new(false),
            absent: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        };
        Self {
            state: Arc::new(state),
        }
    }

    /// When it started.
    pub fn began(&self) -> Instant {
        self.state.began
    }

    /// The deadline.
    pub fn deadline(&self) -> Instant {
        self.state.deadline
    }

    /// Ends the time of the call and of its clones: the work stops as at its deadline.
    pub fn cancel(&self) {
        self.state.cancelled.store(true, Ordering::Release);
    }

    /// Whether [`Call::cancel`] has ended its time.
    pub fn is_cancelled(&self) -> bool {
        self.state.cancelled.load(Ordering::Acquire)
    }

    /// The time that is left, zero after the deadline.
    pub fn remaining(&self) -> Duration {
        if self.is_cancelled() {
            return Duration::ZERO;
        }
        self.state
            .deadline
            .saturating_duration_since(Instant::now())
    }

    /// Fails once the deadline has passed. `doing` names the work and its object.
    pub fn check(&self, doing: &str) -> Result<(), Error> {
        if self.remaining().is_zero() {
            return Err(Error::new(Kind::Timeout, doing).with_effect(self.effect()));
        }
        Ok(())
    }

    /// Notes that the next step changes the backend.
    pub fn changing(&self) {
        self.state.changed.store(true, Ordering::Release);
        self.state.absent.store(false, Ordering::Release);
    }

    /// Notes that nothing is left of the changes of this call, as an observation has proved.
    pub fn undone(&self) {
        self.state.changed.store(false, Ordering::Release);
    }

    /// Notes that nothing exists of what the call makes, by it or by an earlier one, as an observation after its
    /// failure has proved.
    pub fn found_nothing(&self) {
        self.state.absent.store(true, Ordering::Release);
    }

    /// Whether [`Call::found_nothing`] was noted, and nothing was changed since.
    pub fn is_proved_absent(&self) -> bool {
        self.state.absent.load(Ordering::Acquire)
    }

    /// The changes that are known so far.
    pub fn effect(&self) -> Effect {
        if self.state.changed.load(Ordering::Acquire) {
            Effect::Possible
        } else {
            Effect::None
        }
    }

    /// The outcome of work of this call. After the first change of the call no error says that nothing was done,
    /// whichever step it is of.
    pub fn outcome<T>(&self, ended: Result<T, Error>) -> Result<T, Error> {
        ended.map_err(|error| error.after_change(self.effect() == Effect::Possible))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_past_its_deadline_says_whether_it_changed_anything() {
        let call = Call::within(Duration::from_secs(1));
        assert!(call.check("copy").is_ok());
        tokio::time::advance(Duration::from_secs(1)).await;
        let error = call.check("copy").expect_err("the deadline has passed");
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::Timeout, Effect::None)
        );
        call.clone().changing();
        assert_eq!(
            call.check("copy").expect_err("late").effect(),
            Effect::Possible
        );
        call.undone();
        assert_eq!(call.clone().effect(), Effect::None, "of all its clones");
    }

    #[test]
    fn after_the_first_change_no_error_says_that_nothing_was_done() {
        let call = Call::within(Duration::from_mins(1));
        let folded = |error| {
            let ended: Result<(), Error> = call.outcome(Err(error));
            ended.expect_err("it failed")
        };
        for kind in Kind::ALL {
            let proved = folded(Error::new(kind, "copy"));
            assert_eq!(proved.effect(), Effect::None, "{kind:?}");
            call.changing();
            let in_doubt = folded(proved);
            assert_eq!(in_doubt.effect(), Effect::Possible, "{kind:?}");
            call.undone();
            assert_eq!(folded(in_doubt).effect(), Effect::Possible, "{kind:?}");
        }
        assert_eq!(call.outcome(Ok(1)).expect("it has ended well"), 1);
    }

    #[test]
    fn a_proof_that_nothing_exists_ends_with_the_next_change() {
        let call = Call::within(Duration::from_mins(1));
        call.undone();
        assert!(!call.is_proved_absent(), "an earlier call may have made it");
        call.clone().found_nothing();
        assert!(call.is_proved_absent());
        call.changing();
        assert!(!call.is_proved_absent());
    }

    #[test]
    fn a_cancelled_call_has_no_time_left() {
        let call = Call::within(Duration::from_mins(1));
        let clone = call.clone();
        assert!(clone.check("copy").is_ok());
        call.cancel();
        assert_eq!(clone.remaining(), Duration::ZERO);
        assert_eq!(
            clone.check("copy").expect_err("cancelled").kind(),
            Kind::Timeout
        );
    }
}
