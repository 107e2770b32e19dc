//! One after the other: what attaches and detaches volumes of one target.
//!
//! Volumes may share a session or a connection; whether the last of them has gone can only be seen
//! while nobody adds another one. Only this process is ordered, which is the only one that acts.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use csi_types::error::{Error, Kind};

type Place = tokio::sync::Mutex<()>;

static TURNS: LazyLock<Mutex<HashMap<String, Weak<Place>>>> = LazyLock::new(Mutex::default);

/// The turn at one target, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _guard: OwnedMutexGuard<()>,
}

/// Waits for the turn at the target of this name.
pub(crate) async fn turn(target: &str, deadline: Instant) -> Result<Turn, Error> {
    let place = {
        let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        // Targets come and go; those nobody waits at are forgotten.
        turns.retain(|_, place| place.strong_count() > 0);
        let known = turns.get(target).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let place = Arc::new(Place::default());
            turns.insert(target.to_owned(), Arc::downgrade(&place));
            place
        })
    };
    let guard = tokio::time::timeout_at(deadline, place.lock_owned()).await;
    let late = |elapsed| {
        let doing = format!("wait for another volume of {target}");
        Error::new(Kind::Pending, doing).because(elapsed)
    };
    Ok(Turn {
        _guard: guard.map_err(late)?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_target_has_one_turn_and_another_target_has_its_own() {
        let soon = || Instant::now() + Duration::from_secs(1);
        let first = turn("test a", soon()).await.expect("turn");
        turn("test b", soon()).await.expect("another target");
        let waiting = turn("test a", soon()).await.expect_err("taken");
        assert_eq!(waiting.kind(), Kind::Pending);
        drop(first);
        turn("test a", soon()).await.expect("given back");
    }
}
