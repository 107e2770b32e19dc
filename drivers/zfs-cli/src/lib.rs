//! The backend of hosts with a command line: `zfs`, here or on another machine.
//!
//! A request is one list of commands, and so is a plan with the request after it: one exchange
//! each. A plan makes its changes under a lock of that host, because the leftover command of a cut
//! connection may be working on the same volume. Only `failure` parses the messages of `zfs`.

#![forbid(unsafe_code)]

mod failure;
mod first_try;
mod freed;
mod list;
mod progress;
mod query;
mod rows;
#[cfg(test)]
mod shells;
pub mod ssh;
mod steps;
mod tools;
mod transfer;

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use driver_core::config::Finding;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{BackendIdentity, Call, Effect, Error};
use driver_ssh::HostKeys;
use exec::{Command, Lock, Locked, Output, RunError, Runner};

// Types for the commands of exports.
pub use exec;
pub use tools::ZfsTools;

use driver_zfs::backend::{Backend, Base, Incoming, Interrupted, ListQuery, Listed, Serves, Tried};
use driver_zfs::name::{Since, SnapshotRef};
use driver_zfs::observed::{Observed, Request, VolumeKind};
use driver_zfs::step::{Failed, FirstTry, Next, Plan};

/// The time limit of a command of `zfs`, except copies. democratic-csi waits ten minutes; a pool
/// that does not answer must not hold a call that long.
const COMMAND: Duration = Duration::from_mins(2);

/// The beginning of a line with which a script of an export names what it has left out of a change that succeeded.
const LEFT_OUT: &str = "left out: ";

/// A host with `zfs`, reached by the runner `R`.
#[derive(Debug)]
pub struct Cli<R> {
    runner: R,
    tools: ZfsTools,
    identity: BackendIdentity,
    host_keys: Option<HostKeys>,
    locks: Option<String>,
    telling: Duration,
    /// Whether the host has refused the login a channel program: only root may run one.
    has_no_programs: AtomicBool,
}

// === impl Cli ===

impl<R: Runner> Cli<R> {
    /// The host that `runner` runs commands on. `identity` is its stable name, the same for every
    /// caller.
    pub fn new(runner: R, tools: ZfsTools, identity: BackendIdentity) -> Self {
        Self {
            runner,
            tools,
            identity,
            host_keys: None,
            locks: None,
            telling: progress::EVERY,
            has_no_programs: AtomicBool::new(false),
        }
    }

    /// Names the keys by which the host is known, for a check to say which one is believed.
    #[must_use]
    pub fn known_by(mut self, keys: HostKeys) -> Self {
        self.host_keys = Some(keys);
        self
    }

    /// Sets the folder of the lock files of volumes, instead of that of the login.
    #[must_use]
    pub fn locking_in(mut self, folder: impl Into<String>) -> Self {
        self.locks = Some(folder.into());
        self
    }

    /// Sets how often the progress of a copy is logged.
    #[must_use]
    pub fn telling_every(mut self, pause: Duration) -> Self {
        self.telling = pause;
        self
    }

    /// The runner of that host.
    pub fn runner(&self) -> &R {
        &self.runner
    }

    /// The programs of that host.
    pub fn tools(&self) -> &ZfsTools {
        &self.tools
    }
}

/// The purpose of a command of a request; `None` if it is one of the export.
fn looking(request: &Request, command: usize) -> Option<String> {
    query::groups(request).get(command).map(ToString::to_string)
}

/// The lines of a command that was done and had to leave something out.
fn left_out(output: &Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().filter(|line| line.starts_with(LEFT_OUT));
    lines.map(str::to_owned).collect()
}

fn understood(error: &RunError, doing: Option<&str>, effect: Effect) -> Failed {
    match doing {
        Some(doing) => failure::of(error, doing, effect),
        None => failure::of_export(error, effect),
    }
}

/// Limits each command, and all of them together, by the deadline of the call: on a pool that hangs
/// each one may take its whole time. If that is too long in total, each one gets less, the first no
/// more than the last.
fn bounded(call: &Call, commands: Vec<Command>) -> Vec<Command> {
    /// With less than this no command can succeed.
    const SHORTEST: Duration = Duration::from_secs(1);
    let longest = call.remaining().max(SHORTEST);
    let own = |command: &Command| command.deadline().min(longest);
    let (all, most): (Duration, _) = (commands.iter().map(own).sum(), longest + COMMAND);
    let part = (most.as_secs_f64() / all.as_secs_f64().max(1.0)).min(1.0);
    let bound = |command: Command| {
        let deadline = own(&command).mul_f64(part).max(SHORTEST);
        command.within(deadline).with_call_start(call.began())
    };
    commands.into_iter().map(bound).collect()
}

impl<R: Runner + 'static> Serves for Cli<R> {
    type Command = Command;
    type Output = Output;
}

