//! What can be made to go wrong, beside what goes wrong by itself.
//!
//! The catalogue of faults and how each is brought about is in the README of this crate.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;

/// What happens to calls that match.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A method, a prefix with a star at its end (`sharing.*`), or `*`.
    pub method: String,
    /// Only calls whose arguments, as JSON text, contain this.
    #[serde(default)]
    pub contains: Option<String>,
    /// This many matching calls pass first.
    #[serde(default)]
    pub skip: u32,
    /// The number of calls it then applies to; absent: all.
    #[serde(default)]
    pub times: Option<u32>,
    /// The action.
    pub action: Action,
}

impl Rule {
    /// A rule for every call of a method.
    pub fn new(method: &str, action: Action) -> Self {
        Self {
            method: method.to_owned(),
            contains: None,
            skip: 0,
            times: None,
            action,
        }
    }

    /// Only the next calls.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// This many calls pass first.
    #[must_use]
    pub fn skip(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }

    fn takes(&mut self, method: &str, params: &str) -> bool {
        let named = match self.method.strip_suffix('*') {
            Some(prefix) => method.starts_with(prefix),
            None => method == self.method,
        };
        if !named
            || self
                .contains
                .as_ref()
                .is_some_and(|part| !params.contains(part))
            || self.times == Some(0)
        {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        true
    }
}

/// The action of a rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call waits this many milliseconds before it is executed.
    Delay(u64),
    /// The call waits until [`Faults::release`].
    Hold,
    /// A `CallError` instead of the execution.
    Fail {
        /// The error number.
        errno: i32,
        /// The text without `[ERRNAME]`.
        reason: String,
    },
    /// The call is executed, and then fails like this.
    FailAfter {
        /// The error number.
        errno: i32,
        /// The text without `[ERRNAME]`.
        reason: String,
    },
    /// The call is not executed, and this is its result.
    Answer(Value),
    /// The same as JSON text, whatever that is and however much. REST reads it first.
    Raw(String),
    /// The connection is cut; the call is not executed.
    CutBefore,
    /// The call is executed; the connection is cut instead of the answer.
    CutAfter,
    /// `ENOTAUTHENTICATED`, once, although the session is good.
    NotAuthenticated,
    /// The session ends, as if it had become too old.
    ExpireSession,
    /// The answer of the limit of 20 calls in flight.
    TooManyCalls,
    /// `EBUSY`, `Rate Limit Exceeded`.
    RateLimit,
    /// REST only: nginx answers this status, and the call is not executed.
    HttpStatus(u16),
    /// REST only: nginx answers this status, and the call is executed.
    HttpStatusAfter(u16),
    /// The job ends as FAILED with this `CallError`.
    JobFails {
        /// The error number.
        errno: i32,
        /// The text without `[ERRNAME]`.
        reason: String,
    },
    /// The job ends as ABORTED.
    JobAborts,
    /// The job does its work; its result cannot be encoded.
    JobResultLost,
    /// The job stays RUNNING until [`Faults::release`].
    JobHold,
    /// The last event of the job comes twice.
    JobEventTwice,
    /// No event says that the job runs.
    JobEventWithoutRunning,
    /// No event comes at all.
    JobEventsLost,
    /// The job is gone from `core.get_jobs` as soon as it is done.
    JobEvicted,
}

