//! The validated name of a program.
//!
//! Whether the program exists is checked by the runner. Constants are checked at compile time by `constant`.

use std::borrow::Cow;
use std::fmt;

/// A program: a bare name to be searched for, or an absolute path.
///
/// Never relative to a working directory, and never starting with a dash, so that no wrapper
/// (`chroot`, `sudo`, `exec`) can take it for an option of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program(Cow<'static, str>);

/// The text names no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a program: want a name without slash, or an absolute path, printable")]
pub struct InvalidProgram {
    text: String,
}

// === impl Program ===

impl Program {
    /// A program known when this is compiled: `const ZFS: Program = Program::constant("zfs");`
    ///
    /// # Panics
    /// At compile time in a constant, if the text names no program.
    pub const fn constant(text: &'static str) -> Self {
        assert!(is_program(text.as_bytes()), "not a program");
        Self(Cow::Borrowed(text))
    }

    /// A program named by a configuration.
    pub fn parse(text: impl Into<String>) -> Result<Self, InvalidProgram> {
        let text = text.into();
        if is_program(text.as_bytes()) {
            Ok(Self(Cow::Owned(text)))
        } else {
            Err(InvalidProgram { text })
        }
    }

    /// The name or path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a path, not a name to be searched for.
    pub fn is_path(&self) -> bool {
        self.0.starts_with('/')
    }

    /// The last component: what people call the program.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const fn is_program(text: &[u8]) -> bool {
    if text.is_empty() || text[0] == b'-' || text[text.len() - 1] == b'/' {
        return false;
    }
    let path = text[0] == b'/';
    let mut at = 0;
    let mut only_dots = true;
    while at < text.len() {
        if text[at] < b' ' || text[at] == 0x7f || (text[at] == b'/' && !path) {
            return false;
        }
        only_dots = only_dots && text[at] == b'.';
        at += 1;
    }
    !only_dots
}

#[cfg(test)]
mod tests {
    use super::Program;

    #[test]
    fn a_program_is_a_name_or_an_absolute_path() {
        for good in [
            "zfs",
            "mount.nfs",
            "/usr/sbin/zfs",
            "/run/current-system/sw/bin/zfs",
        ] {
            assert_eq!(Program::parse(good).unwrap().as_str(), good);
        }
        for bad in [
            "", "a/b", "./a", "../a", "-c", "a\0b", "a\nb", ".", "..", "/bin/", "/",
        ] {
            assert!(Program::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_name_of_a_path_is_its_last_component() {
        assert_eq!(Program::constant("/usr/sbin/zfs").name(), "zfs");
        assert_eq!(Program::constant("zfs").name(), "zfs");
    }
}
