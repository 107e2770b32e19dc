//! Keys of DH-CHAP, by which a host of NVMe over fabrics proves who it is.
//!
//! The form is that of the specification, as `nvme gen-dhchap-key` prints it and the kernel takes it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc::{CRC_32_ISO_HDLC, Crc};
use secrecy::{ExposeSecret as _, SecretString};

/// A key: `DHHC-1:<transformation>:<base64 of the key and its checksum>:`. It is never printed.
#[derive(Clone)]
pub struct DhchapKey(SecretString);

/// Why a text is no key. It is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDhchapKey {
    /// Not of the form.
    #[error("is no key of the form DHHC-1:00:…:, as `nvme gen-dhchap-key` makes it")]
    Form,
    /// The checksum is that of another key.
    #[error("is a key whose checksum is wrong: it is cut or mistyped")]
    Checksum,
}

/// The transformations of a key before its use: none, and three hashes.
const TRANSFORMATIONS: [&str; 4] = ["00", "01", "02", "03"];
/// The lengths of keys in bytes.
const LENGTHS: [usize; 3] = [32, 48, 64];
const CHECKSUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

// === impl DhchapKey ===

impl DhchapKey {
    /// Checks a key.
    pub fn parse(text: &str) -> Result<Self, InvalidDhchapKey> {
        const FORM: InvalidDhchapKey = InvalidDhchapKey::Form;
        let rest = text.strip_prefix("DHHC-1:").ok_or(FORM)?;
        let (transformation, rest) = rest.split_once(':').ok_or(FORM)?;
        let encoded = rest.strip_suffix(':').ok_or(FORM)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| FORM)?;
        let (key, checksum) = bytes.split_last_chunk::<4>().ok_or(FORM)?;
        if !TRANSFORMATIONS.contains(&transformation) || !LENGTHS.contains(&key.len()) {
            return Err(FORM);
        }
        if CHECKSUM.checksum(key) != u32::from_le_bytes(*checksum) {
            return Err(InvalidDhchapKey::Checksum);
        }
        Ok(Self(SecretString::from(text.to_owned())))
    }

    /// The number of its bytes, without those of the checksum.
    pub fn length(&self) -> usize {
        let encoded = self.0.expose_secret().split(':').nth(2);
        let bytes = encoded.and_then(|encoded| STANDARD.decode(encoded).ok());
        bytes.map_or(0, |bytes| bytes.len().saturating_sub(4))
    }

    /// Its text, as the kernel takes it.
    pub fn secret(&self) -> &SecretString {
        &self.0
    }
}

impl PartialEq for DhchapKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose_secret() == other.0.expose_secret()
    }
}

impl Eq for DhchapKey {}

impl fmt::Debug for DhchapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [&str; 4] = [
        "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
        "DHHC-1:01:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:",
        "DHHC-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
        "DHHC-1:03:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QJn7gCg=:",
    ];

    #[test]
    fn a_key_is_kept_as_it_is_and_not_printed() {
        for text in GOOD {
            let key = DhchapKey::parse(text).expect(text);
            assert_eq!(key.secret().expose_secret(), text);
            assert_eq!(format!("{key:?}"), "(hidden)");
        }
        let lengths = GOOD.map(|text| DhchapKey::parse(text).map(|key| key.length()));
        assert_eq!(lengths, [Ok(32), Ok(32), Ok(48), Ok(64)]);
    }

    #[test]
    fn a_text_that_is_no_key_is_refused_and_not_repeated() {
        let good = GOOD[0];
        let form = [
            String::new(),
            good.replace("DHHC-1", "DHHC-2"),
            good.replace(":00:", ":04:"),
            good.replace(":00:", ":0:"),
            good.trim_end_matches(':').to_owned(),
            format!("{good}\n"),
            format!("{good},nqn=other"),
            // Well encoded, and too short.
            "DHHC-1:00:AQIDBAUGBwg=:".to_owned(),
            "DHHC-1:00:AQ==:".to_owned(),
            "DHHC-1:00::".to_owned(),
        ];
        for text in form {
            let error = DhchapKey::parse(&text).expect_err(&text);
            assert_eq!(error, InvalidDhchapKey::Form, "{text}");
        }
        let mistyped = good.replacen("AQID", "AQIE", 1);
        let error = DhchapKey::parse(&mistyped).expect_err("mistyped");
        assert_eq!(error, InvalidDhchapKey::Checksum);
        assert!(!error.to_string().contains("AQIE"));
    }
}
