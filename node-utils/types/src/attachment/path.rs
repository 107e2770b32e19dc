//! Absolute paths that lead where they say.

use std::fmt;

/// An absolute path without `.`, `..`, empty components or control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsolutePath(String);

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It is missing.
    #[error("is empty")]
    Empty,
    /// It depends on a working directory.
    #[error("is not absolute")]
    Relative,
    /// It holds `.` or `..`.
    #[error("holds a `.` or `..` component")]
    Dots,
    /// It holds a control character.
    #[error("holds a control character")]
    Control,
    /// Longer than the kernel takes.
    #[error("is longer than 4095 bytes")]
    TooLong,
    /// The root directory, where only something below it can be meant.
    #[error("is the root directory")]
    Root,
}

// === impl AbsolutePath ===

impl AbsolutePath {
    /// Checks a path; repeated and trailing slashes are dropped.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        if path.is_empty() {
            return Err(PathError::Empty);
        }
        if !path.starts_with('/') {
            return Err(PathError::Relative);
        }
        if path.len() > 4095 {
            return Err(PathError::TooLong);
        }
        if path.chars().any(char::is_control) {
            return Err(PathError::Control);
        }
        let mut clean = String::with_capacity(path.len());
        for component in path.split('/').filter(|component| !component.is_empty()) {
            if component == "." || component == ".." {
                return Err(PathError::Dots);
            }
            clean.push('/');
            clean.push_str(component);
        }
        if clean.is_empty() {
            clean.push('/');
        }
        Ok(Self(clean))
    }

    /// This path with `name` below it. `name` has to be one component, checked by its own type.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        debug_assert!(!name.is_empty() && !name.contains('/') && name != "." && name != "..");
        let parent = if self.0 == "/" { "" } else { &self.0 };
        Self(format!("{parent}/{name}"))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path for system calls.
    pub fn as_path(&self) -> &std::path::Path {
        std::path::Path::new(&self.0)
    }
}

impl fmt::Display for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_lead_elsewhere_are_refused() {
        for bad in ["", "a", "/a/../b", "/a/.", "/a\nb", "/a\u{0}"] {
            assert!(AbsolutePath::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            AbsolutePath::parse("//a//b/").expect("path").as_str(),
            "/a/b"
        );
        assert_eq!(
            AbsolutePath::parse("/").expect("root").child("a").as_str(),
            "/a"
        );
    }
}
