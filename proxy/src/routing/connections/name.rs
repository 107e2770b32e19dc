//! Names of connections, as they appear in classes, in names of files and in handles.

use std::fmt;
use std::sync::Arc;

use tracing::field::{self, DisplayValue};

/// The longest name, in bytes: beside it the longest kind of snapshot id has to fit into a handle.
const MAX: usize = 48;

/// The name of a connection. That of the only connection of a process is empty and in no handle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ConnectionName(Arc<str>);

/// Why a text is no name of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a connection's name has 1 to {MAX} letters, digits, `.`, `_` and `-`, begins with a letter or digit, and has no `..`"
)]
pub struct ConnectionNameError;

// === impl ConnectionName ===

impl ConnectionName {
    /// Checks the alphabet and the length: a name becomes part of a path, of a handle and of a label.
    pub fn parse(text: &str) -> Result<Self, ConnectionNameError> {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let begins = |b: u8| b.is_ascii_alphanumeric();
        let fine = text.len() <= MAX
            && text.bytes().next().is_some_and(begins)
            && text.bytes().all(inner)
            && !text.contains("..");
        fine.then(|| Self(text.into())).ok_or(ConnectionNameError)
    }

    /// The only connection of a process.
    pub fn unnamed() -> Self {
        Self::default()
    }

    /// Whether handles name it.
    pub fn is_named(&self) -> bool {
        !self.0.is_empty()
    }

    /// It as a field of log lines and reports; none for the only one of a process.
    pub(crate) fn field(&self) -> Option<DisplayValue<&Self>> {
        self.is_named().then(|| field::display(self))
    }

    /// The number of bytes of a handle that say that it is this one's.
    pub fn bytes_in_handle(&self) -> usize {
        if self.is_named() {
            self.0.len() + "v:/".len()
        } else {
            0
        }
    }

    /// The text; empty for the only one of a process.
    pub fn text(&self) -> &Arc<str> {
        &self.0
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_word_that_leaves_no_folder() {
        for good in ["a", "nas-1.iscsi_fast", "9", &"a".repeat(48)] {
            assert!(ConnectionName::parse(good).is_ok(), "{good:?}");
        }
        for bad in [
            "",
            ".a",
            "-a",
            "a/b",
            "a..b",
            "..",
            "a b",
            "ä",
            "a\n",
            "a:b",
            &"a".repeat(49),
        ] {
            assert_eq!(
                ConnectionName::parse(bad),
                Err(ConnectionNameError),
                "{bad:?}"
            );
        }
    }
}
