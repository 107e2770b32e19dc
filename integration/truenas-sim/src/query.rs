//! Filters and options of `*.query`, as `filter_list` of the middleware applies them.

use std::cmp::Ordering;

use regex::Regex;
use serde_json::{Map, Value};

use crate::failure::Failure;

const OPERATORS: [&str; 15] = [
    "=", "!=", ">", ">=", "<", "<=", "~", "in", "nin", "rin", "rnin", "^", "!^", "$", "!$",
];

/// Whether the filters are well formed.
pub(crate) fn check(filters: &Value) -> Result<(), String> {
    for filter in filters.as_array().into_iter().flatten() {
        let Value::Array(parts) = filter else {
            return Err("Filter must be a list".to_owned());
        };
        match parts.as_slice() {
            [Value::String(or), branches] if or == "OR" => {
                for branch in branches.as_array().into_iter().flatten() {
                    // A branch is one filter or a list of filters.
                    let one = branch.get(0).is_some_and(Value::is_string);
                    if one {
                        check(&Value::Array(vec![branch.clone()]))?;
                    } else {
                        check(branch)?;
                    }
                }
            }
            [Value::String(_), Value::String(operator), _] => {
                let plain = operator.strip_prefix('C').unwrap_or(operator);
                if !OPERATORS.contains(&plain) {
                    return Err(format!("Invalid operation: {operator}"));
                }
            }
            _ => return Err(format!("Invalid filter {filter}")),
        }
    }
    Ok(())
}

/// The rows that match, ordered, cut and selected as the options say.
pub(crate) fn apply(rows: Vec<Value>, params: &[Value]) -> Result<Value, Failure> {
    let filters = params.first().cloned().unwrap_or_default();
    let options = params.get(1).cloned().unwrap_or_default();
    let mut rows: Vec<Value> = rows
        .into_iter()
        .filter(|row| matches(row, &filters))
        .collect();
    let flag = |name: &str| {
        options
            .get(name)
            .and_then(Value::as_bool)
            .unwrap_or_default()
    };
    let number = |name: &str| {
        options
            .get(name)
            .and_then(Value::as_u64)
            .and_then(|number| usize::try_from(number).ok())
            .unwrap_or_default()
    };
    for order in options
        .get("order_by")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .rev()
    {
        sort(&mut rows, order.as_str().unwrap_or_default());
    }
    if flag("count") {
        return Ok(Value::from(rows.len()));
    }
    let select = options
        .get("select")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    if !select.is_empty() {
        rows = rows.iter().map(|row| selected(row, &select)).collect();
    }
    if flag("get") {
        return rows.into_iter().next().ok_or_else(|| Failure::Exception {
            class: "MatchNotFound".to_owned(),
            text: "MatchNotFound()".to_owned(),
        });
    }
    let limit = match number("limit") {
        0 => usize::MAX,
        limit => limit,
    };
    Ok(rows
        .into_iter()
        .skip(number("offset"))
        .take(limit)
        .collect())
}

pub(crate) fn matches(row: &Value, filters: &Value) -> bool {
    filters
        .as_array()
        .into_iter()
        .flatten()
        .all(|filter| matches_one(row, filter))
}

/// `filter_list` of CORE 13: it has no operators that ignore case, and a branch of `OR` is one filter. It says so
/// when it comes to such a filter, so that a query without rows passes.
pub(crate) fn check_old(rows: &[Value], params: &[Value]) -> Result<(), Failure> {
    let filters = params.first().and_then(Value::as_array);
    let filters: Vec<&Value> = filters.into_iter().flatten().collect();
    for row in rows {
        for filter in &filters {
            let passes = match filter[1].as_array() {
                Some(branches) => any_old(row, branches)?,
                None => old_one(row, filter)?,
            };
            if !passes {
                break;
            }
        }
    }
    Ok(())
}

fn any_old(row: &Value, branches: &[Value]) -> Result<bool, Failure> {
    for branch in branches {
        if old_one(row, branch)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn old_one(row: &Value, filter: &Value) -> Result<bool, Failure> {
    let unknown = |text: String| Failure::Exception {
        class: "ValueError".to_owned(),
        text,
    };
    match filter[1].as_str() {
        Some(operator) if operator.starts_with('C') => {
            Err(unknown(format!("Invalid operation: {operator}")))
        }
        Some(_) => Ok(matches_one(row, filter)),
        None => Err(unknown(format!("Invalid filter {filter}"))),
    }
}

fn matches_one(row: &Value, filter: &Value) -> bool {
    let Value::Array(parts) = filter else {
        return false;
    };
    match parts.as_slice() {
        [_, branches] => branches.as_array().into_iter().flatten().any(|branch| {
            if branch.get(0).is_some_and(Value::is_string) {
                matches_one(row, branch)
            } else {
                matches(row, branch)
            }
        }),
        [Value::String(field), Value::String(operator), wanted] => {
            // A row without the field never matches; the query is no error.
            lookup(row, field).is_some_and(|found| compare(found, operator, wanted))
        }
        _ => false,
    }
}

/// The value at a dotted path. A dot inside a key is written `\\.`.
pub(crate) fn lookup<'a>(row: &'a Value, path: &str) -> Option<&'a Value> {
    if let Some(value) = row.get(path) {
        return Some(value);
    }
    let mut value = row;
    for part in split_path(path) {
        value = match value {
            Value::Array(items) => items.get(part.parse::<usize>().ok()?)?,
            other => other.get(&part)?,
        };
    }
    Some(value)
}

