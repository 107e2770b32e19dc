//! `mount.objectivefs` for volumes: create, list, destroy.
//!
//! Secrets reach it by its environment alone. Its exit codes are those of its manual, and of
//! democratic-csi where that says nothing.

use std::fmt;

use csi_types::Variable;
use csi_types::attachment::ObjectivefsName;
use driver_core::{Call, Effect, Error, Kind};
use exec::{Accept, Command, Output, Program, RunError};
use node_utils::Tools;

use crate::config::Env;

const TOOL: Program = Program::constant("mount.objectivefs");
const SUDO: Program = Program::constant("sudo");

/// The message of `create` with exit code 1 of a filesystem that is there.
const EXISTS: &str = "filesystem already exists";
/// The message of `destroy` with exit code 68 of a filesystem that is not there.
const NO_FILESYSTEM: &str = "does not look like an ObjectiveFS filesystem";

/// The tool, where it runs and how.
#[derive(Debug)]
pub(crate) struct Tool {
    tools: Tools,
    sudo: bool,
}

/// The outcome of a creation or a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    /// It was done now.
    Now,
    /// It was so already, says the tool.
    Already,
}

/// An exit code.
#[derive(Debug, thiserror::Error)]
struct ExitCode(i32);

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self.0 {
            64 => "the keys are not those of an administrator",
            65 => "it cannot be decrypted: the passphrase is wrong",
            68 => "there is no such filesystem",
            78 => "the passphrase is missing or invalid",
            _ => "its manual does not say what that means",
        };
        write!(f, "exit code {}: {meaning}", self.0)
    }
}

// === impl Tool ===

impl Tool {
    pub(crate) fn new(tools: Tools, sudo: bool) -> Self {
        Self { tools, sudo }
    }

    /// Makes a filesystem.
    pub(crate) async fn create(
        &self,
        call: &Call,
        env: &Env,
        name: &ObjectivefsName,
    ) -> Result<Done, Error> {
        let doing = format!("create filesystem `{name}`");
        let command = self.command(call, env, &["create", "-f", name.bare()]);
        call.check(&doing)?;
        call.changing();
        let output = self.run(&command, &doing, Effect::Possible).await?;
        match output.status.code() {
            Some(0) => Ok(Done::Now),
            Some(1) if says(&output, EXISTS) => Ok(Done::Already),
            _ => Err(failed(output, &command, doing, Effect::Possible)),
        }
    }

    /// Destroys a filesystem with all that is in it.
    pub(crate) async fn destroy(
        &self,
        call: &Call,
        env: &Env,
        name: &ObjectivefsName,
    ) -> Result<Done, Error> {
        let doing = format!("destroy filesystem `{name}`");
        let command = self.command(call, env, &["destroy", name.bare()]);
        // It asks whether it should.
        let command = command.stdin("y\n");
        call.check(&doing)?;
        call.changing();
        let output = self.run(&command, &doing, Effect::Possible).await?;
        match output.status.code() {
            Some(0) => Ok(Done::Now),
            Some(68) if says(&output, NO_FILESYSTEM) => Ok(Done::Already),
            _ => Err(failed(output, &command, doing, Effect::Possible)),
        }
    }

    /// The names of all filesystems that the keys show, in whichever pool.
    pub(crate) async fn list(&self, call: &Call, env: &Env) -> Result<Vec<String>, Error> {
        let doing = "list filesystems";
        let command = self.command(call, env, &["list"]);
        call.check(doing)?;
        let output = self.run(&command, doing, Effect::None).await?;
        if output.status.code() != Some(0) {
            return Err(failed(output, &command, doing.to_owned(), Effect::None));
        }
        filesystems(&output.text()).ok_or_else(|| {
            Error::new(Kind::Internal, doing)
                .because("`mount.objectivefs list` printed no table with NAME and KIND")
                .advise("is this version of it newer than this driver?")
        })
    }

    /// Whether it is installed.
    pub(crate) async fn is_there(&self, call: &Call) -> Result<(), Error> {
        let doing = "find `mount.objectivefs`";
        let within = call.remaining().min(self.tools.timeouts().mount);
        let command = Command::new(TOOL)
            .arg("help")
            .accepting(Accept::AnyExit)
            .within(within);
        self.run(&command, doing, Effect::None).await.map(drop)
    }

