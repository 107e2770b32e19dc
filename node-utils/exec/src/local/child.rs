//! Waits for one child process until it ends or its deadline passes.
//!
//! Three outcomes: the process ended; it was killed and is gone; it was killed and is still there. Background
//! processes that a child leaves behind are not killed: mount helpers start daemons that must outlive the call.

mod stream;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::time::timeout;

pub(super) use self::stream::{ChildOutput, run_with_input};
use crate::command::Command;
use crate::error::RunError;
use crate::output::{Output, Status};

/// How much is read at a time; the size of a Linux pipe.
const CHUNK: usize = 64 << 10;

/// The bytes of standard error that are kept at least.
const STDERR_KEPT: usize = 64 << 10;

/// The time that a killed process may take to disappear before we call it stuck.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// Waits for the end of `child`, within the bounds of `command`.
pub(super) async fn finish(child: Child, command: &Command) -> Result<Output, RunError> {
    let mut running = Running::new(child);
    let cap = command.output_cap();
    let driven = timeout(
        command.deadline(),
        running.drive(command.input().bytes(), cap),
    )
    .await;
    match driven {
        Ok(Ok(status)) => running
            .into_output(status, cap)
            .map_err(|stop| stop.into_run_error(command)),
        Ok(Err(stop)) => {
            running.kill().await;
            Err(stop.into_run_error(command))
        }
        Err(_) => Err(RunError::Deadline {
            command: command.masked(),
            after: command.deadline(),
            still_running: !running.kill().await,
        }),
    }
}

/// A child, its pipes, and what came through them so far.
struct Running {
    // Dropped before the child: the group can be signalled only while its leader is not reaped.
    group: Group,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Stream<ChildStdout>,
    stderr: Stream<ChildStderr>,
}

/// One pipe from the child.
struct Stream<P> {
    /// `None` once the other end is closed.
    pipe: Option<P>,
    read: Vec<u8>,
}

/// The process group of a child that has not been reaped; killed when dropped.
struct Group(Option<Pid>);

/// Why the outcome of a child is not known.
enum ChildError {
    TooMuch { cap: usize },
    Wait(io::Error),
}

// === impl Running ===

impl Running {
    fn new(mut child: Child) -> Self {
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .filter(|id| *id > 1)
            .map(Pid::from_raw);
        Self {
            group: Group(pid),
            stdin: child.stdin.take(),
            stdout: Stream {
                pipe: child.stdout.take(),
                read: Vec::new(),
            },
            stderr: Stream {
                pipe: child.stderr.take(),
                read: Vec::new(),
            },
            child,
        }
    }

    /// Writes and reads all three pipes of the child until it ends. They are served at the same time, so that
    /// neither side can block the other.
    async fn drive(&mut self, mut input: &[u8], cap: usize) -> Result<ExitStatus, ChildError> {
        loop {
            tokio::select! {
                status = self.child.wait() => return status.map_err(ChildError::Wait),
                () = self.stdout.fill(), if self.stdout.pipe.is_some() => {
                    if self.stdout.read.len() > cap {
                        return Err(ChildError::TooMuch { cap });
                    }
                }
                () = self.stderr.fill(), if self.stderr.pipe.is_some() => {
                    self.stderr.keep_last(cap.max(STDERR_KEPT));
                }
                () = write_input(&mut self.stdin, &mut input), if self.stdin.is_some() => {}
            }
        }
    }

