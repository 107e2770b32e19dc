//! The check of arguments before a method runs: two validators, as in the middleware.
//!
//! Texts and paths of [`Style::Model`] were recorded on 25.10.6 and 26; those of [`Style::Accepts`]
//! were read from `middlewared/schema.py` (22.12 to 24.10).

mod accepts;
mod model;

use serde_json::Value;

use crate::Generation;
use crate::failure::{Failure, Invalid};
use crate::query;
use crate::table::{Method, Presence, Style, Table};

/// The arguments with every default filled in, or the error that the release would answer.
pub(crate) fn arguments(
    generation: Generation,
    method: &Method,
    params: &[Value],
) -> Result<Vec<Value>, Failure> {
    let table = Table::of(generation);
    let (filled, errors) = match method.style {
        Style::Model => {
            if let Some(failure) = wrong_create_count(method, params) {
                return Err(failure);
            }
            model::arguments(table, generation, method, params)
        }
        Style::Accepts => accepts::arguments(table, method, params),
    };
    if !errors.is_empty() {
        return Err(Failure::Validation(errors));
    }
    check_query(method, &filled)?;
    Ok(filled)
}

/// The arguments of a method of an older version, checked by its models, with its defaults.
pub(crate) fn by_models_of(
    models: Generation,
    generation: Generation,
    method: &Method,
    params: &[Value],
) -> Result<Vec<Value>, Failure> {
    match model::arguments(Table::of(models), generation, method, params) {
        (filled, errors) if errors.is_empty() => Ok(filled),
        (_, errors) => Err(Failure::Validation(errors)),
    }
}

/// Checks a call as a release would before it runs it; nothing is executed.
pub fn check(generation: Generation, method: &str, params: &[Value]) -> Result<(), Failure> {
    let known = Table::of(generation).method(method);
    let known = known.ok_or_else(|| Failure::NoMethod(method.to_owned()))?;
    arguments(generation, known, params).map(drop)
}

/// A wrong number of arguments to a create method never reaches the validator. Recorded on 25.10.6 and 26.
fn wrong_create_count(method: &Method, params: &[Value]) -> Option<Failure> {
    let required = method
        .args
        .iter()
        .filter(|arg| arg.presence == Presence::Required)
        .count();
    if !is_crud_create(&method.name) || params.len() == required {
        return None;
    }
    let text = if params.is_empty() {
        "CRUDService.create() missing 1 required positional argument: 'data'".to_owned()
    } else {
        format!(
            "CRUDService.create() takes 5 positional arguments but {} were given",
            4 + params.len()
        )
    };
    Some(Failure::Exception {
        class: "TypeError".to_owned(),
        text,
    })
}

fn is_crud_create(name: &str) -> bool {
    name.ends_with(".create") && !name.starts_with("zfs.resource.")
}

fn check_query(method: &Method, params: &[Value]) -> Result<(), Failure> {
    let takes_filters = method
        .args
        .first()
        .is_some_and(|arg| matches!(arg.name.as_str(), "filters" | "query-filters"));
    let Some(filters) = params.first().filter(|_| takes_filters) else {
        return Ok(());
    };
    let name = &method.args[0].name;
    query::check(filters).map_err(|text| {
        let text = if method.style == Style::Model {
            format!("Value error, {text}")
        } else {
            text
        };
        Failure::invalid(name, text)
    })
}

type Errors = Vec<Invalid>;

/// A Python literal, as both validators print choices.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => format!("'{text}'"),
        other => other.to_string(),
    }
}
