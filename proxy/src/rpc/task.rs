//! The context of running work: how it calls drivers, and what it holds.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use driver_core::{Call, Effect, Error, Kind};
use futures_util::FutureExt;
use tokio::time::Instant;

use crate::routing::connection::{Connection, WorkClass};
use crate::rpc::in_flight::Guard;
use crate::telemetry::metrics::{Metrics, Outcome};

/// How long one connection of several may take to answer. Sidecars give up after 10 s where they ask for lists.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(9);
/// How long a call waits for a thread. Sidecars give up after 10 to 15 s, and ask again.
const THREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The context of running work.
#[derive(Debug)]
pub(crate) struct Task {
    /// Its deadline, and whether it has changed anything.
    pub(crate) call: Call,
    guard: Arc<Guard>,
    metrics: Metrics,
}

// === impl Task ===

impl Task {
    pub(super) fn new(call: Call, guard: Arc<Guard>, metrics: Metrics) -> Self {
        Self {
            call,
            guard,
            metrics,
        }
    }

    /// The guard to keep in work that may outlive this task, such as a thread in a system call:
    /// as long as a clone exists, no other call works on the same object.
    pub(crate) fn guard(&self) -> Arc<Guard> {
        self.guard.clone()
    }

    /// Calls the driver of a connection, and counts the result.
    pub(crate) async fn ask<T>(
        &self,
        connection: &Connection,
        verb: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.have_done(connection, WorkClass::Short, verb, work)
            .await
    }

    /// The same for a large copy.
    pub(crate) async fn ask_for_copy<T>(
        &self,
        connection: &Connection,
        verb: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.have_done(connection, WorkClass::Copy, verb, work)
            .await
    }

    /// The same for a large deletion.
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
        let start = Instant::now();
        // A lack of threads is reported before one of several connections counts as unresponsive.
        let timeout = THREAD_TIMEOUT.min(self.call.remaining() / 3);
        let result = connection.run_limited(class, timeout, work).await;
        let outcome = match &result {
            Ok(_) => Outcome::Done,
            Err(error) if error.effect() == Effect::Possible => Outcome::Unknown,
            Err(error) => Outcome::of(error),
        };
        let name = connection.name().text();
        self.metrics
            .backend_call(name, verb, outcome, start.elapsed());
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
        let timeout = ANSWER_TIMEOUT.min(self.call.remaining() / 2);
        let silent = || {
            Error::new(Kind::Timeout, format!("connection `{}`", connection.name()))
                .because(format!("no answer within {timeout:?}"))
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
            // A panic in one must not lose the answers of the others.
            let work = AssertUnwindSafe(work).catch_unwind();
            match tokio::time::timeout(timeout, work).await {
                Ok(answer) => answer.unwrap_or_else(|_| Err(broken())),
                Err(_) => Err(silent()),
            }
        };
        self.ask(connection, verb, patient).await
    }
}
