//! The names of environment variables.

use std::borrow::Cow;
use std::fmt;

/// The name of an environment variable, as POSIX shells can assign it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Variable(Cow<'static, str>);

/// The text names no environment variable, or none that may come from there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {problem}")]
pub struct InvalidVariable {
    text: String,
    problem: &'static str,
}

/// Variables that decide which code a program of root runs, or where it keeps its own files.
const OF_THE_HOST: [&str; 6] = ["BASH_ENV", "ENV", "GCONV_PATH", "HOME", "IFS", "PATH"];
/// The prefix of variables that the loader of programs reads.
const OF_THE_LOADER: &str = "LD_";

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
            let problem = "is not the name of an environment variable";
            Err(InvalidVariable { text, problem })
        }
    }

    /// A variable named by a class, a secret or a volume: none with which the namer would have a program
    /// run other code.
    pub fn parse_foreign(text: impl Into<String>) -> Result<Self, InvalidVariable> {
        let parsed = Self::parse(text)?;
        if parsed.is_of_the_host() {
            return Err(InvalidVariable {
                text: parsed.0.into_owned(),
                problem: "is a variable of the host, and is not taken from a class, a secret or a volume",
            });
        }
        Ok(parsed)
    }

    /// Whether [`Self::parse_foreign`] refuses it.
    pub fn is_of_the_host(&self) -> bool {
        let name = self.as_str();
        OF_THE_HOST.contains(&name) || name.starts_with(OF_THE_LOADER)
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

    #[test]
    fn what_decides_which_code_runs_is_taken_from_no_foreigner() {
        for host in [
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "LD_",
            "PATH",
            "BASH_ENV",
            "ENV",
            "IFS",
            "GCONV_PATH",
            "HOME",
        ] {
            assert!(Variable::parse(host).is_ok(), "{host}");
            let error = Variable::parse_foreign(host).expect_err(host);
            assert!(error.to_string().contains(host), "{error}");
        }
        for good in ["ACCESS_KEY", "OLD_KEY", "CACHE_PATH", "MY_ENV"] {
            assert_eq!(Variable::parse_foreign(good).unwrap().as_str(), good);
        }
        assert!(Variable::parse_foreign("A B").is_err());
    }
}
