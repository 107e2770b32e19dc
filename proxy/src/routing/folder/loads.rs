//! Loads files into connections, each on its own thread.
//!
//! A load touches no storage, but may read files that the configuration names, and those may hang. A
//! few run at once. A slow one gives its turn to the next, and a newer load of the same connection does
//! not wait for it: only the newest is served.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::loader::Built;
use super::scan::Changed;
use crate::routing::connections::ConnectionName;
use crate::routing::own_thread;

/// The number of those that are made at once. Reading a file and making a driver is work for the processor, of which
/// there are few.
const AT_ONCE: usize = 4;
/// One that takes longer gives its turn to the next. A file on a sound disk takes a few milliseconds.
const TURN: Duration = Duration::from_millis(500);
/// One that takes longer is reported as late. As long as calls wait for it.
pub(super) const LATE_AFTER: Duration = Duration::from_secs(10);
/// The number of those of one connection that may hang. The file may be corrected while the read of its content before
/// hangs.
const EACH: usize = 3;
/// The number of those that may hang in all: each keeps a thread. As many connections as a large deployment has.
const MOST: usize = 256;

/// Files that are being made into connections.
#[derive(Debug, Default)]
pub(super) struct Loads {
    waiting: VecDeque<Changed>,
    made: FuturesUnordered<BoxFuture<'static, (Number, Option<Built>)>>,
    under_way: BTreeMap<Number, Load>,
    last: Number,
}

/// The number of a load.
type Number = u64;

/// A running load.
#[derive(Debug)]
struct Load {
    name: ConnectionName,
    since: Instant,
    late: bool,
    /// Whether it is the newest of its connection, and its file exists.
    wanted: bool,
}

// === impl Loads ===

impl Loads {
    /// Queues a changed file, and discards older loads of the same connection.
    pub(super) fn add(&mut self, changed: Changed) {
        self.drop(&changed.name);
        self.waiting.push_back(changed);
    }

    /// Discards the loads of that name.
    pub(super) fn drop(&mut self, name: &ConnectionName) {
        self.waiting.retain(|other| other.name != *name);
        for load in self.under_way.values_mut() {
            load.wanted &= load.name != *name;
        }
    }

    /// Starts those whose turn it is. The returned ones must be reported again: there was no thread
    /// for them.
    pub(super) fn begin<B>(&mut self, build: &B, now: Instant) -> Vec<ConnectionName>
    where
        B: Fn(Changed) -> Built + Clone + Send + 'static,
    {
        let mut lost = Vec::new();
        while let Some(changed) = self.next_turn(now) {
            let (name, build) = (changed.name.clone(), build.clone());
            let Ok(built) = own_thread::spawn(move || build(changed)) else {
                lost.push(name);
                continue;
            };
            self.last += 1;
            let number = self.last;
            let load = Load {
                name,
                since: now,
                late: false,
                wanted: true,
            };
            self.under_way.insert(number, load);
            self.made
                .push(built.map(move |built| (number, built.ok())).boxed());
        }
        lost
    }

    /// The next one, if it may start.
    fn next_turn(&mut self, now: Instant) -> Option<Changed> {
        let has_turn = |load: &&Load| now.duration_since(load.since) < TURN;
        let turns = self.under_way.values().filter(has_turn).count();
        if turns >= AT_ONCE || self.under_way.len() >= MOST {
            return None;
        }
        let hang = |name: &ConnectionName| {
            let of_it = self.under_way.values().filter(|load| load.name == *name);
            of_it.count()
        };
        let mut waiting = self.waiting.iter();
        let at = waiting.position(|changed| hang(&changed.name) < EACH)?;
        self.waiting.remove(at)
    }

    /// The next result, if it is still wanted. Only to be called while a load is running.
    pub(super) async fn next(&mut self) -> Option<(ConnectionName, Option<Built>)> {
        let (number, built) = self.made.next().await?;
        let load = self.under_way.remove(&number)?;
        load.wanted.then_some((load.name, built))
    }

    /// Those that have just become late.
    pub(super) fn late(&mut self, now: Instant) -> Vec<ConnectionName> {
        let mut late = Vec::new();
        for load in self.under_way.values_mut() {
            if load.wanted && !load.late && now.duration_since(load.since) >= LATE_AFTER {
                load.late = true;
                late.push(load.name.clone());
            }
        }
        late
    }

    /// Whether no load is running.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether a wanted load is running or queued that is not late.
    pub(super) fn is_busy(&self) -> bool {
        let busy = |load: &Load| load.wanted && !load.late;
        !self.waiting.is_empty() || self.under_way.values().any(busy)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex, PoisonError, mpsc};

