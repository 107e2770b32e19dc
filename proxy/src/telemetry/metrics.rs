//! The metrics of this process, in the text format of Prometheus.
//!
//! Labels come from closed sets (names of RPCs, codes, tools) and from the configuration
//! (connections), never from a request: a client cannot make the number of series grow. Serving
//! them is the work of the `admin` module.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use csi_types::error::{Error, Kind};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tonic::Code;

use crate::calls::{Rpc, Subject, code_name};
use crate::telemetry::history::{CallEnded, History};

mod connections;
mod process;
mod sessions;
mod staged;
mod text_format;

pub(crate) use connections::Usage;

/// Upper bounds in seconds. A probe takes tens of microseconds, a copy of a volume minutes.
const BUCKETS: [f64; 14] = [
    0.0001, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0,
];

/// Everything that this process counts. Clones count into the same place.
#[derive(Debug, Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    rpcs: Family<RpcEnded, Counter>,
    rpc_durations: Family<RpcOf, Histogram, fn() -> Histogram>,
    rpcs_in_flight: Family<RpcNamed, Gauge>,
    rpcs_abandoned: Family<RpcNamed, Counter>,
    backend_calls: Family<BackendCall, Counter>,
    backend_durations: Family<BackendCall, Histogram, fn() -> Histogram>,
    commands: Family<Command, Counter>,
    command_durations: Family<CommandNamed, Histogram, fn() -> Histogram>,
    connections: connections::OfConnections,
    staged: staged::OfStaged,
    seen: Seen,
    history: Option<Arc<History>>,
}

/// The values of labels that are no names of connections: to find the series of one.
#[derive(Debug, Default)]
struct Seen {
    rpcs: Pairs,
    verbs: Pairs,
}

#[derive(Debug, Default)]
struct Pairs(Mutex<BTreeSet<(&'static str, &'static str)>>);

/// A running RPC. It counts as in flight until it is dropped.
///
/// One that is dropped without `ended` is counted with the code `Unknown`: no RPC
/// ends uncounted, whatever became of its future.
#[derive(Debug)]
#[must_use = "an RPC that is dropped counts as ended"]
pub struct RpcInFlight {
    metrics: Metrics,
    rpc: Rpc,
    subject: Subject,
    start: Instant,
    code: Code,
    reason: Option<String>,
}

/// The outcome of a call to a backend, or a command, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// As it should.
    Done,
    /// With an error that was seen.
    Failed,
    /// The outcome is unknown: the deadline passed or the connection broke.
    Unknown,
}

// === impl Outcome ===

