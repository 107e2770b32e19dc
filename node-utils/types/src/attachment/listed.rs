//! Addresses that stand in a key and in its plural.
//!
//! What counts is all of them, each once. What is written is what was given: a context says the same
//! after it was read, and what a configuration says is found in the context as democratic-csi would
//! have written it.

use std::fmt;
use std::ops::Deref;

use super::{ContextError, FieldError, Keys};

/// At least one address, each once and in order, and how the two keys say it.
#[derive(Clone, PartialEq, Eq)]
pub struct Listed<T> {
    all: Vec<T>,
    one: String,
    many: String,
}

// === impl Listed ===

impl<T: PartialEq> Listed<T> {
    /// Checks what stands in the key, which may be empty, and in its plural. Nothing at all is
    /// [`FieldError::Empty`].
    pub(super) fn checked<'a>(
        one: &'a str,
        many: impl IntoIterator<Item = &'a str>,
        parse: impl Fn(&str) -> Result<T, FieldError>,
    ) -> Result<Self, FieldError> {
        let trimmed = |text: &'a str| Some(text.trim()).filter(|text| !text.is_empty());
        let one = trimmed(one);
        let many: Vec<&str> = many.into_iter().filter_map(trimmed).collect();
        let mut all = Vec::new();
        for text in one.iter().chain(&many) {
            let item = parse(text)?;
            if !all.contains(&item) {
                all.push(item);
            }
        }
        if all.is_empty() {
            return Err(FieldError::Empty);
        }
        Ok(Self {
            all,
            one: one.unwrap_or_default().to_owned(),
            many: many.join(","),
        })
    }

    pub(super) fn read(
        keys: Keys<'_>,
        one: &'static str,
        many: &'static str,
        parse: impl Fn(&str) -> Result<T, FieldError>,
    ) -> Result<Self, ContextError> {
        let all = keys.entries(one, many, parse)?;
        let text = |key| keys.list(key).collect::<Vec<_>>().join(",");
        let (one, many) = (text(one), text(many));
        Ok(Self { all, one, many })
    }

    pub(super) fn write(&self, one: &str, many: &str, put: &mut impl FnMut(&str, String)) {
        put(one, self.one.clone());
        put(many, self.many.clone());
    }
}

impl<T> Deref for Listed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.all
    }
}

// The text may hold keys, as options of a transport.
impl<T: fmt::Debug> fmt::Debug for Listed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)
    }
}
