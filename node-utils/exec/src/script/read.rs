//! Reads the output of a script.
//!
//! Only the markers count. Text before the start marker was printed by the login and is dropped. Text after the
//! last marker belongs to a command whose end was not seen.

use super::{MISSING, SIGNALLED, Script};
use crate::command::Command;
use crate::error::RunError;
use crate::output::{Output, Status};
use crate::runner::{Batch, Step};

/// The status that a script printed for one step.
enum StepStatus {
    Missing,
    Ended(Status),
}

/// The result of one step, as far as the output shows it.
pub(super) enum StepResult {
    Missing,
    Ended(Output),
}

impl Script<'_> {
    /// The result of each command, from the output of the script.
    ///
    /// `cut` is the reason why the output ended early, if the transport knows it.
    pub fn read(&self, stdout: &[u8], stderr: &[u8], cut: Option<RunError>) -> Batch {
        let seen = self.step_results(stdout, stderr);
        let mut steps = Vec::with_capacity(self.commands.len());
        for (seen, command) in seen.into_iter().zip(self.commands) {
            let ended = match seen {
                StepResult::Ended(output) => output.check(command),
                StepResult::Missing => Err(not_found(command)),
            };
            match ended {
                Ok(output) => steps.push(Step::Done(output)),
                Err(error) => {
                    steps.push(Step::Failed(error));
                    // The script stops here, so the others were not started.
                    return Batch::new(self.commands, steps, None);
                }
            }
        }
        // Steps without a marker may still be running.
        let cut = cut.filter(|_| steps.len() < self.commands.len());
        steps.resize_with(self.commands.len(), || Step::Unknown);
        Batch::new(self.commands, steps, cut)
    }

    /// The steps with a marker, in order from the first.
    pub(super) fn step_results(&self, stdout: &[u8], stderr: &[u8]) -> Vec<StepResult> {
        let mut seen = Vec::with_capacity(self.commands.len());
        let Some(mut out) = self.after_start(stdout) else {
            return seen;
        };
        let mut err = self.after_start(stderr);
        for index in 0..self.commands.len() {
            let Some((printed, word, rest)) = self.next(out, index) else {
                break;
            };
            out = rest;
            let mut stderr: &[u8] = &[];
            if let Some(text) = err {
                (stderr, err) = self.next_stderr(text, index);
            }
            seen.push(match word {
                StepStatus::Missing => StepResult::Missing,
                StepStatus::Ended(status) => StepResult::Ended(Output {
                    status,
                    stdout: printed.to_vec(),
                    stderr: stderr.to_vec(),
                }),
            });
        }
        seen
    }

    /// Whether the output is complete, so that a transport need not wait for processes that still hold its pipes.
    pub fn is_complete(&self, stdout: &[u8]) -> bool {
        let Some(mut out) = self.after_start(stdout) else {
            return false;
        };
        for (index, command) in self.commands.iter().enumerate() {
            match self.next(out, index) {
                None => return false,
                Some((_, StepStatus::Ended(status), rest))
                    if status.is_accepted_by(command.accept()) =>
                {
                    out = rest;
                }
                Some(_) => return true,
            }
        }
        true
    }

    /// Whether the script got as far as its first command.
    pub fn has_started(&self, stdout: &[u8]) -> bool {
        self.after_start(stdout).is_some()
    }

    fn after_start<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        let start = format!("{}:start\n", self.marker.0);
        find(text, start.as_bytes()).map(|at| &text[at + start.len()..])
    }

    /// The output of the step, its status, and the text after its marker.
    fn next<'t>(&self, text: &'t [u8], index: usize) -> Option<(&'t [u8], StepStatus, &'t [u8])> {
        let marker = format!("\n{}:{index}:", self.marker.0);
        let at = find(text, marker.as_bytes())?;
        let behind = &text[at + marker.len()..];
        // Without its line end the status itself may be cut: 1 of 127.
        let end = behind.iter().position(|byte| *byte == b'\n')?;
        let word = StepStatus::parse(&behind[..end])?;
        Some((&text[..at], word, &behind[end + 1..]))
    }

    /// Standard error of the step, and the text after its marker if there is one.
    fn next_stderr<'t>(&self, text: &'t [u8], index: usize) -> (&'t [u8], Option<&'t [u8]>) {
        let marker = format!("\n{}:{index}\n", self.marker.0);
        match find(text, marker.as_bytes()) {
            Some(at) => (&text[..at], Some(&text[at + marker.len()..])),
            None => (text, None),
        }
    }
}

pub(super) fn not_found(command: &Command) -> RunError {
    let place = "the PATH of the shell".to_owned();
    RunError::NotFound {
        program: command.program().clone(),
        place,
    }
}

impl StepStatus {
    fn parse(word: &[u8]) -> Option<Self> {
        if word == MISSING.as_bytes() {
            return Some(Self::Missing);
        }
        status(word).map(Self::Ended)
    }
}

