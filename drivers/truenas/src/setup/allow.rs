//! The methods that an API key has to allow up to 24.10, where it has a list of methods instead of a user with roles.

use serde_json::{Value, json};

use crate::Dialect;
use crate::check::Needs;

/// The methods that every connection calls.
const ALWAYS: [&str; 2] = ["system.version", "service.query"];
/// The methods for a driver that makes datasets through the API; `filesystem.listdir` and `.stat` where it looks
/// for empty parents, `.stat` also to know who uses a share of NFS.
const DATASETS: [&str; 10] = [
    "core.get_jobs",
    "filesystem.listdir",
    "filesystem.stat",
    "pool.dataset.create",
    "pool.dataset.delete",
    "pool.dataset.promote",
    "pool.dataset.query",
    "pool.dataset.update",
    "pool.query",
    "replication.run_onetime",
];
const SNAPSHOTS: [&str; 7] = [
    "clone", "create", "delete", "hold", "query", "release", "update",
];
const FILES: [&str; 3] = [
    "filesystem.getacl",
    "filesystem.setacl",
    "filesystem.setperm",
];
const SHARE: [&str; 4] = ["create", "delete", "query", "update"];
const ISCSI: [&str; 5] = [
    "iscsi.auth.query",
    "iscsi.global.config",
    "iscsi.global.sessions",
    "iscsi.initiator.query",
    "iscsi.portal.query",
];

/// The list of a key.
pub(super) fn list(dialect: &Dialect, needs: &Needs) -> Vec<Value> {
    let of = |service: &str, verbs: &[&str]| -> Vec<String> {
        verbs
            .iter()
            .map(|verb| format!("{service}.{verb}"))
            .collect()
    };
    let names = |all: &[&str]| {
        all.iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let mut methods = names(&ALWAYS);
    if needs.datasets {
        methods.extend(names(&DATASETS));
        methods.extend(of(dialect.snapshots(), &SNAPSHOTS));
        if needs.files {
            methods.extend(names(&FILES));
        }
    } else if !needs.files {
        // A zvol grows through the API.
        methods.extend(names(&["pool.dataset.query", "pool.dataset.update"]));
    }
    match needs.service {
        "nfs" => {
            methods.extend(of("sharing.nfs", &SHARE));
            methods.extend(names(&["nfs.get_nfs4_clients"]));
            if !needs.datasets {
                methods.extend(names(&["filesystem.stat"]));
            }
        }
        "cifs" => {
            methods.extend(of("sharing.smb", &SHARE));
            methods.extend(names(&["smb.status"]));
        }
        _ => {
            methods.extend(names(&ISCSI));
            for service in ["iscsi.target", "iscsi.extent", "iscsi.targetextent"] {
                methods.extend(of(service, &SHARE));
            }
            if needs.nodes {
                methods.extend(of("iscsi.initiator", &["create", "delete", "update"]));
            }
        }
    }
    let call = |name: String| json!({"method": "CALL", "resource": name});
    let jobs = json!({"method": "SUBSCRIBE", "resource": "core.get_jobs"});
    let jobs = needs.datasets.then_some(jobs);
    methods.into_iter().map(call).chain(jobs).collect()
}