/// Switches that are on until they are switched off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each named after what it does"
)]
pub struct Settings {
    /// Milliseconds between the sending of a request and the arrival of its answer.
    pub round_trip_ms: u64,
    /// Microseconds that each dataset of the NAS adds to a call that lists or changes datasets.
    pub per_dataset_us: u64,
    /// Microseconds that each snapshot adds that a call makes the NAS read.
    pub per_snapshot_us: u64,
    /// Milliseconds that a wrong password or key is answered later.
    pub failed_login_ms: u64,
    /// Milliseconds that a call over the rate limit is answered later.
    pub rate_limit_ms: u64,
    /// Plain HTTP is answered with 302.
    pub redirect_to_tls: bool,
    /// nginx answers 502 to everything.
    pub bad_gateway: bool,
    /// The address of the client is not in the allow list of the user interface.
    pub refuse_address: bool,
    /// The node is the standby one of a pair; a login is redirected to these.
    pub standby_of: Vec<String>,
    /// Connections from this machine count as foreign, so that a key sent in clear is revoked.
    pub loopback_is_foreign: bool,
    /// Results carry fields that no release documents, and some numbers as text.
    pub oddities: bool,
    /// The server sends nothing for 60 seconds: it cuts the connection. Off for long tests.
    pub idle_timeout: bool,
    /// 26 refuses every property of a clone, as BETA.1 does.
    pub clones_without_properties: bool,
    /// Newest jobs that are kept.
    pub job_history: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            round_trip_ms: 0,
            per_dataset_us: 0,
            per_snapshot_us: 0,
            failed_login_ms: 1000,
            rate_limit_ms: 1000,
            redirect_to_tls: false,
            bad_gateway: false,
            refuse_address: false,
            standby_of: Vec::new(),
            loopback_is_foreign: false,
            oddities: false,
            idle_timeout: true,
            clones_without_properties: false,
            job_history: 1000,
        }
    }
}

impl Settings {
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_millis(self.round_trip_ms)
    }
}

/// The faults that are in force.
#[derive(Debug, Default)]
pub struct Faults {
    inner: Mutex<Inner>,
    released: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    rules: Vec<Rule>,
    settings: Settings,
    busy: BTreeMap<String, u32>,
    holding: usize,
}

impl Faults {
    /// Adds a rule; the first one that matches a call is applied.
    pub fn add(&self, rule: Rule) {
        self.with(|inner| inner.rules.push(rule));
    }

    /// Removes all rules and lets held calls go on.
    pub fn clear(&self) {
        self.with(|inner| {
            inner.rules.clear();
            inner.busy.clear();
        });
        self.released.notify_waiters();
    }

    /// The rules, with what is left of them.
    pub fn rules(&self) -> Vec<Rule> {
        self.with(|inner| inner.rules.clone())
    }

    /// The switches.
    pub fn settings(&self) -> Settings {
        self.with(|inner| inner.settings.clone())
    }

    /// Changes switches.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        self.with(|inner| change(&mut inner.settings));
    }

    /// The next tries to destroy this dataset find it busy, and fail as the release fails then.
    pub fn busy(&self, dataset: &str, times: u32) {
        self.with(|inner| inner.busy.insert(dataset.to_owned(), times));
    }

    /// Lets every held call and job go on, and removes the rules that hold.
    pub fn release(&self) {
        self.with(|inner| {
            inner
                .rules
                .retain(|rule| !matches!(rule.action, Action::Hold | Action::JobHold));
        });
        self.released.notify_waiters();
    }

    /// The number of calls and jobs that are held now.
    pub fn holding(&self) -> usize {
        self.with(|inner| inner.holding)
    }

    pub(crate) fn take(&self, method: &str, params: &[Value]) -> Option<Action> {
        self.with(|inner| {
            if inner.rules.is_empty() {
                return None;
            }
            let params = Value::from(params.to_vec()).to_string();
            let mut rules = inner.rules.iter_mut();
            rules.find_map(|rule| rule.takes(method, &params).then(|| rule.action.clone()))
        })
    }

    pub(crate) fn take_busy(&self, dataset: &str) -> bool {
        self.with(|inner| match inner.busy.get_mut(dataset) {
            Some(times) if *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        })
    }

    pub(crate) async fn hold(&self) {
        let released = self.released.notified();
        self.with(|inner| inner.holding += 1);
        let _end = Holding(self);
        released.await;
    }

    fn with<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Holding<'a>(&'a Faults);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.with(|inner| inner.holding -= 1);
    }
}
