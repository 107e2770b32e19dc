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
        ApiKind::Exists => Kind::Conflict,
        ApiKind::Busy | ApiKind::Dependents | ApiKind::Locked => Kind::Busy,
        ApiKind::NoSpace => Kind::OutOfSpace,
        // That a volume is not there is seen by looking for it, never by a call that failed.
        ApiKind::NotFound | ApiKind::Refused | ApiKind::Protocol => Kind::Internal,
    }
}

fn advice(error: &ApiError) -> Option<&'static str> {
    Some(match error.kind() {
        ApiKind::Certificate => {
            "see httpConnection.tls and httpConnection.allowInsecure in docs/truenas.md"
        }
        ApiKind::Denied => "the user of the API key lacks a role: see the table in docs/truenas.md",
        ApiKind::Locked => "unlock the dataset on TrueNAS",
        _ => return None,
    })
}

fn effect_of(error: &ApiError) -> Effect {
    match error.effect() {
        ApiEffect::None => Effect::None,
        ApiEffect::Possible => Effect::Possible,
    }
}

/// The meaning of a failed call.
pub(crate) fn understood(doing: impl Into<String>, error: &ApiError) -> Error {
    meaning(doing, error, effect_of(error))
}

fn meaning(doing: impl Into<String>, error: &ApiError, effect: Effect) -> Error {
    let failure = Error::new(kind_of(error), doing).with_effect(effect);
    let failure = match advice(error) {
        Some(advice) => failure.advise(advice),
        None => failure,
    };
    failure.because(error.clone())
}

/// A question that failed: its answer is unknown, whatever the NAS had against it.
pub(crate) fn unknown(doing: impl Into<String>, error: &ApiError) -> Error {
    let failure = Error::new(Kind::Unreachable, doing).because(error.clone());
    match advice(error) {
        Some(advice) => failure.advise(advice),
        None => failure,
    }
}

/// Whether the NAS has only checked the arguments of a call: calls that make or change a row or a dataset do
/// that before they begin. A deletion takes exports away first, and a job begins after it was accepted.
fn was_only_checked(error: &ApiError) -> bool {
    let method = error.method().unwrap_or_default();
    let checks = method.ends_with(".create") || method.ends_with(".update");
    checks && !error.details().is_empty()
}

/// Why a plan ended. `alone`: no other call of it was sent.
pub(crate) fn failed(doing: impl Into<String>, error: &ApiError, alone: bool) -> Failed {
    let next = match error.kind() {
        ApiKind::Busy | ApiKind::Overloaded => Next::Wait,
        ApiKind::NotFound | ApiKind::Exists | ApiKind::Dependents | ApiKind::NotSent => {
            Next::Observe
        }
        _ => Next::Tell,
    };
    let effect = match effect_of(error) {
        _ if !alone => Effect::Possible,
        Effect::Possible if was_only_checked(error) => Effect::None,
        effect => effect,
    };
    Failed {
        next,
        error: meaning(doing, error, effect),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_checked_before_it_begins_has_no_effect() {
        let data = json!({"error": 22, "reason": "no", "extra": [["x.name", "no", 22]]});
        let refused = |method: &str| ApiError::from_data(&data).of(method);
        for (method, alone, effect) in [
            ("sharing.nfs.create", true, Effect::None),
            ("pool.dataset.update", true, Effect::None),
            ("sharing.nfs.create", false, Effect::Possible),
            // 26 has removed the exports by then.
            ("pool.dataset.delete", true, Effect::Possible),
            ("replication.run_onetime", true, Effect::Possible),
        ] {
            let failed = failed("do it", &refused(method), alone);
            assert_eq!(failed.error.effect(), effect, "{method} {alone}");
        }
    }
}
