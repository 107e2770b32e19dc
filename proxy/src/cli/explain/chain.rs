//! The links between a handle and its pods, for people and for machines.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use driver_core::Error;
use serde::Serialize;
use serde_json::Value;

use crate::message::{self, printable};

/// The exit code where a link could not be looked at, and none is known to be broken.
const CANNOT_TELL: u8 = 2;

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// It was looked at, and is as it should be.
    Holds,
    /// It was looked at, and is not.
    Broken,
    /// It could not be looked at.
    Unknown,
    /// There is none: a driver without exports, a node without the volume.
    Absent,
}

/// One link of the chain.
#[derive(Debug, Serialize)]
pub(super) struct Link {
    #[serde(rename = "link")]
    pub(super) name: &'static str,
    pub(super) state: State,
    /// The observation.
    pub(super) text: String,
    /// A step that repairs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) facts: BTreeMap<&'static str, Value>,
}

/// All links of one volume, from the handle to the pods.
#[derive(Debug, Serialize)]
pub(super) struct Chain {
    handle: String,
    /// The state of the whole.
    state: State,
    /// The name of the first broken link.
    broken: Option<&'static str>,
    links: Vec<Link>,
}

// === impl Link ===

impl Link {
    fn new(link: &'static str, state: State, text: &str) -> Self {
        Self {
            name: link,
            state,
            text: printable(text),
            remedy: None,
            facts: BTreeMap::new(),
        }
    }

    pub(super) fn holds(link: &'static str, text: &str) -> Self {
        Self::new(link, State::Holds, text)
    }

    pub(super) fn absent(link: &'static str, text: &str) -> Self {
        Self::new(link, State::Absent, text)
    }

    pub(super) fn unknown(link: &'static str, text: &str) -> Self {
        Self::new(link, State::Unknown, text)
    }

    pub(super) fn broken(link: &'static str, text: &str, remedy: &str) -> Self {
        let broken = Self::new(link, State::Broken, text);
        broken.or_do(remedy)
    }

    /// A broken link with the advice of the error; `remedy` where that has none.
    pub(super) fn of(link: &'static str, error: &Error, remedy: &str) -> Self {
        let text = message::without_advice(error);
        Self::broken(link, &text, error.advice().unwrap_or(remedy))
    }

    /// The same, and something to do about it.
    #[must_use]
    pub(super) fn or_do(mut self, remedy: &str) -> Self {
        self.remedy = Some(printable(remedy));
        self
    }

    #[must_use]
    pub(super) fn with(mut self, fact: &'static str, value: impl Into<Value>) -> Self {
        self.facts.insert(fact, value.into());
        self
    }
}

// === impl Chain ===

impl Chain {
    pub(super) fn new(handle: &str, links: Vec<Link>) -> Self {
        let first = |state| links.iter().find(|link| link.state == state);
        let broken = first(State::Broken).map(|link| link.name);
        let state = match (broken, first(State::Unknown)) {
            (Some(_), _) => State::Broken,
            (None, Some(_)) => State::Unknown,
            (None, None) => State::Holds,
        };
        Self {
            handle: printable(handle),
            state,
            broken,
            links,
        }
    }

    /// 0: all links hold; 1: one is broken; 2: it cannot be said.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self.state {
            State::Holds | State::Absent => ExitCode::SUCCESS,
            State::Broken => ExitCode::FAILURE,
            State::Unknown => ExitCode::from(CANNOT_TELL),
        }
    }

    /// The chain, one link on a line, and what to do.
    pub(super) fn picture(&self, ascii: bool) -> String {
        let mut text = String::new();
        let widest = self.links.iter().map(|link| link.name.len()).max();
        let widest = widest.unwrap_or_default();
        for link in &self.links {
            let mark = mark(link.state, ascii);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{mark} {:<widest$}  {}", link.name, link.text);
        }
        let named = |state| self.links.iter().find(|link| link.state == state);
        let _ = match (named(State::Broken), named(State::Unknown)) {
            (Some(link), _) => writeln!(text, "\nbroken: {}: {}", link.name, link.text),
            (None, Some(link)) => {
                writeln!(
                    text,
                    "\nno broken link, but unknown: {}: {}",
                    link.name, link.text
                )
            }
            (None, None) => writeln!(text, "\nall links hold"),
        };
        let first = named(State::Broken).or(named(State::Unknown));
        if let Some(remedy) = first.and_then(|link| link.remedy.as_deref()) {
            let _ = writeln!(text, "do: {remedy}");
        }
        text
    }
}

fn mark(state: State, ascii: bool) -> &'static str {
    match (state, ascii) {
        (State::Holds, false) => "✔",
        (State::Broken, false) => "✘",
        (State::Unknown, false) => "?",
        (State::Absent, false) => "·",
        (State::Holds, true) => "ok     ",
        (State::Broken, true) => "BROKEN ",
        (State::Unknown, true) => "?      ",
        (State::Absent, true) => "-      ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_broken_link_is_named_with_its_remedy_and_not_a_later_one() {
        let links = vec![
            Link::holds("handle", "v:nas/pvc-1"),
            Link::unknown("connection", "silent"),
            Link::broken("storage", "it is\n\u{1b}[31mgone", "start it"),
            Link::broken("volume", "gone as well", "make it"),
        ];
        let chain = Chain::new("v:nas/pvc-1", links);
        assert_eq!(chain.broken, Some("storage"));
        assert_eq!(chain.exit_code(), ExitCode::FAILURE);
        let drawn = chain.picture(false);
        assert!(drawn.starts_with("✔ handle"), "{drawn}");
        assert!(drawn.ends_with("do: start it\n"), "{drawn}");
        assert!(!drawn.contains('\u{1b}'), "{drawn}");
        let plain = chain.picture(true);
        assert!(
            plain.is_ascii() && plain.contains("BROKEN  storage"),
            "{plain}"
        );
    }

    #[test]
    fn what_is_not_known_is_no_success_and_what_is_absent_is_no_failure() {
        let absent = Chain::new("a", vec![Link::absent("export", "none")]);
        assert_eq!(absent.exit_code(), ExitCode::SUCCESS);
        let unknown = vec![Link::unknown("volume", "silent"), Link::holds("x", "y")];
        let unknown = Chain::new("a", unknown);
        assert_eq!(unknown.exit_code(), ExitCode::from(2));
        assert_eq!(unknown.broken, None);
    }
}
