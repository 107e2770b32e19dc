//! A look at the volumes that are staged on this node, without waiting for a call.
//!
//! Every minute each mounted volume is looked at, one a second. What is wrong is a metric, and a line of the log when it
//! changes. Sessions and connections that are missing beside others that work are opened again.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use csi_types::{AbsolutePath, said};
use driver_core::{Condition, Conditions, Error};
use futures_util::FutureExt;
use node_utils::Limits;
use node_utils::node::{Node, PROBE, StagedHealth, health};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, error, info, warn};

use crate::csi::plugin::Plugin;
use crate::telemetry::metrics::{Metrics, Outcome};

/// How often each volume is looked at. A node with more than 60 takes a second for each.
const EVERY: Duration = Duration::from_mins(1);
/// The time from one volume to the next. It is work in the background, and a storage that comes back has enough to do.
const ONE: Duration = Duration::from_secs(1);
/// The time to find the staged volumes: the kernel lists its mounts in milliseconds.
const LIST: Duration = Duration::from_secs(10);
/// The time of a look. It ends within two seconds, whatever hangs.
const LOOK: Duration = Duration::from_secs(3);
/// The time of a repair: a login that hangs ends within it, and an unstage of the target waits so long at most.
const REPAIR: Duration = Duration::from_secs(30);
/// The pause after a repair of a volume before the next one of it, and after one that failed before the next one only by
/// addresses that are still missing then, of whatever volume. A storage whose other address is away for good logs each try.
const AGAIN: Duration = Duration::from_mins(10);

/// Nothing is wrong.
const HEALTHY: &str = "Healthy";
/// The look failed.
const UNKNOWN: &str = "Unknown";

/// What is known of the staged volumes.
#[derive(Debug, Default)]
struct Known {
    states: HashMap<AbsolutePath, &'static str>,
    repaired: HashMap<AbsolutePath, Instant>,
    /// The last failure of a repair by each address.
    failed: HashMap<String, Instant>,
    counts: BTreeMap<&'static str, usize>,
}

/// Looks at the volumes of drivers of these names until what is returned is dropped. A defect in one round does not end it.
pub(crate) fn watch(
    plugin: &Arc<Plugin>,
    drivers: Vec<String>,
    metrics: Metrics,
) -> AbortOnDropHandle<()> {
    let verbs = plugin.node.verbs().clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut known = Known::default();
        let mut round = tokio::time::interval(EVERY);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            round.tick().await;
            let looked = AssertUnwindSafe(known.round(&verbs, &drivers, &metrics)).catch_unwind();
            match looked.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    debug!(error = error.chain(), "could not find the staged volumes");
                }
                Err(_) => error!("looking at the staged volumes met a defect of this program"),
            }
        }
    }))
}

// === impl Known ===

impl Known {
    /// Looks at each volume once, and of a server that does not answer at one.
    async fn round(
        &mut self,
        verbs: &Node,
        drivers: &[String],
        metrics: &Metrics,
    ) -> Result<(), Error> {
        let mut staged = verbs.staged(within(LIST), drivers).await?;
        self.keep(&staged);
        self.sort(&mut staged);
        metrics.node_volumes(self.count());
        let mut silent: HashMap<&str, Conditions> = HashMap::new();
        for (path, server) in &staged {
            let next = Instant::now() + ONE;
            let seen = match silent.get(server.as_str()) {
                Some(found) => Ok(StagedHealth {
                    conditions: found.clone(),
                    ..StagedHealth::default()
                }),
                None => verbs.look(within(LOOK), path).await,
            };
            let (found, lacking) = match seen {
                Ok(seen) => (Ok(seen.conditions), seen.lacking),
                Err(error) => (Err(error), Vec::new()),
            };
            let is_silence = |one: &Condition| one.message() == said::no_answer(path, PROBE);
            if let Ok(found) = &found
                && found.iter().any(is_silence)
            {
                silent.insert(server, found.clone());
            }
            self.note(path, &found);
            metrics.node_volumes(self.count());
            if self.is_due(path, &lacking) {
                let repaired = verbs.reconnect(within(REPAIR), path).await;
                if repaired.is_err() {
                    // An address by which it has a way now is not to blame.
                    let left = verbs.look(within(LOOK), path).await;
                    self.fail(left.map_or(lacking, |seen| seen.lacking));
                }
                metrics.node_repair(report(path, repaired));
            }
            tokio::time::sleep_until(next).await;
        }
        Ok(())
    }

    /// Forgets the volumes that are not staged any more.
    fn keep(&mut self, staged: &[(AbsolutePath, String)]) {
        let is_staged = |path: &AbsolutePath| staged.iter().any(|(known, _)| known == path);
        self.states.retain(|path, _| is_staged(path));
        self.repaired.retain(|path, _| is_staged(path));
        self.failed.retain(|_, last| waits(last));
    }

    /// Puts those first that have waited longest for a repair. A volume whose own target refuses it would otherwise be the
    /// only one that is tried by an address.
    fn sort(&self, staged: &mut [(AbsolutePath, String)]) {
        staged.sort_by_key(|(path, _)| self.repaired.get(path).copied());
    }

