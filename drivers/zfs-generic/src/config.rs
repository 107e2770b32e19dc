//! Words of the sections `nfs`, `smb`, `iscsi` and `nvmeof` that end up in scripts, checked once.
//!
//! The modules of the protocols read their sections. A word here has no blank, no quote and nothing else
//! that a tool or a tree of files could misread.

use std::collections::BTreeMap;
use std::fmt;

use driver_core::config::ConfigError;
use driver_zfs_cli::exec::Program;
use secrecy::{ExposeSecret, SecretString};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The longest name of a user or a secret that LIO keeps.
const MAX_CHAP: usize = 255;

/// The prefix of the names of targets: `iqn.2003-01.org.linux-iscsi.host:csi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Basename(String);

/// One word: the name or the value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Word(String);

/// Attributes by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<(Word, Word)>);

/// A number, a truth value or a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalar(String);

/// A secret, also one that YAML takes for a number.
#[derive(Debug, Clone)]
pub struct SecretScalar(SecretString);

/// Names and secrets of CHAP.
#[derive(Debug, Clone, Default)]
pub struct Chap(Vec<(ChapKey, SecretString)>);

/// The kind of one line of CHAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChapKey {
    /// The name of the node.
    User,
    /// The secret of the node.
    Password,
    /// The name of the target.
    MutualUser,
    /// The secret of the target.
    MutualPassword,
}

/// Why a word is refused. It is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has to be one word of letters, digits and `._:/@%+-`, and not to begin with a dash")]
pub struct WordError;

// === impl Basename ===

impl Basename {
    /// Checks the beginning of a name: of what targets are called, without a colon at its end.
    pub fn parse(text: &str, forms: &[&str], key: &str) -> Result<Self, ConfigError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        let form = forms
            .iter()
            .any(|form| text.starts_with(form) && text.len() > form.len());
        if text.chars().all(allowed) && form && text.len() <= 200 {
            Ok(Self(text.to_owned()))
        } else {
            let problem = format!(
                "has to begin with {} and to hold only letters, digits and `-.:_`",
                forms.join(" or ")
            );
            Err(ConfigError::at(key, problem))
        }
    }
}

impl fmt::Display for Basename {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Word ===

impl Word {
    /// Checks a word.
    pub fn parse(text: &str) -> Result<Self, WordError> {
        let allowed = |c: char| {
            c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '/' | '@' | '%' | '+' | '-')
        };
        let good = !text.is_empty()
            && text.len() <= 1024
            && !text.starts_with('-')
            && text.chars().all(allowed);
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(WordError)
        }
    }

    /// Checks the name of an attribute, which is that of a file.
    pub(crate) fn name(text: &str) -> Result<Self, WordError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if text.chars().all(allowed) {
            Self::parse(text)
        } else {
            Err(WordError)
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Attributes ===

impl Attributes {
    /// Checks attributes that stand at `key`.
    pub fn parse(map: &BTreeMap<String, Scalar>, key: &str) -> Result<Self, ConfigError> {
        let one = |(name, value): (&String, &Scalar)| {
            let refused = |error: WordError| ConfigError::at(key, format!("an entry {error}"));
            let name = Word::name(name).map_err(refused)?;
            let value = Word::parse(&value.0)
                .map_err(|error| ConfigError::at(format!("{key}.{name}"), error.to_string()))?;
            Ok((name, value))
        };
        map.iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    /// Those that are not set yet get these values.
    #[must_use]
    pub fn or(mut self, defaults: &[(&'static str, &'static str)]) -> Self {
        for (name, value) in defaults {
            if !self.0.iter().any(|(known, _)| known.as_str() == *name) {
                self.0
                    .push((Word((*name).to_owned()), Word((*value).to_owned())));
            }
        }
        self
    }

    /// With this one as `true` or `false`, which is how people write it, and not as a number.
    #[must_use]
    pub(crate) fn spelling_out(mut self, name: &str) -> Self {
        for (known, value) in &mut self.0 {
            if known.as_str() == name {
                match value.as_str() {
                    "1" => "true".clone_into(&mut value.0),
                    "0" => "false".clone_into(&mut value.0),
                    _ => {}
                }
            }
        }
        self
    }

    /// The value of one of them.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known.as_str() == name);
        found.map(|(_, value)| value.as_str())
    }

    /// `name=value`, each after `prefix`.
    pub fn words<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = String> + 'a {
        self.0
            .iter()
            .map(move |(name, value)| format!("{prefix}{name}={value}"))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl Scalar ===

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Bool(flag) => Some(u8::from(*flag).to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}

impl Scalar {
    /// The text; truth values are 1 and 0.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let text = text_of(&value).ok_or_else(|| D::Error::custom("expected a single value"))?;
        Ok(Self(text))
    }
}

impl SecretScalar {
    /// The text.
    pub(crate) fn secret(&self) -> &SecretString {
        &self.0
    }
}

impl<'de> Deserialize<'de> for SecretScalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match text_of(&value) {
            Some(text) if !matches!(value, Value::Bool(_)) => Ok(Self(text.into())),
            _ => Err(D::Error::custom("expected a text")),
        }
    }
}

// === impl Chap ===

