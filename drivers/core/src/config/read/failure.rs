//! A failed read: which key, what is wrong, and never the value.

use std::fmt;

use serde::de::{self, Unexpected};
use serde_json::{Map, Value};

use super::Path;
use crate::config::error::ConfigError;
use crate::config::notes::{nearest, push_key};

/// A failed read. The path is added by the innermost reader that sees the failure.
#[derive(Debug)]
pub(in crate::config) struct ReadError {
    path: Option<String>,
    field: Option<&'static str>,
    problem: String,
    advice: Option<String>,
}

// === impl ReadError ===

impl ReadError {
    pub(super) fn new(problem: String) -> Self {
        Self {
            path: None,
            field: None,
            problem,
            advice: None,
        }
    }

    pub(super) fn within(mut self, path: &Path<'_>) -> Self {
        if self.path.is_none() {
            let mut text = path.to_string();
            if let Some(field) = self.field {
                push_key(&mut text, field);
            }
            self.path = Some(text);
        }
        self
    }

    /// Looks for the missing field among the unknown keys of the map.
    pub(super) fn looking_in(mut self, map: &Map<String, Value>, fields: &[&'static str]) -> Self {
        let strangers = map.keys().map(String::as_str);
        let strangers = strangers.filter(|key| !fields.contains(key));
        if let (None, Some(field)) = (&self.path, self.field)
            && let Some(key) = nearest(field, strangers)
        {
            self.advice = Some(format!("is `{}` a misspelling of it?", key.escape_debug()));
        }
        self
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for ReadError {}

impl From<ReadError> for ConfigError {
    fn from(error: ReadError) -> Self {
        let config = match error.path.filter(|path| !path.is_empty()) {
            Some(path) => Self::at(path, error.problem),
            None => Self::new(error.problem),
        };
        match error.advice {
            Some(advice) => config.advise(advice),
            None => config,
        }
    }
}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        // Only the name of a type of ours is known, which means nothing to a user.
        let expected = match expected.to_string() {
            name if name.starts_with("struct ") => "a section with keys".to_owned(),
            other => other,
        };
        Self::new(format!("expected {expected}, found {}", sort(found)))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!("this value is not possible, expected {expected}"))
    }

    fn invalid_length(length: usize, expected: &dyn de::Expected) -> Self {
        Self::new(format!("has {length} entries, expected {expected}"))
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..Self::new("is required and missing".into())
        }
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..Self::new("is given twice, under two of its names".into())
        }
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let shown: String = variant
            .chars()
            .take(64)
            .flat_map(char::escape_debug)
            .collect();
        Self {
            advice: nearest(variant, expected.iter().copied())
                .map(|name| format!("is `{name}` meant?")),
            ..Self::new(format!("`{shown}` is none of {}", expected.join(", ")))
        }
    }
}

/// The kind of the value, without the value.
fn sort(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a whole number",
        Unexpected::Float(_) => "a number with a fraction",
        Unexpected::Char(_) | Unexpected::Str(_) => "text",
        Unexpected::Unit | Unexpected::Option => "nothing",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a map",
        _ => "something else",
    }
}
