//! One hop from an async thread to a thread that may block, with a deadline.
//!
//! A system call on a dead mount can block for ever and cannot be cancelled. The caller stops
//! waiting at its deadline; the thread is left alone, and what the caller holds for the volume is
//! released when the work has really ended, so that nobody else touches the volume meanwhile.

use std::any::Any;
use std::fmt;

use tokio::time::Instant;

use crate::node::{Effect, NodeError, NodeErrorKind};

/// The terms on which a verb runs: when its caller stops waiting, and what stays held until the
/// work is over.
#[derive(Debug)]
pub struct Terms {
    deadline: Instant,
    hold: Hold,
}

/// Something that is released by being dropped: the in-flight guard of a volume.
pub struct Hold(Option<Box<dyn Any + Send>>);

// === impl Terms ===

impl Terms {
    /// The caller waits until `deadline` and holds nothing.
    pub fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            hold: Hold(None),
        }
    }

    /// Holds `guard` until the work has really ended, even if its caller is long gone.
    #[must_use]
    pub fn holding(mut self, guard: impl Any + Send) -> Self {
        self.hold = Hold(Some(Box::new(guard)));
        self
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "held" } else { "nothing" })
    }
}

/// Runs `work` on a thread that may block. `doing` names the verb and the path.
pub(crate) async fn run<T: Send + 'static>(
    terms: Terms,
    doing: String,
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    let Terms { deadline, hold } = terms;
    if deadline <= Instant::now() {
        return Err(NodeError::new(NodeErrorKind::Timeout, doing));
    }
    let task = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(hold);
        result
    });
    match tokio::time::timeout_at(deadline, task).await {
        Ok(Ok(result)) => result,
        Ok(Err(join)) => Err(NodeError::new(NodeErrorKind::Internal, doing)
            .because(join)
            .with_effect(Effect::Possible)),
        Err(elapsed) => Err(NodeError::new(NodeErrorKind::Timeout, doing)
            .because(elapsed)
            .with_effect(Effect::Possible)
            .advise("the kernel has not answered yet; the volume stays locked until it does")),
    }
}
