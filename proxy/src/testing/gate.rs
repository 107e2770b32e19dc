//! The gate that a verb waits for in a thread, as a system call on a dead mount does.

use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};

/// Open unless it is shut.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
}

/// Keeps a gate shut until it is dropped.
#[derive(Debug)]
pub(crate) struct Shut(Arc<Gate>);

// === impl Gate ===

impl Gate {
    /// From now on every caller of `pass` waits.
    pub(crate) fn shut(self: &Arc<Self>) -> Shut {
        self.set(true);
        Shut(Arc::clone(self))
    }

    /// Whether `pass` does not wait.
    pub(crate) fn is_open(&self) -> bool {
        !*self.shut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while it is shut.
    pub(crate) fn pass(&self) {
        let shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(shut, |shut| *shut));
    }

    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap_or_else(PoisonError::into_inner) = shut;
        self.changed.notify_all();
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// While this is kept, a paused clock does not advance by itself: threads that the runtime does not know
/// are working.
pub(crate) fn hold_paused_clock() -> Option<mpsc::Sender<()>> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    let (end, ended) = mpsc::channel::<()>();
    runtime.spawn_blocking(move || ended.recv().is_ok());
    Some(end)
}
