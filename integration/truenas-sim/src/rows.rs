//! The tables of the configuration database: shares, targets, subsystems, services.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A row.
pub type Row = Map<String, Value>;

/// All tables. Ids start at 1 and are never given twice.
#[derive(Debug, Default, Clone)]
pub struct Rows {
    tables: BTreeMap<String, BTreeMap<i64, Row>>,
    last: BTreeMap<String, i64>,
}

impl Rows {
    /// The rows of a table.
    pub fn all(&self, table: &str) -> impl Iterator<Item = &Row> {
        self.tables
            .get(table)
            .into_iter()
            .flat_map(BTreeMap::values)
    }

    /// One row.
    pub fn get(&self, table: &str, id: i64) -> Option<&Row> {
        self.tables.get(table)?.get(&id)
    }

    pub(crate) fn get_mut(&mut self, table: &str, id: i64) -> Option<&mut Row> {
        self.tables.get_mut(table)?.get_mut(&id)
    }

    pub(crate) fn next_id(&self, table: &str) -> i64 {
        self.last.get(table).copied().unwrap_or_default() + 1
    }

    pub(crate) fn insert(&mut self, table: &str, mut row: Row) -> i64 {
        let id = self.next_id(table);
        row.insert("id".to_owned(), json!(id));
        self.last.insert(table.to_owned(), id);
        self.tables
            .entry(table.to_owned())
            .or_default()
            .insert(id, row);
        id
    }

    pub(crate) fn remove(&mut self, table: &str, id: i64) -> Option<Row> {
        self.tables.get_mut(table)?.remove(&id)
    }

    /// Removes every row that matches and returns them.
    pub(crate) fn take(&mut self, table: &str, matches: impl Fn(&Row) -> bool) -> Vec<Row> {
        let Some(rows) = self.tables.get_mut(table) else {
            return Vec::new();
        };
        let ids: Vec<i64> = rows
            .iter()
            .filter(|(_, row)| matches(row))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().filter_map(|id| rows.remove(&id)).collect()
    }

    pub(crate) fn ids(&self, table: &str) -> Vec<i64> {
        self.tables
            .get(table)
            .map(|rows| rows.keys().copied().collect())
            .unwrap_or_default()
    }
}

/// A text of a row, or the empty one.
pub(crate) fn text<'a>(row: &'a Row, key: &str) -> &'a str {
    row.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A number of a row, or 0.
pub(crate) fn number(row: &Row, key: &str) -> i64 {
    row.get(key).and_then(Value::as_i64).unwrap_or_default()
}

/// A flag of a row.
pub(crate) fn flag(row: &Row, key: &str) -> bool {
    row.get(key).and_then(Value::as_bool).unwrap_or_default()
}

/// The texts of a list.
pub(crate) fn texts(row: &Row, key: &str) -> Vec<String> {
    let list = row.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}
