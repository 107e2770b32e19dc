//! The circumstances of running work: how it asks drivers, and what it holds.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use driver_core::{Call, Effect, Error, Kind};
use futures_util::FutureExt;
use tokio::time::Instant;

use crate::routing::connection::{Connection, WorkClass};
use crate::rpc::doubt::Trace;
use crate::rpc::in_flight::{Guard, Keys};
use crate::telemetry::metrics::{Metrics, Outcome};

/// How long one connection of several may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a call waits for a thread.
const THREAD_PATIENCE: Duration = Duration::from_secs(10);

/// The circumstances of running work.
#[derive(Debug)]
pub(crate) struct Task {
    /// Its deadline, and whether it has changed anything.
    pub(crate) call: Call,
    guard: Arc<Guard>,
    metrics: Metrics,
    trace: Trace,
}

// === impl Task ===

impl Task {
    pub(super) fn new(call: Call, guard: Arc<Guard>, metrics: Metrics, trace: Trace) -> Self {
        Self {
            call,
            guard,
            metrics,
            trace,
        }
    }

    /// Says that of all that this call holds it changes nothing but this.
    pub(crate) fn changes_only(&self, keys: &Keys) {
        self.trace.changes_only(keys);
    }

    /// Whether an earlier call left it unknown what became of any of these.
    pub(crate) fn is_in_doubt(&self, keys: &Keys) -> bool {
        self.trace.is_in_doubt(keys)
    }

    /// What has to be kept by work that may outlive this task, such as a thread in a system call:
    /// as long as a clone exists, nobody else works on the same object.
    pub(crate) fn guard(&self) -> Arc<Guard> {
        self.guard.clone()
    }

    /// Asks the driver of a connection, and counts how that ended.
    pub(crate) async fn ask<T>(
        &self,
        connection: &Connection,
        verb: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.have_done(connection, WorkClass::Short, verb, work)
            .await
    }

    /// The same for what may copy much.
    pub(crate) async fn ask_for_copy<T>(
        &self,
        connection: &Connection,
        verb: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.have_done(connection, WorkClass::Copy, verb, work)
            .await
    }

    /// The same for what may delete much.
    pub(crate) async fn ask_for_deletion<T>(
        &self,
        connection: &Connection,
        verb: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.have_done(connection, WorkClass::Deletion, verb, work)
            .await
    }

    async fn have_done<T>(
        &self,
        connection: &Connection,
        class: WorkClass,
        verb: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let begun = Instant::now();
        // That there is no thread is told before one of several is taken to be silent.
        let patience = THREAD_PATIENCE.min(self.call.remaining() / 3);
        let result = connection.run_limited(class, patience, work).await;
        let outcome = match &result {
            Ok(_) => Outcome::Done,
            Err(error) if error.effect() == Effect::Possible => Outcome::Unknown,
            Err(error) if error.kind() == Kind::Timeout => Outcome::Unknown,
            Err(_) => Outcome::Failed,
        };
        let name = connection.name().text();
        self.metrics
            .backend_call(name, verb, outcome, begun.elapsed());
        result.map_err(|error| connection.explain(error))
    }

    /// The same for one connection of several, which must not keep the others waiting.
    pub(crate) async fn ask_patiently<T>(
        &self,
        connection: &Connection,
        verb: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if !connection.name().is_named() {
            return self.ask(connection, verb, work).await;
        }
        let patience = PATIENCE.min(self.call.remaining() / 2);
        let silent = || {
            Error::new(Kind::Timeout, format!("connection `{}`", connection.name()))
                .because(format!("no answer within {patience:?}"))
        };
        let broken = || {
            Error::new(
                Kind::Internal,
                format!("connection `{}`", connection.name()),
            )
            .because("it met a defect of this program")
            .advise("please report it with the log lines around it")
        };
        let patient = async {
            // One with a defect must not take the answers of the others with it.
            let work = AssertUnwindSafe(work).catch_unwind();
            match tokio::time::timeout(patience, work).await {
                Ok(answer) => answer.unwrap_or_else(|_| Err(broken())),
                Err(_) => Err(silent()),
            }
        };
        self.ask(connection, verb, patient).await
    }
}
