//! Maps the error messages of `zfs` and its host to kinds of errors.
//!
//! The texts are in `reasons`. An unknown text is never success, and never more than a defect:
//! `Internal`.

#[cfg(test)]
mod captured;
mod reasons;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use driver_core::{Effect, Error, Kind};
use driver_ssh::ConnectError;
use exec::{Output, RunError};

use self::reasons::{OF_HOST, OF_ZFS, Reason};
use super::steps::STALE;
use driver_zfs::step::{Failed, Next};

/// The message of a lock that timed out. The command under the lock did not start.
const NO_TURN: &str = "no turn within ";

/// Our message for a filesystem that nfsd keeps busy; the seconds follow.
const KEPT: &str = "nfsd keeps it for ";

/// Our message if it is also unknown whether the pool exists.
const UNKNOWN_POOL: &Reason = &(
    "its pool cannot be looked at",
    Kind::Internal,
    Next::Tell,
    "see `zpool status` on the storage host",
);

/// The messages of `zfs` if an object does not exist. It reports a missing pool as a missing dataset,
/// so queries check the pool separately.
const ABSENT: [&str; 3] = [
    "dataset does not exist",
    "no such pool or dataset",
    "could not find any snapshots",
];

/// The messages of a host on which the login may run no channel program: `zfs` of a user that is not root, and sudo
/// without a rule for it. Nothing was run.
const NO_PROGRAMS: [&str; 3] = [
    "Channel programs must be run as root",
    "is not allowed to execute",
    "a password is required",
];

const FOREIGN_TEXT: &str =
    "something else than `zfs` writes to standard error there: a banner, or a profile of the shell";

const NOT_INSTALLED: &str = "it is not installed there, or not at the configured path";

/// The error message of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Complaint(String);

/// The error of a failed command of ours while it was `doing` something.
pub(super) fn of(error: &RunError, doing: &str, effect: Effect) -> Failed {
    let said = error.stderr();
    let mut failed = read(error, effect, reason(said), describe(error, doing));
    if let (Next::Wait, Some(known)) = (failed.next, kept_for(said)) {
        failed.next = Next::WaitFor(known);
    }
    failed
}

/// The time that nfsd keeps a filesystem busy, if the message says so.
fn kept_for(said: &str) -> Option<Duration> {
    let (_, rest) = said.split_once(KEPT)?;
    let (seconds, _) = rest.split_once(' ')?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// The error of a failed command of an export. The messages of its tools are not known here, and
/// may equal those of `zfs` with another meaning.
pub(super) fn of_export(error: &RunError, effect: Effect) -> Failed {
    tracing::debug!(%error, "a command of an export failed");
    let said = describe(error, "run a command of the export");
    let reason = find(OF_HOST, error.stderr());
    let effect = match reason {
        Some((_, _, Next::Queue, _)) if error.stderr().trim().starts_with(NO_TURN) => Effect::None,
        _ => effect,
    };
    read(error, effect, reason, said)
}

/// The error of a failed command whose message means `reason`.
fn read(error: &RunError, effect: Effect, reason: Option<&Reason>, said: String) -> Failed {
    let (kind, next, advice) = match (error, reason) {
        (RunError::Failed { .. }, Some((_, kind, next, advice))) => (*kind, *next, *advice),
        (RunError::Unreachable { source, .. }, _) => {
            let advice = source.downcast_ref().map_or("", ConnectError::advice);
            (Kind::Unreachable, Next::Tell, advice)
        }
        (RunError::Lost { .. }, _) => (Kind::Unreachable, Next::Tell, ""),
        (RunError::Deadline { .. }, _) => (Kind::Timeout, Next::Tell, ""),
        (RunError::QueueTimeout { .. }, _) => {
            let advice = "another change of the same volume is still running";
            (Kind::Pending, Next::Tell, advice)
        }
        (RunError::NotFound { .. }, _) => (Kind::Internal, Next::Tell, NOT_INSTALLED),
        // The message of a shell about a program that one of our scripts starts.
        (RunError::Failed { .. }, None) if error.exit_code() == Some(127) => {
            (Kind::Internal, Next::Tell, NOT_INSTALLED)
        }
        (RunError::OutputTooLarge { .. }, _) => {
            let advice = "no answer of zfs is that long, unless there are very many datasets or snapshots: see what \
                          else prints on the storage host, such as the profile of a shell";
            (Kind::Internal, Next::Tell, advice)
        }
        _ => (Kind::Internal, Next::Tell, ""),
    };
    let effect = error.effect_of(effect);
    let doing = match error {
        RunError::Unreachable { .. } => "reach the storage host",
        _ => "run commands on the storage host",
    };
    let error = Error::new(kind, doing)
        .because(Complaint(said))
        .with_effect(effect);
    let error = if advice.is_empty() {
        error
    } else {
        error.advise(advice)
    };
    Failed { next, error }
}

fn find(reasons: &'static [Reason], said: &str) -> Option<&'static Reason> {
    reasons.iter().find(|(piece, ..)| said.contains(piece))
}

fn reason(said: &str) -> Option<&'static Reason> {
    if let Some(reason) = find(OF_HOST, said) {
        return Some(reason);
    }
    if !said.contains(UNKNOWN_POOL.0) {
        return find(OF_ZFS, said);
    }
    // A missing object proves nothing in this case.
    let mut others = said.lines().filter(|line| !is_absence(line));
    let known = others.find_map(|line| find(OF_ZFS, line));
    known.or(Some(UNKNOWN_POOL))
}

/// What else is said beside what is missing, and the advice.
fn beside_absence(said: &str) -> (Kind, &'static str) {
    let mut others = OF_ZFS
        .iter()
        .filter(|(_, kind, ..)| *kind != Kind::NotFound);
    let known = others.find(|(piece, ..)| said.contains(piece));
    known.map_or((Kind::Internal, FOREIGN_TEXT), |(_, kind, _, advice)| {
        (*kind, *advice)
    })
}

/// The error of a command of ours. It is named by its purpose: most commands are scripts, whose
/// text would hide the cause.
fn describe(error: &RunError, doing: &str) -> String {
    match error {
        RunError::Failed { status, stderr, .. } => {
            // `zfs` prints its usage, and all properties that it knows, after the cause.
            let in_usage = Cell::new(false);
            let is_noise = |line: &str| {
                in_usage.set(in_usage.get() || line.trim_end() == "usage:");
                in_usage.get() || is_resume_hint(line)
            };
            format!("{doing}: {status}{}", stderr.without(is_noise))
        }
        RunError::Deadline { after, .. } => format!("{doing}: no end within {after:?}"),
        RunError::OutputTooLarge { cap, .. } => {
            format!("{doing}: more than {} of output", size(*cap))
        }
        RunError::QueueTimeout { waited, .. } => format!("{doing}: no turn within {waited:?}"),
        RunError::NotFound { .. } => format!("{doing}: {error}"),
        RunError::Lost { .. } => with_causes(format!("{doing}: its end was not seen"), error),
        // The cause alone: what was not started says nothing about it.
        RunError::Unreachable { source, .. } => with_causes(source.to_string(), &**source),
        RunError::Invalid { .. } | RunError::Spawn { .. } => with_causes(doing.to_owned(), error),
    }
}

/// A number of bytes, as people say it.
fn size(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        mib => format!("{mib} MiB"),
    }
}

