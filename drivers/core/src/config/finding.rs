//! Findings about a usable configuration: a warning when serving, an error when checking.

use std::fmt;

/// One finding about a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub severity: Severity,
    /// The path of the key.
    pub path: String,
    /// The problem.
    pub message: String,
    /// The remedy, if we know.
    pub advice: Option<String>,
}

/// The kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A key that is never read: most likely misspelt.
    UnknownKey,
    /// A known key without effect for this driver.
    NoEffect,
    /// A usable value that is probably a mistake.
    Doubtful,
    /// A fact for operators.
    Remark,
}

// === impl Finding ===

impl Finding {
    /// A usable value that is probably a mistake, and what to do about it.
    pub fn doubtful(
        path: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Doubtful,
            path: path.into(),
            message: message.into(),
            advice: Some(advice.into()),
        }
    }

    /// An optional part that the storage does not let work, and what makes it work.
    pub fn lacking(
        path: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Remark,
            path: path.into(),
            message: message.into(),
            advice: Some(advice.into()),
        }
    }

    /// A fact about the storage.
    pub fn remark(message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Remark,
            path: "storage".to_owned(),
            message: message.into(),
            advice: None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)?;
        match &self.advice {
            Some(advice) => write!(f, " ({advice})"),
            None => Ok(()),
        }
    }
}
