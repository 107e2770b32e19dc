use serde_json::json;

use super::*;

fn call_error(errno: i64, name: &str, reason: &str) -> Error {
    let data = json!({"error": errno, "errname": name, "reason": reason, "extra": null});
    Error::from_json_rpc(&json!({"code": -32001, "message": "Method call error", "data": data}))
}

fn validation(extra: &Value) -> Error {
    let data = json!({"error": 22, "errname": "EINVAL", "reason": "[EINVAL] …\n", "extra": extra});
    Error::from_json_rpc(&json!({"code": -32602, "message": "Invalid params", "data": data}))
}

#[test]
fn the_errno_of_a_call_error_decides() {
    for (errno, name, kind) in [
        (2, "ENOENT", Kind::NotFound),
        (17, "EEXIST", Kind::Exists),
        (16, "EBUSY", Kind::Busy),
        (28, "ENOSPC", Kind::NoSpace),
        (13, "EACCES", Kind::Denied),
        (39, "ENOTEMPTY", Kind::Dependents),
        (109, "ETOOMANYREFS", Kind::Overloaded),
        (201, "ENOMETHOD", Kind::Unsupported),
        (205, "EDATASETISLOCKED", Kind::Locked),
        (207, "ENOTAUTHENTICATED", Kind::NotAuthenticated),
        (2008, "EZFS_BUSY", Kind::Busy),
        (14, "EFAULT", Kind::Refused),
        // Also what the middleware did not expect: it says nothing of the arguments.
        (22, "EINVAL", Kind::Refused),
    ] {
        assert_eq!(call_error(errno, name, "x").kind(), kind, "{name}");
    }
}

#[test]
fn a_failure_of_zfs_that_was_flattened_is_read_from_its_text() {
    for (text, kind) in [
        (
            "[EFAULT] Failed to delete dataset: cannot destroy 'tank/a': filesystem has dependent clones",
            Kind::Dependents,
        ),
        (
            "[EFAULT] Failed to delete dataset: cannot destroy 'tank/a': filesystem has children",
            Kind::Dependents,
        ),
        (
            "[EFAULT] Failed to create snapshot: dataset already exists",
            Kind::Exists,
        ),
        ("[EFAULT] Associated target(s) iqn.x is in use.", Kind::Busy),
        (
            "[EFAULT] cannot create 'tank/a': out of space",
            Kind::NoSpace,
        ),
        (
            "[EFAULT] cannot set property for 'tank/a': size is greater than available space",
            Kind::NoSpace,
        ),
        (
            "[EFAULT] Failed to update dataset: invalid quota or reservation",
            Kind::NoSpace,
        ),
    ] {
        assert_eq!(call_error(14, "EFAULT", text).kind(), kind, "{text}");
    }
}

#[test]
fn an_object_that_is_missing_is_not_found_and_a_parent_that_is_missing_is_invalid() {
    let gone = validation(&json!([[null, "SharingNFS 999 does not exist", 2]]));
    assert_eq!(gone.kind(), Kind::NotFound);
    let gone = validation(&json!([["id", "tank/x does not exist", 2]]));
    assert_eq!(gone.kind(), Kind::NotFound);
    let gone = validation(&json!([[
        "zfs.resource.query",
        "'tank/x' does not exist.",
        2
    ]]));
    assert_eq!(gone.kind(), Kind::NotFound);
    let parent = validation(&json!([[
        "pool_dataset_create.name",
        "Parent dataset (tank/p) does not exist.",
        22
    ]]));
    assert_eq!(parent.kind(), Kind::Invalid);
    let group = validation(&json!([[
        "iscsi_target_create.groups.0.portal",
        "no such portal",
        2
    ]]));
    assert_eq!(group.kind(), Kind::Invalid);
}

