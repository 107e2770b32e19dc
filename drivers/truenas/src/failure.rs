//! Failures of the API as errors of a driver: what they mean for the verb, and what can be done next.

use driver_core::{Effect, Error, Kind};
use driver_zfs::step::{Failed, Next};

use crate::error::{Effect as ApiEffect, Error as ApiError, Kind as ApiKind};

fn kind_of(error: &ApiError) -> Kind {
    match error.kind() {
        ApiKind::Config | ApiKind::Invalid => Kind::Invalid,
        ApiKind::Unreachable
        | ApiKind::Certificate
        | ApiKind::NotSent
        | ApiKind::UnknownOutcome
        | ApiKind::Overloaded => Kind::Unreachable,
        ApiKind::Login | ApiKind::NotAuthenticated | ApiKind::Denied => Kind::Denied,
        ApiKind::Unsupported => Kind::Unsupported,
        ApiKind::NotFound => Kind::NotFound,
        ApiKind::Exists => Kind::Conflict,
        ApiKind::Busy | ApiKind::Dependents | ApiKind::Locked => Kind::Busy,
        ApiKind::NoSpace => Kind::OutOfSpace,
        ApiKind::Refused | ApiKind::Protocol => Kind::Internal,
    }
}

fn advice(error: &ApiError) -> Option<&'static str> {
    Some(match error.kind() {
        ApiKind::Certificate => {
            "see httpConnection.tls and httpConnection.allowInsecure in docs/truenas.md"
        }
        ApiKind::Login => {
            "from 25.04 on, an API key needs httpConnection.username besides it, and https"
        }
        ApiKind::Denied => "the user of the API key lacks a role: see the table in docs/truenas.md",
        ApiKind::Locked => "unlock the dataset on TrueNAS",
        _ => return None,
    })
}

/// What a failed call means.
pub(crate) fn understood(doing: impl Into<String>, error: &ApiError) -> Error {
    let told = Error::new(kind_of(error), doing);
    let told = match advice(error) {
        Some(advice) => told.advise(advice),
        None => told,
    };
    let effect = match error.effect() {
        ApiEffect::None => Effect::None,
        ApiEffect::Possible => Effect::Possible,
    };
    told.because(error.clone()).with_effect(effect)
}

/// Why a plan ended. `first`: nothing was done before.
pub(crate) fn failed(doing: impl Into<String>, error: &ApiError, first: bool) -> Failed {
    let next = match error.kind() {
        ApiKind::Busy | ApiKind::Overloaded => Next::Wait,
        ApiKind::NotFound | ApiKind::Exists | ApiKind::Dependents => Next::Observe,
        _ => Next::Tell,
    };
    let told = understood(doing, error);
    // What is refused by a check of the arguments was not begun.
    let checked = first && !error.details().is_empty();
    let effect = match told.effect() {
        _ if !first => Effect::Possible,
        Effect::Possible if checked => Effect::None,
        effect => effect,
    };
    Failed {
        next,
        error: told.with_effect(effect),
    }
}
