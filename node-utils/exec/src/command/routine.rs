//! Constant script texts that a shell defines once and then calls by name.
//!
//! They are constants, so they hold no secret, and they make up most of a rendered list. A shell that stays open
//! receives each text once. Other shells receive the texts in front of the list. A shell keeps each text in a
//! variable beside the function, so that it can pass it to another shell that runs under a lock.

use std::fmt::Write as _;

use crate::quote::{NulByte, quote};

/// A text that shells run by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Routine(&'static str);

/// The input of `sh -s`: routines, then the lines that call them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RoutineCalls {
    routines: Vec<Routine>,
    /// The place where the routines end.
    own: usize,
}

// === impl Routine ===

impl Routine {
    /// The routine that runs `text` as the body of a function.
    pub(crate) fn new(text: &'static str) -> Self {
        Self(text)
    }

    /// Its name: the same for the same text, everywhere.
    pub(crate) fn name(self) -> String {
        // FNV-1a.
        let hash = self
            .0
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        format!("omnibus_{hash:016x}")
    }

    /// Adds those that are not there yet.
    pub(crate) fn add(all: &mut Vec<Self>, more: impl IntoIterator<Item = Self>) {
        for routine in more {
            if !all.contains(&routine) {
                all.push(routine);
            }
        }
    }

    /// The shell text that defines them, with their bodies.
    pub(crate) fn declare(routines: &[Self]) -> Result<String, NulByte> {
        let mut text = String::new();
        for routine in routines {
            let _ = writeln!(text, "{}={}", routine.name(), quote(routine.0)?);
        }
        text.push_str(&Self::define(routines));
        Ok(text)
    }

    /// The shell text that makes functions from bodies that the shell has in variables already.
    pub(crate) fn define(routines: &[Self]) -> String {
        if routines.is_empty() {
            return String::new();
        }
        format!(
            "for omnibus_name in{}; do eval \"omnibus_text=\\$$omnibus_name\"; eval \"$omnibus_name() {{\n\
             $omnibus_text\n}}\"; done\n",
            Self::names(routines)
        )
    }

    /// Their names, each with a leading blank.
    pub(crate) fn names(routines: &[Self]) -> String {
        let names = routines.iter().map(|routine| routine.name());
        names.flat_map(|name| [" ".to_owned(), name]).collect()
    }
}

// === impl RoutineCalls ===

impl RoutineCalls {
    /// The whole text: the routines, then the lines that call them.
    pub(crate) fn text(routines: Vec<Routine>, lines: &str) -> Result<(Self, String), NulByte> {
        let mut text = Routine::declare(&routines)?;
        let own = text.len();
        text.push_str(lines);
        Ok((Self { routines, own }, text))
    }

    /// The routines that are called.
    pub(crate) fn routines(&self) -> &[Routine] {
        &self.routines
    }

    /// The text without the routines.
    pub(crate) fn own<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.own..).unwrap_or_default()
    }
}
