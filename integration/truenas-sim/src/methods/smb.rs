//! `sharing.smb.*`: the flat model up to 25.04, the model of purposes from 25.10.

use serde_json::{Map, Value, json};

use super::nfs::{check_path, locate};
use super::rowset::{RowSet, merged};
use super::{Answer, Call, unknown};
use crate::Generation;
use crate::failure::{EEXIST, Failure, Invalid};
use crate::rows::{self, Row};
use crate::table::{Presence, Table, Type};

const SHARES: RowSet = RowSet {
    service: "sharing.smb",
    noun: "SharingSMB",
    secrets: &[],
};

pub(super) async fn run(call: &Call, verb: &str) -> Answer {
    match verb {
        "query" => SHARES.query(call),
        "get_instance" => SHARES.get_instance(call),
        "create" => {
            let mut row = call.object(0).clone();
            check(call, &row, "sharingsmb_create", None).await?;
            complete(call, &mut row);
            let shown = SHARES.insert(call, row);
            call.apply_exports().await?;
            Ok(shown)
        }
        "update" => {
            let id = call.number(0);
            let before = SHARES.get(call, id)?;
            let mut row = merged(&before, call.object(1));
            // Another purpose has other options.
            if row.get("purpose") != before.get("purpose")
                && !call.object(1).contains_key("options")
            {
                row.insert("options".to_owned(), Value::Null);
            }
            check(call, &row, "sharingsmb_update", Some(id)).await?;
            complete(call, &mut row);
            let shown = SHARES.update(call, id, row)?;
            call.apply_exports().await?;
            Ok(shown)
        }
        "delete" => {
            SHARES.delete(call, call.number(0))?;
            call.apply_exports().await?;
            Ok(json!(true))
        }
        _ => Err(unknown(call)),
    }
}

async fn check(call: &Call, row: &Row, schema: &str, own: Option<i64>) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let name = rows::text(row, "name");
    let taken = call.nas.rows().all(SHARES.service).any(|other| {
        rows::text(other, "name").eq_ignore_ascii_case(name)
            && own != Some(rows::number(other, "id"))
    });
    if taken {
        let text = "Share with this name already exists.";
        errors.push(Invalid::new(format!("{schema}.name"), text).errno(EEXIST));
    }
    if name.is_empty()
        || name.len() > 80
        || name.contains([
            '\\', '/', '[', ']', ':', '|', '<', '>', '+', '=', ';', ',', '*', '?', '"',
        ])
    {
        errors.push(Invalid::new(
            format!("{schema}.name"),
            "Share name contains invalid characters or has a wrong length",
        ));
    }
    if rows::text(row, "path") != "EXTERNAL" {
        errors.extend(check_path(call, rows::text(row, "path"), schema).await?);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::Validation(errors))
    }
}

fn complete(call: &Call, row: &mut Row) {
    row.insert("locked".to_owned(), json!(false));
    locate(row);
    if call.generation >= Generation::V25_10 && row.get("options").is_none_or(Value::is_null) {
        let purpose = rows::text(row, "purpose").to_owned();
        row.insert(
            "options".to_owned(),
            default_options(call.generation, &purpose),
        );
    }
    if call.generation >= Generation::V25_10 {
        row.entry("audit".to_owned())
            .or_insert_with(|| json!({"enable": false, "watch_list": [], "ignore_list": []}));
    }
}

/// The options of a purpose if none are given.
pub(crate) fn default_options(generation: Generation, purpose: &str) -> Value {
    let table = Table::of(generation);
    let options = table
        .fields("SmbShareCreate")
        .iter()
        .find(|field| field.name == "options");
    let Some(Type::Nullable(inner)) = options.map(|field| &field.ty) else {
        return Value::Null;
    };
    let Type::Tagged(_, branches) = &**inner else {
        return Value::Null;
    };
    let Some(Type::Object(name)) = branches.get(purpose) else {
        return Value::Null;
    };
    let mut options = Map::new();
    for field in table.fields(name) {
        if let Presence::Default(value) = &field.presence {
            options.insert(field.name.clone(), value.clone());
        }
    }
    options.insert("purpose".to_owned(), json!(purpose));
    Value::Object(options)
}
