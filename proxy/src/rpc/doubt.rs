//! Objects of which an earlier call of this process left it unknown whether they exist.
//!
//! "Nothing of this call was done" is no proof that nothing of the one before was: as long as an
//! object is in doubt, no passing trouble is reported with a final code. The memory only makes
//! answers more careful; losing it with the process loses no state.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use driver_core::{Effect, Error, Kind};

use crate::inflight::Key;

/// How many objects are remembered; with more, everything is in doubt.
const LIMIT: usize = 65_536;

/// The objects in doubt. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Doubts {
    keys: Arc<Mutex<HashSet<Key>>>,
}

// === impl Doubts ===

impl Doubts {
    /// Judges how a call ended that worked on `key`: an error that would be final only for lack of
    /// memory comes back with a possible effect.
    pub(super) fn settle<T>(
        &self,
        key: Option<&Key>,
        result: Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(key) = key else {
            return result;
        };
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(value) => {
                keys.remove(key);
                Ok(value)
            }
            Err(error) if leaves_doubt(&error) => {
                if keys.len() < LIMIT {
                    keys.insert(key.clone());
                }
                Err(error)
            }
            Err(error)
                if is_passing(error.kind()) && (keys.contains(key) || keys.len() >= LIMIT) =>
            {
                Err(error.with_effect(Effect::Possible))
            }
            Err(error) => Err(error),
        }
    }
}

fn leaves_doubt(error: &Error) -> bool {
    error.effect() == Effect::Possible || error.kind() == Kind::Timeout
}

/// Trouble of the surroundings, which says nothing about the request.
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
    use crate::inflight::{Hold, Keys, Object};
    use driver_core::VolumeId;

    fn key(id: &str) -> Key {
        let object = Object::Volume(VolumeId::parse(id).expect("id"));
        let keys = Keys::none().and(&Arc::from(""), object, Hold::Exclusive);
        keys.exclusive().next().expect("one key").clone()
    }

    fn fails(kind: Kind, effect: Effect) -> Result<(), Error> {
        Err(Error::new(kind, "create").with_effect(effect))
    }

    fn effect(doubts: &Doubts, id: &str, kind: Kind) -> Effect {
        doubts
            .settle(Some(&key(id)), fails(kind, Effect::None))
            .expect_err("still an error")
            .effect()
    }

    #[test]
    fn after_an_unknown_outcome_trouble_is_not_final_until_something_is_known() {
        let doubts = Doubts::default();
        assert_eq!(effect(&doubts, "a", Kind::Unreachable), Effect::None);
        let cut = doubts.settle(Some(&key("a")), fails(Kind::Unreachable, Effect::Possible));
        assert!(cut.is_err());
        for kind in [Kind::Unreachable, Kind::Denied, Kind::Internal] {
            assert_eq!(effect(&doubts, "a", kind), Effect::Possible, "{kind:?}");
        }
        assert_eq!(effect(&doubts, "b", Kind::Unreachable), Effect::None);
        assert_eq!(
            effect(&doubts, "a", Kind::Conflict),
            Effect::None,
            "what is wrong with the request stays final"
        );
        assert!(doubts.settle(Some(&key("a")), Ok(())).is_ok());
        assert_eq!(effect(&doubts, "a", Kind::Unreachable), Effect::None);
    }

    #[test]
    fn a_deadline_that_passed_leaves_doubt() {
        let doubts = Doubts::default();
        assert!(
            doubts
                .settle(Some(&key("a")), fails(Kind::Timeout, Effect::None))
                .is_err()
        );
        assert_eq!(effect(&doubts, "a", Kind::Unreachable), Effect::Possible);
    }
}