#[async_trait]
impl<R: Runner + 'static> Backend for Cli<R> {
    fn identity(&self) -> BackendIdentity {
        self.identity.clone()
    }

    async fn describe(&self, call: &Call, kind: VolumeKind) -> Vec<Finding> {
        let believed = self.host_keys.as_ref().and_then(HostKeys::believed);
        let doubt = believed.map(|key| {
            Finding::doubtful(
                "sshConnection.hostKey",
                format!("no key of the host is given: it shows {key}, and any other would be believed as well"),
                format!("if that is its key, add `hostKey: {key}` to sshConnection"),
            )
        });
        let lack = match kind {
            VolumeKind::Zvol => self.lacks_zdb(call).await,
            VolumeKind::Filesystem => None,
        };
        doubt.into_iter().chain(lack).collect()
    }

    async fn observe(&self, call: &Call, request: &Request) -> Result<Observed, Error> {
        let commands = bounded(call, query::commands(&self.tools, request)?);
        let batch = self.runner.run_all(&commands).await;
        let outputs = batch.into_outputs().map_err(|error| {
            let doing = looking(request, error.step);
            understood(&error.source, doing.as_deref(), Effect::None).error
        })?;
        query::observed(request, outputs)
    }

    async fn apply(&self, call: &Call, plan: &Plan, then: &Request) -> Result<Observed, Failed> {
        let planned = steps::commands(&self.tools, plan).map_err(Failed::terminal)?;
        let guards = planned.iter().filter(|planned| planned.is_guard).count();
        let changing = planned.len();
        let (mut commands, doing): (Vec<_>, Vec<_>) = planned
            .into_iter()
            .map(|planned| (planned.command, planned.doing))
            .unzip();
        commands.extend(query::commands(&self.tools, then).map_err(Failed::terminal)?);
        let commands = bounded(call, commands);
        call.changing();
        let mut lock = Lock::object(plan.lock.as_str());
        if let Some(folder) = &self.locks {
            lock = lock.within_folder(folder);
        }
        let locked = Locked::new(&self.runner, lock);
        let work = locked.run_all(&commands);
        let batch = progress::logged(work, &self.runner, &self.tools, plan, self.telling).await;
        let applied = match batch.into_outputs() {
            Ok(mut outputs) => {
                let looked = outputs.split_off(changing);
                for line in outputs.iter().flat_map(left_out) {
                    tracing::warn!("on the storage host: {line}");
                }
                let seen = query::observed(then, looked);
                seen.map_err(|error| (true, Failed::terminal(error)))
            }
            Err(error) => {
                let doing = match doing.get(error.step) {
                    Some(doing) => doing.clone(),
                    None => looking(then, error.step - changing),
                };
                let mut failed = understood(&error.source, doing.as_deref(), Effect::Possible);
                if error.step < guards && failure::is_stale(&error.source) {
                    failed.next = Next::Observe;
                }
                Err((error.step > guards, failed))
            }
        };
        // A command that could not be started has changed nothing; those before it have.
        applied.map_err(|(is_begun, failed)| failed.after_change(is_begun))
    }

    async fn try_first(
        &self,
        call: &Call,
        request: &Request,
        first: &FirstTry,
    ) -> Result<Tried, Failed> {
        self.tried(call, request, first).await
    }

    fn asks_one_by_one(&self) -> bool {
        false
    }

    fn reserves_by_size(&self) -> bool {
        false
    }

    fn refuses_groups(&self) -> Option<&'static str> {
        None
    }

    fn streams(&self) -> bool {
        true
    }

    async fn send(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Base>,
        resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        self.sent(call, of, since, resume).await
    }

    fn lists_blocks(&self) -> bool {
        true
    }

    async fn send_records(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Since>,
    ) -> Result<Box<dyn Bytes>, Error> {
        self.sent_records(call, of, since).await
    }

    async fn freed_since(
        &self,
        call: &Call,
        of: &SnapshotRef,
        txg: u64,
        block: u64,
    ) -> Result<Vec<Range<u64>>, Error> {
        self.freed(call, of, txg, block).await
    }

    async fn receive(
        &self,
        call: &Call,
        incoming: &Incoming,
        stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        self.received(call, incoming, stream).await
    }

    async fn list(&self, call: &Call, query: &ListQuery) -> Result<Listed, Error> {
        let commands = bounded(call, vec![list::command(&self.tools, query)]);
        let output = self
            .runner
            .run_checked(&commands[0])
            .await
            .map_err(|error| failure::of(&error, "list datasets", Effect::None).error)?;
        if !failure::is_only_absence(&output) {
            return Err(failure::Complaint::of(&output).into_error("list datasets"));
        }
        list::listed(query, &output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_command_prints_only_what_it_has_left_out_is_reported() {
        let output = |stderr: &[u8]| Output {
            status: exec::Status::Exit(0),
            stdout: b"left out: of an answer\n".to_vec(),
            stderr: stderr.to_vec(),
        };
        let said = b"a warning\nleft out: nqn.a of port 1: busy\nleft out: nqn.b of port 1: \xff\n";
        let lines = [
            "left out: nqn.a of port 1: busy",
            "left out: nqn.b of port 1: \u{fffd}",
        ];
        assert_eq!(left_out(&output(said)), lines);
        assert_eq!(left_out(&output(b"")), [""; 0]);
    }

    #[test]
    fn a_plan_of_many_steps_does_not_outlast_its_call_by_much() {
        let call = Call::within(Duration::from_mins(10));
        let step = || Command::new(exec::Program::constant("zfs")).within(COMMAND);
        let commands = bounded(&call, (0..40).map(|_| step()).collect());
        let sum: Duration = commands.iter().map(Command::deadline).sum();
        assert!(sum <= Duration::from_mins(13), "{sum:?}");
        // All need the same, so all get the same.
        let share = sum / 40;
        assert!(share > Duration::from_secs(10), "{share:?}");
        let near = |command: &Command| command.deadline().abs_diff(share) < Duration::from_secs(1);
        assert!(commands.iter().all(near), "{sum:?}");
        assert_eq!(bounded(&call, vec![step()])[0].deadline(), COMMAND);
    }
}
