//! One file name that was checked, and what may be said about a failure beneath a root.
//!
//! A [`Component`] cannot lead anywhere but to an entry of the directory it is used in. Which names
//! a driver could have made is the driver's own, narrower grammar.

use std::fmt;

use rustix::io::Errno;

/// Longest path in a message, in bytes.
const LONGEST: usize = 1024;

/// One file name: not empty, not `.` or `..`, no `/`, no NUL, at most 255 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Component(String);

/// Why a text is not one file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ComponentError {
    /// It is missing.
    #[error("is empty")]
    Empty,
    /// It names the directory itself or its parent.
    #[error("is `.` or `..`")]
    Dots,
    /// It holds a slash or a NUL.
    #[error("holds a `/` or a NUL")]
    Separator,
    /// Longer than a file name can be.
    #[error("is longer than 255 bytes")]
    TooLong,
}

/// A failed operation beneath a root.
///
/// Displays as what was being done to which path; the cause is the source.
#[derive(Debug, thiserror::Error)]
#[error("{doing} `{}`", .path.escape_debug())]
pub struct BeneathError {
    kind: BeneathErrorKind,
    doing: &'static str,
    path: String,
    source: std::io::Error,
}

/// The kind of failure, as far as the caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BeneathErrorKind {
    /// No entry of that name.
    NotFound,
    /// There is an entry of that name already.
    Exists,
    /// It is a link or a file where a directory is needed.
    NotADirectory,
    /// A filesystem is mounted there, or another process keeps adding entries or moving directories.
    Busy,
    /// The filesystem is full, or a quota is.
    NoSpace,
    /// Missing privilege, or a read-only or immutable place.
    Denied,
    /// The caller asked to stop.
    Interrupted,
    /// Any other answer of the kernel.
    Other,
}

// === impl Component ===

impl Component {
    /// Checks a file name.
    pub fn parse(name: &str) -> Result<Self, ComponentError> {
        match name {
            "" => Err(ComponentError::Empty),
            "." | ".." => Err(ComponentError::Dots),
            _ if name.len() > 255 => Err(ComponentError::TooLong),
            _ if name.contains(['/', '\0']) => Err(ComponentError::Separator),
            _ => Ok(Self(name.to_owned())),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// === impl BeneathError ===

impl BeneathError {
    pub(crate) fn new(doing: &'static str, path: impl Into<String>, errno: Errno) -> Self {
        Self {
            kind: BeneathErrorKind::of(errno),
            doing,
            path: shorten(path.into()),
            source: errno.into(),
        }
    }

    /// The kind of failure.
    pub fn kind(&self) -> BeneathErrorKind {
        self.kind
    }

    /// The path it happened at.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// A tree may be ten thousand levels deep; a message is read by people.
fn shorten(path: String) -> String {
    if path.len() <= LONGEST {
        return path;
    }
    let head = path.floor_char_boundary(LONGEST / 2);
    let tail = path.ceil_char_boundary(path.len() - LONGEST / 2);
    format!("{}…{}", &path[..head], &path[tail..])
}

impl BeneathErrorKind {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::EXIST => Self::Exists,
            Errno::NOTDIR | Errno::LOOP => Self::NotADirectory,
            Errno::BUSY | Errno::XDEV | Errno::NOTEMPTY | Errno::AGAIN => Self::Busy,
            Errno::NOSPC | Errno::DQUOT | Errno::MLINK => Self::NoSpace,
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied,
            Errno::INTR | Errno::CANCELED => Self::Interrupted,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_about_a_deep_path_stays_readable() {
        let error = BeneathError::new("remove", "/é".repeat(10_000), Errno::BUSY);
        assert!(error.path().len() <= LONGEST + 3);
        assert!(error.path().starts_with("/é/é") && error.path().ends_with("/é"));
    }

    #[test]
    fn a_component_cannot_lead_anywhere_else() {
        let long = "n".repeat(256);
        for bad in ["", ".", "..", "a/b", "/", "a\0", long.as_str()] {
            assert!(Component::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "...", "-", " ", "é", "a\\b", &long[..255]] {
            assert!(Component::parse(good).is_ok(), "{good:?}");
        }
    }
}