impl Chap {
    /// Checks the names and secrets at `key`. compat: "Exports of a ZFS host".
    pub fn parse(map: &BTreeMap<String, SecretScalar>, key: &str) -> Result<Self, ConfigError> {
        let mut all = Vec::new();
        for (name, SecretScalar(secret)) in map {
            let key = format!("{key}.{name}");
            let Some(kind) = ChapKey::parse(name) else {
                let problem = "is none of userid, password, mutual_userid, mutual_password";
                return Err(ConfigError::at(key, problem));
            };
            let text = secret.expose_secret();
            // The kernel takes a value that begins with NULL as none.
            let good = text.len() <= MAX_CHAP
                && !text.starts_with("NULL")
                && text.trim() == text
                && !text.chars().any(char::is_control);
            if !good {
                let problem = format!(
                    "has to be at most {MAX_CHAP} bytes without control characters, without \
                     blanks around it, and not to begin with NULL"
                );
                return Err(ConfigError::at(key, problem));
            }
            if !text.is_empty() {
                all.push((kind, secret.clone()));
            }
        }
        Ok(Self(all))
    }

    /// Whether there is nothing to prove.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its lines.
    pub fn lines(&self) -> impl Iterator<Item = (ChapKey, &SecretString)> {
        self.0.iter().map(|(key, secret)| (*key, secret))
    }

    /// `file value` lines for the folder `auth` of a portal group.
    pub fn to_files(&self) -> SecretString {
        let line = |(key, secret): (ChapKey, &SecretString)| {
            format!("{} {}\n", key.file(), secret.expose_secret())
        };
        self.lines().map(line).collect::<String>().into()
    }
}

// === impl ChapKey ===

impl ChapKey {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "userid" => Self::User,
            "password" => Self::Password,
            "mutual_userid" => Self::MutualUser,
            "mutual_password" => Self::MutualPassword,
            _ => return None,
        })
    }

    /// Its name in the configuration and for `targetcli`.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "userid",
            Self::Password => "password",
            Self::MutualUser => "mutual_userid",
            Self::MutualPassword => "mutual_password",
        }
    }

    /// Its file in configfs.
    pub fn file(self) -> &'static str {
        match self {
            Self::User => "userid",
            Self::Password => "password",
            Self::MutualUser => "userid_mutual",
            Self::MutualPassword => "password_mutual",
        }
    }
}

/// The program at `key`, or this one.
pub(crate) fn program(
    given: Option<&str>,
    default: &'static str,
    key: &str,
) -> Result<Program, ConfigError> {
    Program::parse(given.unwrap_or(default))
        .map_err(|error| ConfigError::at(key, error.to_string()))
}

/// A file of the host at `key`.
pub(crate) fn file(given: Option<&str>, key: &str) -> Result<Option<String>, ConfigError> {
    let Some(text) = given else { return Ok(None) };
    let path = csi_types::AbsolutePath::parse(text)
        .map_err(|error| ConfigError::at(key, error.to_string()))?;
    // It becomes a word of a tool, too.
    Word::parse(path.as_str()).map_err(|error| ConfigError::at(key, error.to_string()))?;
    Ok(Some(path.as_str().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_tool_or_a_tree_of_files_could_misread_are_none() {
        for text in [
            "", "-a", "a b", "a'b", "a\"", "$(x)", "a;b", "a\nb", "a`", "a=b", "é", "a*",
        ] {
            assert!(Word::parse(text).is_err(), "{text:?}");
        }
        for text in ["../x", "a/b", "a.b"] {
            assert!(Word::name(text).is_err(), "{text:?}");
        }
        assert!(Word::parse("0.0.0.0:4420").is_ok());
        for text in ["iqn.", "x", "iqn.a/b", "iqn.a b", "iqn.2003-01.org;x"] {
            assert!(Basename::parse(text, &["iqn."], "k").is_err(), "{text:?}");
        }
        assert!(Basename::parse("iqn.2003-01.org.x:csi", &["iqn."], "k").is_ok());
    }

    #[test]
    fn chap_is_carried_exactly_or_refused_without_being_shown() {
        let chap = |name: &str, secret: &str| {
            let secret = SecretScalar(secret.to_owned().into());
            Chap::parse(&BTreeMap::from([(name.to_owned(), secret)]), "auth")
        };
        let odd = "a'b\"c $(x) `y` \\ ; # é";
        let kept = chap("mutual_password", odd).unwrap();
        assert_eq!(
            kept.to_files().expose_secret(),
            format!("password_mutual {odd}\n")
        );
        assert!(!format!("{kept:?}").contains("a'b"));
        for (name, secret) in [
            ("password", "geheim\nx"),
            ("password", " geheim"),
            ("password", "NULLgeheim"),
            ("pasword", "geheim"),
        ] {
            let error = chap(name, secret).unwrap_err();
            assert!(!error.to_string().contains("geheim"), "{error}");
        }
    }

    #[test]
    fn truth_values_are_numbers_to_the_kernel() {
        let map: BTreeMap<String, Scalar> =
            serde_json::from_str(r#"{"a":true,"b":0,"c":"x"}"#).unwrap();
        let attributes = Attributes::parse(&map, "k").unwrap();
        let attributes = attributes.or(&[("a", "0"), ("d", "9")]);
        let words: Vec<_> = attributes.words("tpg=").collect();
        assert_eq!(words, ["tpg=a=1", "tpg=b=0", "tpg=c=x", "tpg=d=9"]);
    }
}
