//! Objects that may or may not exist after an earlier call of this process.
//!
//! "Nothing of this call was done" does not prove that the call before did nothing. While an object is
//! in doubt, no transient error gets a final code. This memory only makes answers more careful; losing
//! it with the process loses no state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver_core::{Effect, Error, Kind};
use tokio::time::Instant;

use crate::rpc::in_flight::{Key, Keys};

/// How many objects are remembered; with more, everything is in doubt.
const LIMIT: usize = 65_536;
/// After this time no caller retries for an object.
const FORGOTTEN: Duration = Duration::from_hours(24);

/// The objects in doubt. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Doubts {
    keys: Arc<Mutex<HashMap<Key, Instant>>>,
}

/// The objects that one call may leave in doubt. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    doubts: Doubts,
    held: Arc<Keys>,
    /// The objects that it really changes, if declared.
    changed: Arc<Mutex<Option<Keys>>>,
}

// === impl Doubts ===

impl Doubts {
    /// What a call may leave in doubt that holds `keys`.
    pub(super) fn trace(&self, keys: Keys) -> Trace {
        Trace {
            doubts: self.clone(),
            held: Arc::new(keys),
            changed: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_known(known: &HashMap<Key, Instant>, keys: &Keys) -> bool {
    let is_new = |at: &Instant| at.elapsed() < FORGOTTEN;
    let mut keys = keys.in_doubt();
    keys.any(|key| known.get(key).is_some_and(is_new))
}

// === impl Trace ===

impl Trace {
    /// Declares that the call changes only these of its keys.
    pub(super) fn changes_only(&self, keys: &Keys) {
        *self.changed() = Some(keys.clone());
    }

    /// Whether an earlier call left any of these in doubt.
    pub(super) fn is_in_doubt(&self, keys: &Keys) -> bool {
        let known = self.doubts.lock();
        known.len() >= LIMIT || is_known(&known, keys)
    }

    /// The same for a call whose caller does not wait any more. The caller does not get a success, and
    /// its retry must not get "there is nothing".
    pub(super) fn settle_abandoned<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_ok() {
            self.remember(&mut self.doubts.lock());
        }
        match result {
            Ok(value) => Ok(value),
            Err(error) => self.settle(Err(error)),
        }
    }

    fn remember(&self, known: &mut HashMap<Key, Instant>) {
        if known.len() >= LIMIT {
            known.retain(|_, at| at.elapsed() < FORGOTTEN);
        }
        let changed = self.changed();
        for key in changed.as_ref().unwrap_or(&self.held).in_doubt() {
            if known.len() < LIMIT {
                known.insert(key.clone(), Instant::now());
            }
        }
    }

    /// Processes the result of the call: an error about an object in doubt is returned with a possible
    /// effect.
    pub(super) fn settle<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if self.held.in_doubt().next().is_none() {
            return result;
        }
        let mut known = self.doubts.lock();
        match result {
            Ok(value) => {
                for key in self.held.in_doubt() {
                    known.remove(key);
                }
                Ok(value)
            }
            Err(error) if leaves_doubt(&error) => {
                self.remember(&mut known);
                Err(error)
            }
            Err(error)
                if is_passing(error.kind())
                    && (known.len() >= LIMIT || is_known(&known, &self.held)) =>
            {
                Err(error.with_effect(Effect::Possible))
            }
            Err(error) => Err(error),
        }
    }

    fn changed(&self) -> MutexGuard<'_, Option<Keys>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn leaves_doubt(error: &Error) -> bool {
    error.effect() == Effect::Possible || error.kind() == Kind::Timeout
}

/// A transient error of the environment, which says nothing about the request.
pub(super) fn is_passing(kind: Kind) -> bool {
    match kind {
        Kind::Unreachable | Kind::Timeout | Kind::Denied | Kind::Internal => true,
        Kind::Invalid
        | Kind::NotFound
        | Kind::Conflict
        | Kind::OutOfRange
        | Kind::OutOfSpace
        | Kind::Busy
        | Kind::Pending
        | Kind::Unsupported => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::in_flight::{Hold, Object};
    use driver_core::VolumeId;

    fn keys(ids: &[&str]) -> Keys {
        ids.iter().fold(Keys::none(), |keys, id| {
            let object = Object::Volume(VolumeId::parse(id).expect("id"));
            keys.and(&Arc::from(""), object, Hold::Exclusive)
        })
    }

    fn fails(kind: Kind, effect: Effect) -> Result<(), Error> {
        Err(Error::new(kind, "create").with_effect(effect))
    }

    fn ends(doubts: &Doubts, ids: &[&str], result: Result<(), Error>) -> Result<(), Error> {
        doubts.trace(keys(ids)).settle(result)
    }

    fn effect(doubts: &Doubts, id: &str, kind: Kind) -> Effect {
        ends(doubts, &[id], fails(kind, Effect::None))
            .expect_err("still an error")
            .effect()
    }

    #[test]
    fn after_an_unknown_outcome_trouble_is_not_final_until_something_is_known() {
        let doubts = Doubts::default();
        assert_eq!(effect(&doubts, "a", Kind::Unreachable), Effect::None);
        let cut = fails(Kind::Unreachable, Effect::Possible);
        assert!(ends(&doubts, &["a"], cut).is_err());
        for kind in [Kind::Unreachable, Kind::Denied, Kind::Internal] {
            assert_eq!(effect(&doubts, "a", kind), Effect::Possible, "{kind:?}");
        }
        assert_eq!(effect(&doubts, "b", Kind::Unreachable), Effect::None);
        assert_eq!(
            effect(&doubts, "a", Kind::Conflict),
            Effect::None,
            "what is wrong with the request stays final"
        );
        assert!(ends(&doubts, &["a"], Ok(())).is_ok());
        assert_eq!(effect(&doubts, "a", Kind::Unreachable), Effect::None);
    }

    #[test]
    fn of_several_only_the_one_that_was_changed_is_in_doubt_and_any_success_ends_it() {
        let doubts = Doubts::default();
        let both = ["a", "b"];
        let trace = doubts.trace(keys(&both));
        trace.changes_only(&Keys::none());
        let cut = fails(Kind::Unreachable, Effect::Possible);
        assert!(trace.settle(cut).is_err());
        assert!(!trace.is_in_doubt(&keys(&both)), "it only asked");
        trace.changes_only(&keys(&["b"]));
        let cut = fails(Kind::Unreachable, Effect::Possible);
        assert!(trace.settle(cut).is_err());
        assert!(trace.is_in_doubt(&keys(&["b"])) && !trace.is_in_doubt(&keys(&["a"])));
        let later = ends(&doubts, &both, fails(Kind::Internal, Effect::None));
        assert_eq!(later.expect_err("an error").effect(), Effect::Possible);
        assert!(ends(&doubts, &both, Ok(())).is_ok());
        for id in both {
            assert_eq!(effect(&doubts, id, Kind::Unreachable), Effect::None);
        }
    }

    #[test]
    fn a_success_without_a_caller_leaves_changed_objects_in_doubt_and_settles_none() {
        let doubts = Doubts::default();
        let trace = doubts.trace(keys(&["a", "b"]));
        trace.changes_only(&keys(&["b"]));
        assert!(trace.settle_abandoned(Ok(())).is_ok());
        assert!(trace.is_in_doubt(&keys(&["b"])) && !trace.is_in_doubt(&keys(&["a"])));
        assert!(doubts.trace(keys(&["b"])).settle_abandoned(Ok(())).is_ok());
        assert_eq!(effect(&doubts, "b", Kind::Unreachable), Effect::Possible);
        assert!(ends(&doubts, &["b"], Ok(())).is_ok());
        assert_eq!(effect(&doubts, "b", Kind::Unreachable), Effect::None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_passed_leaves_doubt_and_time_ends_it() {
        let doubts = Doubts::default();
        let late = fails(Kind::Timeout, Effect::None);
        assert!(ends(&doubts, &["a"], late).is_err());
        assert_eq!(effect(&doubts, "a", Kind::Unreachable), Effect::Possible);
        tokio::time::advance(FORGOTTEN).await;
        assert_eq!(effect(&doubts, "a", Kind::Unreachable), Effect::None);
    }
}
