//! `lunTemplate`, `lunSnapshotTemplate` and `targetTemplate`: parameters that go to DSM as they are.
//!
//! compat: "Synology": the configuration, under the class's parameter (YAML), under the class's secret
//! (YAML); a list replaces a list.

use std::fmt;

use driver_core::config::plain_yaml;
use driver_core::parameters::Scope;
use driver_core::{Error, Parameters, Secrets};
use secrecy::ExposeSecret;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Parameters that name the call, the session and the object: no template may say it. Which of two values for one
/// key DSM takes is not known.
const OURS: [&str; 7] = [
    "_sid",
    "api",
    "method",
    "synotoken",
    "uuid",
    "uuids",
    "version",
];

/// Parameters of a call. Never prints a value: CHAP passwords are among them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Template(Map<String, Value>);

/// The problem with a key.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("a key of a template may have letters, digits and `_` only")]
    Form,
    #[error("the driver sets `{0}` itself")]
    Ours(String),
}

// === impl Template ===

impl Template {
    /// This one under what the class says in `key`.
    pub(crate) fn over(
        &self,
        key: &'static str,
        scope: Scope<'_>,
        parameters: &Parameters,
        secrets: &Secrets,
    ) -> Result<Self, Error> {
        let mut merged = self.clone();
        if let Some(text) = parameters.get(scope, key) {
            merged.lay(text, &format!("the parameter `{key}` of the class"))?;
        }
        if let Some(text) = secrets.get(key) {
            let what = format!("the secret `{key}` of the class");
            merged.lay(text.expose_secret(), &what)?;
        }
        Ok(merged)
    }

    fn lay(&mut self, text: &str, what: &str) -> Result<(), Error> {
        let refused = || {
            Error::invalid(format!("read {what}")).advise(
                "it has to be YAML with keys and values, such as `type: BLUN`: see docs/synology.md",
            )
        };
        // What is wrong is not quoted: it may be a password.
        match plain_yaml(text).map_err(|_| refused())? {
            Value::Null => Ok(()),
            Value::Object(map) => {
                check(&map).map_err(|why| Error::invalid(format!("read {what}")).because(why))?;
                self.0.extend(map);
                Ok(())
            }
            _ => Err(refused()),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str().filter(|text| !text.is_empty())
    }

    pub(crate) fn number(&self, key: &str) -> Option<i64> {
        let value = self.0.get(key)?;
        value.as_i64().or_else(|| value.as_str()?.parse().ok())
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    /// Sets a key that nothing is said of.
    pub(crate) fn set_missing(&mut self, key: &str, value: impl Into<Value>) {
        if self.0.get(key).is_none_or(Value::is_null) {
            self.set(key, value);
        }
    }

    /// Writes numbers of these keys as texts: YAML reads a password of digits as a number.
    pub(crate) fn make_texts(&mut self, keys: &[&str]) {
        for key in keys {
            if let Some(value) = self.0.get_mut(*key)
                && value.is_number()
            {
                *value = Value::from(value.to_string());
            }
        }
    }

    pub(crate) fn entries(self) -> impl Iterator<Item = (String, Value)> {
        self.0.into_iter().filter(|(_, value)| !value.is_null())
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = Option::<Map<String, Value>>::deserialize(deserializer)?.unwrap_or_default();
        check(&map).map_err(D::Error::custom)?;
        Ok(Self(map))
    }
}

/// Refuses keys that are no parameters of a template. One that has an odd form is not quoted.
fn check(map: &Map<String, Value>) -> Result<(), Problem> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for key in map.keys() {
        if key.is_empty() || !key.chars().all(plain) {
            return Err(Problem::Form);
        }
        if OURS.iter().any(|ours| key.eq_ignore_ascii_case(ours)) {
            return Err(Problem::Ours(key.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SCOPE: Scope<'static> = Scope {
        driver: "synology-iscsi",
        instance: Some("a"),
    };

    fn template(text: &str) -> Template {
        serde_json::from_value(plain_yaml(text).expect("yaml")).expect("a template")
    }

    fn merged(base: &str, parameters: &[(&str, &str)], secret: &str) -> Result<Template, Error> {
        let parameters = parameters
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        let secrets = BTreeMap::from([("lunTemplate".to_owned(), secret.to_owned().into())]);
        template(base).over(
            "lunTemplate",
            SCOPE,
            &Parameters::new(parameters.collect()),
            &secrets,
        )
    }

    #[test]
    fn the_secret_wins_over_the_parameter_and_that_over_the_configuration() {
        let found = merged(
            "{type: BLUN, a: 1, b: 1, dev_attribs: [{dev_attrib: x, enable: 1}]}",
            &[("lunTemplate", "{a: 2, b: 2, dev_attribs: []}")],
            "b: 3",
        );
        assert_eq!(
            found.expect("merged"),
            template("{type: BLUN, a: 2, b: 3, dev_attribs: []}")
        );
    }

    #[test]
    fn the_narrowest_scope_of_a_parameter_counts() {
        let parameters = [
            ("lunTemplate", "a: 1"),
            ("democratic-csi.org/a/lunTemplate", "a: 2"),
        ];
        let found = merged("{}", &parameters, "");
        assert_eq!(found.expect("merged"), template("a: 2"));
    }

    #[test]
    fn what_is_no_map_is_refused_without_being_quoted() {
        for text in ["canary", "[canary]", "{canary: ["] {
            let error = merged("{}", &[], text).expect_err("refused");
            assert!(!error.chain().contains("canary"), "{}", error.chain());
        }
    }

    #[test]
    fn keys_that_name_the_call_or_its_object_are_refused() {
        for key in [
            "api",
            "version",
            "method",
            "_sid",
            "SynoToken",
            "uuid",
            "uuids",
            "API",
            "a b",
            "a&b",
            "a-b",
            "\u{e4}",
            "",
        ] {
            let text = format!("{}: canary", Value::from(key));
            let error = merged("{}", &[("lunTemplate", &text)], "").expect_err(key);
            assert_eq!(error.kind(), driver_core::Kind::Invalid, "{key:?}");
            assert!(!error.chain().contains("canary"), "{}", error.chain());
            merged("{}", &[], &text).expect_err(key);
            let value = plain_yaml(&text).expect("yaml");
            serde_json::from_value::<Template>(value).expect_err(key);
        }
    }

    #[test]
    fn no_value_is_printed() {
        let text = format!("{:?}", template("{user: a, password: canary}"));
        assert_eq!(text, r#"{"password", "user"}"#);
    }
}
