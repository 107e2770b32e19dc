//! The data given to a command: arguments, values of variables, standard input.
//!
//! Only `expose` and `bytes` return a secret, for the runner that passes it to a process. `Debug` never shows it.
//! `Command::validate` checks the contents.

use std::fmt;

use secrecy::{ExposeSecret, SecretSlice, SecretString};

use csi_types::Variable;

/// One argument, or the value of one environment variable.
#[derive(Clone)]
pub enum Argument {
    /// Not a secret.
    Plain(String),
    /// Shown as `****`.
    Secret(SecretString),
}

/// The standard input of a command.
#[derive(Clone, Default)]
pub enum Input {
    /// Nothing: the null device.
    #[default]
    Empty,
    /// Bytes of which the length is shown.
    Plain(Vec<u8>),
    /// Bytes that must never be shown.
    Secret(SecretSlice<u8>),
}

/// Why no process can be given this command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCommand {
    /// The kernel ends an argument at its first NUL byte.
    #[error("argument {position} holds a NUL byte")]
    NulInArgument {
        /// Counted from zero, without the program.
        position: usize,
    },
    /// As for arguments.
    #[error("environment variable {name} holds a NUL byte")]
    NulInVariable {
        /// The variable.
        name: Variable,
    },
    /// The wrapper would show the secret in its arguments.
    #[error("environment variable {name} is secret and cannot be passed through {through} unseen")]
    SecretVariable {
        /// The variable.
        name: Variable,
        /// The program that would have to be given the value as an argument.
        through: &'static str,
    },
}

// === impl Argument ===

impl Argument {
    /// The text itself, only to be given to a process.
    pub fn expose(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Secret(secret) => secret.expose_secret(),
        }
    }

    /// Whether the text must not be shown.
    pub fn is_secret(&self) -> bool {
        matches!(self, Self::Secret(_))
    }
}

impl fmt::Debug for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => write!(f, "{text:?}"),
            Self::Secret(_) => f.write_str("****"),
        }
    }
}

// === impl Input ===

impl Input {
    /// The bytes themselves, only to be given to a process.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Plain(bytes) => bytes,
            Self::Secret(bytes) => bytes.expose_secret(),
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Plain(bytes) => write!(f, "Plain({} bytes)", bytes.len()),
            Self::Secret(_) => f.write_str("Secret(****)"),
        }
    }
}
