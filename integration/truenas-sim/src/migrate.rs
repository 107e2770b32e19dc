//! The rows of a new NAS, and what an upgrade does to them.

use serde_json::{Value, json};

use crate::Generation;
use crate::methods::default_smb_options;
use crate::rows::{self, Row, Rows};

/// Services and their ids; the one of NFS was recorded.
const SERVICES: [(i64, &str); 5] = [
    (4, "cifs"),
    (6, "ftp"),
    (8, "iscsitarget"),
    (9, "nfs"),
    (15, "ssh"),
];

pub(crate) fn first_rows(generation: Generation) -> Rows {
    let mut rows = Rows::default();
    for id in 1..=20 {
        let name = SERVICES
            .iter()
            .find(|(each, _)| *each == id)
            .map(|(_, name)| *name);
        let row = object(
            json!({"service": name.unwrap_or_default(), "enable": false, "state": "STOPPED"}),
        );
        rows.insert("service", row);
        if name.is_none() {
            rows.remove("service", id);
        }
    }
    let global = json!({
        "basename": "iqn.2005-10.org.freenas.ctl",
        "isns_servers": [],
        "listen_port": 3260,
        "pool_avail_threshold": null,
        "alua": false,
        "iser": false,
    });
    rows.insert("iscsi.global", object(global));
    add_nvmet(&mut rows, generation);
    rows
}

fn object(value: Value) -> Row {
    match value {
        Value::Object(row) => row,
        _ => Row::new(),
    }
}

fn add_nvmet(rows: &mut Rows, generation: Generation) {
    if generation < Generation::V25_10 || rows.get("nvmet.global", 1).is_some() {
        return;
    }
    let base = format!("nqn.2011-06.com.truenas:uuid:{}", crate::random::uuid());
    let global = json!({"basenqn": base, "kernel": true, "ana": false, "rdma": false, "xport_referral": true});
    rows.insert("nvmet.global", object(global));
    rows.insert(
        "service",
        object(json!({"service": "nvmet", "enable": false, "state": "STOPPED"})),
    );
}

/// The database migrations that a driver meets.
pub(crate) fn rows(rows: &mut Rows, from: Generation, to: Generation) {
    if from.is_core() && !to.is_core() {
        split_nfs_paths(rows);
    }
    if from < Generation::V25_10 && to >= Generation::V25_10 {
        purposes(rows);
    }
    add_nvmet(rows, to);
}

/// A share of CORE has several paths, a later one has one.
fn split_nfs_paths(rows: &mut Rows) {
    for share in rows.take("sharing.nfs", |_| true) {
        for path in rows::texts(&share, "paths") {
            let mut row = share.clone();
            for old in ["paths", "alldirs", "quiet"] {
                row.remove(old);
            }
            row.insert("path".to_owned(), json!(path));
            row.insert("aliases".to_owned(), json!([]));
            row.insert("locked".to_owned(), json!(false));
            rows.insert("sharing.nfs", row);
        }
    }
}

/// The flat SMB share becomes one of a purpose; what no purpose has is kept by the legacy one.
fn purposes(rows: &mut Rows) {
    for id in rows.ids("sharing.smb") {
        let Some(row) = rows.get_mut("sharing.smb", id) else {
            continue;
        };
        let purpose = match rows::text(row, "purpose") {
            "DEFAULT_SHARE" => "DEFAULT_SHARE",
            "MULTI_PROTOCOL_NFS" => "MULTIPROTOCOL_SHARE",
            "PRIVATE_DATASETS" => "PRIVATE_DATASETS_SHARE",
            "TIMEMACHINE" | "ENHANCED_TIMEMACHINE" => "TIMEMACHINE_SHARE",
            _ => "LEGACY_SHARE",
        };
        let mut options = default_smb_options(Generation::V25_10, purpose);
        if let Value::Object(options) = &mut options {
            for (name, value) in options.iter_mut() {
                if let Some(old) = row
                    .get(name)
                    .filter(|old| !old.is_null() && name != "purpose")
                {
                    *value = old.clone();
                }
            }
        }
        for (old, new) in [
            ("ro", "readonly"),
            ("abe", "access_based_share_enumeration"),
        ] {
            let value = row.remove(old).unwrap_or(json!(false));
            row.insert(new.to_owned(), value);
        }
        row.insert("purpose".to_owned(), json!(purpose));
        row.insert("options".to_owned(), options);
        row.insert(
            "audit".to_owned(),
            json!({"enable": false, "watch_list": [], "ignore_list": []}),
        );
    }
}