/// The text with the causes of an error, in one line.
fn with_causes(mut line: String, error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}

/// Whether a guard has found another object than the observed one, or none.
pub(super) fn is_stale(error: &RunError) -> bool {
    let said = error.stderr();
    said.contains(STALE) || ABSENT.iter().any(|absent| said.contains(absent))
}

/// Whether a channel program was refused because the login may run none, and will be the next time.
pub(super) fn runs_no_programs(error: &RunError) -> bool {
    let said = error.stderr();
    NO_PROGRAMS.iter().any(|piece| said.contains(piece))
}

/// Whether a reading command only reported missing objects.
pub(super) fn is_only_absence(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints = || said.lines().filter(|line| !is_noise(line));
    output.status.code() == Some(0)
        || (complaints().next().is_some() && complaints().all(is_absence))
}

fn is_absence(line: &str) -> bool {
    ABSENT.iter().any(|absent| line.contains(absent))
}

/// Whether a line explains how to resume an interrupted copy: the driver resumes by itself, and a
/// token fills a screen.
fn is_resume_hint(line: &str) -> bool {
    let words = ["A resuming stream can be generated", "zfs send -t "];
    words.iter().any(|word| line.trim().starts_with(word))
}

/// Whether a line is unrelated to the command: `sudo` warns of a host that cannot resolve its own
/// name, and shells of a missing locale.
fn is_noise(line: &str) -> bool {
    let of_sudo = line.starts_with("sudo: ") && find(OF_HOST, line).is_none();
    let of_shell = line.split_once(": ").is_some_and(|(program, rest)| {
        !program.contains(' ') && rest.contains("warning: setlocale: ")
    });
    line.trim().is_empty() || of_sudo || of_shell
}

// === impl Complaint ===

impl Complaint {
    pub(super) fn of(output: &Output) -> Self {
        let said = String::from_utf8_lossy(&output.stderr);
        let words: Vec<&str> = said.split_whitespace().collect();
        let text: String = words.join(" ").chars().take(1024).collect();
        Self(format!("{}: {text}", output.status))
    }

    /// The error for a command that only reads. It is never `NotFound`: where something else stands beside what is
    /// missing, nothing is known of the object.
    pub(super) fn into_error(self, doing: &str) -> Error {
        let (kind, advice) = match reason(&self.0) {
            Some((_, Kind::NotFound, ..)) => beside_absence(&self.0),
            Some((_, kind, _, advice)) => (*kind, *advice),
            None => (Kind::Internal, ""),
        };
        let error = Error::new(kind, doing).because(self);
        if advice.is_empty() {
            error
        } else {
            error.advise(advice)
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Complaint {}
