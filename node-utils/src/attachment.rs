//! The typed volume context: how a volume reaches a pod.
//!
//! An [`Attachment`] is the only definition of a volume context. Drivers make one, the orchestrator
//! carries its text, the node reads it back; nobody else interprets these keys. The keys are those
//! that democratic-csi writes, see `docs/compatibility.md`, "Volume context".

use std::collections::BTreeMap;
use std::fmt;

/// A volume context as text, as the orchestrator stores it.
pub type VolumeContext = BTreeMap<String, String>;

/// The key that chooses the kind of attachment.
pub const KIND_KEY: &str = "node_attach_driver";

/// How a volume reaches a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachment {
    /// A directory of the node itself, bind-mounted.
    Hostpath(Hostpath),
}

/// A directory of the node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostpath {
    /// Where it is, as the node sees it.
    pub path: AbsolutePath,
}

/// An absolute path without `.`, `..`, empty components or control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsolutePath(String);

/// Why a volume context cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// A key that this kind of attachment needs is missing or empty.
    #[error("volume context has no `{0}`")]
    Missing(&'static str),
    /// No attachment of that name exists in this build.
    #[error("volume context has the unknown {KIND_KEY} `{}`", .0.escape_debug())]
    UnknownKind(String),
    /// A value that cannot be right.
    #[error("volume context has an unusable `{key}`: {reason}")]
    Unusable {
        /// The key.
        key: &'static str,
        /// What is wrong with its value.
        reason: PathError,
    },
}

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

// === impl Attachment ===

impl Attachment {
    /// Reads a volume context. Keys that this kind does not use are ignored: the orchestrator and
    /// older drivers add theirs.
    pub fn parse(context: &VolumeContext) -> Result<Self, ContextError> {
        let value = |key| {
            context
                .get(key)
                .map(String::as_str)
                .filter(|value| !value.is_empty())
                .ok_or(ContextError::Missing(key))
        };
        match value(KIND_KEY)? {
            "hostpath" => {
                let path = AbsolutePath::parse(value("path")?).map_err(|reason| {
                    ContextError::Unusable {
                        key: "path",
                        reason,
                    }
                })?;
                Ok(Self::Hostpath(Hostpath { path }))
            }
            other => Err(ContextError::UnknownKind(other.to_owned())),
        }
    }

    /// The text form that [`Attachment::parse`] reads.
    pub fn to_context(&self) -> VolumeContext {
        let pairs = match self {
            Self::Hostpath(hostpath) => [("path", hostpath.path.as_str())],
        };
        let mut context: VolumeContext = pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        context.insert(KIND_KEY.to_owned(), self.kind().to_owned());
        context
    }

    /// The value of [`KIND_KEY`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hostpath(_) => "hostpath",
        }
    }
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

    fn context(pairs: &[(&str, &str)]) -> VolumeContext {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_context_written_is_the_context_read_and_foreign_keys_are_ignored() {
        let attachment = Attachment::Hostpath(Hostpath {
            path: AbsolutePath::parse("/data/v/a").expect("path"),
        });
        let mut text = attachment.to_context();
        assert_eq!(
            text,
            context(&[("node_attach_driver", "hostpath"), ("path", "/data/v/a")])
        );
        text.insert(
            "storage.kubernetes.io/csiProvisionerIdentity".into(),
            "x".into(),
        );
        assert_eq!(Attachment::parse(&text), Ok(attachment));
    }

    #[test]
    fn a_context_without_what_it_needs_says_which_key() {
        assert_eq!(
            Attachment::parse(&context(&[])),
            Err(ContextError::Missing(KIND_KEY))
        );
        let no_path = context(&[("node_attach_driver", "hostpath"), ("path", "")]);
        assert_eq!(
            Attachment::parse(&no_path),
            Err(ContextError::Missing("path"))
        );
    }

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
