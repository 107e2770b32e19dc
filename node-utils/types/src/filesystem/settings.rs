//! The operator's settings for filesystems: `node.format` and `node.mount.checkFilesystem`.

use std::collections::BTreeMap;
use std::fmt;

use super::FilesystemKind;

/// The operator's settings for filesystems.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilesystemSettings {
    /// Further options of `mkfs`, by the filesystem that is asked for.
    pub format: BTreeMap<FilesystemKind, Vec<OptionWord>>,
    /// The filesystems that are checked before they are mounted, by what is on the disk.
    pub check: BTreeMap<FilesystemKind, CheckOptions>,
}

/// Further options of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// For the tool.
    pub options: Vec<OptionWord>,
    /// For the tool of that filesystem which `fsck` calls.
    pub filesystem_options: Vec<OptionWord>,
}

/// One argument of a tool.
#[derive(Clone, PartialEq, Eq)]
pub struct OptionWord(String);

/// A text is no argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOption {
    /// Nothing.
    #[error("is empty")]
    Empty,
    /// It holds a line end or another control character.
    #[error("holds a control character")]
    Control,
    /// It leads to a device, which only the node may choose.
    #[error("is a path below /dev; the device is the volume's")]
    Device,
}

// === impl OptionWord ===

impl OptionWord {
    /// Checks an argument.
    pub fn parse(text: &str) -> Result<Self, InvalidOption> {
        if text.is_empty() {
            return Err(InvalidOption::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidOption::Control);
        }
        if text.starts_with("/dev/") {
            return Err(InvalidOption::Device);
        }
        Ok(Self(text.to_owned()))
    }

    /// The argument.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for OptionWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The arguments as text.
pub fn as_args(options: &[OptionWord]) -> impl Iterator<Item = &str> {
    options.iter().map(OptionWord::as_str)
}
