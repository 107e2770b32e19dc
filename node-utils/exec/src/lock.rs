//! Locks on the machine where commands run. Two commands under the same lock never run at the same time.
//!
//! A command may outlive its connection, and other processes change the same machine; neither is visible from
//! here. The lock is therefore a file there. On Linux `flock` locks it for the shell that runs the command. The
//! shell holds the lock while it runs, and so does the command, unless it closes inherited descriptors as sudo does.
//! On FreeBSD `lockf` holds it. The kernel releases the lock after a crash. Only processes of the same user share
//! the locks.
//!
//! Reference: flock(1), lockf(1).

use std::time::Duration;

use async_trait::async_trait;
use csi_types::Effect;

use crate::command::{Argument, Command, Program, Script};
use crate::error::RunError;
use crate::output::{Output, Status};
use crate::runner::{Batch, Runner};
use crate::script::Script as List;
use crate::stream::{self, InputStream, OutputStream};

const SH: Program = Program::constant("sh");

/// The number of lock files that all names share. A file per name would stay forever. Two names that share a file
/// wait for each other, so there are many files: the chance that one of a thousand other names shares a given file
/// is 1 in 65.
const FILES: u64 = 1 << 16;

/// The exit code of both tools when the lock is not free in time.
const NOT_FREE: i32 = 75;

/// `$1` is the file, `$2` the seconds to wait, `$3` the folder, `$4` the file descriptor. `$5` is `list` if the
/// command (the remaining arguments) is `sh -s` and its input may be in the variable `omnibus_list`.
///
/// The default folder is one that no other user can write to. The `flock` of `BusyBox` has no timeout, and older
/// ones have no exit code of their own for it; the deadline of the command ends the wait there. The timeout is
/// also printed, because the exit code may be that of one command among others. `lockf` starts another shell,
/// which gets the routines through its environment.
const HOLD: &str = include_str!("lock/hold.sh");

/// A lock of the machine where commands run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    file: String,
    folder: String,
    /// The file descriptor. The two kinds of locks use different ones, so that both can be held at once.
    held: u8,
    wait: Duration,
}

/// Runs commands, and lists of commands as a whole, while it holds a lock.
#[derive(Debug)]
pub struct Locked<R> {
    inner: R,
    lock: Lock,
}

// === impl Lock ===

impl Lock {
    /// The default time to wait. As long as a command may take by default.
    const WAIT: Duration = Duration::from_secs(30);

    /// The lock of the object of this name, such as a dataset. Different names may share a lock.
    pub fn object(name: &str) -> Self {
        // FNV-1a: short, and the same for ever and everywhere.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            file: format!("object-{:04x}", hash % FILES),
            folder: String::new(),
            held: 7,
            wait: Self::WAIT,
        }
    }

    /// The lock of something that all objects of the machine share: `lio`, `nvmet`.
    ///
    /// A holder of an object lock may take it; never the other way round.
    ///
    /// # Panics
    /// If the name is not of lower-case letters and digits.
    pub fn stack(name: &'static str) -> Self {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        assert!(
            !name.is_empty() && name.bytes().all(plain),
            "{name:?} names no stack"
        );
        Self {
            file: format!("stack-{name}"),
            folder: String::new(),
            held: 8,
            wait: Self::WAIT,
        }
    }

    /// Sets how long to wait for the lock.
    #[must_use]
    pub fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Uses this folder for the lock file instead of the default.
    #[must_use]
    pub fn within_folder(mut self, folder: impl Into<String>) -> Self {
        self.folder = folder.into();
        self
    }

    /// The same command, run while this lock is held. Its deadline grows by the wait. If the lock is not free by
    /// then, the command does not run; the script prints `no turn within` and exits with 75.
    pub fn around(&self, command: &Command) -> Command {
        self.wrap(command, Script::Whole(HOLD), "-")
    }

    /// Like [`Lock::around`], for `sh -s` with a script as its input. The shell that runs a list runs this script
    /// itself while it holds the lock.
    ///
    /// # Panics
    /// If it is another command.
    pub fn around_script(&self, command: &Command) -> Command {
        let option = command.arguments().first().map(Argument::expose);
        assert!(
            *command.program() == SH && option == Some("-s"),
            "{command} is no shell that reads a text"
        );
        self.wrap(command, Script::Around(HOLD), "list")
    }

    fn wrap(&self, command: &Command, script: Script, reads: &str) -> Command {
        let seconds = self.wait.as_secs().max(1).to_string();
        let held = self.held.to_string();
        let words = [&*self.file, &*seconds, &*self.folder, &*held, reads];
        command
            .within_script(script, words)
            .within(command.deadline() + self.wait)
    }
}

