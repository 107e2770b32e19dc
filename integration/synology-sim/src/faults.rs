//! Faults that tests ask for.

use std::time::Duration;

use serde::Deserialize;

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call is refused with this code, and nothing is done.
    Refuse(i64),
    /// The call is refused with this code after it was done: DSM does that for a name of 255 bytes.
    RefuseAfter(i64),
    /// The call succeeds, and its answer is a list that holds this code for the object: nothing is done.
    /// n4s4: `delete_snapshot`; csi: `ShareSnapshotDelete`.
    RefuseInside(i64),
    /// All sessions end, and the call is refused with 119.
    ExpireSessions,
    /// The connection is cut, and nothing is done.
    CutBefore,
    /// The connection is cut after the call was done.
    CutAfter,
    /// The web server answers 502 with HTML.
    BadGateway,
    /// The answer comes this many milliseconds later.
    Delay(u64),
}

/// One rule: the first that matches a call is applied.
#[derive(Debug, Clone, Deserialize)]
pub struct Fault {
    /// The API, such as `SYNO.Core.ISCSI.LUN`.
    pub api: String,
    /// Its method.
    pub method: String,
    /// So many calls pass before.
    #[serde(default)]
    pub skip: usize,
    /// It is applied so often.
    #[serde(default = "once")]
    pub times: usize,
    /// The fault.
    pub action: Action,
}

fn once() -> usize {
    1
}

/// What gets lost between a client and the NAS, from the moment it is asked for. Every call counts, a login too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// After so many calls, one: it is not done.
    Call(usize),
    /// After so many calls, the answer to one: it is done.
    Answer(usize),
    /// After so many calls, all.
    Rest(usize),
}

/// The action for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) action: Option<Action>,
    pub(crate) cut: Cut,
}

/// Whether a call is cut off because of [`Faults::cut_after`] or [`Faults::lose`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    No,
    Before,
    After,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Fault>,
    left: Option<usize>,
    loss: Option<Loss>,
    /// The calls since the loss was asked for.
    passed: usize,
}

// === impl Fault ===

impl Fault {
    /// Once, at the next call.
    pub fn once(api: &str, method: &str, action: Action) -> Self {
        Self {
            api: api.to_owned(),
            method: method.to_owned(),
            skip: 0,
            times: 1,
            action,
        }
    }
}

// === impl Action ===

impl Action {
    pub(crate) fn delay(self) -> Option<Duration> {
        match self {
            Self::Delay(millis) => Some(Duration::from_millis(millis)),
            _ => None,
        }
    }
}

// === impl Faults ===

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.rules.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// After `left` more changes nothing is answered any more, the last one's answer included.
    pub(crate) fn cut_after(&mut self, left: Option<usize>) {
        self.left = left;
    }

    pub(crate) fn lose(&mut self, loss: Option<Loss>) {
        (self.loss, self.passed) = (loss, 0);
    }

    /// Whether the next call is lost.
    fn lost(&mut self) -> Cut {
        let at = self.passed;
        self.passed += 1;
        match self.loss {
            Some(Loss::Call(lost)) if lost == at => Cut::Before,
            Some(Loss::Answer(lost)) if lost == at => Cut::After,
            Some(Loss::Rest(first)) if first <= at => Cut::Before,
            _ => Cut::No,
        }
    }

    pub(crate) fn judge(&mut self, api: &str, method: &str, changes: bool) -> Verdict {
        let lost = self.lost();
        let cut = match &mut self.left {
            Some(0) => Cut::Before,
            Some(left) if changes => {
                *left -= 1;
                if *left == 0 { Cut::After } else { Cut::No }
            }
            None | Some(_) => lost,
        };
        let mut action = None;
        let mut rules = self.rules.iter_mut();
        if let Some(rule) =
            rules.find(|rule| rule.api == api && rule.method == method && rule.times > 0)
        {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else {
                rule.times -= 1;
                action = Some(rule.action);
            }
        }
        Verdict { action, cut }
    }
}
