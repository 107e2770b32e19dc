//! Content in transfer from one connection to another: how a source exports it and a target imports
//! it.
//!
//! Content has a format, and a copy needs one that the source exports and the target imports. The
//! target pulls, so a target that already holds a part says where to resume. Neither knows the other;
//! the proxy connects them. compat: "The proxy".

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use async_trait::async_trait;

use crate::call::Call;
use crate::error::Error;
use crate::text::{TextError, check_text};

/// The format of content in transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransferFormat {
    /// A tree of files that this process can walk.
    Tree,
    /// A filesystem, as `zfs send` writes it.
    ZfsFilesystem,
    /// A disk, as `zfs send` writes it.
    ZfsVolume,
}

/// Identifies one copy at its source. Equal for every attempt at it.
#[derive(Clone, PartialEq, Eq)]
pub struct CopyTag(String);

/// A position in a stream of bytes, from which its source can resume. A target reads it from its storage.
#[derive(Clone, PartialEq, Eq)]
pub struct Bookmark(String);

/// The kind and the size of the data to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its format.
    pub format: TransferFormat,
    /// The size that a volume of it needs at least.
    pub minimum_size: u64,
    /// About how many bytes come, if known: for the log.
    pub bytes: Option<u64>,
}

/// The source of one copy. Creating it costs nothing and touches nothing.
#[async_trait]
pub trait ExportStream: Send + Sync + fmt::Debug {
    /// Describes the content. `NotFound`.
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error>;

    /// Opens it, from the start or where an earlier attempt was interrupted. It is the content of one
    /// moment as far as the storage can keep one, and of the same moment whenever it is resumed.
    /// `NotFound`: there is no source, or it no longer has the moment of the bookmark.
    async fn open(&self, call: &Call, from: Option<&Bookmark>) -> Result<Stream, Error>;

    /// Removes what was made at the source for this copy. Idempotent. Called when the copy is
    /// complete or was abandoned; what is left otherwise is an orphan.
    async fn close(&self, call: &Call) -> Result<(), Error>;
}

/// Content that was opened.
#[derive(Debug)]
pub enum Stream {
    /// In the format [`TransferFormat::Tree`].
    Tree(Tree),
    /// In any other format.
    Bytes(Box<dyn Bytes>),
}

/// A directory, and whether it still exists.
pub struct Tree {
    dir: OwnedFd,
    still_exists: Box<dyn Fn() -> Result<bool, Error> + Send + Sync>,
}

/// Content piece by piece, on demand, so that nothing piles up.
#[async_trait]
pub trait Bytes: Send + fmt::Debug {
    /// The next piece, never empty. `None` only after the source confirmed that it sent everything;
    /// undefined after an error.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error>;
}

// === impl TransferFormat ===

impl TransferFormat {
    /// Whether it is a disk, not files.
    pub fn is_block(self) -> bool {
        match self {
            Self::ZfsVolume => true,
            Self::Tree | Self::ZfsFilesystem => false,
        }
    }
}

impl fmt::Display for TransferFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tree => "directories",
            Self::ZfsFilesystem => "ZFS filesystems",
            Self::ZfsVolume => "ZFS volumes",
        })
    }
}

// === impl CopyTag ===

impl CopyTag {
    /// The copy into the volume with this handle.
    pub fn of(target: impl Into<String>) -> Self {
        Self(target.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for CopyTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// === impl Bookmark ===

impl Bookmark {
    /// The longest one: those of ZFS have a few hundred bytes.
    pub const LONGEST: usize = 8192;

    /// Validates the text for use in commands. Its source must check whether it belongs to this
    /// copy.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        if text.is_empty() {
            return Err(TextError::Empty);
        }
        check_text(text, Self::LONGEST)?;
        let foreign = |c: &char| !c.is_ascii_alphanumeric() && *c != '-';
        text.chars()
            .find(foreign)
            .or_else(|| text.starts_with('-').then_some('-'))
            .map_or_else(|| Ok(Self(text.to_owned())), |c| Err(TextError::Banned(c)))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Only its length: it tells what a storage is called inside, and is long.
impl fmt::Debug for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bookmark({} bytes)", self.0.len())
    }
}

// === impl Tree ===

impl Tree {
    /// An open directory. `still_exists` reports whether it still has its name: files are missing if
    /// it was deleted while it was read. It may block.
    pub fn new(
        dir: OwnedFd,
        still_exists: impl Fn() -> Result<bool, Error> + Send + Sync + 'static,
    ) -> Self {
        Self {
            dir,
            still_exists: Box::new(still_exists),
        }
    }

    /// The directory.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Whether it still has its name.
    pub fn still_exists(&self) -> Result<bool, Error> {
        (self.still_exists)()
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(&self.dir);
        f.debug_struct("Tree")
            .field("dir", &dir)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_is_nothing_that_a_tool_takes_for_something_else() {
        for good in ["1-e604ea4bf-e0-789c63", "a"] {
            assert_eq!(Bookmark::parse(good).expect(good).as_str(), good);
        }
        let long = "a".repeat(Bookmark::LONGEST + 1);
        for bad in ["", "-", "-t", "1 2", "1;2", "$(a)", "1\n2", "\u{e9}", &long] {
            assert!(Bookmark::parse(bad).is_err(), "{bad:?}");
        }
        let shown = format!("{:?}", Bookmark::parse("1-secret").expect("a bookmark"));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
