//! Stopping a program at its n-th system call: which ones it makes, and killing it at one of them.
//!
//! strace counts per thread and per call, so that a stop point is a call's name and a number. It
//! is attached after the start, so that the start itself is not counted.
#![expect(
    clippy::disallowed_methods,
    reason = "starts a tracer beside the program under test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::process::Process;
use crate::wait;

/// The n-th call of this name in some thread, counted from one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StopPoint {
    /// The name of the system call.
    pub call: String,
    /// Its number.
    pub number: usize,
}

/// A tracer that is attached to a process.
#[derive(Debug)]
pub struct Tracer {
    child: Child,
    output: PathBuf,
}

// === impl Tracer ===

impl Tracer {
    /// Writes down which of `calls` a process makes.
    pub async fn watch(strace: &Path, process: Process, calls: &[&str], output: &Path) -> Self {
        Self::attach(
            strace,
            process,
            &[format!("trace={}", optional(calls))],
            output,
        )
        .await
    }

    /// Kills a process right before a call.
    pub async fn kill_at(
        strace: &Path,
        process: Process,
        point: &StopPoint,
        output: &Path,
    ) -> Self {
        let StopPoint { call, number } = point;
        let expressions = [
            format!("trace={call}"),
            format!("inject={call}:signal=KILL:when={number}"),
        ];
        Self::attach(strace, process, &expressions, output).await
    }

    async fn attach(
        strace: &Path,
        process: Process,
        expressions: &[String],
        output: &Path,
    ) -> Self {
        let mut command = Command::new(strace);
        command
            .arg("-f")
            .arg("-o")
            .arg(output)
            .arg("-p")
            .arg(process.0.to_string());
        for expression in expressions {
            command.arg("-e").arg(expression);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("strace can be started");
        wait::until("strace to attach", || {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                panic!("strace could not attach: {status}");
            }
            all_traced(process).then_some(())
        })
        .await;
        Self {
            child,
            output: output.to_owned(),
        }
    }

    /// Lets the process go, and gives the stop points that it passed.
    pub async fn detach(mut self) -> BTreeSet<StopPoint> {
        let pid = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::INT);
        }
        let _ = self.child.wait().await;
        stop_points(&fs::read_to_string(&self.output).unwrap_or_default())
    }
}

/// Names that not every architecture has are no error.
fn optional(calls: &[&str]) -> String {
    calls
        .iter()
        .map(|call| format!("?{call}"))
        .collect::<Vec<_>>()
        .join(",")
}

fn all_traced(process: Process) -> bool {
    let mut tasks = fs::read_dir(format!("/proc/{}/task", process.0))
        .into_iter()
        .flatten()
        .flatten();
    tasks.all(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| {
            line.strip_prefix("TracerPid:")
                .is_some_and(|pid| pid.trim() != "0")
        })
    })
}

/// Reads `12345 mkdirat(3, "a", 0777) = 0`; a call that was resumed is counted once.
fn stop_points(trace: &str) -> BTreeSet<StopPoint> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut points = BTreeSet::new();
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some((call, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        if call.is_empty() || !call.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            continue;
        }
        let number = counts.entry((thread, call)).or_default();
        *number += 1;
        points.insert(StopPoint {
            call: call.to_owned(),
            number: *number,
        });
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_thread_and_name() {
        let trace = "7  mkdirat(3, \"a\", 0777) = 0\n8  mkdirat(3, \"b\", 0777 <unfinished ...>\n\
                     7  mkdirat(3, \"c\", 0777) = 0\n8  <... mkdirat resumed>) = 0\n\
                     7  +++ exited with 0 +++\n";
        let points: Vec<_> = stop_points(trace)
            .into_iter()
            .map(|point| point.number)
            .collect();
        assert_eq!(points, [1, 2]);
    }
}
