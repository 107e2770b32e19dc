//! What is odd about a configuration that can be used: a warning when serving, an error when
//! checking.

use std::fmt;

/// One oddity of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What sort of oddity.
    pub severity: Severity,
    /// The path of the key.
    pub path: String,
    /// What is odd.
    pub message: String,
    /// What to do about it, if we know.
    pub advice: Option<String>,
}

/// The sorts of oddity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A key that is never read: most likely misspelt.
    UnknownKey,
    /// A known key that changes nothing for this driver.
    NoEffect,
    /// A value that can be used, but hardly is what was meant.
    Doubtful,
}

// === impl Finding ===

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)?;
        match &self.advice {
            Some(advice) => write!(f, " ({advice})"),
            None => Ok(()),
        }
    }
}
