//! `pool.snapshottask.*`: the rows of periodic snapshots. Nothing is taken by them.
//!
//! Read from `plugins/snapshot.py` of TS-25.10.6 and its models; the class of 26 has the same checks.

use serde_json::{Value, json};

use super::rowset::{RowSet, merged};
use super::{Answer, Call, unknown};
use crate::failure::{Failure, Invalid};
use crate::rows::{self, Row};

const TASKS: RowSet = RowSet {
    service: "pool.snapshottask",
    noun: "PeriodicSnapshotTask",
    secrets: &[],
};

pub(super) async fn run(call: &Call, verb: &str) -> Answer {
    match verb {
        "query" => TASKS.query(call),
        "get_instance" => TASKS.get_instance(call),
        "create" => {
            let mut row = call.object(0).clone();
            check(call, &row, "periodic_snapshot_create").await?;
            row.insert("vmware_sync".to_owned(), json!(false));
            row.insert("state".to_owned(), json!({"state": "PENDING"}));
            Ok(TASKS.insert(call, row))
        }
        "update" => {
            let id = call.number(0);
            let mut row = merged(&TASKS.get(call, id)?, call.object(1));
            row.remove("fixate_removal_date");
            check(call, &row, "periodic_snapshot_update").await?;
            TASKS.update(call, id, row)
        }
        "delete" => {
            // The middleware deletes what the database has, and looks for nothing.
            drop(TASKS.delete(call, call.number(0)));
            Ok(json!(true))
        }
        _ => Err(unknown(call)),
    }
}

async fn check(call: &Call, row: &Row, attribute: &str) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let mut wrong = |field: String, text: &str| {
        errors.push(Invalid::new(format!("{attribute}.{field}"), text));
    };
    let dataset = rows::text(row, "dataset");
    if call.find_dataset(dataset).await?.is_none() {
        wrong("dataset".to_owned(), "Dataset not found");
    }
    let excluded = row.get("exclude").and_then(Value::as_array);
    let excluded = excluded.map_or(&[][..], Vec::as_slice);
    if row.get("recursive") != Some(&json!(true)) && !excluded.is_empty() {
        wrong(
            "exclude".to_owned(),
            "Excluding datasets is not necessary for non-recursive periodic snapshot tasks",
        );
    }
    for (index, path) in excluded.iter().filter_map(Value::as_str).enumerate() {
        if !path.starts_with(&format!("{dataset}/")) {
            wrong(
                format!("exclude.{index}"),
                "Excluded dataset should be a child or other descendant of the selected dataset",
            );
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Failure::Validation(errors))
}
