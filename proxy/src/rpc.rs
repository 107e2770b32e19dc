//! The way a call runs: detached from its client, guarded, with a deadline, logged and measured.
//!
//! Each call is one `async fn`: it decodes its request, finds its connection, which may have to be built,
//! is admitted with the keys of what it works on, and works.
//!
//! tonic drops a handler when its client leaves. Work on storage must not be dropped half-way, so a
//! dropped handler hands its work over to a task (`detach`). The work itself is not known here.
//! compat: "Calls in progress".

mod detach;
pub(crate) mod in_flight;
pub mod server;
pub mod status;
mod stream;
mod task;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use driver_core::{Call, Effect, Error, Kind};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tonic::{Code, Response, Status};
use tracing::{Instrument, debug, error, error_span, field, info, warn};

use crate::calls::{RpcGroup, code_name};
use crate::message;
use crate::routing::connections::late;
use crate::rpc::in_flight::{Guard, InFlight, Keys};
use crate::telemetry::metrics::{Metrics, RpcInFlight};
use detach::DetachOnDrop;

pub(crate) use crate::calls::Subject;
pub use crate::calls::{Deadlines, Rpc};
pub(crate) use stream::Outlet;
pub(crate) use task::Task;

/// How long after its deadline work may still return its own error. It says more than that it is late.
const GRACE: Duration = Duration::from_secs(1);

/// Runs calls. Clones share everything.
#[derive(Debug, Clone)]
pub struct Runner {
    tracker: TaskTracker,
    deadlines: Deadlines,
    pub(crate) metrics: Metrics,
    in_flight: InFlight,
    next_request: Arc<AtomicU64>,
}

/// Where the outcome of a call arrives.
type Answer<T> = oneshot::Receiver<Result<Response<T>, Status>>;

/// The whole work of a call, from its request on.
type Work<T> = BoxFuture<'static, Result<T, Error>>;

/// A call that holds nothing yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    rpc: Rpc,
    runner: Runner,
    admitted: oneshot::Sender<Admitted>,
}

/// What an admitted call holds until its end.
#[derive(Debug)]
struct Admitted {
    subject: Subject,
    call: Call,
    guard: Arc<Guard>,
}

/// A running call, until it is answered.
#[derive(Debug)]
struct Entry {
    rpc: Rpc,
    start: Instant,
}

// === impl Runner ===

impl Runner {
    /// Runs calls within `deadlines`.
    pub fn new(deadlines: Deadlines, metrics: Metrics) -> Self {
        Self {
            tracker: TaskTracker::new(),
            deadlines,
            metrics,
            in_flight: InFlight::default(),
            next_request: Arc::new(AtomicU64::new(1)),
        }
    }

    /// The work in progress: close it and wait for it before leaving the process.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// The objects calls work on.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Answers a call that only reads memory, in the handler itself.
    pub(crate) fn quick<T>(
        &self,
        rpc: Rpc,
        answer: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Response<T>, Status> {
        let entry = Entry::new(rpc);
        let measured = self.metrics.rpc(rpc);
        let result = caught(rpc, answer);
        let code = match &result {
            Ok(_) => {
                debug!(rpc = rpc.name(), code = %code_name(Code::Ok), "{} succeeded", rpc.name());
                Code::Ok
            }
            Err(error) => {
                let _span = error_span!("rpc", rpc = rpc.name()).entered();
                entry.log_failure(error)
            }
        };
        measured.ended(code, reason(&result));
        Entry::reply(result)
    }

    /// Runs `work` to its end, also if the client leaves, and answers with its result.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        rpc: Rpc,
        work: impl FnOnce(Incoming) -> Work<T>,
    ) -> Result<Response<T>, Status> {
        let (work, mut receiver) = self.begin(rpc, work);
        let mut work = DetachOnDrop::new(self.tracker.track_future(work));
        let answer = tokio::select! {
            biased;
            () = &mut work => receiver.await,
            // Work that outlives its answer goes on when `work` is dropped.
            answer = &mut receiver => answer,
        };
        answer.unwrap_or_else(|_| Err(torn_down()))
    }

