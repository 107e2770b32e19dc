//! The output of the figures: one table for each subject, with the ratio and the aim in each row.

use std::fs;
use std::time::Duration;

/// The results so far.
#[derive(Debug)]
pub(crate) struct Report {
    missed: Vec<String>,
}

/// The figures of one series of calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    /// The median.
    pub(crate) p50: Duration,
    /// One in a hundred takes longer.
    pub(crate) p99: Duration,
}

/// Begins a table.
pub(crate) fn title(title: &str) {
    println!("\n{title}");
}

/// A row without an aim.
pub(crate) fn row(name: &str, text: &str) {
    println!("  {name:<34} {text}");
}

// === impl Report ===

impl Report {
    /// Prints the machine.
    pub(crate) fn begin() -> Self {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        println!(
            "{cores} cores, load {}",
            load.split(' ').take(3).collect::<Vec<_>>().join(" ")
        );
        Self { missed: Vec::new() }
    }

    /// A row with a figure that should not be above `aim`.
    pub(crate) fn aimed(&mut self, name: &str, text: &str, figure: f64, aim: f64) {
        let verdict = if figure <= aim { "met" } else { "MISSED" };
        println!("  {name:<34} {text}   aim {aim}: {verdict}");
        if figure > aim {
            self.missed.push(format!("{name}: {figure:.2}, aim {aim}"));
        }
    }

    /// Prints the missed aims.
    pub(crate) fn end(&self) {
        println!();
        if self.missed.is_empty() {
            println!("every aim is met");
        }
        for missed in &self.missed {
            println!("missed: {missed}");
        }
    }
}

// === impl Figures ===

impl Figures {
    /// Of a series that is not empty.
    pub(crate) fn of(series: &mut [Duration]) -> Self {
        series.sort_unstable();
        let at = |share: usize| series[(series.len() * share / 100).min(series.len() - 1)];
        Self {
            p50: at(50),
            p99: at(99),
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        write!(
            f,
            "p50 {:>7.0} us  p99 {:>7.0} us",
            micros(self.p50),
            micros(self.p99)
        )
    }
}

/// The middle one of an odd number of figures, the lower middle of an even one.
pub(crate) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[(figures.len() - 1) / 2]
}
