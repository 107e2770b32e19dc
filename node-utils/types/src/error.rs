//! Errors of the verbs of drivers and of the node: a closed set of kinds, chosen where the cause was
//! understood.
//!
//! No text is interpreted above the module that ran a tool, and no gRPC code is known here: the
//! proxy turns kinds into codes in one table. What each code means to the sidecars is in
//! `docs/grpc-codes.md`.

use std::error::Error as StdError;
use std::fmt;

/// The kind of failure, as far as the caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request or the configuration it relies on cannot be right as it is.
    Invalid,
    /// The object that is asked for, or the source to copy from, does not exist.
    NotFound,
    /// An object of that name exists and was made from a different request.
    Conflict,
    /// The wanted size cannot be met.
    OutOfRange,
    /// The backend has no room, or no allowed topology fits.
    OutOfSpace,
    /// The object is in a state that forbids this now: in use, has dependents, not staged, published
    /// elsewhere in an exclusive mode.
    Busy,
    /// The same object is being worked on by another call.
    Pending,
    /// The backend could not be reached.
    Unreachable,
    /// Our own deadline ended before the work did.
    Timeout,
    /// The backend refuses our credentials or permissions.
    Denied,
    /// This driver cannot do that.
    Unsupported,
    /// A defect, or output that cannot be understood.
    Internal,
}

/// Whether the backend, or the node, may have been changed by what failed.
///
/// Sidecars treat some codes as final and forget the object: an outcome that is not known must
/// never be reported with one of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Proved: nothing of this call was done, or all of it was undone.
    None,
    /// Something may exist or have changed. A retry or an observation tells.
    Possible,
}

/// A failed verb of a driver or of the node.
///
/// Displays as what was being done to which object; the cause is in [`StdError::source`], and
/// what the user can do is in [`Error::advice`].
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    effect: Effect,
    doing: String,
    advice: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

// === impl Kind ===

impl Kind {
    /// Every kind, for tests that walk all of them.
    pub const ALL: [Self; 12] = [
        Self::Invalid,
        Self::NotFound,
        Self::Conflict,
        Self::OutOfRange,
        Self::OutOfSpace,
        Self::Busy,
        Self::Pending,
        Self::Unreachable,
        Self::Timeout,
        Self::Denied,
        Self::Unsupported,
        Self::Internal,
    ];
}

// === impl Error ===

impl Error {
    /// An error without effect: `doing` says what was refused and on which object.
    pub fn new(kind: Kind, doing: impl Into<String>) -> Self {
        Self {
            kind,
            effect: Effect::None,
            doing: doing.into(),
            advice: None,
            source: None,
        }
    }

    /// A request that cannot be right.
    pub fn invalid(doing: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, doing)
    }

    /// Something that does not exist.
    pub fn not_found(doing: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, doing)
    }

    /// A verb that this driver does not have.
    pub fn unsupported(verb: &'static str) -> Self {
        Self::new(
            Kind::Unsupported,
            format!("{verb} is not supported by this driver"),
        )
    }

    /// The same error in a wider context: of that kind, as uncertain, with that advice.
    #[must_use]
    pub fn within(self, doing: impl Into<String>) -> Self {
        Self {
            kind: self.kind,
            effect: self.effect,
            doing: doing.into(),
            advice: self.advice.clone(),
            source: Some(Box::new(self)),
        }
    }

    /// The same error, of another kind for its caller.
    #[must_use]
    pub fn of_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
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

    /// Says that the backend may have been changed.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// The error of work that has changed something before it failed, if it has: then nothing proves any more that
    /// nothing was done.
    #[must_use]
    pub fn after_change(self, changed: bool) -> Self {
        if changed {
            self.with_effect(Effect::Possible)
        } else {
            self
        }
    }

    /// The kind of failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether something may have been changed.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// A step that the user can take, if we know.
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.doing)
    }
}

impl StdError for Error {
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
    fn an_error_within_a_wider_context_keeps_its_kind_its_effect_and_its_advice() {
        let inner = Error::new(Kind::Busy, "unmount it").advise("close its files");
        let outer = inner.with_effect(Effect::Possible).within("volume `a`");
        assert_eq!(
            (outer.kind(), outer.effect()),
            (Kind::Busy, Effect::Possible)
        );
        assert_eq!(outer.chain(), "volume `a`: unmount it (close its files)");
        assert_eq!(outer.of_kind(Kind::Invalid).kind(), Kind::Invalid);
    }

    #[test]
    fn a_chain_names_the_object_the_cause_and_the_advice_once_each() {
        let error = Error::new(Kind::Internal, "create volume `a`")
            .because(std::io::Error::other("disk is on fire"))
            .advise("call someone");
        assert_eq!(
            error.chain(),
            "create volume `a`: disk is on fire (call someone)"
        );
        assert_eq!(error.to_string(), "create volume `a`");
    }
}
