//! Query, get and delete of rows, the same for every table of the database.

use serde_json::{Map, Value, json};

use super::{Answer, Call};
use crate::failure::Failure;
use crate::rows::Row;
use crate::table::{Style, Table, Type};

/// A table of the database as a service shows it.
pub(super) struct RowSet {
    /// `sharing.nfs`
    pub(super) service: &'static str,
    /// The word in "X 7 does not exist", the class of the service without its last word.
    pub(super) noun: &'static str,
    /// Fields that need the role to write to be seen.
    pub(super) secrets: &'static [&'static str],
}

impl RowSet {
    pub(super) fn missing(&self, id: i64) -> Failure {
        Failure::not_found(None, format!("{} {id} does not exist", self.noun))
    }

    pub(super) fn get(&self, call: &Call, id: i64) -> Result<Row, Failure> {
        call.nas
            .rows()
            .get(self.service, id)
            .cloned()
            .ok_or_else(|| self.missing(id))
    }

    /// The rows as this session may see them.
    pub(super) fn shown(&self, call: &Call) -> Vec<Value> {
        let rows: Vec<Row> = call.nas.rows().all(self.service).cloned().collect();
        rows.into_iter().map(|row| self.show(call, row)).collect()
    }

    pub(super) fn query(&self, call: &Call) -> Answer {
        call.query(self.shown(call))
    }

    pub(super) fn get_instance(&self, call: &Call) -> Answer {
        self.get(call, call.number(0))
            .map(|row| self.show(call, row))
    }

    /// A row with the fields that this release has, and secrets masked.
    pub(super) fn show(&self, call: &Call, mut row: Row) -> Value {
        let table = Table::of(call.generation);
        let create = format!("{}.create", self.service);
        if let Some(method) = table.method(&create) {
            if method.result.is_empty() {
                let known = |key: &str| COMPUTED.contains(&key) || creates(table, &create, key);
                row.retain(|key, _| known(key));
                for (key, value) in self.columns() {
                    if creates(table, &create, key) {
                        row.entry(key).or_insert(value);
                    }
                }
            } else {
                row.retain(|key, _| method.result.iter().any(|field| field == key));
                for field in &method.result {
                    row.entry(field.clone()).or_insert(Value::Null);
                }
            }
        }
        if !self.secrets.is_empty() && !self.may_see_secrets(call) {
            // The models hide the place, whether or not anything is there.
            let create = table.method(&create);
            let hides_none = create.is_some_and(|create| create.style == Style::Model);
            for secret in self.secrets {
                let is_hidden = |value: &Value| hides_none || value.is_string();
                if row.get(*secret).is_some_and(is_hidden) {
                    row.insert((*secret).to_owned(), json!("********"));
                }
            }
        }
        Value::Object(row)
    }

    /// Columns that a row of the database has even if a client did not give them, and no default of the method
    /// fills them in.
    fn columns(&self) -> Vec<(&'static str, Value)> {
        match self.service {
            "iscsi.portal" | "iscsi.initiator" => vec![("comment", json!(""))],
            "iscsi.extent" => vec![
                ("comment", json!("")),
                ("xen", json!(false)),
                ("pblocksize", json!(false)),
                ("avail_threshold", Value::Null),
            ],
            _ => Vec::new(),
        }
    }

    fn may_see_secrets(&self, call: &Call) -> bool {
        let Some(roles) = call.session.login().and_then(|login| login.roles) else {
            return true;
        };
        let table = Table::of(call.generation);
        let given = table.expand_roles(&roles);
        let create = table.method(&format!("{}.create", self.service));
        create.is_some_and(|create| match &create.access {
            crate::table::Access::Roles(needed) => needed.iter().any(|role| given.contains(role)),
            _ => false,
        })
    }

    /// Stores a new row, tells the subscribers, and shows it.
    pub(super) fn insert(&self, call: &Call, row: Row) -> Value {
        let id = call.nas.rows().insert(self.service, row);
        self.changed(call, "added", id)
    }

    /// Replaces fields of a row.
    pub(super) fn update(&self, call: &Call, id: i64, changes: Row) -> Answer {
        match call.nas.rows().get_mut(self.service, id) {
            Some(row) => row.extend(changes),
            None => return Err(self.missing(id)),
        }
        Ok(self.changed(call, "changed", id))
    }

    fn changed(&self, call: &Call, kind: &str, id: i64) -> Value {
        let row = call
            .nas
            .rows()
            .get(self.service, id)
            .cloned()
            .unwrap_or_default();
        let shown = self.show(call, row);
        call.nas.emit(
            kind,
            &format!("{}.query", self.service),
            &json!(id),
            Some(&shown),
            None,
        );
        shown
    }

    pub(super) fn delete(&self, call: &Call, id: i64) -> Result<Row, Failure> {
        let row = call
            .nas
            .rows()
            .remove(self.service, id)
            .ok_or_else(|| self.missing(id))?;
        call.nas.emit(
            "removed",
            &format!("{}.query", self.service),
            &json!(id),
            None,
            None,
        );
        Ok(row)
    }
}

/// Fields of results that no create method takes, in releases that do not declare results.
const COMPUTED: [&str; 6] = ["id", "tag", "naa", "vendor", "rel_tgt_id", "locked"];

/// Whether a create method takes this field.
fn creates(table: &Table, create: &str, key: &str) -> bool {
    let argument = table.method(create).and_then(|method| method.args.first());
    match argument.map(|argument| &argument.ty) {
        Some(Type::Object(name)) => table.fields(name).iter().any(|field| field.name == key),
        _ => true,
    }
}

/// The lowest number, from the first one on, that is not used.
pub(super) fn first_free(first: i64, used: &[i64]) -> i64 {
    let mut number = first;
    while used.contains(&number) {
        number += 1;
    }
    number
}

/// The old row with the changes of an update.
pub(super) fn merged(row: &Row, changes: &Map<String, Value>) -> Row {
    let mut row = row.clone();
    row.extend(changes.clone());
    row
}
