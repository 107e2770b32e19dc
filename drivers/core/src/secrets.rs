//! Secrets that are meant for one connection: a key may be scoped like a parameter. And texts without secrets.
//!
//! compat: "Secrets": the documented precedence is implemented, instance over driver over generic
//! over plain, whatever the order of the map.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use secrecy::SecretString;

use crate::volume::Secrets;

/// The prefix of scoped keys.
const SCOPE: &str = "democratic-csi.org/";

/// The text that stands for a secret.
const MASK: &str = "********";

/// A shorter secret would turn a text into stars and tell its length by them.
const SHORTEST: usize = 4;

/// The characters that encodings of URLs leave as they are besides letters and digits.
const PLAIN_IN_URLS: [&str; 4] = ["-_.~", "-_.~/", "-._*", ""];

/// A text of a storage without a secret, also as it stands in JSON and in URLs: who quotes a request quotes it
/// encoded.
pub fn masked(text: &str, secret: &str) -> String {
    if secret.len() < SHORTEST {
        return text.to_owned();
    }
    let mut forms = vec![
        secret.to_owned(),
        in_json(secret, false),
        in_json(secret, true),
    ];
    for plain in PLAIN_IN_URLS {
        for space in ["%20", "+"] {
            let form = in_url(secret, plain, space);
            forms.push(lower_hex(&form));
            forms.push(form);
        }
    }
    // One form may be a part of another.
    forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
    forms.dedup();
    let mut text = text.to_owned();
    for form in forms {
        if text.contains(&form) {
            text = text.replace(&form, MASK);
        }
    }
    text
}

/// As a text in JSON, without the quotes; with `ascii`, other letters are numbers, as in Python.
fn in_json(secret: &str, ascii: bool) -> String {
    let quoted = serde_json::Value::from(secret).to_string();
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let mut form = String::new();
    for letter in inner.unwrap_or_default().chars() {
        if letter.is_ascii() || !ascii {
            form.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(form, "\\u{unit:04x}");
            }
        }
    }
    form
}

fn in_url(secret: &str, plain: &str, space: &str) -> String {
    let mut form = String::new();
    for byte in secret.bytes() {
        match byte {
            b' ' => form.push_str(space),
            byte if byte.is_ascii_alphanumeric() || plain.contains(char::from(byte)) => {
                form.push(char::from(byte));
            }
            byte => {
                let _ = write!(form, "%{byte:02X}");
            }
        }
    }
    form
}

fn lower_hex(form: &str) -> String {
    let mut parts = form.split('%');
    let mut lower = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (hex, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        lower.push('%');
        lower.push_str(&hex.to_ascii_lowercase());
        lower.push_str(rest);
    }
    lower
}

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
    fn a_secret_is_masked_in_every_form_in_which_a_request_is_quoted() {
        let secret = "a\"b\\c é😀/d e+f";
        for quoted in [
            secret.to_owned(),
            serde_json::json!({"password": secret}).to_string(),
            // What json.dumps of Python writes.
            r#"{"password": "a\"b\\c \u00e9\ud83d\ude00/d e+f"}"#.to_owned(),
            // What urllib.parse.quote and quote_plus write, and what browsers do.
            "p=a%22b%5Cc%20%C3%A9%F0%9F%98%80/d%20e%2Bf".to_owned(),
            "p=a%22b%5Cc+%C3%A9%F0%9F%98%80%2Fd+e%2Bf".to_owned(),
            "p=a%22b%5cc+%c3%a9%f0%9f%98%80%2fd+e%2bf".to_owned(),
        ] {
            let clean = masked(&format!("said: {quoted}."), secret);
            assert!(clean.contains(MASK), "{quoted}: {clean}");
            for part in [
                "c é", "%5C", "%5c", "e+f", "u00e9", "%C3", "%c3", "Bf", "bf",
            ] {
                assert!(!clean.contains(part), "{quoted}: {clean}");
            }
        }
        assert_eq!(masked("abc", "abc"), "abc", "too short");
    }

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