    /// The whole of a call, and where its outcome arrives.
    fn begin<T: Send + 'static>(
        &self,
        rpc: Rpc,
        work: impl FnOnce(Incoming) -> Work<T>,
    ) -> (impl Future<Output = ()> + Send + 'static, Answer<T>) {
        let (sender, receiver) = oneshot::channel();
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        // At the level of errors, so that every line about a call carries these fields.
        let span = error_span!(
            "rpc",
            request_id = request,
            rpc = rpc.name(),
            connection = field::Empty,
            volume = field::Empty,
            snapshot = field::Empty,
            source = field::Empty,
            size = field::Empty,
            claim = field::Empty,
            path = field::Empty,
        );
        let (admitted, admission) = oneshot::channel();
        let work = work(Incoming {
            rpc,
            runner: self.clone(),
            admitted,
        });
        let work = self.clone().conduct(rpc, work, admission, sender);
        (work.instrument(span), receiver)
    }

    async fn conduct<T: Send + 'static>(
        self,
        rpc: Rpc,
        work: Work<T>,
        mut admission: oneshot::Receiver<Admitted>,
        answer: oneshot::Sender<Result<Response<T>, Status>>,
    ) {
        let entry = Entry::new(rpc);
        let mut measured = self.metrics.rpc(rpc);
        debug!("{} started", rpc.name());
        let work = AssertUnwindSafe(work).catch_unwind();
        let work = work.map(|ended| ended.unwrap_or_else(|_| Err(defect(rpc))));
        let mut work = std::pin::pin!(work);
        // What a call has to wait for until it is admitted are drivers that must be built.
        let patience = self.deadlines.of(rpc) / 2;
        let (mut ended, admitted) = tokio::select! {
            biased;
            ended = &mut work => (Some(ended), admission.try_recv().ok()),
            Ok(admitted) = &mut admission => (None, Some(admitted)),
            () = tokio::time::sleep(patience) => (Some(Err(late(rpc.name()))), None),
        };
        let Some(admitted) = admitted else {
            let refused = ended.unwrap_or_else(|| Err(defect(rpc)));
            return self.finish(&entry, answer, folded(rpc, refused, None), Some(measured));
        };
        let (call, guard) = (admitted.call, admitted.guard);
        measured.is_about(admitted.subject);
        if ended.is_none() {
            ended = tokio::select! {
                biased;
                ended = &mut work => Some(ended),
                () = tokio::time::sleep_until(call.deadline() + GRACE) => None,
            };
        }
        if let Some(result) = ended {
            let result = folded(rpc, result, Some(&call));
            // Before the answer: its reader may send the next call at once.
            drop(guard);
            self.finish(&entry, answer, result, Some(measured));
        } else {
            let error = Error::new(Kind::Timeout, format!("{} is still at work", rpc.name()))
                .advise("the object stays locked until the work ends");
            self.finish(&entry, answer, Err(error), None);
            let result = folded(rpc, work.await, Some(&call));
            entry.log_late(&result);
            drop(guard);
            let late = || format!("{} took longer than its deadline", rpc.name());
            measured.ended(Code::DeadlineExceeded, Some(late));
        }
    }

    /// Logs, counts and sends an answer; `measured` unless the work goes on.
    fn finish<T>(
        &self,
        entry: &Entry,
        answer: oneshot::Sender<Result<Response<T>, Status>>,
        result: Result<T, Error>,
        measured: Option<RpcInFlight>,
    ) {
        let code = match &result {
            Ok(_) => entry.log_success(),
            Err(error) => entry.log_failure(error),
        };
        if answer.is_closed() {
            info!("the client of {} left before the answer", entry.rpc.name());
            self.metrics.rpc_abandoned(entry.rpc.name());
        }
        if let Some(measured) = measured {
            measured.ended(code, reason(&result));
        }
        // A client that left in this very moment is counted as one that was answered.
        drop(answer.send(Entry::reply(result)));
    }
}

/// The text of a failure, made if it is wanted.
fn reason<T>(result: &Result<T, Error>) -> Option<impl FnOnce() -> String> {
    let error = result.as_ref().err()?;
    Some(|| message::of(error))
}

/// Runs `work`; a panic becomes an error without effect.
fn caught<T>(rpc: Rpc, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(defect(rpc)))
}

/// The error of a panic. The text of the panic may contain anything and is not disclosed.
fn defect(rpc: Rpc) -> Error {
    Error::new(
        Kind::Internal,
        format!("{} met a defect of this program", rpc.name()),
    )
    .advise("please report it with the log lines around it")
}

