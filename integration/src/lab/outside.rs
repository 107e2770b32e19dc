//! The things that a cell asks of the host below its machines, and says to those who read the results.
//!
//! A machine cannot take its own power away and be there to see it. A cell prints one line and waits; the outer
//! half gives its words to `vagrant/lab`, and answers with one line on the standard input of the cell.
#![expect(clippy::print_stdout, reason = "the outer half reads it there")]

use std::fmt;
use std::io;
use std::time::Duration;

/// The begin of a line that asks for something.
const ASKED: &str = "@lab ";
/// The begin of a line for the results.
const NOTED: &str = "@note ";
/// The answer to what was done; another one says why it was not.
const DONE: &str = "done";

/// A machine of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// The only one, or the storage host of a pair.
    Storage,
    /// The other one of a pair.
    Node,
}

/// One thing to be done to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// It stands still.
    Pause(Machine),
    /// It goes on, as if no time had passed.
    Resume(Machine),
    /// Its power is cut for so long; done when it has started again.
    PowerCut(Machine, Duration),
    /// It gets the QEMU of the host, in a folder of its own.
    Emulator(Machine),
}

/// Asks for something, and waits until it is done.
///
/// # Panics
/// If it is not done.
pub async fn ask(demand: Demand) {
    println!("{ASKED}{demand}");
    let answer = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    });
    let answer = answer.await.expect("reading does not panic");
    let answer = answer.expect("the outer half answers");
    assert_eq!(answer.trim_end(), DONE, "lab {demand}");
}

/// Says something that is kept with the result of the cell.
pub fn note(what: &str) {
    println!("{NOTED}{what}");
}

/// The words for `vagrant/lab`, if the line of a cell asks for something.
pub(super) fn asked(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix(ASKED)?.split(' ').collect())
}

/// The remark, if the line of a cell is one.
pub(super) fn noted(line: &str) -> Option<&str> {
    line.strip_prefix(NOTED)
}

/// The line that answers a cell.
pub(super) fn answer(outcome: &anyhow::Result<()>) -> String {
    match outcome {
        Ok(()) => format!("{DONE}\n"),
        Err(error) => {
            let why = format!("{error:#}").replace('\n', " ");
            format!("{why}\n")
        }
    }
}

// === impl Machine ===

impl Machine {
    /// Its name for `vagrant/lab`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Node => "node",
        }
    }
}

// === impl Demand ===

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause(machine) => write!(f, "pause -m {}", machine.name()),
            Self::Resume(machine) => write!(f, "resume -m {}", machine.name()),
            Self::PowerCut(machine, off) => {
                write!(f, "restart -m {} --off {}", machine.name(), off.as_secs())
            }
            Self::Emulator(machine) => write!(f, "emulator -m {}", machine.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_read_as_the_words_of_the_script() {
        let demand = Demand::PowerCut(Machine::Storage, Duration::from_mins(5));
        let line = format!("{ASKED}{demand}");
        let words = ["restart", "-m", "storage", "--off", "300"];
        assert_eq!(asked(&line).expect("words"), words);
        assert_eq!(asked("- stage"), None);
        assert_eq!(noted("@note 3.1 s"), Some("3.1 s"));
    }

    #[test]
    fn an_answer_is_one_line() {
        assert_eq!(answer(&Ok(())), "done\n");
        let failed = answer(&Err(anyhow::anyhow!("no end\nwithin 5 s")));
        assert_eq!(failed.lines().count(), 1);
        assert_ne!(failed.trim_end(), DONE);
    }
}
