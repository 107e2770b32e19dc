//! A look, and a step right after it where what is seen is as expected: one exchange, and no second look under
//! the lock. The shell decides by what the look has just printed; of a snapshot that is destroyed the kernel does.

use std::sync::atomic::Ordering;

use driver_core::{Call, Effect};
use exec::{Command, Lock, Locked, RunError, Runner};

use super::{COMMAND, Cli, bounded, failure, looking, query, steps, understood};
use driver_zfs::backend::Tried;
use driver_zfs::name::SnapshotRef;
use driver_zfs::observed::Request;
use driver_zfs::property::PropertyName;
use driver_zfs::step::{Expected, Failed, FirstTry, Next, Step, Test};

/// Destroys a snapshot if it is one of ours, and of no group.
pub(super) const DESTROY: &str = include_str!("script/destroy.sh");

/// The word by which a step says that it was done.
const DONE: &str = "done";

/// Runs a command if what the look before it has printed is as expected.
const FIRST_TRY: &str = include_str!("script/first_try.sh");

/// An expectation as words of the script.
fn words(expected: &Expected) -> [String; 4] {
    let (test, operand) = match &expected.test {
        Test::Is(text) => ("is", text.clone()),
        Test::Own => ("own", String::new()),
        Test::Below(size) => ("below", size.to_string()),
        Test::Divides(size) => ("divides", size.to_string()),
    };
    let object = expected.object.to_string();
    [
        object,
        expected.property.to_string(),
        test.to_owned(),
        operand,
    ]
}

/// What a first try destroys if all that it expects is that the snapshot is one of ours.
fn doomed(first: &FirstTry) -> Option<&SnapshotRef> {
    match &first.step {
        Step::DestroySnapshot(snapshot) => Some(snapshot),
        _ => None,
    }
}

/// The effect of a first try by the error of its look: none only if that look was seen to fail, which starts no step.
/// An answer that is missing as a whole is that of the first look.
fn effect_of_look(error: &RunError) -> Effect {
    match error {
        RunError::Failed { .. } => Effect::None,
        _ => error.effect(),
    }
}

/// The failure of a channel program that has not answered. Once it has ended, a look tells what is left to do.
fn unanswered(error: &RunError, first: &FirstTry) -> Failed {
    let failed = understood(error, Some(&first.step.to_string()), Effect::Possible);
    match error {
        RunError::Failed { .. } => Failed {
            next: Next::Observe,
            ..failed
        },
        _ => failed,
    }
}

impl<R: Runner> Cli<R> {
    fn locked(&self, first: &FirstTry) -> Locked<&R> {
        let mut lock = Lock::object(first.lock.as_str());
        if let Some(folder) = &self.locks {
            lock = lock.within_folder(folder);
        }
        Locked::new(&self.runner, lock)
    }

    /// Destroys a snapshot by a channel program, which the kernel runs as a whole. Says whether that was right, and is
    /// done; if not, nothing was. It is an error that a program has not answered: it may be done.
    async fn destroyed(
        &self,
        call: &Call,
        snapshot: &SnapshotRef,
        first: &FirstTry,
    ) -> Result<bool, Failed> {
        let (pool, name) = (snapshot.dataset.pool(), snapshot.to_string());
        let (own, group) = (PropertyName::SNAPSHOT_NAME, PropertyName::GROUP);
        let program = Command::function(DESTROY)
            .args(self.tools.words())
            .args([
                "program",
                "-j",
                pool,
                "-",
                &name,
                own.as_str(),
                group.as_str(),
            ])
            .within(COMMAND);
        let commands = bounded(call, vec![program]);
        call.changing();
        let batch = if first.is_unique {
            self.runner.run_all(&commands).await
        } else {
            self.locked(first).run_all(&commands).await
        };
        match batch.into_outputs() {
            Ok(outputs) => Ok(outputs
                .first()
                .is_some_and(|output| output.text().trim() == DONE)),
            Err(error) if failure::runs_no_programs(&error.source) => {
                self.has_no_programs.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(unanswered(&error.source, first)),
        }
    }

    /// Looks, and does the first try if what is seen is as it expects.
    pub(super) async fn tried(
        &self,
        call: &Call,
        request: &Request,
        first: &FirstTry,
    ) -> Result<Tried, Failed> {
        if let Some(snapshot) = doomed(first)
            && !self.has_no_programs.load(Ordering::Relaxed)
            && self.destroyed(call, snapshot, first).await?
        {
            return Ok(Tried::Done(None));
        }
        let mut commands = query::commands(&self.tools, request).map_err(Failed::terminal)?;
        let looks = commands.len();
        let step = Command::function(FIRST_TRY)
            .args(first.expected.iter().flat_map(words))
            .arg("--")
            .args(steps::words(&self.tools, &first.step).map_err(Failed::terminal)?)
            .within(COMMAND);
        commands.push(step);
        let commands = bounded(call, commands);
        call.changing();
        let batch = self.locked(first).run_all(&commands).await;
        let mut outputs = batch.into_outputs().map_err(|error| {
            let (doing, effect) = if error.step < looks {
                (looking(request, error.step), effect_of_look(&error.source))
            } else {
                (Some(first.step.to_string()), Effect::Possible)
            };
            understood(&error.source, doing.as_deref(), effect)
        })?;
        let done = outputs
            .pop()
            .is_some_and(|output| output.text().trim() == DONE);
        let effect = if done { Effect::Possible } else { Effect::None };
        let seen = query::observed(request, outputs)
            .map_err(|error| Failed::terminal(error.with_effect(effect)))?;
        Ok(if done {
            Tried::Done(Some(seen))
        } else {
            Tried::Seen(seen)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use exec::{Output, Program, Status};

    use super::*;

    #[test]
    fn only_a_look_that_was_seen_to_fail_proves_that_no_step_was_started() {
        let zfs = Command::new(Program::constant("zfs"));
        let command = || zfs.masked();
        let output = Output {
            status: Status::Exit(2),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let not_found = RunError::NotFound {
            program: Program::constant("zfs"),
            place: "the PATH of the shell".to_owned(),
        };
        let unreachable = RunError::Unreachable {
            command: command(),
            source: "no route".into(),
        };
        for error in [output.check(&zfs).unwrap_err(), not_found, unreachable] {
            assert_eq!(effect_of_look(&error), Effect::None, "{error}");
        }
        let lost = RunError::Lost {
            command: command(),
            source: "cut".into(),
        };
        let deadline = RunError::Deadline {
            command: command(),
            after: Duration::from_secs(1),
            still_running: true,
        };
        let too_large = RunError::OutputTooLarge {
            command: command(),
            cap: 1,
        };
        for error in [lost, deadline, too_large] {
            assert_eq!(effect_of_look(&error), Effect::Possible, "{error}");
        }
    }
}
