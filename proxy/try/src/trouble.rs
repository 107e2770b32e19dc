//! What stops a trial: what happened, which code the server answered with, what that code says.
//!
//! What a failure means to a cluster is told by its [`Step`]; nothing here reads
//! the text of a message.

use tonic::{Code, Status};

use super::step::Step;
use crate::process::{code_name, printable};

/// Why a step failed.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    /// What happened, in one line.
    pub(super) what: String,
    /// What the server answered, if it did.
    pub(super) code: Option<Code>,
}

// === impl Trouble ===

impl Trouble {
    /// Something that we saw ourselves.
    pub(super) fn seen(what: impl AsRef<str>) -> Self {
        Self {
            what: printable(what.as_ref()),
            code: None,
        }
    }

    /// What the server answered to a call.
    pub(super) fn answered(rpc: &str, status: &Status) -> Self {
        let (code, message) = (status.code(), printable(status.message()));
        Self {
            what: format!("{rpc} answered {}: {message}", code_name(code)),
            code: Some(code),
        }
    }

    /// A call that was not answered in time.
    pub(super) fn unanswered(rpc: &str, seconds: u64) -> Self {
        Self {
            what: format!("{rpc} was not answered within {seconds} seconds"),
            code: Some(Code::DeadlineExceeded),
        }
    }

    /// Whether the call may still be at work, or may have changed something.
    pub(super) fn is_open(&self) -> bool {
        use Code::{Aborted, Cancelled, DeadlineExceeded, Unavailable, Unknown};
        matches!(
            self.code,
            Some(Aborted | Cancelled | DeadlineExceeded | Unavailable | Unknown)
        )
    }

    /// Whether the call may be at work at this moment.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(
            self.code,
            Some(Code::Aborted | Code::DeadlineExceeded | Code::Cancelled)
        )
    }

    /// What to do about it in this step: what the code says, and where to look, unless the request
    /// itself is to blame.
    pub(super) fn advice(&self, step: Step) -> Vec<&'static str> {
        use Code::{AlreadyExists, InvalidArgument, OutOfRange, Unimplemented};
        let request = matches!(
            self.code,
            Some(AlreadyExists | InvalidArgument | OutOfRange | Unimplemented)
        );
        let look = (!request).then(|| step.advice());
        self.code_says().into_iter().chain(look).collect()
    }

    /// What the code says, where it says more than that something failed.
    fn code_says(&self) -> Option<&'static str> {
        Some(match self.code? {
            Code::InvalidArgument => {
                "The driver finds the request itself wrong: compare --parameter, --access and \
                 --size with what it documents."
            }
            Code::NotFound => "What the call is about is not there.",
            Code::AlreadyExists => "Something of that name is there, made from another request.",
            Code::OutOfRange => "This size cannot be had: choose another one with --size.",
            Code::ResourceExhausted => "There is no room, or none at the place that is allowed.",
            Code::FailedPrecondition => "It is in a state that forbids this: in use, or needed.",
            Code::Aborted => "Another call is at work on the same object; a cluster asks again.",
            Code::Unauthenticated | Code::PermissionDenied => {
                "The storage refuses these credentials, or what they may do."
            }
            Code::Unimplemented => {
                "The driver advertises this and does not have it: a defect, please report it."
            }
            Code::Unavailable => {
                "The storage did not answer, or the outcome is not known; a cluster asks again."
            }
            Code::DeadlineExceeded => {
                "It took too long, and may still be at work; --timeout allows more."
            }
            _ => return None,
        })
    }
}
