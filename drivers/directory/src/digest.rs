//! Hexadecimal digits, and the digests that stand for names.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Two digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Stands for `name` in `collection` where the name itself may not: entries of the trash begin with it.
pub(crate) fn object_digest(collection: &str, name: &str) -> String {
    hex(&Sha256::digest(format!("{collection}/{name}"))[..16])
}
