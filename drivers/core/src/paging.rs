//! Pages of lists that a driver sorts by name or id.

use std::borrow::Cow;

use csi_types::hex;
use sha2::{Digest, Sha256};

/// The longest page: a reply must fit into 4 MiB.
pub const MAX_PAGE: usize = 10_000;
/// The longest key; with the additions of a caller, a token stays within 128 bytes.
pub const MAX_KEY: usize = 96;
/// The readable part of a longer name; a digest follows.
const KEPT: usize = 64;

/// The sort key of a name: the name itself, or for a long one its beginning and a digest. Only the
/// latter have the full length, so no two names share a key.
pub fn key(name: &str) -> Cow<'_, str> {
    if name.len() < MAX_KEY {
        return Cow::Borrowed(name);
    }
    let mut key: String = name.chars().take(KEPT).collect();
    key.push_str(&hex(&Sha256::digest(name)[..(MAX_KEY - KEPT) / 2]));
    Cow::Owned(key)
}
