//! A parsed configuration file, and its typed sections.

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::common::{CommonConfig, IdRoom};
use super::error::ConfigError;
use super::expand::{Environment, expand};
use super::finding::{Finding, Severity};
use super::layers;
use super::notes::{Notes, nearest, push_key};
use super::read::{Path, Reader};
use super::yaml;

/// One configuration file. Never prints its values.
pub struct Document {
    pub(super) root: Value,
    /// The content of the file itself, if `root` has more.
    own: Option<Value>,
    id_room: IdRoom,
    notes: Arc<Mutex<Notes>>,
    findings: Mutex<Vec<Finding>>,
    /// Entries of lists that count as absent.
    hidden: Vec<String>,
}

// === impl Document ===

impl Document {
    /// Parses `text` within budgets and expands `${VAR}`.
    pub fn parse(text: &str, environment: &dyn Environment) -> Result<Self, ConfigError> {
        let mut root = yaml::parse(text)?;
        if !root.is_object() {
            return Err(ConfigError::new("the document is not a map of keys"));
        }
        let mut findings = expand(&mut root, environment)?;
        placeholders(&root, &mut String::new(), &mut findings);
        Ok(Self {
            root,
            own: None,
            id_room: IdRoom::default(),
            notes: Arc::default(),
            findings: Mutex::new(findings),
            hidden: Vec::new(),
        })
    }

    /// The same document with the defaults of `base` for all connections below it: maps are merged,
    /// every other value of this file replaces the default. Only keys of this file are ever
    /// reported.
    #[must_use]
    pub fn over(mut self, base: &Self) -> Self {
        let mut merged = layers::defaults(&base.root);
        layers::lay(&mut merged, &self.root);
        self.own = Some(std::mem::replace(&mut self.root, merged));
        self
    }

    /// Reserves `taken` bytes of every id for the name of the connection.
    #[must_use]
    pub fn with_ids_behind(mut self, taken: usize) -> Self {
        self.id_room = IdRoom::behind(taken);
        self
    }

    /// The same file with other values, and without the `hidden` entries of lists. Which keys are
    /// known is noted for both; what is odd about such values is not.
    pub(super) fn with_root(&self, root: Value, hidden: Vec<String>) -> Self {
        Self {
            root,
            own: Some(self.own().clone()),
            id_room: self.id_room,
            notes: Arc::clone(&self.notes),
            findings: Mutex::default(),
            hidden,
        }
    }

    /// The text that stands in the file itself, without the defaults of another.
    pub(super) fn own(&self) -> &Value {
        self.own.as_ref().unwrap_or(&self.root)
    }

    /// The value of `driver`: which kind of backend this is.
    pub fn driver(&self) -> Result<&str, ConfigError> {
        self.note(|notes| notes.knows("", &["driver"]));
        match self.root.get("driver") {
            Some(Value::String(driver)) if !driver.is_empty() => Ok(driver),
            None | Some(Value::Null) => {
                let missing = ConfigError::at("driver", "is required and missing");
                if let Some(kind) = self.root.get("kind").and_then(Value::as_str) {
                    let shown: String = kind.chars().take(64).collect();
                    return Err(missing.advise(format!(
                        "this is a manifest of the kind {}: give what stands in it under driver-config-file.yaml or \
                         driver.config",
                        shown.escape_debug()
                    )));
                }
                let keys = self.root.as_object().into_iter().flatten();
                Err(match nearest("driver", keys.map(|(key, _)| key.as_str())) {
                    Some(key) => {
                        missing.advise(format!("is `{}` a misspelling of it?", key.escape_debug()))
                    }
                    None => missing,
                })
            }
            Some(value) => {
                let error = ConfigError::at("driver", "expected the name of a driver");
                Err(if value.get("config").is_some() {
                    error.advise(
                        "this is a values file of the chart: give what is under driver.config",
                    )
                } else {
                    error
                })
            }
        }
    }

    /// The keys that all drivers have in common.
    pub fn common(&self) -> Result<CommonConfig, ConfigError> {
        self.driver()?;
        let mut config: CommonConfig = self.read(&self.root, Path::Root)?;
        config.id_room = self.id_room;
        Ok(config)
    }

