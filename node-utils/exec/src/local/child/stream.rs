//! A child process whose output is read, or whose input is written, while it runs.

use async_trait::async_trait;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::time::{Instant, timeout_at};

use super::{ChildError, Running, STDERR_KEPT};
use crate::command::Command;
use crate::error::RunError;
use crate::output::Output;
use crate::stream::{CHUNK, InputStream, OutputStream};

/// A child that prints a stream.
pub(in crate::local) struct ChildOutput {
    command: Command,
    deadline: Instant,
    /// `None` once it ended.
    running: Option<Running>,
}

/// The next event of a child whose output is read.
enum ChildEvent {
    Piece(Vec<u8>),
    Ended(std::process::ExitStatus),
}

// === impl ChildOutput ===

impl ChildOutput {
    pub(in crate::local) fn new(child: Child, command: &Command) -> Self {
        Self {
            command: command.clone(),
            deadline: Instant::now() + command.deadline(),
            running: Some(Running::new(child)),
        }
    }
}

impl std::fmt::Debug for ChildOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChildOutput")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl OutputStream for ChildOutput {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, RunError> {
        let Some(mut running) = self.running.take() else {
            return Ok(None);
        };
        let Ok(event) = timeout_at(self.deadline, running.next_event()).await else {
            return Err(deadline_exceeded(running, &self.command).await);
        };
        match event {
            Ok(ChildEvent::Piece(piece)) => {
                self.running = Some(running);
                Ok(Some(piece))
            }
            Ok(ChildEvent::Ended(status)) => {
                // The stream is at its end; only standard error is left.
                let output = running.into_output(status, STDERR_KEPT);
                let output = output.map_err(|stop| stop.into_run_error(&self.command))?;
                output.check(&self.command).map(|_| None)
            }
            Err(stop) => {
                running.kill().await;
                Err(stop.into_run_error(&self.command))
            }
        }
    }
}

async fn deadline_exceeded(running: Running, command: &Command) -> RunError {
    RunError::Deadline {
        command: command.masked(),
        after: command.deadline(),
        still_running: !running.kill().await,
    }
}

