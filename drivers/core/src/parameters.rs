//! Parameters of a class: the raw map, and the values that count for one driver.
//!
//! A key may be scoped to an instance, a driver or this program. compat: "Parameters": the
//! documented precedence is implemented, instance over driver over generic over plain.

use std::collections::BTreeMap;
use std::fmt;

/// The prefix of scoped keys. compat: "Parameters".
const SCOPE: &str = "democratic-csi.org/";

/// The parameters of one request, unmodified. Never prints a value: some classes contain keys and
/// passphrases.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Parameters(BTreeMap<String, String>);

/// Whose parameters are read: the scopes that apply to one connection.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The driver's kind.
    pub driver: &'a str,
    /// The `instance_id` of its configuration, if it has one.
    pub instance: Option<&'a str>,
}

/// The parameters by which a class names the connection, or several, for its volumes. They select a
/// driver and are not passed to it.
pub const CONNECTION: &str = "connection";
/// See [`CONNECTION`].
pub const CONNECTIONS: &str = "connections";

/// A key without its scope.
pub fn unscoped(key: &str) -> &str {
    key.strip_prefix(SCOPE)
        .map_or(key, |scoped| scoped.rsplit('/').next().unwrap_or(scoped))
}

// === impl Parameters ===

impl Parameters {
    /// A map whose size was checked when it was decoded.
    pub fn new(raw: BTreeMap<String, String>) -> Self {
        Self(raw)
    }

    /// Lays mutable parameters over these: each counts instead of a parameter of its key, in whatever scope.
    #[must_use]
    pub fn under(mut self, mutable: &BTreeMap<String, String>) -> Self {
        self.0.retain(|key, _| !mutable.contains_key(unscoped(key)));
        self.0.extend(mutable.clone());
        self
    }

    /// The unmodified map, for templates.
    pub fn raw(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// The value of `key` that applies in `scope`.
    pub fn get(&self, scope: Scope<'_>, key: &str) -> Option<&str> {
        let instance = scope
            .instance
            .map(|instance| format!("{SCOPE}{instance}/{key}"));
        let scoped = [
            instance,
            Some(format!("{SCOPE}{}/{key}", scope.driver)),
            Some(format!("{SCOPE}{key}")),
            Some(key.to_owned()),
        ];
        scoped
            .into_iter()
            .flatten()
            .find_map(|key| self.0.get(&key))
            .map(String::as_str)
    }
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_never_printed() {
        let raw = BTreeMap::from([("env.PASSPHRASE".to_owned(), "hunter2".to_owned())]);
        let text = format!("{:?}", Parameters::new(raw));
        assert_eq!(text, r#"{"env.PASSPHRASE"}"#);
    }

    #[test]
    fn a_mutable_parameter_counts_instead_of_one_of_its_key_in_any_scope() {
        let keys = ["k", "democratic-csi.org/k", "democratic-csi.org/i/k", "kk"];
        let raw = keys.map(|key| (key.to_owned(), "class".to_owned())).into();
        let mutable = BTreeMap::from([("k".to_owned(), "mutable".to_owned())]);
        let all = Parameters::new(raw).under(&mutable);
        let scope = Scope {
            driver: "d",
            instance: Some("i"),
        };
        assert_eq!(all.get(scope, "k"), Some("mutable"));
        assert_eq!(all.get(scope, "kk"), Some("class"));
        assert_eq!(all.raw().len(), 2);
    }

    #[test]
    fn the_narrowest_scope_wins_whatever_the_order_of_the_map() {
        let keys = [
            "k",
            "democratic-csi.org/k",
            "democratic-csi.org/d/k",
            "democratic-csi.org/i/k",
        ];
        let scope = Scope {
            driver: "d",
            instance: Some("i"),
        };
        for (last, expected) in keys.iter().enumerate() {
            let raw = keys[..=last]
                .iter()
                .map(|k| ((*k).to_owned(), (*k).to_owned()))
                .collect();
            assert_eq!(Parameters::new(raw).get(scope, "k"), Some(*expected));
        }
    }
}