fn split_path(path: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = path.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if characters.peek() == Some(&'.') => {
                characters.next();
                parts.last_mut().expect("a part").push('.');
            }
            '.' => parts.push(String::new()),
            other => parts.last_mut().expect("a part").push(other),
        }
    }
    parts
}

fn compare(found: &Value, operator: &str, wanted: &Value) -> bool {
    let folded = operator
        .strip_prefix('C')
        .filter(|rest| OPERATORS.contains(rest));
    let (found, wanted, operator) = match folded {
        Some(operator) => (&lower(found), &lower(wanted), operator),
        None => (found, wanted, operator),
    };
    let texts = || found.as_str().zip(wanted.as_str());
    match operator {
        "=" => same(found, wanted),
        "!=" => !same(found, wanted),
        ">" => order(found, wanted) == Some(Ordering::Greater),
        ">=" => matches!(
            order(found, wanted),
            Some(Ordering::Greater | Ordering::Equal)
        ),
        "<" => order(found, wanted) == Some(Ordering::Less),
        "<=" => matches!(order(found, wanted), Some(Ordering::Less | Ordering::Equal)),
        "~" => texts().is_some_and(|(found, pattern)| {
            Regex::new(&format!("^(?:{pattern})")).is_ok_and(|regex| regex.is_match(found))
        }),
        "in" => contains(wanted, found),
        "nin" => !contains(wanted, found),
        "rin" => contains(found, wanted),
        "rnin" => !contains(found, wanted),
        "^" => texts().is_some_and(|(found, start)| found.starts_with(start)),
        "!^" => !texts().is_some_and(|(found, start)| found.starts_with(start)),
        "$" => texts().is_some_and(|(found, end)| found.ends_with(end)),
        "!$" => !texts().is_some_and(|(found, end)| found.ends_with(end)),
        _ => false,
    }
}

/// Python's equality: `1 == 1.0`, and a list compares by its items.
fn same(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => (left - right).abs() < f64::EPSILON,
        _ => left == right,
    }
}

fn contains(list: &Value, item: &Value) -> bool {
    match list {
        Value::Array(items) => items.iter().any(|each| same(each, item)),
        Value::String(text) => item.as_str().is_some_and(|item| text.contains(item)),
        Value::Object(fields) => item.as_str().is_some_and(|item| fields.contains_key(item)),
        _ => false,
    }
}

fn lower(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::from(text.to_lowercase()),
        Value::Array(items) => items.iter().map(lower).collect(),
        other => other.clone(),
    }
}

fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64()?.partial_cmp(&right.as_f64()?),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

fn sort(rows: &mut [Value], order_by: &str) {
    let nulls_first = order_by.strip_prefix("nulls_first:");
    let order_by = nulls_first
        .or_else(|| order_by.strip_prefix("nulls_last:"))
        .unwrap_or(order_by);
    let (field, reverse) = order_by
        .strip_prefix('-')
        .map_or((order_by, false), |field| (field, true));
    rows.sort_by(|left, right| {
        let (left, right) = (lookup(left, field), lookup(right, field));
        let ordering = left
            .zip(right)
            .and_then(|(left, right)| order(left, right))
            .unwrap_or(Ordering::Equal);
        if reverse {
            ordering.reverse()
        } else {
            ordering
        }
    });
}

fn selected(row: &Value, select: &[Value]) -> Value {
    let mut result = Map::new();
    for field in select {
        let (field, name) = match field {
            Value::Array(pair) => (
                pair.first().and_then(Value::as_str),
                pair.get(1).and_then(Value::as_str),
            ),
            other => (other.as_str(), None),
        };
        let Some((field, value)) = field.and_then(|field| Some((field, lookup(row, field)?)))
        else {
            continue;
        };
        match name {
            Some(name) => {
                result.insert(name.to_owned(), value.clone());
            }
            None => insert_nested(&mut result, &split_path(field), value.clone()),
        }
    }
    Value::Object(result)
}

fn insert_nested(target: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => {
            target.insert(last.clone(), value);
        }
        [first, rest @ ..] => {
            let inner = target
                .entry(first.clone())
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert_nested(inner, rest, value);
            }
        }
    }
}
