//! The names of environment variables.

use std::borrow::Cow;
use std::fmt;

/// The name of an environment variable, as POSIX shells can assign it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Variable(Cow<'static, str>);

/// The text names no environment variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the name of an environment variable")]
pub struct InvalidVariable {
    text: String,
}

// === impl Variable ===

impl Variable {
    /// A variable known when this is compiled.
    ///
    /// # Panics
    /// At compile time in a constant, if the text names no variable.
    pub const fn constant(text: &'static str) -> Self {
        assert!(is_variable(text.as_bytes()), "not a variable");
        Self(Cow::Borrowed(text))
    }

    /// A variable named by a configuration.
    pub fn parse(text: impl Into<String>) -> Result<Self, InvalidVariable> {
        let text = text.into();
        if is_variable(text.as_bytes()) {
            Ok(Self(Cow::Owned(text)))
        } else {
            Err(InvalidVariable { text })
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const fn is_variable(text: &[u8]) -> bool {
    if text.is_empty() || text[0].is_ascii_digit() {
        return false;
    }
    let mut at = 0;
    while at < text.len() {
        if !text[at].is_ascii_alphanumeric() && text[at] != b'_' {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::Variable;

    #[test]
    fn a_variable_is_what_a_shell_can_assign() {
        for good in ["A", "_a1", "RESTIC_PASSWORD"] {
            assert_eq!(Variable::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "1A", "A=B", "A B", "A\0", "A-B", "Ä"] {
            assert!(Variable::parse(bad).is_err(), "{bad:?}");
        }
    }
}
