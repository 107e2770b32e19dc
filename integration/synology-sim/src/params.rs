//! The parameters of one call. What no method asked for is ignored, as DSM seems to do (democratic-csi,
//! issue 179), and an error in a strict simulator: a test would not see the mistake.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::failure::{Failure, code};

/// The parameters of one call.
#[derive(Debug)]
pub(crate) struct Params {
    left: BTreeMap<String, Value>,
    strict: bool,
}

// === impl Params ===

impl Params {
    /// Reads a form. Of an API whose `requestFormat` is `JSON` each value is JSON; one that is not
    /// counts as text, as democratic-csi (src/driver/controller-synology/http/index.js) relies on.
    pub(crate) fn read(form: &[u8], json: bool, strict: bool) -> Self {
        let left = form_urlencoded::parse(form)
            .map(|(key, text)| {
                let value = json.then(|| serde_json::from_str(&text).ok()).flatten();
                (
                    key.into_owned(),
                    value.unwrap_or_else(|| Value::from(text.as_ref())),
                )
            })
            .collect();
        Self { left, strict }
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.left.remove(key).filter(|value| !value.is_null())
    }

    /// A text that has to be there.
    pub(crate) fn text(&mut self, key: &'static str) -> Result<String, Failure> {
        match self.take(key) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(Failure::strict(
                code::PARAMETER,
                format!("{key} is not a text"),
            )),
            None => Err(Failure::of(code::MISSING)),
        }
    }

    /// A text, if it is there.
    pub(crate) fn optional_text(&mut self, key: &'static str) -> Result<Option<String>, Failure> {
        if self.left.contains_key(key) {
            self.text(key).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.left.contains_key(key)
    }

    /// Reads over parameters that change nothing here.
    pub(crate) fn ignore(&mut self, keys: &[&str]) {
        for key in keys {
            self.left.remove(*key);
        }
    }

    /// A number that has to be there.
    pub(crate) fn number(&mut self, key: &'static str) -> Result<u64, Failure> {
        match self.take(key) {
            Some(value) => value.as_u64().ok_or_else(|| {
                Failure::strict(code::PARAMETER, format!("{key} is not a whole number"))
            }),
            None => Err(Failure::of(code::MISSING)),
        }
    }

    /// A boolean, `false` if absent.
    pub(crate) fn boolean(&mut self, key: &'static str) -> Result<bool, Failure> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(_) => Err(Failure::strict(
                code::PARAMETER,
                format!("{key} is not a boolean"),
            )),
        }
    }

    /// A list of texts, empty if absent.
    pub(crate) fn texts(&mut self, key: &'static str) -> Result<Vec<String>, Failure> {
        let Some(value) = self.take(key) else {
            return Ok(Vec::new());
        };
        serde_json::from_value(value)
            .map_err(|_| Failure::strict(code::PARAMETER, format!("{key} is not a list of texts")))
    }

    /// A map that has to be there.
    pub(crate) fn map(&mut self, key: &'static str) -> Result<Map<String, Value>, Failure> {
        match self.take(key) {
            Some(Value::Object(map)) => Ok(map),
            Some(_) => Err(Failure::strict(
                code::PARAMETER,
                format!("{key} is not a map"),
            )),
            None => Err(Failure::of(code::MISSING)),
        }
    }

    /// In a strict simulator nothing may be left.
    pub(crate) fn done(self) -> Result<(), Failure> {
        match self.left.keys().next() {
            Some(key) if self.strict => Err(Failure::strict(
                code::PARAMETER,
                format!("{key} is not a parameter of this method"),
            )),
            _ => Ok(()),
        }
    }
}