    /// Collects what the ended child left in its pipes.
    fn into_output(mut self, status: ExitStatus, cap: usize) -> Result<Output, ChildError> {
        self.group.disarm();
        self.stdout.read_remaining(cap);
        self.stderr.read_remaining(cap.max(STDERR_KEPT));
        if self.stdout.read.len() > cap {
            return Err(ChildError::TooMuch { cap });
        }
        self.stderr.keep_last(cap.max(STDERR_KEPT));
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => Status::Exit(code),
            (None, Some(signal)) => Status::Signal(signal),
            (None, None) => {
                return Err(ChildError::Wait(io::Error::other(
                    "neither code nor signal",
                )));
            }
        };
        Ok(Output {
            status,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        })
    }

    /// Kills the whole group; whether the child is gone.
    async fn kill(mut self) -> bool {
        self.group.kill();
        if timeout(GONE_WITHIN, self.child.wait()).await.is_ok() {
            self.group.disarm();
            return true;
        }
        // It hangs in the kernel, or may not be signalled by us. Reap it when it ends.
        let Self {
            mut group,
            mut child,
            ..
        } = self;
        tokio::spawn(async move {
            let _ = child.wait().await;
            group.disarm();
        });
        false
    }
}

/// Writes the next part of the input, and closes the pipe after the last.
async fn write_input(stdin: &mut Option<ChildStdin>, input: &mut &[u8]) {
    let Some(pipe) = stdin else { return };
    match pipe.write(input).await {
        Ok(written) if written < input.len() => *input = &input[written..],
        // All written, or the child closed its input: its status decides.
        Ok(_) | Err(_) => *stdin = None,
    }
}

// === impl Stream ===

impl<P: AsyncRead + AsFd + Unpin + Send + 'static> Stream<P> {
    async fn fill(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        self.read.reserve(CHUNK);
        match pipe.read_buf(&mut self.read).await {
            Ok(0) | Err(_) => self.pipe = None,
            Ok(_) => {}
        }
    }

    /// Drops the beginning of what is longer than twice `most`, so that the cost stays linear.
    fn keep_last(&mut self, most: usize) {
        if self.read.len() > 2 * most {
            self.read.drain(..self.read.len() - most);
        }
    }

    /// Reads what is in the pipe now, without waiting for other processes that hold it open.
    ///
    /// Directly from the kernel: the child wrote all it had before it ended, but the runtime may not yet know that
    /// the pipe is readable.
    fn read_remaining(&mut self, most: usize) {
        let Some(pipe) = &self.pipe else { return };
        let mut chunk = vec![0; CHUNK];
        // A background process that never stops writing must not keep us here.
        let mut left = most.saturating_add(CHUNK);
        while left > 0 {
            match rustix::io::read(pipe, &mut chunk) {
                Ok(0) => {
                    self.pipe = None;
                    return;
                }
                Ok(count) => {
                    self.read.extend_from_slice(&chunk[..count]);
                    left = left.saturating_sub(count);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Returns what was read.
    ///
    /// If a background process still holds the pipe, its output is read and dropped until it ends: a FUSE daemon
    /// must not die of SIGPIPE because the command that started it ended.
    fn finish(self) -> Vec<u8> {
        if let Some(mut pipe) = self.pipe {
            tokio::spawn(async move {
                let mut chunk = vec![0; 1024];
                while matches!(pipe.read(&mut chunk).await, Ok(count) if count > 0) {}
            });
        }
        self.read
    }
}

// === impl Group ===

impl Group {
    fn kill(&self) {
        if let Some(pid) = self.0 {
            // It fails if the group is gone or may not be signalled; the wait shows both.
            let _ = killpg(pid, Signal::SIGKILL);
        }
    }

    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

// === impl ChildError ===

impl ChildError {
    fn into_run_error(self, command: &Command) -> RunError {
        let command = command.masked();
        match self {
            Self::TooMuch { cap } => RunError::OutputTooLarge { command, cap },
            Self::Wait(source) => RunError::Lost {
                command,
                source: Box::new(source),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Running;
    use crate::local::process;

    #[tokio::test(start_paused = true)]
    async fn a_child_that_does_not_die_of_the_kill_is_reported_and_not_waited_for() {
        let child = process("/bin/sleep")
            .arg("100")
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let pid = child.id().unwrap();
        let mut running = Running::new(child);
        // As if we were not allowed to signal it, or it hung in the kernel.
        running.group.disarm();
        assert!(!running.kill().await);
        assert!(Path::new(&format!("/proc/{pid}")).exists());
    }
}
