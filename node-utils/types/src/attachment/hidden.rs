//! A value of a volume context that may be a secret.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A value that is never printed. Two of them can be compared.
#[derive(Clone)]
pub struct Hidden(SecretString);

// === impl Hidden ===

impl Hidden {
    /// Hides a value.
    pub fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// The value as the secret that it may be.
    pub fn secret(&self) -> &SecretString {
        &self.0
    }

    pub(super) fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl PartialEq for Hidden {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Hidden {}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
