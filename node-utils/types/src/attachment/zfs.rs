//! A dataset or zvol of the node itself.

use super::field::{check, word};
use super::{ContextError, FieldError, Keys};

/// A dataset or zvol of the node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZfsLocal {
    /// Its name.
    pub asset: DatasetName,
}

/// The name of a dataset or zvol, with its pool.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatasetName(String);

word!(DatasetName);

// === impl ZfsLocal ===

impl ZfsLocal {
    pub(super) fn read(keys: Keys<'_>) -> Result<Self, ContextError> {
        Ok(Self {
            asset: keys.word("zfs_asset_name", DatasetName::parse)?,
        })
    }
}

// === impl DatasetName ===

impl DatasetName {
    /// Checks a name: components of letters, digits, blanks and `-_.:`, none of them empty; no
    /// snapshot and no bookmark.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        check(text, 255, |c| {
            c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ' | '/' | '%')
        })?;
        let well_formed =
            |part: &str| !part.is_empty() && part != "." && part != ".." && part.trim() == part;
        if text.split('/').all(well_formed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(FieldError::Form("the name of a dataset"))
        }
    }
}
