//! The possible answers, and their codes.

use std::collections::BTreeSet;

use driver_core::Kind;
use tonic::Code;

use crate::csi::controller::model::requests::Answer;

/// The possible answers.
#[derive(Debug)]
pub(in crate::csi::controller::model) enum Expected {
    OneOf(Vec<Answer>),
    Listed(List),
}

/// The possible lists.
#[derive(Debug, Default)]
pub(in crate::csi::controller::model) struct List {
    /// Of connections that can be listed.
    pub(super) must: BTreeSet<String>,
    /// Of one that may fail while it is listed.
    pub(super) may: BTreeSet<String>,
    /// Some cannot be listed.
    pub(super) broken: bool,
    /// Some may fail.
    pub(super) fails: bool,
}

/// A failure of the environment, as opposed to a decision of the storage.
pub(super) fn is_passing(kind: Kind) -> bool {
    let all = [
        Kind::Unreachable,
        Kind::Timeout,
        Kind::Denied,
        Kind::Internal,
    ];
    all.contains(&kind)
}

/// An error after which the storage is queried once more before a new volume is rejected for it.
pub(super) fn is_judged_anew(kind: Kind) -> bool {
    let others = [
        Kind::Conflict,
        Kind::Pending,
        Kind::Unreachable,
        Kind::Timeout,
    ];
    !others.contains(&kind)
}

/// The table of docs/grpc-codes.md.
#[expect(clippy::match_same_arms, reason = "its rows, in their order")]
pub(super) fn code(kind: Kind, possible: bool) -> Code {
    match (kind, possible) {
        (Kind::Pending, _) => Code::Aborted,
        (Kind::Timeout, _) => Code::DeadlineExceeded,
        (_, true) => Code::Unavailable,
        (Kind::Invalid, false) => Code::InvalidArgument,
        (Kind::NotFound, false) => Code::NotFound,
        (Kind::Conflict, false) => Code::AlreadyExists,
        (Kind::OutOfRange, false) => Code::OutOfRange,
        (Kind::OutOfSpace, false) => Code::ResourceExhausted,
        (Kind::Busy, false) => Code::FailedPrecondition,
        (Kind::Unreachable, false) => Code::Unavailable,
        (Kind::Denied, false) => Code::Unauthenticated,
        (Kind::Unsupported, false) => Code::Unimplemented,
        (Kind::Internal, false) => Code::Internal,
    }
}

// === impl Expected ===

impl Expected {
    pub(super) fn failed(codes: &[Code]) -> Self {
        Self::OneOf(codes.iter().copied().map(Answer::Failed).collect())
    }

    pub(super) fn done(text: impl Into<String>) -> Self {
        Self::OneOf(vec![Answer::Done(text.into())])
    }

    /// Whether this answer is possible.
    pub(in crate::csi::controller::model) fn allows(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Self::OneOf(all), answer) => all.contains(answer),
            (Self::Listed(list), Answer::Listed(all, end)) => list.allows(all, *end),
            (Self::Listed(_), _) => false,
        }
    }
}

// === impl List ===

impl List {
    fn allows(&self, all: &[String], end: Option<Code>) -> bool {
        let listed: BTreeSet<_> = all.iter().cloned().collect();
        let ends = match end {
            None => !self.broken && self.may.is_subset(&listed),
            Some(Code::Unavailable) => self.broken || self.fails,
            Some(_) => false,
        };
        let known = listed
            .iter()
            .all(|one| self.must.contains(one) || self.may.contains(one));
        ends && known && listed.len() == all.len() && self.must.is_subset(&listed)
    }
}
