//! Calls that answer with many messages. They run as any other call does; only the messages go to the
//! client by a way of their own, before the outcome.
//!
//! They change nothing, so that their work is dropped when the client leaves: it comes back and says
//! where to go on. A stream that ends without an error is complete.

use driver_core::{Error, Kind};
use futures_util::{FutureExt, StreamExt, stream};
use tokio::sync::mpsc;
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use super::{Answer, Incoming, Rpc, Runner, Task, Work, torn_down};

/// Messages that wait for the client; the work waits while there are more.
const ROOM: usize = 1;

/// The place where the work of a call puts its messages.
#[derive(Debug)]
pub(crate) struct Outlet<M>(mpsc::Sender<M>);

/// What the client reads: the messages, and an error if there is one.
struct Messages<M> {
    waiting: mpsc::Receiver<M>,
    answer: Answer<()>,
    outcome: Option<Result<(), Status>>,
}

// === impl Runner ===

impl Runner {
    /// The same as [`Runner::detached`] for a call with many messages, which ends when its client
    /// leaves. What is refused before the first message is refused as any other call is.
    pub(crate) async fn streamed<M: Send + 'static>(
        &self,
        rpc: Rpc,
        work: impl FnOnce(Incoming, Outlet<M>) -> Work<()>,
    ) -> Result<Response<BoxStream<M>>, Status> {
        let (sender, waiting) = mpsc::channel(ROOM);
        let outlet = Outlet(sender);
        let (work, answer) = self.begin(rpc, |incoming| {
            let work = work(incoming, outlet.clone());
            let while_read = async move {
                tokio::select! {
                    biased;
                    ended = work => ended,
                    () = outlet.0.closed() => Err(left()),
                }
            };
            while_read.boxed()
        });
        self.tracker.spawn(work);
        let mut messages = Messages {
            waiting,
            answer,
            outcome: None,
        };
        let first = messages.next().await.transpose()?;
        let rest = stream::unfold(messages, async |mut messages| {
            let next = messages.next().await?;
            Some((next, messages))
        });
        Ok(Response::new(
            stream::iter(first.map(Ok)).chain(rest).boxed(),
        ))
    }
}

/// The client reads no more.
fn left() -> Error {
    Error::new(Kind::Pending, "send to the client").because("it has left")
}

// === impl Outlet ===

impl<M> Clone for Outlet<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M> Outlet<M> {
    /// Sends a message, once the client has taken those before.
    pub(crate) async fn send(&self, task: &Task, message: M) -> Result<(), Error> {
        let sending = self.0.send(message);
        match tokio::time::timeout_at(task.call.deadline(), sending).await {
            Ok(sent) => sent.map_err(|_| left()),
            Err(_) => Err(Error::new(Kind::Timeout, "send to the client")
                .because("it does not take what was sent before")),
        }
    }
}

// === impl Messages ===

impl<M> Messages<M> {
    async fn next(&mut self) -> Option<Result<M, Status>> {
        if self.outcome.is_none() {
            let outcome = tokio::select! {
                biased;
                Some(message) = self.waiting.recv() => return Some(Ok(message)),
                outcome = &mut self.answer => outcome,
            };
            let outcome = outcome.unwrap_or_else(|_| Err(torn_down()));
            self.outcome = Some(outcome.map(drop));
        }
        // What was sent right before the end comes before it.
        if let Ok(message) = self.waiting.try_recv() {
            return Some(Ok(message));
        }
        let outcome = self.outcome.as_mut()?;
        std::mem::replace(outcome, Ok(())).err().map(Err)
    }
}
