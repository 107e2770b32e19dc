//! The data of the kernel about a process: memory, threads, arguments, children.

use std::fs;

/// A process by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(pub u32);

// === impl Process ===

impl Process {
    /// Resident memory in KiB.
    pub fn rss_kib(self) -> u64 {
        self.status("VmRSS:")
    }

    /// The part of it that belongs to the process alone and to no file, in KiB.
    pub fn anonymous_kib(self) -> u64 {
        self.status("RssAnon:")
    }

    /// The highest resident memory so far in KiB.
    pub fn peak_rss_kib(self) -> u64 {
        self.status("VmHWM:")
    }

    /// The number of its threads.
    pub fn threads(self) -> u64 {
        self.status("Threads:")
    }

    /// The number of its open files.
    pub fn open_files(self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0)).map_or(0, Iterator::count)
    }

    /// Its arguments, separated by NUL, and its environment after them.
    pub fn arguments_and_environment(self) -> Vec<u8> {
        let read = |what| fs::read(format!("/proc/{}/{what}", self.0)).unwrap_or_default();
        let mut bytes = read("cmdline");
        bytes.extend(read("environ"));
        bytes
    }

    /// Its living children.
    pub fn children(self) -> Vec<Self> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0));
        let mut children = Vec::new();
        for task in tasks.into_iter().flatten().flatten() {
            let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            children.extend(
                list.split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        children.into_iter().map(Self).collect()
    }

    /// Whether it still exists and is no zombie.
    pub fn is_alive(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().next())
            .is_some_and(|state| state != "Z" && state != "X")
    }

    fn status(self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .and_then(|value| value.split_whitespace().next())
            .and_then(|number| number.parse().ok())
            .unwrap_or_default()
    }
}
