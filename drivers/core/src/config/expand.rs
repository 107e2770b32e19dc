//! Expands `${VAR}` in string values if that variable exists, and leaves it unchanged otherwise.
//!
//! No other use of `$` has a meaning, keys are never expanded, and a replaced value is not expanded
//! again. compat: "Configuration": democratic-csi also replaces `$VAR`, and replaces unknown
//! variables by nothing, which destroys passwords.

use serde_json::Value;

use super::error::ConfigError;
use super::finding::{Finding, Severity};

/// The most bytes of all replaced values.
const MAX_EXPANDED: usize = 4 << 20;

/// The place where `${VAR}` is looked up.
pub trait Environment {
    /// The value of a variable, `None` if it does not exist.
    fn variable(&self, name: &str) -> Option<String>;
}

/// The environment of this process. A variable that is not UTF-8 counts as absent.
#[derive(Debug, Clone, Copy)]
pub struct ProcessEnvironment;

/// No variable exists: for text that does not come from the administrator.
#[derive(Debug, Clone, Copy)]
pub struct NoEnvironment;

impl Environment for ProcessEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

impl Environment for NoEnvironment {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }
}

impl<F: Fn(&str) -> Option<String>> Environment for F {
    fn variable(&self, name: &str) -> Option<String> {
        self(name)
    }
}

/// Expands every string value below `value`; what stays unexpanded is a finding.
pub(super) fn expand(
    value: &mut Value,
    environment: &dyn Environment,
) -> Result<Vec<Finding>, ConfigError> {
    let mut expansion = Expansion {
        environment,
        left: MAX_EXPANDED,
        findings: Vec::new(),
    };
    expansion.walk(value, &mut String::new())?;
    Ok(expansion.findings)
}

struct Expansion<'a> {
    environment: &'a dyn Environment,
    left: usize,
    findings: Vec<Finding>,
}

impl Expansion<'_> {
    fn walk(&mut self, value: &mut Value, path: &mut String) -> Result<(), ConfigError> {
        let end = path.len();
        match value {
            Value::String(text) if text.contains("${") => {
                *text = self.text(text, path)?;
            }
            Value::Array(entries) => {
                for (index, entry) in entries.iter_mut().enumerate() {
                    super::notes::push_index(path, index);
                    self.walk(entry, path)?;
                    path.truncate(end);
                }
            }
            Value::Object(map) => {
                for (key, entry) in map.iter_mut() {
                    super::notes::push_key(path, key);
                    self.walk(entry, path)?;
                    path.truncate(end);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn text(&mut self, text: &str, path: &str) -> Result<String, ConfigError> {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        let mut absent = false;
        while let Some(start) = rest.find("${") {
            expanded.push_str(&rest[..start]);
            let inner = &rest[start + 2..];
            let Some(name) = variable_name(inner) else {
                expanded.push_str("${");
                rest = inner;
                continue;
            };
            if let Some(value) = self.environment.variable(name) {
                self.left = self.left.checked_sub(value.len()).ok_or_else(|| {
                    ConfigError::at(path, "the environment variables in it are too long")
                })?;
                expanded.push_str(&value);
            } else {
                absent = true;
                expanded.push_str(&rest[start..start + 3 + name.len()]);
            }
            rest = &inner[name.len() + 1..];
        }
        expanded.push_str(rest);
        if absent {
            // The name is not shown: it may be part of a password.
            self.findings.push(Finding {
                severity: Severity::Doubtful,
                path: path.to_owned(),
                message: "`${…}` stays as it is: no such environment variable exists".into(),
                advice: None,
            });
        }
        Ok(expanded)
    }
}

/// The name before the closing brace, if it is one.
fn variable_name(inner: &str) -> Option<&str> {
    let name = &inner[..inner.find('}')?];
    let mut bytes = name.bytes();
    let first = bytes.next()?;
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (word(first) && !first.is_ascii_digit() && bytes.all(word)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn environment(name: &str) -> Option<String> {
        match name {
            "USER_1" => Some("root".into()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${USER_1}".into()),
            _ => None,
        }
    }

    fn expanded(text: &str) -> String {
        let mut value = json!(text);
        expand(&mut value, &environment).expect("expand");
        value.as_str().expect("text").to_owned()
    }

    #[test]
    fn only_variables_that_exist_in_braces_are_replaced_and_once() {
        for (text, expected) in [
            ("a${USER_1}b${USER_1}", "arootbroot"),
            ("${EMPTY}", ""),
            ("${NESTED}", "${USER_1}"),
            ("$USER_1 pa$$word $", "$USER_1 pa$$word $"),
            ("${ABSENT}${USER_1}", "${ABSENT}root"),
            ("${1}${}${a b}${", "${1}${}${a b}${"),
            ("${${USER_1}}", "${root}"),
            ("${é}${USER_1", "${é}${USER_1"),
        ] {
            assert_eq!(expanded(text), expected, "{text}");
        }
    }

    #[test]
    fn an_absent_variable_is_a_finding_that_names_the_key_and_not_the_value() {
        let mut value = json!({"a": [{"password": "x${hunter2}y${hunter2}"}], "${USER_1}": 5});
        let findings = expand(&mut value, &environment).expect("expand");
        assert_eq!(findings.len(), 1, "one for each value");
        assert_eq!(findings[0].path, "a[0].password");
        assert!(!findings[0].to_string().contains("hunter2"));
        assert!(value.get("${USER_1}").is_some(), "keys are not touched");
    }

    #[test]
    fn expansions_have_a_budget() {
        let long = |_: &str| Some("x".repeat(1 << 20));
        let mut value = json!("${A}".repeat(5));
        assert!(expand(&mut value, &long).is_err());
    }
}