/// Writes the input of a child and waits for its end.
pub(in crate::local) async fn run_with_input(
    child: Child,
    command: &Command,
    input: &mut dyn InputStream,
) -> Result<Output, RunError> {
    let deadline = Instant::now() + command.deadline();
    let mut running = Running::new(child);
    let cap = command.output_cap();
    let stdin = running.stdin.take();
    let pump = async move {
        let Some(mut pipe) = stdin else { return };
        // A child may close its input early; its status decides. A child whose input was aborted must notice that
        // itself.
        while let Ok(Some(piece)) = input.next().await {
            if pipe.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    let driven = {
        let mut drive = std::pin::pin!(running.drive(&[], cap));
        let both = async {
            tokio::select! {
                biased;
                status = &mut drive => status,
                () = pump => drive.await,
            }
        };
        timeout_at(deadline, both).await
    };
    match driven {
        Ok(Ok(status)) => running
            .into_output(status, cap)
            .map_err(|stop| stop.into_run_error(command)),
        Ok(Err(stop)) => {
            running.kill().await;
            Err(stop.into_run_error(command))
        }
        Err(_) => Err(deadline_exceeded(running, command).await),
    }
}

// === impl Running ===

impl Running {
    /// The next chunk of its output, or its status after it closed its output and ended.
    async fn next_event(&mut self) -> Result<ChildEvent, ChildError> {
        let mut piece = Vec::with_capacity(CHUNK);
        loop {
            let Some(pipe) = &mut self.stdout.pipe else {
                return self.ended().await.map(ChildEvent::Ended);
            };
            tokio::select! {
                read = pipe.read_buf(&mut piece) => match read {
                    Ok(0) => self.stdout.pipe = None,
                    Ok(_) => return Ok(ChildEvent::Piece(piece)),
                    Err(error) => return Err(ChildError::Wait(error)),
                },
                () = self.stderr.fill(), if self.stderr.pipe.is_some() => {
                    self.stderr.keep_last(STDERR_KEPT);
                }
            }
        }
    }

    async fn ended(&mut self) -> Result<std::process::ExitStatus, ChildError> {
        loop {
            tokio::select! {
                status = self.child.wait() => return status.map_err(ChildError::Wait),
                () = self.stderr.fill(), if self.stderr.pipe.is_some() => {
                    self.stderr.keep_last(STDERR_KEPT);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::stream::{InputAborted, InputStream, OutputStream};
    use crate::{Command, Local, Program, RunError, Runner};
    use async_trait::async_trait;
    use std::time::Duration;

    const SH: Program = Program::constant("sh");

    fn sh(text: &str) -> Command {
        Command::new(SH).args(["-c", text])
    }

    /// This many chunks, then the end or an abort.
    struct Pieces(usize, bool);

    #[async_trait]
    impl InputStream for Pieces {
        async fn next(&mut self) -> Result<Option<Vec<u8>>, InputAborted> {
            match self.0.checked_sub(1) {
                Some(left) => self.0 = left,
                None if self.1 => return Err(InputAborted),
                None => return Ok(None),
            }
            Ok(Some(vec![b'x'; 100_000]))
        }
    }

    async fn all(flow: &mut dyn OutputStream) -> Result<usize, RunError> {
        let mut bytes = 0;
        while let Some(piece) = flow.next().await? {
            assert!(!piece.is_empty());
            bytes += piece.len();
        }
        Ok(bytes)
    }

    #[tokio::test]
    async fn a_stream_that_was_seen_to_its_end_is_whole() {
        let command = sh("echo noise >&2; head -c 10000000 /dev/zero");
        let mut flow = Local::new().stream_output(&command).await.unwrap();
        assert_eq!(all(&mut *flow).await.unwrap(), 10_000_000);
        assert_eq!(flow.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn one_whose_command_fails_in_the_end_is_an_error_however_much_came() {
        let command = sh("head -c 1000000 /dev/zero; echo broken >&2; exit 3");
        let mut flow = Local::new().stream_output(&command).await.unwrap();
        let error = all(&mut *flow).await.unwrap_err();
        assert_eq!(error.exit_code(), Some(3));
        assert_eq!(error.stderr(), "broken");
    }

    #[tokio::test]
    async fn one_that_takes_too_long_is_killed() {
        let command = sh("echo a; exec sleep 100").within(Duration::from_millis(300));
        let mut flow = Local::new().stream_output(&command).await.unwrap();
        assert_eq!(flow.next().await.unwrap(), Some(b"a\n".to_vec()));
        let error = flow.next().await.unwrap_err();
        assert!(matches!(error, RunError::Deadline { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn a_command_is_given_all_of_its_feed() {
        let (command, all) = (sh("wc -c"), &mut Pieces(50, false));
        let output = Local::new().run_with_input(&command, all).await.unwrap();
        assert_eq!(output.text().trim(), "5000000");
    }

    #[tokio::test]
    async fn a_cut_feed_ends_the_input_and_the_command_says_how_it_ended() {
        let (command, some) = (sh("wc -c; exit 4"), &mut Pieces(2, true));
        let output = Local::new().run_with_input(&command, some).await.unwrap();
        assert_eq!(output.status, crate::Status::Exit(4));
        assert_eq!(output.text().trim(), "200000");
    }

    #[tokio::test]
    async fn a_command_that_wants_no_more_ends_the_feed() {
        let endless = &mut Pieces(usize::MAX, false);
        let output = Local::new()
            .run_with_input(&sh("head -c 5; exit 7"), endless)
            .await;
        assert_eq!(output.unwrap().status, crate::Status::Exit(7));
    }

    #[tokio::test]
    async fn a_command_that_does_not_read_is_killed_in_time() {
        let command = sh("exec sleep 100").within(Duration::from_millis(300));
        let endless = &mut Pieces(usize::MAX, false);
        let error = Local::new()
            .run_with_input(&command, endless)
            .await
            .unwrap_err();
        assert!(matches!(error, RunError::Deadline { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn a_command_with_an_input_of_its_own_is_refused() {
        let command = sh("cat").stdin("x");
        assert!(Local::new().stream_output(&command).await.is_err());
        assert!(
            Local::new()
                .run_with_input(&command, &mut Pieces(1, false))
                .await
                .is_err()
        );
    }
}