impl Outcome {
    /// The outcome of what has ended with an error.
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            Kind::Timeout => Self::Unknown,
            _ => Self::Failed,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RpcEnded {
    rpc: &'static str,
    code: &'static str,
    connection: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RpcOf {
    rpc: &'static str,
    connection: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RpcNamed {
    rpc: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackendCall {
    connection: Arc<str>,
    verb: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Command {
    program: Arc<str>,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandNamed {
    program: Arc<str>,
}

// === impl Metrics ===

impl Metrics {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::with(None)
    }

    /// The same that also remembers the recent past: for the console.
    pub fn with_history() -> Self {
        Self::with(Some(Arc::new(History::new())))
    }

    /// The recent past, if it is remembered.
    #[cfg(feature = "console")]
    pub(crate) fn history(&self) -> Option<Arc<History>> {
        self.inner.history.clone()
    }

    fn with(history: Option<Arc<History>>) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let mut inner = Inner {
            registry: Registry::default(),
            rpcs: Family::default(),
            rpc_durations: Family::new_with_constructor(histogram),
            rpcs_in_flight: Family::default(),
            rpcs_abandoned: Family::default(),
            backend_calls: Family::default(),
            backend_durations: Family::new_with_constructor(histogram),
            commands: Family::default(),
            command_durations: Family::new_with_constructor(histogram),
            connections: connections::OfConnections::default(),
            staged: staged::OfStaged::default(),
            seen: Seen::default(),
            history,
        };
        inner.register();
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Counts the start of an RPC.
    pub fn rpc(&self, rpc: Rpc) -> RpcInFlight {
        self.inner
            .rpcs_in_flight
            .get_or_create(&RpcNamed { rpc: rpc.name() })
            .inc();
        RpcInFlight {
            metrics: self.clone(),
            rpc,
            subject: Subject::default(),
            start: Instant::now(),
            code: Code::Unknown,
            reason: None,
        }
    }

    /// The client of an RPC left before it was answered; the work goes on and ends by itself.
    pub fn rpc_abandoned(&self, rpc: &'static str) {
        self.inner
            .rpcs_abandoned
            .get_or_create(&RpcNamed { rpc })
            .inc();
    }

    /// A verb of a driver has ended.
    pub fn backend_call(
        &self,
        connection: &Arc<str>,
        verb: &'static str,
        outcome: Outcome,
        took: Duration,
    ) {
        let labels = BackendCall {
            connection: self.inner.connections.label(connection),
            verb,
            outcome: outcome.as_str(),
        };
        self.inner.seen.verbs.note((verb, labels.outcome));
        self.inner.backend_calls.get_or_create(&labels).inc();
        self.inner
            .backend_durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// A command has ended. `program` is the name of the tool, not its path.
    ///
    /// Which programs there are is known; what they are given never becomes a label.
    pub fn command(&self, program: &str, outcome: Outcome, took: Duration) {
        let program: Arc<str> = Arc::from(program);
        let labels = Command {
            program: program.clone(),
            outcome: outcome.as_str(),
        };
        self.inner.commands.get_or_create(&labels).inc();
        let labels = CommandNamed { program };
        self.inner
            .command_durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Everything in the text format of Prometheus.
    pub fn encode_text(&self) -> Result<String, fmt::Error> {
        Ok(text_format::from_open_metrics(&self.encode()?))
    }

    /// Everything in the format `OpenMetrics`.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.inner.registry)?;
        Ok(page)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Pairs ===

impl Pairs {
    fn note(&self, pair: (&'static str, &'static str)) {
        self.lock().insert(pair);
    }

    fn all(&self) -> Vec<(&'static str, &'static str)> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(&'static str, &'static str)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Inner ===

impl Inner {
    /// Ends the series of calls of a connection that is gone: names come and go.
    fn forget_calls(&self, connection: &Arc<str>) {
        for (rpc, code) in self.seen.rpcs.all() {
            let connection = connection.clone();
            self.rpc_durations.remove(&RpcOf {
                rpc,
                connection: connection.clone(),
            });
            self.rpcs.remove(&RpcEnded {
                rpc,
                code,
                connection,
            });
        }
        for (verb, outcome) in self.seen.verbs.all() {
            let labels = BackendCall {
                connection: connection.clone(),
                verb,
                outcome,
            };
            self.backend_calls.remove(&labels);
            self.backend_durations.remove(&labels);
        }
    }

    fn register(&mut self) {
        let to = &mut self.registry;
        to.register(
            "omnibus_csi_rpc",
            "RPCs answered, by code",
            self.rpcs.clone(),
        );
        to.register(
            "omnibus_csi_rpc_duration_seconds",
            "Time from an RPC's arrival to the end of its work",
            self.rpc_durations.clone(),
        );
        to.register(
            "omnibus_csi_rpc_in_flight",
            "RPCs whose work has not ended",
            self.rpcs_in_flight.clone(),
        );
        to.register(
            "omnibus_csi_rpc_abandoned",
            "RPCs whose client left before the answer",
            self.rpcs_abandoned.clone(),
        );
        to.register(
            "omnibus_csi_backend_calls",
            "Verbs asked of a driver",
            self.backend_calls.clone(),
        );
        to.register(
            "omnibus_csi_backend_call_duration_seconds",
            "Time that a driver took for a verb",
            self.backend_durations.clone(),
        );
        to.register(
            "omnibus_csi_commands",
            "Commands run on the node",
            self.commands.clone(),
        );
        to.register(
            "omnibus_csi_command_duration_seconds",
            "Time that a command took",
            self.command_durations.clone(),
        );
        self.connections.register(to);
        self.staged.register(to);
        let build = Info::new([
            ("version", env!("CARGO_PKG_VERSION")),
            ("csi", csi_proto::SPEC_VERSION),
        ]);
        to.register("omnibus_csi_build", "What is running", build);
        to.register_collector(Box::new(process::Process::new()));
        to.register_collector(Box::new(sessions::Sessions));
    }
}

// === impl RpcInFlight ===

impl RpcInFlight {
    /// Says what the RPC is about, once its connection is known to be one of the configuration.
    pub(crate) fn is_about(&mut self, subject: Subject) {
        self.subject = subject;
    }

    /// The work of the RPC has ended, and this is its answer; for a failure the text of the error.
    pub(crate) fn ended(mut self, code: Code, reason: Option<impl FnOnce() -> String>) {
        self.code = code;
        let history = self.metrics.inner.history.as_ref();
        self.reason = reason.filter(|_| history.is_some()).map(|reason| reason());
    }
}

impl Drop for RpcInFlight {
    fn drop(&mut self) {
        let inner = &self.metrics.inner;
        let (rpc, code, took) = (self.rpc.name(), code_name(self.code), self.start.elapsed());
        let connection = inner.connections.label(&self.subject.connection);
        inner.rpcs_in_flight.get_or_create(&RpcNamed { rpc }).dec();
        let of = RpcOf {
            rpc,
            connection: connection.clone(),
        };
        inner
            .rpc_durations
            .get_or_create(&of)
            .observe(took.as_secs_f64());
        let ended = RpcEnded {
            rpc,
            code,
            connection,
        };
        inner.seen.rpcs.note((rpc, code));
        inner.rpcs.get_or_create(&ended).inc();
        if let Some(history) = &inner.history {
            let now = SystemTime::now();
            history.ended(CallEnded {
                rpc: self.rpc,
                began: now.checked_sub(took).unwrap_or(now),
                took,
                code,
                reason: self.reason.take(),
                subject: std::mem::take(&mut self.subject),
            });
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Every outcome.
    const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Unknown];

    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests;
