//! The only place that makes a gRPC status: one table from kinds of errors to codes.
//!
//! A code decides what a sidecar does next, above all whether it forgets the object. Who acts how
//! on which code is in `docs/grpc-codes.md`; the table is pinned by the tests below.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the module through which every status is made"
)]

use driver_core::{Effect, Error, Kind};
use tonic::{Code, Status};

use crate::message;

/// The code for an error of this kind and effect.
pub(crate) fn code(kind: Kind, effect: Effect) -> Code {
    match (kind, effect) {
        // Neither is ever a proof: another call, or a thread of this one, may still be at work.
        (Kind::Pending, Effect::None | Effect::Possible) => Code::Aborted,
        (Kind::Timeout, Effect::None | Effect::Possible) => Code::DeadlineExceeded,

        // Only a code that is not final makes the caller ask again instead of forgetting.
        (
            Kind::Invalid
            | Kind::NotFound
            | Kind::Conflict
            | Kind::OutOfRange
            | Kind::OutOfSpace
            | Kind::Busy
            | Kind::Unreachable
            | Kind::Denied
            | Kind::Unsupported
            | Kind::Internal,
            Effect::Possible,
        )
        | (Kind::Unreachable, Effect::None) => Code::Unavailable,

        (Kind::Invalid, Effect::None) => Code::InvalidArgument,
        (Kind::NotFound, Effect::None) => Code::NotFound,
        (Kind::Conflict, Effect::None) => Code::AlreadyExists,
        (Kind::OutOfRange, Effect::None) => Code::OutOfRange,
        (Kind::OutOfSpace, Effect::None) => Code::ResourceExhausted,
        (Kind::Busy, Effect::None) => Code::FailedPrecondition,
        (Kind::Denied, Effect::None) => Code::Unauthenticated,
        (Kind::Unsupported, Effect::None) => Code::Unimplemented,
        (Kind::Internal, Effect::None) => Code::Internal,
    }
}

/// The answer for an error.
pub(crate) fn status(error: &Error) -> Status {
    let code = code(error.kind(), error.effect());
    Status::new(code, message::of(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::RpcGroup;
    use crate::message::{MAX_MESSAGE, printable_within};

    /// Whether `code` is final for the callers of a group.
    fn is_final(code: Code, group: RpcGroup) -> bool {
        let open = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::Aborted,
        ];
        let exhausted = code == Code::ResourceExhausted && group != RpcGroup::Provision;
        !open.contains(&code) && !exhausted
    }

    /// Written out from docs/grpc-codes.md: without effect, and with a possible one.
    const TABLE: [(Kind, Code, Code); 12] = [
        (Kind::Invalid, Code::InvalidArgument, Code::Unavailable),
        (Kind::NotFound, Code::NotFound, Code::Unavailable),
        (Kind::Conflict, Code::AlreadyExists, Code::Unavailable),
        (Kind::OutOfRange, Code::OutOfRange, Code::Unavailable),
        (Kind::OutOfSpace, Code::ResourceExhausted, Code::Unavailable),
        (Kind::Busy, Code::FailedPrecondition, Code::Unavailable),
        (Kind::Pending, Code::Aborted, Code::Aborted),
        (Kind::Unreachable, Code::Unavailable, Code::Unavailable),
        (
            Kind::Timeout,
            Code::DeadlineExceeded,
            Code::DeadlineExceeded,
        ),
        (Kind::Denied, Code::Unauthenticated, Code::Unavailable),
        (Kind::Unsupported, Code::Unimplemented, Code::Unavailable),
        (Kind::Internal, Code::Internal, Code::Unavailable),
    ];

    #[test]
    fn every_kind_and_effect_has_the_code_of_the_written_table() {
        assert_eq!(TABLE.map(|row| row.0), Kind::ALL, "one row for each kind");
        for (kind, none, possible) in TABLE {
            assert_eq!(code(kind, Effect::None), none, "{kind:?}");
            assert_eq!(code(kind, Effect::Possible), possible, "{kind:?}");
        }
    }

    #[test]
    fn no_caller_forgets_an_object_that_may_exist() {
        for kind in Kind::ALL {
            for group in RpcGroup::ALL {
                let code = code(kind, Effect::Possible);
                assert!(!is_final(code, group), "{kind:?} {group:?} is {code:?}");
            }
        }
    }

    #[test]
    fn only_a_full_backend_that_was_left_untouched_makes_the_provisioner_try_another_node() {
        for kind in Kind::ALL {
            for effect in [Effect::None, Effect::Possible] {
                let exhausted = code(kind, effect) == Code::ResourceExhausted;
                assert_eq!(
                    exhausted,
                    (kind, effect) == (Kind::OutOfSpace, Effect::None)
                );
            }
        }
    }

    #[tokio::test]
    async fn the_text_of_a_panic_is_not_disclosed() {
        let join = tokio::spawn(async { panic!("hunter2") }).await.unwrap_err();
        let error = Error::new(Kind::Internal, "create volume `a`").because(join);
        assert!(error.chain().contains("hunter2"), "what is to be kept out");
        assert_eq!(
            status(&error).message(),
            "create volume `a`: met a defect of this program"
        );
    }

    #[test]
    fn a_message_about_something_missing_says_so() {
        let missing = || Error::not_found("volume `pvc-1`");
        let message = |error| status(&error).message().to_owned();
        assert_eq!(message(missing()), "volume `pvc-1`: not found");
        assert_eq!(
            message(missing().because(std::io::Error::other("deleted"))),
            "volume `pvc-1`: deleted"
        );
        let outer = Error::not_found("volume `v`").because(missing());
        assert_eq!(message(outer), "volume `v`: volume `pvc-1`: not found");
    }

    #[test]
    fn a_message_is_one_bounded_line_with_the_chain_and_no_details() {
        let cause = std::io::Error::other("line\none\u{1b}[31m \u{202e}é\u{0}");
        let error = Error::new(Kind::Internal, "read `a`").because(cause);
        let status = status(&error);
        assert_eq!(
            status.message(),
            "read `a`: line one\\u{1b}[31m \\u{202e}é\\u{0}"
        );
        assert!(status.details().is_empty());
        for long in ["é".repeat(5000), "\n".repeat(5000), "\u{2066}".repeat(5000)] {
            for limit in [MAX_MESSAGE, 128, 127, 126] {
                let line = printable_within(&long, limit);
                let fits = (limit - 10..=limit).contains(&line.len());
                assert!(fits && line.ends_with('…'), "{} of {limit}", line.len());
            }
        }
        assert_eq!(printable_within(&"é".repeat(64), 128), "é".repeat(64));
    }
}
