//! Pages of what DSM lists whole: sorted by id, so that none of what exists all the while is lost or
//! repeated. A token says where the last page ended.

use std::borrow::Cow;
use std::fmt::Write as _;

use driver_core::{Error, Kind, Page, PageRequest, PageToken};
use sha2::{Digest, Sha256};

/// A page is never longer: a reply has to fit into 4 MiB.
const MAX_PAGE: usize = 10_000;
/// The longest key; a token has 99 bytes.
const MAX_KEY: usize = 96;
/// So much of a longer id stays; a digest follows.
const KEPT: usize = 64;

/// One page of `all`. `list` is a letter for the list that tokens belong to.
pub(crate) fn page<T>(
    mut all: Vec<T>,
    id: impl Fn(&T) -> &str,
    list: char,
    request: &PageRequest,
) -> Result<Page<T>, Error> {
    let prefix = format!("{list}1/");
    if let Some(PageToken(token)) = &request.after {
        let after = token
            .strip_prefix(&prefix)
            .filter(|after| !after.is_empty() && after.len() <= MAX_KEY);
        let after = after.ok_or_else(|| {
            Error::new(Kind::Pending, "list from a token")
                .because("the token is not one that this list gave")
        })?;
        all.retain(|entry| *key(id(entry)) > *after);
    }
    all.sort_unstable_by(|one, other| key(id(one)).cmp(&key(id(other))));
    let max = request.max.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let next = all
        .get(max - 1)
        .filter(|_| all.len() > max)
        .map(|last| PageToken(format!("{prefix}{}", key(id(last)))));
    all.truncate(max);
    Ok(Page { entries: all, next })
}

/// What is sorted by: the id, or the beginning and a digest of a long one.
fn key(id: &str) -> Cow<'_, str> {
    if id.len() < MAX_KEY {
        return Cow::Borrowed(id);
    }
    let mut key: String = id.chars().take(KEPT).collect();
    for byte in &Sha256::digest(id)[..(MAX_KEY - KEPT) / 2] {
        // Writing to a String cannot fail.
        let _ = write!(key, "{byte:02x}");
    }
    Cow::Owned(key)
}