/// The answer while the runtime shuts down: otherwise a call always answers itself.
fn torn_down() -> Status {
    let error = Error::new(Kind::Internal, "this process is being stopped");
    status::status(&error.with_effect(Effect::Possible))
}

/// Folds what is known of a failure into its effect, once for every call: its kind, whether anything was
/// changed, and what the driver has proved.
///
/// A passing failure says nothing about what is there. After the first change of the call it is never
/// "nothing was done", whatever the driver says. In a call whose caller forgets after a final code an earlier
/// call may have started something, unless the storage was asked after the failure and has nothing of it. A
/// judgement about the request is believed.
fn folded<T>(rpc: Rpc, result: Result<T, Error>, call: Option<&Call>) -> Result<T, Error> {
    result.map_err(|error| {
        let changed = call.is_some_and(|call| call.effect() == Effect::Possible);
        let is_absent = call.is_some_and(Call::is_proved_absent);
        let in_doubt = is_passing(error.kind()) && (changed || (rpc.is_forgotten() && !is_absent));
        error.after_change(in_doubt)
    })
}

/// A failure of the environment, which says nothing about the request.
fn is_passing(kind: Kind) -> bool {
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

// === impl Incoming ===

impl Incoming {
    /// Takes the keys of the call, and puts its subject into the logs. From here on its deadline counts.
    pub(crate) fn admit(self, subject: Subject, keys: Keys) -> Result<Task, Error> {
        let Self { rpc, runner, .. } = self;
        subject.record();
        let guard = Arc::new(runner.in_flight.take(rpc, keys)?);
        let call = Call::within(runner.deadlines.of(rpc));
        let task = Task::new(call.clone(), guard.clone(), runner.metrics);
        let admitted = Admitted {
            subject,
            call,
            guard,
        };
        // The runner waits for it as long as the work runs.
        drop(self.admitted.send(admitted));
        Ok(task)
    }
}

// === impl Entry ===

impl Entry {
    fn new(rpc: Rpc) -> Self {
        Self {
            rpc,
            start: Instant::now(),
        }
    }

    fn reply<T>(result: Result<T, Error>) -> Result<Response<T>, Status> {
        result
            .map(Response::new)
            .map_err(|error| status::status(&error))
    }

    fn milliseconds(&self) -> f64 {
        (self.start.elapsed().as_secs_f64() * 1e6).round() / 1e3
    }

    /// Calls that change something are logged at info, queries at debug: they come many times a minute.
    fn log_success(&self) -> Code {
        let (rpc, duration_ms) = (self.rpc.name(), self.milliseconds());
        let code = code_name(Code::Ok);
        if self.rpc.changes() {
            info!(%code, duration_ms, "{rpc} succeeded");
        } else {
            debug!(%code, duration_ms, "{rpc} succeeded");
        }
        Code::Ok
    }

    fn log_failure(&self, error: &Error) -> Code {
        let rpc = self.rpc.name();
        let code = status::code(error.kind(), error.effect());
        let (name, duration_ms) = (code_name(code), self.milliseconds());
        let text = message::of(error);
        match (error.kind(), error.effect()) {
            (Kind::Internal, _) => {
                error!(code = %name, duration_ms, error = %text, "{rpc} failed");
            }
            (Kind::Unreachable | Kind::Timeout | Kind::Denied | Kind::OutOfSpace, _)
            | (_, Effect::Possible) => {
                warn!(code = %name, duration_ms, error = %text, "{rpc} failed");
            }
            // A pod waits for it, and its author may have no access to the events of the pod.
            _ if matches!(self.rpc.group(), RpcGroup::Node | RpcGroup::Attach) => {
                warn!(code = %name, duration_ms, error = %text, "{rpc} was refused");
            }
            _ => info!(code = %name, duration_ms, error = %text, "{rpc} was refused"),
        }
        code
    }

    /// The end of work whose caller has long been answered with `DEADLINE_EXCEEDED`.
    fn log_late<T>(&self, result: &Result<T, Error>) {
        let (rpc, duration_ms) = (self.rpc.name(), self.milliseconds());
        match result {
            Ok(_) => warn!(duration_ms, "{rpc} succeeded after its deadline"),
            Err(error) => {
                let error = message::of(error);
                warn!(duration_ms, %error, "{rpc} failed after its deadline");
            }
        }
    }
}
