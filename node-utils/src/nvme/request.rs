//! The line by which the kernel itself is asked for a connection. Source: its `drivers/nvme/host/fabrics.c`.

use secrecy::{ExposeSecret as _, SecretString};

use csi_types::DhchapKey;
use csi_types::dhchap::InvalidDhchapKey;

/// The key of this node, as an option.
pub(super) const KEY: &str = "dhchap-secret";

/// The options that are keys: of this node, and of the other side.
const KEYS: [&str; 2] = [KEY, "dhchap-ctrl-secret"];

/// The settings of a connection, by the names that the kernel has for them. A flag has an empty value.
pub(super) struct Request(Vec<(String, String)>);

// === impl Request ===

impl Request {
    /// These settings, and this key.
    pub(super) fn of(settings: &[(&str, String)], key: Option<&DhchapKey>) -> Self {
        let given = settings.iter().map(|(name, value)| {
            let name = key_of(name).unwrap_or(*name);
            (name.replace('-', "_"), value.clone())
        });
        let key = key.map(|key| key.secret().expose_secret().to_owned());
        let key = key.map(|key| ("dhchap_secret".to_owned(), key));
        Self(given.chain(key).collect())
    }

    /// The first key that is none, and why.
    pub(super) fn wrong_key(&self) -> Option<(&str, InvalidDhchapKey)> {
        let mut keys = self.0.iter().filter(|(name, _)| key_of(name).is_some());
        keys.find_map(|(name, value)| Some((name.as_str(), DhchapKey::parse(value).err()?)))
    }

    /// The first setting that is none of the words that the kernel lists.
    pub(super) fn unknown(&self, words: &str) -> Option<&str> {
        let mut settings = self.0.iter();
        settings
            .find(|(name, value)| !words.split(',').any(|word| takes(word, name, value)))
            .map(|(name, _)| name.as_str())
    }

    /// Its text.
    pub(super) fn line(&self) -> SecretString {
        let field = |(name, value): &(String, String)| {
            if value.is_empty() {
                name.clone()
            } else {
                format!("{name}={value}")
            }
        };
        let fields: Vec<String> = self.0.iter().map(field).collect();
        fields.join(",").into()
    }
}

/// Whether an option may be one of these. Programs take the beginning of a long option for the whole, and `nvme` has
/// written some with either kind of dash.
pub(super) fn may_be(name: &str, these: &[&str]) -> bool {
    let name = name.replace('_', "-");
    let mut these = these.iter();
    these.any(|one| one.starts_with(&name) || name.starts_with(one))
}

/// Whether the value of an option may be a key for the kernel.
pub(super) fn may_be_key(name: &str) -> bool {
    may_be(name, &KEYS)
}

/// The key that `nvme` takes an option for; `None` for other options, and for a beginning of both.
pub(super) fn key_of(name: &str) -> Option<&'static str> {
    let name = name.replace('_', "-");
    let mut meant = KEYS.into_iter().filter(|key| key.starts_with(&name));
    match (meant.next(), meant.next()) {
        (Some(key), None) => Some(key),
        _ => None,
    }
}

/// Whether a word of the kernel, like `name=%s`, `name=%d` or `name`, takes this setting.
fn takes(word: &str, name: &str, value: &str) -> bool {
    let (known, form) = word.split_once('=').unwrap_or((word, ""));
    known == name
        && match form {
            "" => value.is_empty(),
            "%d" => is_number(value),
            _ => !value.is_empty(),
        }
}

/// Whether the kernel reads this as a number.
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let is_digit: fn(&u8) -> bool = if text.starts_with("0x") {
        u8::is_ascii_hexdigit
    } else {
        u8::is_ascii_digit
    };
    let digits = text.strip_prefix("0x").unwrap_or(text);
    !digits.is_empty() && digits.as_bytes().iter().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

    #[test]
    fn a_line_has_the_words_of_the_kernel_and_the_key_of_the_node_last() {
        let settings = [
            ("nqn", "nqn.x".to_owned()),
            ("ctrl-loss-tmo", "-1".to_owned()),
            ("hdr-digest", String::new()),
        ];
        let key = DhchapKey::parse(TEXT).expect("key");
        let line = Request::of(&settings, Some(&key)).line();
        let expected = format!("nqn=nqn.x,ctrl_loss_tmo=-1,hdr_digest,dhchap_secret={TEXT}");
        assert_eq!(line.expose_secret(), expected);
        assert!(!format!("{line:?}").contains("DHHC"));
    }

    #[test]
    fn a_key_is_known_by_each_spelling_that_a_program_takes() {
        for (name, key) in [
            ("dhchap-secret", Some("dhchap-secret")),
            ("dhchap_secret", Some("dhchap-secret")),
            ("dhchap-s", Some("dhchap-secret")),
            ("dhchap_ctrl-sec", Some("dhchap-ctrl-secret")),
            ("dhchap-", None),
            ("dhchap-secrets", None),
        ] {
            assert_eq!(key_of(name), key, "{name}");
            assert!(may_be_key(name), "{name}");
        }
        for name in ["disable-sqflow", "tls-key", "hostid"] {
            assert_eq!(key_of(name), None);
            assert!(!may_be_key(name), "{name}");
        }
    }

    #[test]
    fn a_key_that_is_none_is_found_by_its_full_name() {
        let of = |value: &str| Request::of(&[("dhchap-c", value.to_owned())], None);
        assert_eq!(of(TEXT).wrong_key(), None);
        let mistyped = TEXT.replace("AQID", "AQIE");
        for (value, why) in [
            ("", InvalidDhchapKey::Form),
            ("theirs", InvalidDhchapKey::Form),
            (mistyped.as_str(), InvalidDhchapKey::Checksum),
        ] {
            assert_eq!(of(value).wrong_key(), Some(("dhchap_ctrl_secret", why)));
        }
    }

    #[test]
    fn a_setting_is_known_by_its_full_name_and_the_kind_of_its_value() {
        let words = "instance=-1,nqn=%s,ctrl_loss_tmo=%d,keyring=%d,hdr_digest,tls";
        for (name, value, known) in [
            ("nqn", "nqn.x", true),
            ("nqn", "", false),
            ("ctrl-loss-tmo", "-1", true),
            ("ctrl_loss_tmo", "0x1f", true),
            ("ctrl-loss-tmo", "soon", false),
            ("ctrl-loss-tmo", "0x", false),
            ("ctrl-loss-tmo", "", false),
            ("ctrl-loss", "5", false),
            ("keyring", ".nvme", false),
            ("hdr-digest", "", true),
            ("hdr-digest", "1", false),
            ("persistent", "", false),
        ] {
            let request = Request::of(&[(name, value.to_owned())], None);
            assert_eq!(request.unknown(words).is_none(), known, "{name}={value}");
        }
    }
}
