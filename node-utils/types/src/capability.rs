//! The way a volume may be reached: access type, filesystem, mount flags, access mode.
//!
//! These are the parsed forms; whether a driver offers an access is the driver's rule. Mount flags
//! may carry passwords (CSI specification, `MountVolume.mount_flags`), so they never print.

use std::fmt;
use std::str::FromStr;

/// One way to reach a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeCapability {
    /// As a raw device or as a mounted filesystem.
    pub access: Access,
    /// From how many nodes, and who writes.
    pub mode: AccessMode,
}

/// As a raw device or as a mounted filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// A raw device.
    Block,
    /// A mounted filesystem.
    Mount(MountAccess),
}

/// The wishes for a mounted filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountAccess {
    /// The filesystem, if the caller names one.
    pub fs_type: Option<FsType>,
    /// Mount options.
    pub flags: MountFlags,
    /// The group that has to be able to use the volume.
    pub group: Option<u32>,
}

/// The access modes of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub enum AccessMode {
    Unknown,
    SingleNodeWriter,
    SingleNodeReaderOnly,
    MultiNodeReaderOnly,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
}

/// The name of a filesystem: lower-case letters, digits, `.`, `_`, and `-` but not first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FsType(String);

/// A list of mount options, each one word without comma, blank or control character.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct MountFlags(Vec<String>);

/// Why a filesystem name or a mount option is refused. Never shows the option itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// A filesystem name with other characters, or too long.
    #[error("is not the name of a filesystem")]
    FsType,
    /// An option with a blank, a control character, a backslash or an open quote.
    #[error("mount option {0} holds a blank, a control character, a backslash or an open quote")]
    Flag(usize),
}

// === impl AccessMode ===

impl AccessMode {
    /// Every mode, in the order of the specification.
    pub const ALL: [Self; 8] = [
        Self::Unknown,
        Self::SingleNodeWriter,
        Self::SingleNodeReaderOnly,
        Self::MultiNodeReaderOnly,
        Self::MultiNodeSingleWriter,
        Self::MultiNodeMultiWriter,
        Self::SingleNodeSingleWriter,
        Self::SingleNodeMultiWriter,
    ];

    /// The name as the specification and `csi.access_modes` spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::SingleNodeWriter => "SINGLE_NODE_WRITER",
            Self::SingleNodeReaderOnly => "SINGLE_NODE_READER_ONLY",
            Self::MultiNodeReaderOnly => "MULTI_NODE_READER_ONLY",
            Self::MultiNodeSingleWriter => "MULTI_NODE_SINGLE_WRITER",
            Self::MultiNodeMultiWriter => "MULTI_NODE_MULTI_WRITER",
            Self::SingleNodeSingleWriter => "SINGLE_NODE_SINGLE_WRITER",
            Self::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
        }
    }

    /// Whether this mode allows no writer.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// Whether a volume that is used in this mode is published to one node at a time.
    pub fn is_of_one_node(self) -> bool {
        matches!(
            self,
            Self::SingleNodeWriter
                | Self::SingleNodeReaderOnly
                | Self::SingleNodeSingleWriter
                | Self::SingleNodeMultiWriter
        )
    }

    /// Whether a volume that is used in this mode has one target on a node. `SINGLE_NODE_WRITER`
    /// does not say so: kubelets before 1.27 mean every `ReadWriteOnce` volume by it, which several
    /// pods of a node may share. compat: "Capabilities".
    pub fn has_one_target(self) -> bool {
        self == Self::SingleNodeSingleWriter
    }
}

impl FromStr for AccessMode {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.name() == name)
            .ok_or(())
    }
}

impl fmt::Display for AccessMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl FsType ===

impl FsType {
    /// Checks the alphabet.
    pub fn parse(value: &str) -> Result<Self, FlagError> {
        let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
        if value.is_empty()
            || value.len() > 64
            || value.starts_with('-')
            || !value.bytes().all(word)
        {
            return Err(FlagError::FsType);
        }
        Ok(Self(value.to_owned()))
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl MountFlags ===

impl MountFlags {
    /// Splits each entry at its commas (not at those within double quotes, as a security context has
    /// them) and checks every option; empty ones are dropped.
    pub fn parse<S: AsRef<str>>(entries: impl IntoIterator<Item = S>) -> Result<Self, FlagError> {
        let mut flags = Vec::new();
        for entry in entries {
            let mut quoted = false;
            let at_comma = |c: char| {
                quoted ^= c == '"';
                c == ',' && !quoted
            };
            for flag in entry
                .as_ref()
                .split(at_comma)
                .map(str::trim)
                .filter(|flag| !flag.is_empty())
            {
                let is_bad = |c: char| c.is_whitespace() || c.is_control() || c == '\\';
                if flag.chars().any(is_bad) || flag.matches('"').count() % 2 == 1 {
                    return Err(FlagError::Flag(flags.len()));
                }
                flags.push(flag.to_owned());
            }
        }
        Ok(Self(flags))
    }

    /// These flags followed by `more`.
    #[must_use]
    pub fn followed_by(&self, more: &Self) -> Self {
        Self(self.0.iter().chain(&more.0).cloned().collect())
    }

    /// The options in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} mount flags>", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_flags_are_split_checked_and_never_printed() {
        let flags = MountFlags::parse(["ro,noatime", " password=hunter2 "]).expect("flags");
        assert_eq!(
            flags.iter().collect::<Vec<_>>(),
            ["ro", "noatime", "password=hunter2"]
        );
        assert_eq!(format!("{flags:?}"), "<3 mount flags>");
        let label = MountFlags::parse([r#"ro,context="u:r:t:s0:c1,c2",noexec"#]).expect("flags");
        let expected = ["ro", r#"context="u:r:t:s0:c1,c2""#, "noexec"];
        assert_eq!(label.iter().collect::<Vec<_>>(), expected);
        for bad in ["a b", "a\nb", "a\\b", "a\u{0}", "context=\"a", "a\"b,c"] {
            assert!(MountFlags::parse([bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_filesystem_name_cannot_be_an_option_or_a_path() {
        for bad in ["", "-o", "../ext4", "ext4 ", "EXT4", "a/b"] {
            assert!(FsType::parse(bad).is_err(), "{bad:?}");
        }
    }
}