#[test]
fn only_what_names_a_dataset_or_a_snapshot_says_that_it_is_missing() {
    for (errno, text, kind) in [
        (22, "'tank/a@s' not found", Kind::NotFound),
        (
            14,
            "[EFAULT] Failed to clone snapshot: Snapshot tank/a@s not found",
            Kind::NotFound,
        ),
        (
            14,
            "[EFAULT] Failed to snapshot tank/a@s: Dataset tank/a not found",
            Kind::NotFound,
        ),
        (22, "service plugin not found", Kind::Refused),
        (
            14,
            "[EFAULT] Failed to do it: job 7 not found",
            Kind::Refused,
        ),
        (22, "module 'x' not found in path", Kind::Refused),
    ] {
        assert_eq!(call_error(errno, "x", text).kind(), kind, "{text}");
    }
    // A list without rows is how a query says it.
    for (method, kind) in [
        ("sharing.nfs.query", Kind::Refused),
        ("pool.snapshot.query", Kind::Refused),
        ("zfs.resource.query", Kind::NotFound),
        ("pool.dataset.delete", Kind::NotFound),
    ] {
        let error = call_error(2, "ENOENT", "[ENOENT] no such file").of(method);
        assert_eq!(error.kind(), kind, "{method}");
    }
}

#[test]
fn the_branch_of_a_union_that_was_not_meant_does_not_decide() {
    let error = validation(&json!([
        ["data.PoolDatasetCreateVolume.volsize", "Field required", 22],
        [
            "pool_dataset_create.name",
            "Path /mnt/tank/x already exists",
            22
        ],
    ]));
    assert_eq!(error.kind(), Kind::Exists);
    assert_eq!(error.details().len(), 2);
}

#[test]
fn an_extra_that_is_no_list_of_entries_is_left_alone() {
    for extra in [
        json!(null),
        json!([1, 2]),
        json!([["a", "b", 22], "c"]),
        json!({"a": 1}),
    ] {
        assert!(validation(&extra).details().is_empty(), "{extra}");
    }
}

#[test]
fn what_the_server_did_not_begin_has_no_effect() {
    let unknown_method = json!({"code": -32601, "message": "Method does not exist"});
    let too_many =
        json!({"code": -32000, "message": "Maximum number of concurrent calls (20) has exceeded"});
    for (error, kind) in [
        (unknown_method, Kind::Unsupported),
        (too_many, Kind::Overloaded),
    ] {
        let error = Error::from_json_rpc(&error);
        assert_eq!((error.kind(), error.effect()), (kind, Effect::None));
    }
    assert_eq!(
        call_error(207, "ENOTAUTHENTICATED", "x").effect(),
        Effect::None
    );
    assert_eq!(call_error(14, "EFAULT", "x").effect(), Effect::Possible);
    assert_eq!(call_error(16, "EBUSY", "x").effect(), Effect::Possible);
}

#[test]
fn core_reports_a_missing_login_as_a_missing_permission() {
    let error = call_error(13, "EACCES", "Not authenticated");
    assert_eq!(error.kind(), Kind::NotAuthenticated);
}

#[test]
fn a_job_that_failed_is_read_like_a_call() {
    let extra = json!([["filesystem_setperm", "Value error, Payload must …", 22]]);
    let exc_info = json!({"type": "VALIDATION", "errno": null, "extra": extra});
    assert_eq!(
        Error::from_job("[EINVAL] …", &exc_info).kind(),
        Kind::Invalid
    );
    let exc_info = json!({"type": "CallError", "errno": 13, "extra": null});
    assert_eq!(
        Error::from_job("[EACCES] no", &exc_info).kind(),
        Kind::Denied
    );
    assert_eq!(
        Error::from_job("[ENOSPC] full", &Value::Null).kind(),
        Kind::NoSpace
    );
}

#[test]
fn the_stack_trace_of_an_answer_is_never_kept() {
    let data = json!({"error": 14, "errname": "EFAULT", "reason": "[EFAULT] x", "extra": null,
        "trace": {"class": "CallError", "frames": [{"locals": {"secret": "canary"}}]}});
    let error = Error::from_json_rpc(
        &json!({"code": -32001, "message": "Method call error", "data": data}),
    );
    assert!(!format!("{error:?}").contains("canary"));
}

#[test]
fn a_secret_that_the_server_quotes_is_covered() {
    let extra = json!([["iscsi_auth_create.secret", "canary is too short", 22]]);
    let error = validation(&extra).without("canary");
    assert!(!format!("{error:?} {error}").contains("canary"));
}
