//! The accounting of threads: how many each party uses, and which calls wait for one.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Full;

/// A party may take another thread while it uses less than this part of the unreserved ones. Threads
/// that hang do not return, so the part must be small.
const SHARE: usize = 6;
/// The limit of all parties of one name, in shares of one party.
const SHARES_OF_A_NAME: usize = 2;
/// How many parties of one name may keep threads. Each stands for one repair after a hang.
const OF_A_NAME: usize = 8;
/// After this time without a return, threads of a party count as hung, and calls do not wait for them.
const LONG: Duration = Duration::from_secs(30);

/// Threads, and the parties that use them. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Reserved for parties without a thread.
    promised: usize,
    /// The share of a single party.
    alone: usize,
    kept: HashMap<Arc<str>, BTreeMap<u64, Kept>>,
    /// The waiting calls, by the number of their party. A returned thread is offered only to the first
    /// of each party, because many calls may wait for a party that hangs.
    waiting: BTreeMap<u64, Queue>,
    next: u64,
    /// How many were checked for a returned thread.
    #[cfg(test)]
    looks: usize,
}

/// The threads of one party and when it took them, the oldest first.
type Kept = BTreeMap<u64, Instant>;

/// The owner of an account.
#[derive(Debug, Clone)]
pub(super) struct Party {
    name: Arc<str>,
    number: u64,
    most: usize,
}

/// The calls of one party that wait for a thread, in order of arrival.
#[derive(Debug)]
struct Queue {
    party: Party,
    waiting: VecDeque<Waiting>,
}

/// A waiting call.
#[derive(Debug)]
struct Waiting {
    number: u64,
    answer: oneshot::Sender<Held>,
}

/// One thread, until it has really ended.
#[derive(Debug)]
pub(in crate::blocking) struct Held {
    pool: Pool,
    party: Party,
    number: u64,
}

// === impl Pool ===

