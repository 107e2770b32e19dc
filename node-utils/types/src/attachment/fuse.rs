//! Filesystems that a daemon of the node serves: `ObjectiveFS` and Onedata's oneclient.

use std::collections::BTreeMap;

use crate::Variable;

use super::field::{check, plain, word};
use super::{ContextError, FieldError, Hidden, Keys, Server};

/// An `ObjectiveFS` filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objectivefs {
    /// The filesystem.
    pub filesystem: ObjectivefsName,
    /// The environment of its daemon; some of it may be secret.
    pub env: BTreeMap<Variable, Hidden>,
}

/// The name of an `ObjectiveFS` filesystem, with or without its object store: `s3://bucket/name`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectivefsName(String);

/// Spaces of Onedata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oneclient {
    /// The Oneprovider.
    pub server: Server,
    /// Spaces by name.
    pub space_names: Vec<String>,
    /// Spaces by id.
    pub space_ids: Vec<String>,
    /// The access token; one in the stage secret wins.
    pub token: Option<Hidden>,
}

word!(ObjectivefsName);

/// The text that stands before the name of a variable.
const ENV: &str = "env.";

// === impl Objectivefs ===

impl Objectivefs {
    pub(super) fn read(keys: Keys<'_>) -> Result<Self, ContextError> {
        let mut env = BTreeMap::new();
        for (key, value) in keys.0 {
            let Some(name) = key.strip_prefix(ENV) else {
                continue;
            };
            let name = Variable::parse_foreign(name).map_err(|_| ContextError::Word {
                key: "env.*",
                reason: FieldError::Form("the name of a variable that a volume may set"),
            })?;
            if value.contains('\0') {
                return Err(ContextError::Word {
                    key: "env.*",
                    reason: FieldError::Character('\0'),
                });
            }
            env.insert(name, Hidden::new(value.as_str()));
        }
        Ok(Self {
            filesystem: keys.word("filesystem", ObjectivefsName::parse)?,
            env,
        })
    }

    pub(super) fn write(&self, put: &mut impl FnMut(&str, String)) {
        put("filesystem", self.filesystem.0.clone());
        for (name, value) in &self.env {
            put(
                &format!("{ENV}{}", name.as_str()),
                value.expose().to_owned(),
            );
        }
    }
}

// === impl ObjectivefsName ===

impl ObjectivefsName {
    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        check(text, 1024, plain)?;
        let (store, rest) = text.split_once("://").unwrap_or(("s3", text));
        let letters = |c: char| c.is_ascii_alphanumeric();
        if store.is_empty() || !store.chars().all(letters) || rest.is_empty() {
            return Err(FieldError::Form("the name of a filesystem"));
        }
        if rest.starts_with('-') {
            return Err(FieldError::Dash);
        }
        Ok(Self(text.to_owned()))
    }

    /// The object store with its `://`, if the name says which.
    pub fn store(&self) -> Option<&str> {
        self.0.find("://").map(|end| &self.0[..end + 3])
    }

    /// The name without the object store.
    pub fn bare(&self) -> &str {
        self.store().map_or(&self.0, |store| &self.0[store.len()..])
    }
}

// === impl Oneclient ===

impl Oneclient {
    pub(super) fn read(keys: Keys<'_>) -> Result<Self, ContextError> {
        let spaces = |key: &'static str| {
            let checked = |name: &str| {
                check(name, 256, |c| !c.is_control() && c != ',')?;
                Ok(name.to_owned())
            };
            let names: Result<Vec<String>, FieldError> = keys.list(key).map(checked).collect();
            names.map_err(|reason| ContextError::Word { key, reason })
        };
        Ok(Self {
            server: keys.word("server", Server::parse)?,
            space_names: spaces("space_names")?,
            space_ids: spaces("space_ids")?,
            token: keys.optional("token").map(Hidden::new),
        })
    }

    pub(super) fn write(&self, put: &mut impl FnMut(&str, String)) {
        put("server", self.server.as_str().to_owned());
        for (key, spaces) in [
            ("space_names", &self.space_names),
            ("space_ids", &self.space_ids),
        ] {
            if !spaces.is_empty() {
                put(key, spaces.join(","));
            }
        }
        if let Some(token) = &self.token {
            put("token", token.expose().to_owned());
        }
    }
}
