//! The process itself: memory, processor time, descriptors, age. Read from /proc when the page is read.

use std::fmt;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::Resource;

/// Reports on the process that runs it.
#[derive(Debug)]
pub(super) struct Process {
    started: f64,
}

// === impl Process ===

impl Process {
    /// A process that started now.
    pub(super) fn new() -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: now.as_secs_f64(),
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = [
            (
                "process_resident_memory_bytes",
                "Memory in use",
                memory("VmRSS:"),
            ),
            (
                "process_virtual_memory_bytes",
                "Address space in use",
                memory("VmSize:"),
            ),
            (
                "process_open_fds",
                "Open file descriptors",
                open_descriptors(),
            ),
            (
                "process_max_fds",
                "Limit of open file descriptors",
                rustix::process::getrlimit(Resource::Nofile).current,
            ),
        ];
        for (name, help, figure) in figures {
            // Without /proc the line is left out: no figure is better than a wrong one.
            if let Some(figure) = figure {
                let gauge = ConstGauge::new(figure);
                let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
                gauge.encode(metric)?;
            }
        }
        if let Some(seconds) = processor_time() {
            let counter = ConstCounter::new(seconds);
            let metric = encoder.encode_descriptor(
                "process_cpu_seconds",
                "Processor time used, by the program and for it",
                None,
                counter.metric_type(),
            )?;
            counter.encode(metric)?;
        }
        let gauge = ConstGauge::new(self.started);
        let metric = encoder.encode_descriptor(
            "process_start_time_seconds",
            "When the process started, since 1970",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
}

fn memory(which: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let amount = status.lines().find_map(|line| line.strip_prefix(which))?;
    let kilobytes: u64 = amount.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn open_descriptors() -> Option<u64> {
    // The listing itself holds one.
    let open = fs::read_dir("/proc/self/fd")
        .ok()?
        .count()
        .saturating_sub(1);
    u64::try_from(open).ok()
}

fn processor_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // In hundredths of a second, whatever the kernel's own clock is.
    // The name of the program, in brackets, may hold anything. Of the rest, utime and stime are 12th and 13th.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 10).as_secs_f64())
}
