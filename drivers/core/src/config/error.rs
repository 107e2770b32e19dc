//! Why a configuration cannot be used.

use std::fmt;

/// A configuration that cannot be used: which key, what is wrong, what to do.
///
/// Its text never contains the value of a key, because any value may be a secret; the exception is
/// a choice between fixed names, where the given name is shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    path: Option<String>,
    problem: String,
    advice: Option<String>,
    further: Vec<Self>,
}

// === impl ConfigError ===

impl ConfigError {
    /// A problem with the document as a whole.
    pub fn new(problem: impl Into<String>) -> Self {
        Self {
            path: None,
            problem: problem.into(),
            advice: None,
            further: Vec::new(),
        }
    }

    /// A problem with the key at `path`, such as `zfs.datasetParentName`.
    pub fn at(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            path: Some(path.into()),
            ..Self::new(problem)
        }
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Adds what else is wrong in the same file.
    #[must_use]
    pub(super) fn with_further(mut self, further: Vec<Self>) -> Self {
        self.further = further;
        self
    }

    /// Further faults of the same file.
    pub fn further(&self) -> &[Self] {
        &self.further
    }

    /// The path of the key, if one key is to blame.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// The fault, without path and advice.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// A step that the user can take, if we know.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{path}: ")?;
        }
        f.write_str(&self.problem)?;
        if let Some(advice) = &self.advice {
            write!(f, " ({advice})")?;
        }
        self.further
            .iter()
            .try_for_each(|also| write!(f, "; {also}"))
    }
}
