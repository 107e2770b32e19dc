//! Pages of lists that a driver sorts by name or id.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// A page is never longer, whatever is asked for: a reply has to fit into 4 MiB.
pub const MAX_PAGE: usize = 10_000;
/// The longest key; with what a caller puts around it, a token stays within 128 bytes.
pub const MAX_KEY: usize = 96;
/// So much of a longer name stays readable; a digest follows.
const KEPT: usize = 64;

/// What names are sorted by: the name itself, or of a long one its beginning and a digest. Only the
/// latter have the full length, so no two names share a key.
pub fn key(name: &str) -> Cow<'_, str> {
    if name.len() < MAX_KEY {
        return Cow::Borrowed(name);
    }
    let mut key: String = name.chars().take(KEPT).collect();
    for byte in &Sha256::digest(name)[..(MAX_KEY - KEPT) / 2] {
        // Writing to a String cannot fail.
        let _ = write!(key, "{byte:02x}");
    }
    Cow::Owned(key)
}
