//! The process itself: memory, descriptors, age. Read from /proc when somebody asks, so that it
//! costs nothing otherwise.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

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
                resident_memory(),
            ),
            (
                "process_open_fds",
                "Open file descriptors",
                open_descriptors(),
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

fn resident_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
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