    use super::*;
    use crate::routing::connections::LazyConnection;

    fn parse(name: &str) -> ConnectionName {
        ConnectionName::parse(name).expect("a name")
    }

    fn changed(name: &str, text: &str) -> Changed {
        Changed {
            name: parse(name),
            path: PathBuf::from("/c").join(name),
            text: Ok(text.to_owned()),
            content: None,
        }
    }

    /// A build of `hang` blocks until the sender is used; all others end at once with their text.
    fn slow() -> (
        mpsc::Sender<()>,
        impl Fn(Changed) -> Built + Clone + Send + 'static,
    ) {
        let (go_on, wait) = mpsc::channel();
        let wait = Arc::new(Mutex::new(wait));
        let build = move |changed: Changed| {
            let text = changed
                .text
                .unwrap_or_else(|error: io::Error| error.to_string());
            if text == "hang" {
                // A build that is never released blocks no test.
                let _ = wait.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
            Ok(LazyConnection::refused(changed.name, &text))
        };
        (go_on, build)
    }

    async fn next(loads: &mut Loads) -> Option<(String, bool)> {
        let (name, built) = loads.next().await?;
        Some((name.to_string(), built.is_some_and(|built| built.is_ok())))
    }

    fn made(name: &str) -> (String, bool) {
        (name.to_owned(), true)
    }

    #[tokio::test]
    async fn a_file_that_hangs_gives_its_turn_to_others_and_only_the_newest_is_served() {
        let (go_on, build) = slow();
        let (mut loads, now) = (Loads::default(), Instant::now());
        for name in ["a", "b", "c", "d", "e"] {
            loads.add(changed(name, "hang"));
        }
        loads.add(changed("f", "text"));
        assert_eq!(loads.begin(&build, now), []);
        assert_eq!((loads.under_way.len(), loads.waiting.len()), (4, 2));
        loads.begin(&build, now + TURN);
        assert_eq!(next(&mut loads).await, Some(made("f")));
        assert!(loads.is_busy() && loads.late(now + TURN).is_empty());
        let late = loads.late(now + TURN + LATE_AFTER);
        assert_eq!(late.len(), 5);
        assert!(
            loads.late(now + 2 * LATE_AFTER).is_empty(),
            "it is reported once"
        );
        assert!(!loads.is_busy() && !loads.is_idle());
        // A file that was repaired does not wait for what hangs, which is served no more.
        loads.add(changed("a", "text"));
        loads.begin(&build, now + LATE_AFTER);
        assert_eq!(next(&mut loads).await, Some(made("a")));
        for _ in 0..5 {
            go_on.send(()).expect("it hangs");
        }
        let mut served = Vec::new();
        for _ in 0..5 {
            served.extend(next(&mut loads).await.map(|(name, _)| name));
        }
        served.sort_unstable();
        assert_eq!(served, ["b", "c", "d", "e"]);
        assert!(loads.is_idle());
    }

    #[tokio::test]
    async fn of_one_connection_only_a_few_hang_and_the_others_do_not_wait() {
        let (go_on, build) = slow();
        let (mut loads, mut now) = (Loads::default(), Instant::now());
        for _ in 0..EACH + 2 {
            loads.add(changed("a", "hang"));
            loads.begin(&build, now);
            now += TURN;
        }
        loads.add(changed("b", "text"));
        loads.begin(&build, now);
        assert_eq!((loads.under_way.len(), loads.waiting.len()), (EACH + 1, 1));
        assert_eq!(next(&mut loads).await, Some(made("b")));
        loads.add(changed("a", "text"));
        assert_eq!(loads.begin(&build, now), []);
        assert_eq!(loads.waiting.len(), 1);
        go_on.send(()).expect("one hangs");
        assert_eq!(next(&mut loads).await, None);
        loads.begin(&build, now);
        assert_eq!(next(&mut loads).await, Some(made("a")));
        drop(go_on);
    }

    #[tokio::test]
    async fn a_file_that_is_removed_during_its_build_is_not_served_and_a_panic_is_reported() {
        let (go_on, build) = slow();
        let (mut loads, now) = (Loads::default(), Instant::now());
        loads.add(changed("a", "hang"));
        loads.begin(&build, now);
        loads.drop(&parse("a"));
        go_on.send(()).expect("it hangs");
        assert_eq!(next(&mut loads).await, None);
        loads.add(changed("a", "text"));
        loads.begin(&|_: Changed| -> Built { panic!("a defect") }, now);
        assert_eq!(next(&mut loads).await, Some(("a".to_owned(), false)));
    }
}