    /// The section under the top-level key `name`. An absent one reads like an empty one, so that
    /// the error names the first required key.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, ConfigError> {
        self.note(|notes| notes.knows_section(name));
        let value = self.root.get(name).unwrap_or(&Value::Null);
        let path = Path::Key(&Path::Root, name);
        let section = self.read(value, path);
        section.map_err(|error| {
            if !value.is_null() || error.advice().is_some() {
                return error;
            }
            if self.root.get(name).is_some() {
                let below = format!("the section `{name}` is empty: indent its keys below it");
                return error.advise(below);
            }
            let keys = self.root.as_object().into_iter().flatten();
            match nearest(name, keys.map(|(key, _)| key.as_str())) {
                Some(key) => error.advise(format!(
                    "is `{}` a misspelling of `{name}`?",
                    key.escape_debug()
                )),
                None => error,
            }
        })
    }

    /// The section under the top-level key `name`, if it is there.
    pub fn optional_section<T: DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>, ConfigError> {
        self.note(|notes| notes.knows_section(name));
        match self.root.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.section(name).map(Some),
        }
    }

    /// Declares which keys have no effect for this driver, and why: `("node.format", "a directory
    /// is never formatted")`. Each one that is set becomes a finding, and no longer counts as
    /// unknown.
    pub fn without_effect(&self, prefixes: &[(&str, &str)]) {
        for (path, reason) in prefixes {
            let mut steps = path.split('.');
            let set = steps.try_fold(self.own(), |value, step| value.get(step));
            if set.is_some_and(|value| !value.is_null()) {
                self.note(|notes| notes.knows_idle(path));
                self.add(Finding {
                    severity: Severity::NoEffect,
                    path: (*path).to_owned(),
                    message: format!("has no effect: {reason}"),
                    advice: None,
                });
            }
        }
    }

    /// Declares that the driver sections `sections` here are defaults for other documents, which
    /// are laid over this one: unknown keys are detected there.
    pub fn has_defaults_for_others(&self, sections: &[&str]) {
        for section in sections {
            self.note(|notes| notes.knows_section(section));
        }
    }

    /// Adds a finding of a driver.
    pub fn add(&self, finding: Finding) {
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }

    /// All findings so far. A key counts as unknown if no section has read it: read all sections
    /// first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.note(|notes| notes.unknown(self.own()));
        let others = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        findings.extend(others.iter().cloned());
        findings
    }

    /// The [`findings`](Self::findings) after an error: sections that were not read yet are
    /// skipped, because their keys may be known.
    pub fn findings_so_far(&self) -> Vec<Finding> {
        let top = |path: &str| {
            let keys = self.root.as_object().into_iter().flatten();
            keys.map(|(key, _)| {
                let mut path = String::new();
                push_key(&mut path, key);
                path
            })
            .any(|key| key == path)
        };
        let mut findings = self.findings();
        findings.retain(|found| found.severity != Severity::UnknownKey || !top(&found.path));
        findings
    }

    fn read<T: DeserializeOwned>(&self, value: &Value, path: Path<'_>) -> Result<T, ConfigError> {
        let reader = Reader {
            value,
            path,
            notes: &self.notes,
            hidden: &self.hidden,
        };
        T::deserialize(reader).map_err(ConfigError::from)
    }

    fn note<R>(&self, note: impl FnOnce(&mut Notes) -> R) -> R {
        note(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Texts that stand in the example files of democratic-csi and of this project where a value belongs.
const PLACEHOLDERS: [&str; 8] = [
    "server address",
    "server[:port]",
    "server:port",
    "tcp://server:port",
    "rdma://server:port",
    "FQDN or IP",
    "changeme",
    "...",
];

/// Finds values that were copied from an example and not replaced.
fn placeholders(value: &Value, path: &mut String, findings: &mut Vec<Finding>) {
    let length = path.len();
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                push_key(path, key);
                placeholders(value, path, findings);
                path.truncate(length);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                let _ = write!(path, "[{index}]");
                placeholders(value, path, findings);
                path.truncate(length);
            }
        }
        Value::String(text) => {
            let text = text.trim();
            let bracketed = text.len() > 2 && text.starts_with('<') && text.ends_with('>');
            if bracketed
                || PLACEHOLDERS
                    .iter()
                    .any(|known| text.eq_ignore_ascii_case(known))
            {
                findings.push(Finding {
                    severity: Severity::Doubtful,
                    path: path.clone(),
                    message: "this is a placeholder of an example file".to_owned(),
                    advice: Some("replace it with the value of your own system".to_owned()),
                });
            }
        }
        _ => {}
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.root.get("driver").and_then(Value::as_str);
        f.debug_struct("Document")
            .field("driver", &driver)
            .finish_non_exhaustive()
    }
}
