//! What happened, step by step.

use std::time::Duration;

use super::step::Step;
use super::trouble::Trouble;

/// One step that was come to.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) step: Step,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
    /// What came out of it, in a few words.
    pub(super) result: String,
}

/// How a step ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Ok,
    Failed(Trouble),
    /// The connection does not advertise it.
    NotOffered,
    /// Left out, so that there is something to look at.
    Kept,
}

/// The steps so far.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) entries: Vec<Entry>,
}

// === impl Entry ===

impl Entry {
    /// What is said beside the title.
    pub(super) fn detail(&self) -> String {
        match &self.outcome {
            Outcome::Ok => self.result.clone(),
            Outcome::Failed(trouble) => trouble
                .code
                .map(crate::process::code_name)
                .unwrap_or_default(),
            Outcome::NotOffered => "not offered".to_owned(),
            Outcome::Kept => "left for a look".to_owned(),
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// For machines.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(_) => "failed",
            Self::NotOffered => "not-offered",
            Self::Kept => "kept",
        }
    }
}

// === impl Journal ===

impl Journal {
    /// The entry of a step, if it was come to.
    pub(super) fn entry(&self, step: Step) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.step == step)
    }

    /// Whether a step went well.
    pub(super) fn is_ok(&self, step: Step) -> bool {
        self.entry(step)
            .is_some_and(|entry| matches!(entry.outcome, Outcome::Ok))
    }

    /// The failure, if there was one.
    pub(super) fn failure(&self) -> Option<(Step, &Trouble)> {
        self.entries.iter().find_map(|entry| match &entry.outcome {
            Outcome::Failed(trouble) => Some((entry.step, trouble)),
            _ => None,
        })
    }

    /// How many steps ended so.
    pub(super) fn count(&self, outcome: &Outcome) -> usize {
        self.entries
            .iter()
            .filter(|entry| entry.outcome.name() == outcome.name())
            .count()
    }
}