    /// Remembers what a look has found, and logs that it is another thing than before.
    fn note(&mut self, path: &AbsolutePath, found: &Result<Conditions, Error>) {
        let (state, why) = match found {
            Ok(found) => found.worst().map_or((HEALTHY, String::new()), |worst| {
                (worst.reason().as_str(), worst.message().to_owned())
            }),
            Err(error) => (UNKNOWN, error.chain()),
        };
        // It was unmounted in between.
        if state == health::NOT_MOUNTED.as_str() {
            self.states.remove(path);
            return;
        }
        let before = self.states.insert(path.clone(), state);
        if before.unwrap_or(HEALTHY) == state {
            return;
        }
        if state == HEALTHY {
            info!(%path, "nothing is wrong with this staged volume any more");
        } else {
            warn!(%path, why, "something is wrong with this staged volume");
        }
    }

    /// How many volumes are in each state that any was in.
    fn count(&mut self) -> &BTreeMap<&'static str, usize> {
        self.counts.entry(HEALTHY).or_default();
        for count in self.counts.values_mut() {
            *count = 0;
        }
        for state in self.states.values().copied() {
            *self.counts.entry(state).or_default() += 1;
        }
        &self.counts
    }

    /// Whether a volume that lacks ways by these addresses may be repaired now, which counts as done. One address that does
    /// not wait is enough.
    fn is_due(&mut self, path: &AbsolutePath, lacking: &[String]) -> bool {
        let failed = |address: &String| self.failed.get(address).is_some_and(waits);
        // Without a missing address all of them wait.
        let is_due = !self.repaired.get(path).is_some_and(waits) && !lacking.iter().all(failed);
        if is_due {
            self.repaired.insert(path.clone(), Instant::now());
        }
        is_due
    }

    /// Remembers that a repair by these addresses has failed.
    fn fail(&mut self, lacking: Vec<String>) {
        let now = Instant::now();
        self.failed
            .extend(lacking.into_iter().map(|address| (address, now)));
    }
}

/// Whether the pause since then is not over.
fn waits(last: &Instant) -> bool {
    last.elapsed() < AGAIN
}

/// Logs how a repair has ended.
fn report(path: &AbsolutePath, repaired: Result<(), Error>) -> Outcome {
    match repaired {
        Ok(()) => {
            info!(%path, "missing sessions or connections of this staged volume are open again");
            Outcome::Done
        }
        Err(error) => {
            warn!(%path, error = error.chain(), "missing sessions or connections of this staged volume cannot be opened");
            Outcome::of(&error)
        }
    }
}

fn within(time: Duration) -> Limits {
    Limits::until(Instant::now() + time)
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use driver_core::{ConditionKind, Kind};

    fn path(text: &str) -> AbsolutePath {
        AbsolutePath::parse(text).expect("a path")
    }

    fn wrong(reason: csi_types::Reason) -> Conditions {
        let one = Condition::new(ConditionKind::Degraded, reason, "a test");
        [one].into_iter().collect()
    }

    #[test]
    fn each_volume_counts_in_its_last_state_and_one_that_is_gone_in_none() {
        let mut known = Known::default();
        let (a, b) = (path("/a"), path("/b"));
        known.note(&a, &Ok(wrong(health::PATH_DOWN)));
        known.note(&b, &Err(Error::new(Kind::Timeout, "look")));
        let counts = [("Healthy", 0), ("PathDown", 1), ("Unknown", 1)];
        assert_eq!(known.count(), &BTreeMap::from(counts));
        known.note(&a, &Ok(Conditions::default()));
        known.note(&b, &Ok(wrong(health::NOT_MOUNTED)));
        let counts = [("Healthy", 1), ("PathDown", 0), ("Unknown", 0)];
        assert_eq!(known.count(), &BTreeMap::from(counts));
        known.keep(&[(b, "nas".to_owned())]);
        assert!(known.count().values().all(|count| *count == 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_not_repaired_again_at_once_and_another_one_is() {
        let mut known = Known::default();
        let lacking = ["nas:3260".to_owned()];
        assert!(!known.is_due(&path("/a"), &[]), "it lacks nothing");
        assert!(known.is_due(&path("/a"), &lacking) && known.is_due(&path("/b"), &lacking));
        tokio::time::advance(AGAIN / 2).await;
        assert!(!known.is_due(&path("/a"), &lacking));
        tokio::time::advance(AGAIN / 2).await;
        assert!(known.is_due(&path("/a"), &lacking));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_down_is_tried_once_in_a_pause_however_many_volumes_lack_it() {
        let mut known = Known::default();
        let (down, other) = ("nas:3260".to_owned(), "nas-2:3260".to_owned());
        let mut staged: Vec<_> = ["/a", "/b", "/c"]
            .map(|name| (path(name), "nas".to_owned()))
            .into();
        let mut tries = Vec::new();
        for _minute in 0..30 {
            known.keep(&staged);
            known.sort(&mut staged);
            for (one, _) in &staged {
                if known.is_due(one, slice::from_ref(&down)) {
                    tries.push(one.to_string());
                    known.fail(vec![down.clone()]);
                }
            }
            tokio::time::advance(EVERY).await;
        }
        // Each has its turn, so that one that is to blame itself keeps no other one waiting for good.
        assert_eq!(tries, ["/a", "/b", "/c"]);
        let both = [down.clone(), other.clone()];
        assert!(
            known.is_due(&path("/d"), slice::from_ref(&down)),
            "a pause is over"
        );
        known.fail(vec![down.clone()]);
        assert!(!known.is_due(&path("/e"), slice::from_ref(&down)));
        assert!(known.is_due(&path("/e"), &both), "one of both is not down");
        known.fail(vec![other]);
        assert!(!known.is_due(&path("/f"), &both), "both are down");
    }
}