/// A status as a shell writes it, and in no other way: neither `+0` nor `00`.
pub(super) fn status(word: &[u8]) -> Option<Status> {
    let word = std::str::from_utf8(word).ok()?;
    let code: u8 = word.parse().ok()?;
    if code.to_string() != word {
        return None;
    }
    let code = i32::from(code);
    Some(if SIGNALLED.contains(&code) {
        Status::Signal(code - 128)
    } else {
        Status::Exit(code)
    })
}

pub(super) fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len())
        .position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use crate::script::Script;
    use crate::{Command, Effect, Program, Status, Step};

    const ZFS: Program = Program::constant("zfs");

    fn three() -> Vec<Command> {
        vec![Command::new(ZFS), Command::new(ZFS), Command::new(ZFS)]
    }

    fn shape(steps: &[Step]) -> String {
        let letter = |step: &Step| match step {
            Step::Done(_) => 'd',
            Step::Failed(_) => 'f',
            Step::NotStarted => 'n',
            Step::Unknown => 'u',
        };
        steps.iter().map(letter).collect()
    }

    #[test]
    fn no_prefix_of_the_output_says_more_than_the_markers_in_it() {
        let commands = three();
        let script = Script::of(&commands).unwrap();
        let m = &script.marker.0;
        let whole = format!("motd\n{m}:start\none\n\n{m}:0:0\n\n{m}:1:0\nthree\n{m}:2:0\n");
        let mut shapes = Vec::new();
        for cut in 0..=whole.len() {
            let batch = script.read(&whole.as_bytes()[..cut], b"", None);
            let shape = shape(batch.steps());
            assert_eq!(shape == "ddd", script.is_complete(&whole.as_bytes()[..cut]));
            if shapes.last() != Some(&shape) {
                shapes.push(shape);
            }
        }
        assert_eq!(shapes, ["uuu", "duu", "ddu", "ddd"]);
        let outputs = script
            .read(whole.as_bytes(), b"", None)
            .into_outputs()
            .unwrap();
        let texts: Vec<_> = outputs
            .iter()
            .map(|output| output.text().into_owned())
            .collect();
        assert_eq!(texts, ["one\n", "", "three"]);
    }

    #[test]
    fn after_a_failure_the_rest_was_not_started() {
        let commands = three();
        let script = Script::of(&commands).unwrap();
        let m = &script.marker.0;
        let stdout = format!("{m}:start\n\n{m}:0:0\n\n{m}:1:1\n");
        let stderr = format!("{m}:start\nfine\n\n{m}:0\nno such pool\n\n{m}:1\n");
        let batch = script.read(stdout.as_bytes(), stderr.as_bytes(), None);
        assert_eq!(shape(batch.steps()), "dfn");
        assert!(script.is_complete(stdout.as_bytes()));
        let failed = batch.into_outputs().unwrap_err();
        assert_eq!((failed.step, failed.source.stderr()), (1, "no such pool"));
    }

    #[test]
    fn a_missing_program_is_recognized_and_had_no_effect() {
        let commands = three();
        let script = Script::of(&commands).unwrap();
        let m = &script.marker.0;
        let batch = script.read(
            format!("{m}:start\n\n{m}:0:missing\n").as_bytes(),
            b"",
            None,
        );
        assert_eq!(shape(batch.steps()), "fnn");
        assert_eq!(batch.effect(), Effect::None);
    }

    #[test]
    fn a_status_above_128_is_a_signal() {
        let commands = three();
        let script = Script::of(&commands).unwrap();
        let m = &script.marker.0;
        let batch = script.read(format!("{m}:start\n\n{m}:0:137\n").as_bytes(), b"", None);
        let Step::Failed(crate::RunError::Failed { status, .. }) = &batch.steps()[0] else {
            panic!("{batch:?}");
        };
        assert_eq!(*status, Status::Signal(9));
    }

    #[test]
    fn a_status_that_no_shell_writes_is_no_status() {
        let commands = three();
        let script = Script::of(&commands).unwrap();
        let m = &script.marker.0;
        for odd in ["+0", "00", "-0", "256", "0 ", ""] {
            let stdout = format!("{m}:start\n\n{m}:0:{odd}\n");
            let batch = script.read(stdout.as_bytes(), b"", None);
            assert_eq!(shape(batch.steps()), "uuu", "{odd:?}");
            assert!(!script.is_complete(stdout.as_bytes()));
        }
    }

    #[test]
    fn markers_of_another_script_or_in_another_order_are_not_believed() {
        let commands = three();
        let script = Script::of(&commands).unwrap();
        let other = Script::of(&commands).unwrap();
        assert_ne!(script.marker.0, other.marker.0);
        let o = &other.marker.0;
        let forged = format!("{o}:start\n\n{o}:0:0\n\n{o}:1:0\n\n{o}:2:0\n");
        assert_eq!(
            shape(script.read(forged.as_bytes(), b"", None).steps()),
            "uuu"
        );
        let m = &script.marker.0;
        let skipped = format!("{m}:start\n\n{m}:1:0\n\n{m}:2:0\n");
        assert_eq!(
            shape(script.read(skipped.as_bytes(), b"", None).steps()),
            "uuu"
        );
    }
}
