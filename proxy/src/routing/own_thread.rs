//! Work on a thread of its own.
//!
//! The threads that calls use may all be taken by storage that hangs; what repairs a connection
//! must not wait for one of them. Work that never ends keeps its own thread and no other.

use std::io;

use tokio::sync::oneshot;

/// Begins `work`. What is returned is an error when the work met a defect and has no outcome.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (done, outcome) = oneshot::channel();
    let thread = std::thread::Builder::new().name("own_thread".to_owned());
    thread.spawn(move || {
        // The receiver may be gone.
        let _ = done.send(work());
    })?;
    Ok(outcome)
}
