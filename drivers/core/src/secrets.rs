//! Secrets that are meant for one connection: a key may be scoped like a parameter.
//!
//! compat: "Secrets": the documented precedence is implemented, instance over driver over generic
//! over plain, whatever the order of the map.

use std::collections::BTreeMap;

use secrecy::SecretString;

use crate::volume::Secrets;

/// The prefix of scoped keys.
const SCOPE: &str = "democratic-csi.org/";

/// The secret `key` that applies to a driver and its instance.
pub fn scoped<'a>(
    secrets: &'a Secrets,
    driver: &str,
    instance: Option<&str>,
    key: &str,
) -> Option<&'a SecretString> {
    let instance = instance.map(|instance| format!("{SCOPE}{instance}/{key}"));
    [
        instance,
        Some(format!("{SCOPE}{driver}/{key}")),
        Some(format!("{SCOPE}{key}")),
        Some(key.to_owned()),
    ]
    .into_iter()
    .flatten()
    .find_map(|key| secrets.get(&key))
}

/// The secrets whose keys begin with `prefix`, by the rest of the key, each with the value that
/// applies.
pub fn scoped_below<'a>(
    secrets: &'a Secrets,
    driver: &str,
    instance: Option<&str>,
    prefix: &str,
) -> BTreeMap<&'a str, &'a SecretString> {
    let instance = instance.map(|instance| format!("{SCOPE}{instance}/{prefix}"));
    // From the widest to the narrowest, so that the last that is found counts.
    let scopes = [
        Some(prefix.to_owned()),
        Some(format!("{SCOPE}{prefix}")),
        Some(format!("{SCOPE}{driver}/{prefix}")),
        instance,
    ];
    let mut found = BTreeMap::new();
    for scope in scopes.into_iter().flatten() {
        for (key, value) in secrets {
            if let Some(name) = key.strip_prefix(&scope) {
                found.insert(name, value);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn the_narrowest_scope_wins() {
        let keys = [
            "k",
            "democratic-csi.org/k",
            "democratic-csi.org/d/k",
            "democratic-csi.org/i/k",
        ];
        for (last, expected) in keys.iter().enumerate() {
            let secrets: Secrets = keys[..=last]
                .iter()
                .map(|key| ((*key).to_owned(), SecretString::from(*key)))
                .collect();
            let found = scoped(&secrets, "d", Some("i"), "k").expect("found");
            assert_eq!(found.expose_secret(), *expected);
            let other = scoped(&secrets, "e", None, "k").expect("found");
            assert_eq!(other.expose_secret(), keys[last.min(1)]);
        }
    }
}
