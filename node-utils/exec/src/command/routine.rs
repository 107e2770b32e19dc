//! Texts of ours that a shell is told once, and then runs by name.
//!
//! They are constants, so that nothing secret is in them, and most of what a list would say otherwise. A
//! shell that stays is told each of them once; whoever cannot rely on that finds them in front of the list.
//! A shell keeps the text beside the function that it makes of it: another shell below a lock is handed it in
//! its environment.

use std::fmt::Write as _;

use crate::quote::{NulByte, quote};

/// A text that shells run by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Routine(&'static str);

/// What `sh -s` is to read: lines of its own, behind the routines that they call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Calls {
    routines: Vec<Routine>,
    /// Where the routines end.
    own: usize,
}

// === impl Routine ===

impl Routine {
    /// The routine that runs `text` as the body of a function.
    pub(crate) fn new(text: &'static str) -> Self {
        Self(text)
    }

    /// What it is called: the same for the same text, everywhere.
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

    /// What tells them to a shell.
    pub(crate) fn tell(routines: &[Self]) -> Result<String, NulByte> {
        let mut text = String::new();
        for routine in routines {
            let _ = writeln!(text, "{}={}", routine.name(), quote(routine.0)?);
        }
        text.push_str(&Self::define(routines));
        Ok(text)
    }

    /// What makes functions of texts that a shell has already.
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

    /// Their names as words.
    pub(crate) fn names(routines: &[Self]) -> String {
        let names = routines.iter().map(|routine| routine.name());
        names.flat_map(|name| [" ".to_owned(), name]).collect()
    }
}

// === impl Calls ===

impl Calls {
    /// The whole text: the routines, and behind them the lines that call them.
    pub(crate) fn text(routines: Vec<Routine>, lines: &str) -> Result<(Self, String), NulByte> {
        let mut text = Routine::tell(&routines)?;
        let own = text.len();
        text.push_str(lines);
        Ok((Self { routines, own }, text))
    }

    /// The routines that are called.
    pub(crate) fn routines(&self) -> &[Routine] {
        &self.routines
    }

    /// What is not of the routines.
    pub(crate) fn own<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.own..).unwrap_or_default()
    }
}
