//! Programs of the system that run beside a cell: a database, a load. What such a program says is in the file `log` of
//! its folder, which is kept when the cell fails; it never holds the output of the cell open.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests act as pods with the system's own programs"
)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::until_within;

/// The name of the file with its output.
const LOG: &str = "log";

/// A running program.
#[derive(Debug)]
pub struct Beside {
    child: Child,
    folder: TempDir,
}

// === impl Beside ===

impl Beside {
    /// Starts a program, whose folder this is.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(folder: TempDir, words: &[&str]) -> Self {
        let log = File::create(folder.path().join(LOG)).expect("a file of the cell");
        let errors = log.try_clone().expect("a file of the cell");
        let child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{}: {error}", words.join(" ")));
        Self { child, folder }
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// All that it has said so far.
    ///
    /// # Panics
    /// If that cannot be read.
    pub fn log(&self) -> String {
        let log = fs::read(self.folder().join(LOG)).expect("a file of the cell");
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The way it ended, if it has.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of the cell")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end within the limit.
    pub async fn ended(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of process {}", self.child.id());
        until_within(limit, &what, || self.status()).await
    }

    /// Sends it a signal and waits for its end.
    ///
    /// # Panics
    /// If it does not end within the limit.
    pub async fn end(mut self, signal: Signal, limit: Duration) -> ExitStatus {
        if self.status().is_none() {
            // It may end by itself just now.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
        self.ended(limit).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::{PATIENCE, until};

    fn shell(script: &str) -> Beside {
        let folder = TempDir::new().expect("a folder");
        Beside::start(folder, &["sh", "-c", script])
    }

    #[tokio::test]
    async fn what_it_says_is_in_its_log_and_its_end_is_seen() {
        let mut program = shell("echo out; echo err >&2; exit 3");
        let status = program.ended(PATIENCE).await;
        assert_eq!(status.code(), Some(3));
        assert_eq!(program.status(), Some(status));
        assert_eq!(program.log(), "out\nerr\n");
    }

    #[tokio::test]
    async fn it_ends_by_the_signal_that_it_gets() {
        let script = "trap 'exit 7' INT; echo ready; while :; do sleep 0.01; done";
        let mut program = shell(script);
        until("the trap", || (program.log() == "ready\n").then_some(())).await;
        assert_eq!(program.status(), None);
        let status = program.end(Signal::INT, PATIENCE).await;
        assert_eq!(status.code(), Some(7));
    }
}
