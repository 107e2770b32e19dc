//! Errors of the node's verbs: a closed set of kinds, chosen where the cause was understood.
//!
//! The proxy turns kinds into gRPC codes in one table; nothing here knows a code. An error says
//! what was being done to which path, and whether the node may have been changed by it.

use std::error::Error as StdError;
use std::fmt;

use crate::mount::MountError;

/// What went wrong, as far as the caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeErrorKind {
    /// The request cannot be right as it is.
    Invalid,
    /// The volume does not exist on this node, or is not mounted at that path.
    NotFound,
    /// The path holds this or another volume in a way that the request does not ask for.
    Conflict,
    /// Something has to happen first: not staged, or published elsewhere in an exclusive mode.
    Precondition,
    /// The path is in use, or holds something that is not ours to remove.
    Busy,
    /// The deadline ended before the work did; the work goes on.
    Timeout,
    /// A defect, a missing privilege, or an answer of the kernel that nobody expects.
    Internal,
}

/// Whether the node may have been changed by what failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Proved: nothing was done, or all of it was undone.
    None,
    /// Something may have changed; only a retry or a look tells.
    Possible,
}

/// A failed verb of the node.
///
/// Displays as what was being done to which path; the cause is in [`StdError::source`], and what
/// the user can do is in [`NodeError::advice`].
#[derive(Debug)]
pub struct NodeError {
    kind: NodeErrorKind,
    effect: Effect,
    doing: String,
    advice: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

// === impl NodeErrorKind ===

impl NodeErrorKind {
    /// Every kind, for tests that walk all of them.
    pub const ALL: [Self; 7] = [
        Self::Invalid,
        Self::NotFound,
        Self::Conflict,
        Self::Precondition,
        Self::Busy,
        Self::Timeout,
        Self::Internal,
    ];
}

// === impl NodeError ===

impl NodeError {
    /// An error without effect: `doing` says what was refused and on which path.
    pub fn new(kind: NodeErrorKind, doing: impl Into<String>) -> Self {
        Self {
            kind,
            effect: Effect::None,
            doing: doing.into(),
            advice: None,
            source: None,
        }
    }

    /// A failed mount or unmount.
    pub(crate) fn from_mount(doing: String, error: MountError) -> Self {
        let advice = match &error {
            error if error.is_busy() => {
                Some("a process still uses it: an open file, or a working directory")
            }
            error if error.is_denied() => Some("mounting needs the capability SYS_ADMIN"),
            _ => None,
        };
        let kind = if error.is_busy() {
            NodeErrorKind::Busy
        } else {
            NodeErrorKind::Internal
        };
        Self {
            advice: advice.map(str::to_owned),
            ..Self::new(kind, doing).because(error)
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Says that the node may have been changed.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> NodeErrorKind {
        self.kind
    }

    /// Whether something may have been changed.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// What the user can do, if we know.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// The whole chain in one line, causes joined by `: `, advice last.
    pub fn chain(&self) -> String {
        let mut line = self.doing.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        if let Some(advice) = &self.advice {
            line.push_str(" (");
            line.push_str(advice);
            line.push(')');
        }
        line
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.doing)
    }
}

impl StdError for NodeError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_the_path_the_cause_and_the_advice_once_each() {
        let error = NodeError::new(NodeErrorKind::Busy, "unmount `/t`")
            .because(std::io::Error::other("in use"))
            .advise("stop the pod");
        assert_eq!(error.chain(), "unmount `/t`: in use (stop the pod)");
        assert_eq!(error.to_string(), "unmount `/t`");
    }
}
