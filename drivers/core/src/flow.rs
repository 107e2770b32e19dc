//! Content on its way from one connection to another: what a source gives, and how a target takes it.
//!
//! Content has a form, and only what one gives and the other takes in the same form can be copied. The
//! target asks, the source answers: so a target that holds a part already says from where it goes on.
//! Neither knows the other one; whoever has both brings them together. compat: "The proxy".

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use async_trait::async_trait;

use crate::call::Call;
use crate::error::Error;
use crate::text::{TextError, check_text};

/// The form of content on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// A tree of files that this process can walk.
    Tree,
    /// A filesystem, as `zfs send` writes it.
    ZfsFilesystem,
    /// A disk, as `zfs send` writes it.
    ZfsVolume,
}

/// What tells one copy from all others: for whom the source is opened. Equal for every attempt at it.
#[derive(Clone, PartialEq, Eq)]
pub struct CopyTag(String);

/// A place in a stream of bytes, by which its source finds it again. A target reads it from its storage.
#[derive(Clone, PartialEq, Eq)]
pub struct Bookmark(String);

/// What there is to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// In which form it comes.
    pub form: Form,
    /// A volume that holds it is at least so large.
    pub least: u64,
    /// About so many bytes come, if that is known: for the log.
    pub bytes: Option<u64>,
}

/// The source of one copy. To have it costs nothing and touches nothing.
#[async_trait]
pub trait Outflow: Send + Sync + fmt::Debug {
    /// What there is to be copied. `NotFound`.
    async fn measure(&self, call: &Call) -> Result<Measure, Error>;

    /// Opens it, from the beginning or from where an earlier attempt was cut. It is the content of one
    /// moment as far as the storage can keep one, and the same one for every later place in it.
    /// `NotFound`: there is no source, or no longer the moment that the bookmark is of.
    async fn open(&self, call: &Call, from: Option<&Bookmark>) -> Result<Stream, Error>;

    /// Removes what was made at the source for this copy's sake. What is not there is removed. Called
    /// when the copy is whole, or was given up for good; what is left by others is an orphan.
    async fn close(&self, call: &Call) -> Result<(), Error>;
}

/// Content that was opened.
#[derive(Debug)]
pub enum Stream {
    /// In the form [`Form::Tree`].
    Tree(Tree),
    /// In any other form.
    Bytes(Box<dyn Bytes>),
}

/// A directory, and whether it still is what it was.
pub struct Tree {
    dir: OwnedFd,
    is_still_there: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Content piece by piece. Whoever does not ask gets nothing, so that nothing piles up.
#[async_trait]
pub trait Bytes: Send + fmt::Debug {
    /// The next piece, never an empty one. `None` only when all of it was given and the source has said
    /// that it was all; what comes after an error is not defined.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error>;
}

// === impl Form ===

impl Form {
    /// Whether it is a disk, not files.
    pub fn is_block(self) -> bool {
        match self {
            Self::ZfsVolume => true,
            Self::Tree | Self::ZfsFilesystem => false,
        }
    }
}

impl fmt::Display for Form {
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

    /// Checks what no tool may be given. Whether it is of this copy, its source has to find out.
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
    /// An open directory. `is_still_there` tells whether it has its name still: had it been deleted
    /// while it was read, files would be missing. It may block.
    pub fn new(dir: OwnedFd, is_still_there: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            dir,
            is_still_there: Box::new(is_still_there),
        }
    }

    /// The directory.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Whether it has its name still.
    pub fn is_still_there(&self) -> bool {
        (self.is_still_there)()
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