    fn command(&self, call: &Call, env: &Env, arguments: &[&str]) -> Command {
        let mut command = if self.sudo {
            // The names alone are arguments: the values come from the environment.
            let names: Vec<_> = env.keys().map(Variable::as_str).collect();
            Command::new(SUDO)
                .arg("-n")
                .arg(format!("--preserve-env={}", names.join(",")))
                .args(["--", TOOL.as_str()])
        } else {
            Command::new(TOOL)
        };
        command = command.args(arguments.iter().copied());
        for (name, value) in env {
            command = command.secret_env(name.clone(), value.clone());
        }
        command
            .accepting(Accept::AnyExit)
            .within(call.remaining().min(self.tools.timeouts().mount))
            .with_call_start(call.began())
    }

    /// Runs it; any exit code is an answer. `effect` is what may have been done if its end was not seen.
    async fn run(&self, command: &Command, doing: &str, effect: Effect) -> Result<Output, Error> {
        let ran = self.tools.here().run_checked(command).await;
        ran.map_err(|error| unseen(error, doing.to_owned(), effect))
    }
}

fn says(output: &Output, words: &str) -> bool {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(words);
    text(&output.stderr) || text(&output.stdout)
}

/// It did not run, or its end was not seen.
fn unseen(error: RunError, doing: String, effect: Effect) -> Error {
    let (kind, advice) = match &error {
        RunError::NotFound { .. } => (
            Kind::Internal,
            "install the package `objectivefs` where this process runs",
        ),
        RunError::Deadline { .. } | RunError::QueueTimeout { .. } => (
            Kind::Timeout,
            "does the object store answer? See `MOUNT_DEFAULT_TIMEOUT`",
        ),
        _ => (Kind::Internal, "see the log of this process"),
    };
    error.of_work(kind, doing, effect).advise(advice)
}

/// It ended, and not well.
fn failed(output: Output, command: &Command, doing: String, effect: Effect) -> Error {
    let code = output.status.code();
    let (kind, advice) = match code {
        Some(64) => (
            Kind::Denied,
            "`OBJECTIVEFS_LICENSE` has to be the license followed by the admin key",
        ),
        Some(65 | 78) => (
            Kind::Denied,
            "set `OBJECTIVEFS_PASSPHRASE` to that of the pool",
        ),
        Some(68) => (Kind::NotFound, "see `mount.objectivefs list`"),
        _ => (
            Kind::Internal,
            "run `mount.objectivefs list` by hand with the same environment",
        ),
    };
    let error = Error::new(kind, doing).with_effect(effect).advise(advice);
    // The tool may print what it was given.
    let strict = command.clone().accepting(Accept::Success);
    match (output.check(&strict), code) {
        (Err(failed), _) if !failed.stderr().is_empty() => error.because(failed),
        (_, Some(code)) => error.because(ExitCode(code)),
        (Err(failed), None) => error.because(failed),
        (Ok(_), None) => error,
    }
}

/// The filesystems in the table of `list`: columns with tabs between them, of which the first line says
/// what they are. `None`: it is no such table. Without any output there is none.
fn filesystems(text: &str) -> Option<Vec<String>> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let Some(heads) = lines.next() else {
        return Some(Vec::new());
    };
    let heads: Vec<&str> = heads.split('\t').map(str::trim).collect();
    let column = |name: &str| heads.iter().position(|head| *head == name);
    let (name, kind) = (column("NAME")?, column("KIND")?);
    let mut found = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split('\t').map(str::trim).collect();
        let (Some(name), Some(kind)) = (cells.get(name), cells.get(kind)) else {
            return None;
        };
        if *kind == "ofs" {
            found.push((*name).to_owned());
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filesystems_are_what_the_table_says_and_nothing_else_is_a_table() {
        let table =
            "NAME\tKIND\tREGION\ns3://csi/\tpool\tus\ns3://csi/a \tofs\tus\nx://b\t-\tus\n\n";
        assert_eq!(filesystems(table), Some(vec!["s3://csi/a".to_owned()]));
        let other_order = "KIND\tNAME\nofs\tcsi/b\n";
        assert_eq!(filesystems(other_order), Some(vec!["csi/b".to_owned()]));
        assert_eq!(filesystems("\n"), Some(vec![]));
        for no_table in ["Welcome\n", "NAME\tREGION\n", "NAME\tKIND\ncsi/a\n"] {
            assert_eq!(filesystems(no_table), None, "{no_table:?}");
        }
    }
}
