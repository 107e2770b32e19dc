//! The line by which the kernel itself is asked for a connection. Source: its `drivers/nvme/host/fabrics.c`.

use secrecy::{ExposeSecret as _, SecretString};

use csi_types::DhchapKey;

/// The settings of a connection, by the names that the kernel has for them. A flag has an empty value.
pub(super) struct Request(Vec<(String, String)>);

// === impl Request ===

impl Request {
    /// These settings, and this key.
    pub(super) fn of(settings: &[(&str, String)], key: Option<&DhchapKey>) -> Self {
        let given = settings.iter();
        let given = given.map(|(name, value)| (name.replace('-', "_"), value.clone()));
        let key = key.map(|key| key.secret().expose_secret().to_owned());
        let key = key.map(|key| ("dhchap_secret".to_owned(), key));
        Self(given.chain(key).collect())
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