impl Pool {
    /// A pool of this many threads for several parties.
    pub(super) fn shared(threads: usize) -> Self {
        let promised = threads / 2;
        let state = State {
            free: threads,
            promised,
            alone: (threads - promised) / (SHARE + 1),
            kept: HashMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            #[cfg(test)]
            looks: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// A new party that never uses more than `most`.
    pub(super) fn party(&self, name: Arc<str>, most: usize) -> Party {
        let number = self.lock().number();
        Party { name, number, most }
    }

    /// A thread, or a waiter for one, unless waiting is useless.
    pub(super) fn take(
        &self,
        party: &Party,
    ) -> Result<Result<Held, oneshot::Receiver<Held>>, Full> {
        let mut state = self.lock();
        // Waiting parties were served already as far as possible, so none is overtaken.
        if state.may(party) {
            return Ok(Ok(state.give(self, party)));
        }
        if let Some(full) = state.in_vain(party) {
            return Err(full);
        }
        let (answer, waiting) = oneshot::channel();
        state.wait(party, answer);
        Ok(Err(waiting))
    }

    /// Whether the threads of `party` have not returned for long.
    pub(super) fn are_away(&self, party: &Party) -> bool {
        self.lock().in_vain(party).is_some()
    }

    /// Why `party` got no thread in time.
    pub(super) fn why_none(&self, party: &Party, waited: Duration) -> Full {
        let state = self.lock();
        let (own, all) = state.kept_by(party);
        let alone = state.alone;
        let has_its_own = own > 0 && own >= party.most.min(alone);
        if has_its_own || all >= alone.saturating_mul(SHARES_OF_A_NAME).max(OF_A_NAME) {
            return Full::Own(all);
        }
        state.in_vain(party).unwrap_or(Full::Others(waited))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many threads are free, and how many parties use some.
    #[cfg(test)]
    pub(super) fn quiet(&self) -> (usize, usize, usize) {
        let state = self.lock();
        let waiting = state.waiting.values().map(|queue| queue.waiting.len());
        (state.free, state.kept.len(), waiting.sum())
    }

    /// How many were checked so far for returned threads.
    #[cfg(test)]
    pub(super) fn looks(&self) -> usize {
        self.lock().looks
    }
}

// === impl State ===

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// How many threads a party uses, and how many all parties of its name.
    fn kept_by(&self, party: &Party) -> (usize, usize) {
        let of_name = self.kept.get(&party.name);
        let own = of_name.and_then(|of_name| of_name.get(&party.number));
        let all = of_name.into_iter().flat_map(BTreeMap::values);
        (own.map_or(0, Kept::len), all.map(Kept::len).sum())
    }

    /// Whether a party may have another thread now.
    fn may(&self, party: &Party) -> bool {
        let (own, all) = self.kept_by(party);
        if self.free == 0 || own >= party.most {
            return false;
        }
        if own == 0 {
            return !self.is_crowded(party);
        }
        let share = self.free.saturating_sub(self.promised) / SHARE;
        own < share && all < share * SHARES_OF_A_NAME
    }

    /// Whether too many other parties of its name use threads.
    fn is_crowded(&self, party: &Party) -> bool {
        let of_name = self.kept.get(&party.name);
        of_name.is_some_and(|of_name| of_name.len() >= OF_A_NAME)
    }

    /// Why waiting is useless: no thread of the party has returned for long. One thread with long work
    /// does not count while other threads return.
    fn in_vain(&self, party: &Party) -> Option<Full> {
        let of_name = self.kept.get(&party.name)?;
        let own = of_name.get(&party.number);
        let youngest = match own {
            Some(own) => own.values().next_back(),
            None if self.is_crowded(party) => of_name
                .values()
                .filter_map(|kept| kept.values().next_back())
                .max(),
            None => None,
        };
        let (own, all) = self.kept_by(party);
        let many = if own == 0 { all } else { own };
        youngest
            .is_some_and(|since| since.elapsed() >= LONG)
            .then_some(Full::Away(many))
    }

    fn give(&mut self, pool: &Pool, party: &Party) -> Held {
        let number = self.number();
        self.free -= 1;
        let of_name = self.kept.entry(party.name.clone()).or_default();
        let kept = of_name.entry(party.number).or_default();
        kept.insert(number, Instant::now());
        Held {
            pool: pool.clone(),
            party: party.clone(),
            number,
        }
    }

    fn take_back(&mut self, party: &Party, number: u64) {
        self.free += 1;
        let Some(of_name) = self.kept.get_mut(&party.name) else {
            return;
        };
        if let Some(kept) = of_name.get_mut(&party.number) {
            kept.remove(&number);
            if kept.is_empty() {
                of_name.remove(&party.number);
            }
        }
        if of_name.is_empty() {
            self.kept.remove(&party.name);
        }
    }

    /// Gives threads to the waiting calls that may have one now, in order of arrival.
    fn serve(&mut self, pool: &Pool) -> Vec<(oneshot::Sender<Held>, Held)> {
        let mut served = Vec::new();
        while let Some((party, answer)) = self.first() {
            served.push((answer, self.give(pool, &party)));
        }
        served
    }

    /// The first waiting call that may have a thread now.
    fn first(&mut self) -> Option<(Party, oneshot::Sender<Held>)> {
        if self.free == 0 {
            return None;
        }
        self.waiting.retain(|_, queue| queue.is_wanted());
        #[cfg(test)]
        {
            self.looks += self.waiting.len();
        }
        let may = self.waiting.values().filter(|queue| self.may(&queue.party));
        let first = may.min_by_key(|queue| queue.waiting.front().map(|waiting| waiting.number));
        let party = first?.party.clone();
        let waiting = self.waiting.get_mut(&party.number)?.waiting.pop_front()?;
        Some((party, waiting.answer))
    }

    fn wait(&mut self, party: &Party, answer: oneshot::Sender<Held>) {
        let number = self.number();
        let queue = self.waiting.entry(party.number);
        let queue = queue.or_insert_with(|| Queue {
            party: party.clone(),
            waiting: VecDeque::new(),
        });
        queue.is_wanted();
        queue.waiting.push_back(Waiting { number, answer });
    }
}

// === impl Queue ===

impl Queue {
    /// Whether any caller still waits in it; afterwards the first one does.
    fn is_wanted(&mut self) -> bool {
        let gone = |waiting: &Waiting| waiting.answer.is_closed();
        while self.waiting.front().is_some_and(gone) {
            self.waiting.pop_front();
        }
        !self.waiting.is_empty()
    }
}

// === impl Held ===

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.take_back(&self.party, self.number);
        let served = state.serve(&self.pool);
        drop(state);
        for (answer, held) in served {
            // Not under the lock: dropping an abandoned call's thread returns to this function.
            drop(answer.send(held));
        }
    }
}
