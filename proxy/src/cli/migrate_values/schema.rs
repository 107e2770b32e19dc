//! The schema of the chart's values, compiled in: what it refuses is left out, and what cannot be left out
//! is a problem. It knows the keywords that this schema uses, and no others.

use std::fmt::Write as _;

use regex::Regex;
use serde_json::{Map, Value};

const SCHEMA: &str = include_str!("../../../../deploy/chart/values.schema.json");

/// The key that the schema refuses. Names keys, and no values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Misfit {
    /// The keys and indexes that lead to it.
    steps: Vec<Step>,
    problem: String,
    /// Whether the chart does without it.
    optional: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Leaves out what the chart refuses, as far as it does without it. Returns what was left out, and what still
/// does not fit.
pub(super) fn fit(values: &mut Map<String, Value>) -> (Vec<Misfit>, Vec<Misfit>) {
    let schema = schema();
    let mut whole = Value::Object(std::mem::take(values));
    let mut left_out = Vec::new();
    let wrong = loop {
        let found = misfits(&schema, &whole);
        match found.iter().find(|misfit| misfit.is_removable()) {
            Some(misfit) if remove(&mut whole, &misfit.steps) => left_out.push(misfit.clone()),
            _ => break found,
        }
    };
    if let Value::Object(whole) = whole {
        *values = whole;
    }
    (left_out, wrong)
}

pub(super) fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap_or_else(|_| unreachable!("a test reads it"))
}

fn misfits(schema: &Value, value: &Value) -> Vec<Misfit> {
    let mut check = Check::default();
    check.value(schema, value);
    check.found
}

fn remove(whole: &mut Value, steps: &[Step]) -> bool {
    let Some((Step::Key(last), way)) = steps.split_last() else {
        return false;
    };
    let parent = way.iter().try_fold(whole, |value, step| match step {
        Step::Key(key) => value.get_mut(key.as_str()),
        Step::Index(index) => value.get_mut(*index),
    });
    parent
        .and_then(Value::as_object_mut)
        .is_some_and(|map| map.remove(last).is_some())
}

#[derive(Default)]
struct Check {
    steps: Vec<Step>,
    found: Vec<Misfit>,
}

// === impl Misfit ===

impl Misfit {
    /// The place where it is, as in `controller.driver.image`.
    pub(super) fn path(&self) -> String {
        let mut path = String::new();
        for step in &self.steps {
            // Writing to a string does not fail.
            let _ = match step {
                Step::Key(key) if path.is_empty() => write!(path, "{}", key.escape_debug()),
                Step::Key(key) => write!(path, ".{}", key.escape_debug()),
                Step::Index(index) => write!(path, "[{index}]"),
            };
        }
        path
    }

    pub(super) fn problem(&self) -> &str {
        &self.problem
    }

    /// Connections and names are what all this is about: without one of them the release is another.
    fn is_removable(&self) -> bool {
        let key =
            |step: Option<&Step>, name: &str| matches!(step, Some(Step::Key(key)) if key == name);
        self.optional
            && matches!(self.steps.last(), Some(Step::Key(_)))
            && !key(self.steps.first(), "connections")
            && !key(self.steps.last(), "name")
    }
}

// === impl Check ===

impl Check {
    fn report(&mut self, problem: impl Into<String>, optional: bool) {
        self.found.push(Misfit {
            steps: self.steps.clone(),
            problem: problem.into(),
            optional,
        });
    }

    fn below(&mut self, step: Step, schema: &Value, value: &Value) {
        self.steps.push(step);
        self.value(schema, value);
        self.steps.pop();
    }

