//! Secrets that are meant for one connection: a key may be scoped like a parameter.
//!
//! compat: "Secrets": the documented precedence is implemented, instance over driver over generic
//! over plain, whatever the order of the map.

use driver_core::volume::Secrets;
use secrecy::SecretString;

/// The prefix of scoped keys.
const SCOPE: &str = "democratic-csi.org/";

/// The secret under `key` that counts for a driver and its instance.
pub(crate) fn scoped<'a>(
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
