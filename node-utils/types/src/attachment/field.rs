//! Rules that several kinds of text have in common, and why a text is refused.

use std::fmt;

/// Why a text is refused. What it says is not repeated: it may be of any length and hold anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// There is nothing.
    #[error("is empty")]
    Empty,
    /// Longer than anything of this kind.
    #[error("is longer than {0} bytes")]
    TooLong(usize),
    /// It would pass for an option of a program.
    #[error("begins with a dash")]
    Dash,
    /// A character that nothing of this kind has.
    #[error("holds {0:?}, which is not allowed there")]
    Character(char),
    /// Not of the form that it has to have.
    #[error("is not {0}")]
    Form(&'static str),
}

/// The identity of a disk: what the kernel calls its WWID, such as `naa.6001405…`, `eui.…`,
/// `uuid.…`, `t10.…`. Our own key of a volume context.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DeviceId(String);

/// Checks the length and each character of a text that is a whole argument or a part of one.
pub(super) fn check(
    text: &str,
    max: usize,
    allowed: impl Fn(char) -> bool,
) -> Result<(), FieldError> {
    if text.is_empty() {
        return Err(FieldError::Empty);
    }
    if text.len() > max {
        return Err(FieldError::TooLong(max));
    }
    if text.starts_with('-') {
        return Err(FieldError::Dash);
    }
    match text.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(FieldError::Character(c)),
        None => Ok(()),
    }
}

/// Printable ASCII without blanks, and without what separates or quotes in options and lists.
pub(super) fn plain(c: char) -> bool {
    c.is_ascii_graphic() && !matches!(c, ',' | '"' | '\'' | '\\' | '`' | '#' | '$' | ';')
}

// === impl DeviceId ===

impl DeviceId {
    /// Checks an identity. A T10 one may hold blanks, as the kernel prints it.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        const FORMS: [&str; 5] = ["naa.", "eui.", "uuid.", "t10.", "nvme."];
        check(text, 256, |c| c == ' ' || plain(c))?;
        if FORMS
            .iter()
            .any(|form| text.starts_with(form) && text.len() > form.len())
        {
            return Ok(Self(text.to_owned()));
        }
        Err(FieldError::Form(
            "the identity of a disk (naa., eui., uuid., t10., nvme.)",
        ))
    }

    /// The text of sysfs.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The common face of a text that was checked once.
macro_rules! word {
    ($name:ident) => {
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}
pub(super) use word;