    fn value(&mut self, schema: &Value, value: &Value) {
        if let Some(types) = schema.get("type")
            && !is_of(types, value)
        {
            return self.report(format!("it has to be {}", words(types)), true);
        }
        if let Some(Value::Array(allowed)) = schema.get("enum")
            && !allowed.contains(value)
        {
            return self.report(
                format!("it has to be one of {}", words(&schema["enum"])),
                true,
            );
        }
        if schema.get("const").is_some_and(|only| only != value) {
            self.report("it has another value than the chart allows", true);
        }
        if let Some(not) = schema.get("not")
            && misfits(not, value).is_empty()
        {
            self.report("it has a value that the chart excludes", true);
        }
        match value {
            Value::Object(map) => self.map(schema, map),
            Value::Array(entries) => {
                if let Some(of_each) = schema.get("items") {
                    for (index, entry) in entries.iter().enumerate() {
                        self.below(Step::Index(index), of_each, entry);
                    }
                }
            }
            Value::String(text) => self.text(schema, text),
            Value::Number(number) => {
                let bound = |keyword| schema.get(keyword).and_then(Value::as_f64);
                let number = number.as_f64();
                if bound("minimum")
                    .zip(number)
                    .is_some_and(|(least, it)| it < least)
                {
                    self.report("the number is too small", true);
                }
                if bound("maximum")
                    .zip(number)
                    .is_some_and(|(most, it)| it > most)
                {
                    self.report("the number is too large", true);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn text(&mut self, schema: &Value, text: &str) {
        if let Some(Value::String(pattern)) = schema.get("pattern")
            && !Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
        {
            self.report(format!("it does not have the form {pattern}"), true);
        }
        let most = schema.get("maxLength").and_then(Value::as_u64);
        let length = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
        if let Some(most) = most.filter(|most| length > *most) {
            self.report(format!("it is longer than {most} characters"), true);
        }
    }

    fn map(&mut self, schema: &Value, map: &Map<String, Value>) {
        let required = schema.get("required").and_then(Value::as_array);
        for key in required.into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(key) {
                self.report(format!("`{key}` is required"), false);
            }
        }
        let known = schema.get("properties").and_then(Value::as_object);
        for (key, value) in map {
            let step = Step::Key(key.clone());
            if let Some(names) = schema.get("propertyNames")
                && !misfits(names, &Value::from(key.as_str())).is_empty()
            {
                self.steps.push(step.clone());
                self.report("the chart does not allow such a name", true);
                self.steps.pop();
            }
            match (
                known.and_then(|known| known.get(key)),
                schema.get("additionalProperties"),
            ) {
                (Some(of_it), _) => self.below(step, of_it, value),
                (None, Some(Value::Bool(false))) => {
                    self.steps.push(step);
                    self.report("the chart has no such key", true);
                    self.steps.pop();
                }
                (None, Some(of_others)) => self.below(step, of_others, value),
                (None, None) => {}
            }
        }
    }
}

fn is_of(types: &Value, value: &Value) -> bool {
    match types {
        Value::Array(types) => types.iter().any(|one| is_of(one, value)),
        Value::String(name) => match name.as_str() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "number" => value.is_number(),
            "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            _ => false,
        },
        _ => false,
    }
}

/// `a string, null`.
fn words(values: &Value) -> String {
    let word = |value: &Value| match value {
        Value::String(word) if word.is_empty() => "empty".to_owned(),
        Value::String(word) => word.clone(),
        other => other.to_string(),
    };
    match values {
        Value::Array(values) => values.iter().map(word).collect::<Vec<_>>().join(", "),
        one => word(one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keyword that the check does not know would let through what helm refuses.
    #[test]
    fn every_keyword_of_the_schema_is_known() {
        const KNOWN: [&str; 16] = [
            "$schema",
            "title",
            "description",
            "type",
            "additionalProperties",
            "properties",
            "items",
            "enum",
            "required",
            "pattern",
            "maxLength",
            "minimum",
            "maximum",
            "propertyNames",
            "not",
            "const",
        ];
        fn walk(schema: &Value) {
            let Value::Object(schema) = schema else {
                return;
            };
            for (keyword, value) in schema {
                assert!(KNOWN.contains(&keyword.as_str()), "{keyword}");
                match keyword.as_str() {
                    "properties" => value
                        .as_object()
                        .into_iter()
                        .flatten()
                        .for_each(|(_, of_one)| walk(of_one)),
                    "items" | "additionalProperties" | "not" | "propertyNames" => walk(value),
                    "pattern" => {
                        assert!(Regex::new(value.as_str().unwrap_or("(")).is_ok(), "{value}");
                    }
                    _ => {}
                }
            }
        }
        walk(&schema());
    }

    #[test]
    fn what_does_not_fit_is_left_out_but_for_names_and_connections() {
        let mut values = serde_json::json!({
            "csiDriver": {"name": "x".repeat(64), "fsGroupPolicy": "Sometimes"},
            "connections": {"a b": {"driver": "zfs-generic-nfs"}, "c": {}},
            "controller": {"replicaCount": -1, "externalSnapshotMetadata": {"port": 70_000}, "driver": {"logLevel": 5, "extraArgs": ["--a", 7], "imagePullPolicy": "Always"}},
            "storageClasses": [{"parameters": {"deep": {"a": 1}, "flat": true}}],
            "metrics": {"controllerPort": 1.5},
        });
        let Value::Object(values) = &mut values else {
            unreachable!()
        };
        let (left_out, wrong) = fit(values);
        let paths = |found: &[Misfit]| found.iter().map(Misfit::path).collect::<Vec<_>>();
        let mut gone = paths(&left_out);
        gone.sort();
        assert_eq!(
            gone,
            [
                "controller.driver.imagePullPolicy",
                "controller.driver.logLevel",
                "controller.externalSnapshotMetadata.port",
                "controller.replicaCount",
                "csiDriver.fsGroupPolicy",
                "metrics.controllerPort",
                "storageClasses[0].parameters.deep",
            ]
        );
        let mut kept = paths(&wrong);
        kept.sort();
        assert_eq!(
            kept,
            [
                "connections.a b",
                "connections.c",
                "controller.driver.extraArgs[1]",
                "csiDriver.name",
                "storageClasses[0]",
            ]
        );
        assert_eq!(
            values["storageClasses"][0]["parameters"],
            serde_json::json!({"flat": true})
        );
    }
}