// === impl Locked ===

impl<R: Runner> Locked<R> {
    /// Runs what it is given through `inner` while `lock` is held.
    pub fn new(inner: R, lock: Lock) -> Self {
        Self { inner, lock }
    }

    fn timed_out(&self, command: &Command) -> RunError {
        RunError::QueueTimeout {
            command: command.masked(),
            waited: self.lock.wait,
        }
    }
}

#[async_trait]
impl<R: Runner> Runner for Locked<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.inner.run(&self.lock.around(command)).await
    }

    /// The whole list is one script within one hold of the lock.
    async fn run_all(&self, commands: &[Command]) -> Batch {
        let script = match List::of(commands) {
            Ok(script) => script,
            Err(error) => return Batch::not_started(commands, error),
        };
        match self
            .inner
            .run(&self.lock.around_script(&script.command()))
            .await
        {
            Ok(answer) if script.has_started(&answer.stdout) => {
                script.read(&answer.stdout, &answer.stderr, None)
            }
            Ok(answer) => {
                let error = match (answer.status, commands.first()) {
                    (Status::Exit(NOT_FREE), Some(first)) => self.timed_out(first),
                    _ => match answer.check(&self.lock.around(&Command::new(SH))) {
                        Err(error) => error,
                        Ok(_) => return script.read(&[], &[], None),
                    },
                };
                Batch::not_started(commands, error)
            }
            Err(error) if error.effect() == Effect::None => Batch::not_started(commands, error),
            Err(error) => script.read(&[], &[], Some(error)),
        }
    }

    /// No output is streamed under a lock: a slow reader would hold it.
    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        Err(stream::refused(command))
    }

    /// The input is read by the command, never by the process that holds the lock.
    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        let output = self
            .inner
            .run_with_input(&self.lock.around(command), input)
            .await?;
        if output.status == Status::Exit(NOT_FREE) {
            return Err(self.timed_out(command));
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Local;

    fn lock(folder: &tempfile::TempDir) -> Lock {
        Lock::object("tank/a").within_folder(folder.path().to_str().unwrap())
    }

    /// Adds one to a number in a file, in a way that loses numbers unless it is alone.
    fn count(file: &std::path::Path) -> Command {
        let text = "n=$(cat \"$1\"); sleep 0.02; echo $((n + 1)) >\"$1\"";
        Command::new(SH).args(["-c", text, "sh", file.to_str().unwrap()])
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn lists_under_one_lock_never_run_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        std::fs::write(&file, "0").unwrap();
        let locked = Arc::new(Locked::new(Local::new(), lock(&folder)));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (locked, commands) = (Arc::clone(&locked), [count(&file), count(&file)]);
                tokio::spawn(async move { locked.run_all(&commands).await.into_outputs() })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "16");
    }

    #[tokio::test]
    async fn a_list_that_times_out_on_the_lock_was_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let (started, wait) = (folder.path().join("started"), Duration::from_secs(1));
        let mark = format!("touch {}; exec sleep 20", started.display());
        let holder = Command::new(SH).args(["-c", &mark]);
        let holder = lock(&folder).around(&holder);
        let holding = tokio::spawn(async move { Local::new().run(&holder).await });
        while !started.exists() {
            tokio::task::yield_now().await;
        }
        let commands = [Command::new(SH).args(["-c", "echo never"])];
        let locked = Locked::new(Local::new(), lock(&folder).waiting(wait));
        let batch = locked.run_all(&commands).await;
        assert_eq!(batch.effect(), Effect::None);
        let error = batch.into_outputs().unwrap_err();
        assert!(
            matches!(error.source, RunError::QueueTimeout { .. }),
            "{error:?}"
        );
        holding.abort();
    }

    /// A replacement for `flock`.
    fn tool(folder: &tempfile::TempDir, text: &str) -> String {
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let flock = bin.join("flock");
        crate::testing::write_program(&flock, &format!("#!/bin/sh\n{text}\n"));
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tool_that_cannot_stop_waiting_waits() {
        const PATH: crate::Variable = crate::Variable::constant("PATH");
        let folder = tempfile::tempdir().unwrap();
        // As that of BusyBox.
        let path = tool(
            &folder,
            "case $1 in -*) echo usage >&2; exit 1 ;; esac; exec /usr/bin/flock \"$@\"",
        );
        let file = folder.path().join("number");
        std::fs::write(&file, "0").unwrap();
        let all: Vec<_> = (0..8)
            .map(|_| {
                let command = lock(&folder).around(&count(&file).env(PATH, &*path));
                tokio::spawn(async move { Local::new().run_checked(&command).await })
            })
            .collect();
        for one in all {
            assert_eq!(one.await.unwrap().unwrap().stderr, b"");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "8");
    }

    #[tokio::test]
    async fn a_tool_that_cannot_lock_runs_nothing_and_its_error_is_shown() {
        const PATH: crate::Variable = crate::Variable::constant("PATH");
        let folder = tempfile::tempdir().unwrap();
        let path = tool(&folder, "echo 'no locks here' >&2; exit 66");
        let command = Command::new(SH)
            .args(["-c", "echo never"])
            .env(PATH, &*path);
        let output = Local::new().run(&lock(&folder).around(&command)).await;
        let output = output.unwrap();
        assert_eq!(
            (output.status, &*output.stdout),
            (Status::Exit(73), &b""[..])
        );
        assert_eq!(output.stderr, b"no locks here\n");
    }

    #[tokio::test]
    async fn where_another_process_holds_the_lock_a_list_is_sent_to_another_shell() {
        const PATH: crate::Variable = crate::Variable::constant("PATH");
        const SAY: &str = "printf '%s:%s\\n' \"$word\" \"$1\"";
        let folder = tempfile::tempdir().unwrap();
        // As on a host that has lockf alone.
        let hold: &'static str = HOLD
            .replace("command -v flock", "command -v no-flock")
            .leak();
        assert_ne!(hold, HOLD);
        let program =
            "[ \"$1 $2 $3\" = '-k -s -t' ] || exit 64; shift 3; exec /usr/bin/flock -w \"$@\"";
        let path = tool(&folder, program);
        std::fs::rename(
            folder.path().join("bin/flock"),
            folder.path().join("bin/lockf"),
        )
        .unwrap();
        let (object, stack) = (lock(&folder), Lock::stack("lio"));
        let stack = stack.within_folder(folder.path().to_str().unwrap());
        let say = Command::script_with_prelude("word='it'\\''s'\n", SAY).arg("a 'b' $c");
        let around =
            |lock: &Lock, command: &Command| lock.wrap(command, Script::Around(hold), "list");
        let commands = [around(&stack, &say), around(&stack, &say), say.clone()];
        let list = List::of(&commands).unwrap();
        let whole = around(&object, &list.command()).env(PATH, &*path);
        for runner in [
            Box::new(Local::new()) as Box<dyn Runner>,
            Box::new(crate::script::Shell::new(Local::new())),
        ] {
            let answer = runner.run_checked(&whole).await.unwrap();
            let outputs = list.read(&answer.stdout, &answer.stderr, None);
            for output in outputs.into_outputs().unwrap() {
                assert_eq!(output.stdout, b"it's:a 'b' $c\n");
            }
        }
    }

    #[tokio::test]
    async fn without_a_folder_no_command_runs_and_the_error_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let lock = Lock::object("tank/a").within_folder(file.join("x").to_str().unwrap());
        let commands = [Command::new(SH).args(["-c", "echo never"])];
        let batch = Locked::new(Local::new(), lock).run_all(&commands).await;
        let error = batch.into_outputs().unwrap_err();
        let stderr = error.source.stderr();
        assert!(stderr.contains("no folder for locks"), "{error:?}");
    }

    #[test]
    fn few_names_share_a_file() {
        let files: std::collections::BTreeSet<_> = (0..10_000)
            .map(|n| Lock::object(&format!("tank/csi/v/pvc-{n:08x}")).file)
            .collect();
        // A thousand of ten thousand would share one if they were thrown at random.
        assert!(files.len() > 9_000, "{}", files.len());
    }

    #[tokio::test]
    async fn inputs_statuses_and_other_locks_are_untouched_by_a_lock() {
        let folder = tempfile::tempdir().unwrap();
        let other = Lock::stack("lio").within_folder(folder.path().to_str().unwrap());
        let inner = Command::new(Program::constant("cat")).secret_stdin("it's\0here");
        let commands = [
            other.around(&inner),
            Command::new(SH).args(["-c", "exit 3"]),
        ];
        let batch = Locked::new(Local::new(), lock(&folder))
            .run_all(&commands)
            .await;
        let error = batch.into_outputs().unwrap_err();
        assert_eq!((error.step, error.source.exit_code()), (1, Some(3)));
        let output = Local::new()
            .run_checked(&lock(&folder).around(&inner))
            .await
            .unwrap();
        assert_eq!(output.stdout, b"it's\0here");
    }
}
