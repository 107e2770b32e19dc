//! Refused logins, counted for each NAS and user in the whole process: several connections may go to one NAS, and
//! DSM blocks an address after a few refusals, by default 10 in 5 minutes; some administrators allow 3.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::error::Code;

/// The pause after a refused login. DSM blocks an address after ten failures in five minutes by default.
const AFTER_REFUSAL: Duration = Duration::from_mins(3);

/// The last refusal.
type Refusal = Option<(Instant, Code)>;

static GATES: LazyLock<Mutex<BTreeMap<(String, String), Gate>>> = LazyLock::new(Mutex::default);

/// The gate of one user of one NAS: one login at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<tokio::sync::Mutex<Refusal>>);

/// A login that may be tried now.
#[derive(Debug)]
pub(crate) struct Attempt(OwnedMutexGuard<Refusal>);

/// The gate of this user of the NAS at that address.
pub(crate) fn gate(address: &str, user: &str) -> Gate {
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (address.to_owned(), user.to_owned());
    gates.entry(key).or_default().clone()
}

// === impl Gate ===

impl Gate {
    /// Waits for other logins. `Err` holds the code with which one was refused a short while ago.
    pub(crate) async fn attempt(&self) -> Result<Attempt, Code> {
        let mut last = Arc::clone(&self.0).lock_owned().await;
        if let Some((at, code)) = *last
            && at.elapsed() < AFTER_REFUSAL
        {
            return Err(code);
        }
        *last = None;
        Ok(Attempt(last))
    }
}

// === impl Attempt ===

impl Attempt {
    pub(crate) fn refused(&mut self, code: Code) {
        *self.0 = Some((Instant::now(), code));
    }
}
