//! Work of a handler that continues in its own task if the handler is dropped.
//!
//! While the client waits, its handler drives the work itself: a task for each call would cost two
//! thread switches. The work is never dropped half-way in either case.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

/// Work that runs to its end, here or in a task.
pub(super) struct DetachOnDrop(Option<BoxFuture<'static, ()>>);

// === impl DetachOnDrop ===

impl DetachOnDrop {
    pub(super) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl Future for DetachOnDrop {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(work) = &mut self.0 {
            ready!(work.as_mut().poll(context));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and the work ends with it.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}
