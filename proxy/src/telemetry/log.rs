//! The log: one line per event, text for people and JSON for machines.
//!
//! Only fields of a fixed list are ever written, whatever a library or a hurried line of ours
//! hands over, and control characters are escaped. How much is logged can change while the
//! program runs: see [`LogControl`].

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

mod fields;
mod line;

use fields::Fields;
use line::Line;

/// The verbosity of the log, in democratic-csi's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[repr(u8)]
pub enum Verbosity {
    /// Errors.
    Error,
    /// And what will fail, or is not what was meant.
    Warn,
    /// And what changes.
    Info,
    /// And what is asked.
    Verbose,
    /// And how it is done.
    Debug,
    /// And what the libraries do.
    Silly,
}

/// The way to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object per line.
    Json,
    /// Text on a terminal, JSON otherwise.
    Auto,
}

/// The level of the log, while it is in use. Clones control the same log.
#[derive(Debug, Clone)]
pub struct LogControl {
    verbosity: Arc<AtomicU8>,
}

/// A level that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the levels are error, warn, info, verbose, debug and silly")]
pub struct UnknownLevel;

/// Writes events to where `W` leads.
#[derive(Debug)]
struct Log<W> {
    control: LogControl,
    style: Style,
    writer: W,
}

/// The way a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Json,
    Plain,
    Coloured,
}

/// Starts to log to standard error, for the life of the process.
///
/// A process that logs already keeps its log: tests run in one.
pub fn start(verbosity: Option<Verbosity>, format: LogFormat) -> LogControl {
    let terminal = io::stderr().is_terminal();
    let style = match (format, terminal) {
        (LogFormat::Json, _) | (LogFormat::Auto, false) => Style::Json,
        (LogFormat::Text, false) => Style::Plain,
        (LogFormat::Text | LogFormat::Auto, true) => Style::Coloured,
    };
    // compat: "Command line": verbose by default on a terminal.
    let by_default = if style == Style::Coloured {
        Verbosity::Verbose
    } else {
        Verbosity::Info
    };
    let control = LogControl::new(verbosity.unwrap_or(by_default));
    let log = Log {
        control: control.clone(),
        style,
        writer: io::stderr,
    };
    let _ = tracing::subscriber::set_global_default(Registry::default().with(log));
    control
}

// === impl Verbosity ===

impl Verbosity {
    const ALL: [Self; 6] = [
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Verbose,
        Self::Debug,
        Self::Silly,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Verbose => "verbose",
            Self::Debug => "debug",
            Self::Silly => "silly",
        }
    }

    /// The level of our own lines.
    fn ours(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Verbose => LevelFilter::DEBUG,
            Self::Debug | Self::Silly => LevelFilter::TRACE,
        }
    }

    /// The level of the libraries: they say a lot and know no subject.
    fn theirs(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn | Self::Info | Self::Verbose => LevelFilter::WARN,
            Self::Debug => LevelFilter::INFO,
            Self::Silly => LevelFilter::DEBUG,
        }
    }
}

impl FromStr for Verbosity {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        Self::ALL
            .into_iter()
            .find(|level| level.as_str() == text)
            .ok_or(UnknownLevel)
    }
}

impl fmt::Display for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl LogFormat ===

impl LogFormat {
    /// The meaning of `auto` where machines are known to read.
    #[must_use]
    pub(crate) fn or_json(self, machines: bool) -> Self {
        if machines && self == Self::Auto {
            Self::Json
        } else {
            self
        }
    }
}

// === impl LogControl ===

impl LogControl {
    pub(crate) fn new(verbosity: Verbosity) -> Self {
        Self {
            verbosity: Arc::new(AtomicU8::new(verbosity as u8)),
        }
    }

    /// The present verbosity.
    pub fn verbosity(&self) -> Verbosity {
        let number = usize::from(self.verbosity.load(Ordering::Relaxed));
        Verbosity::ALL
            .get(number)
            .copied()
            .unwrap_or(Verbosity::Silly)
    }

    /// Logs so much from now on.
    pub fn set(&self, verbosity: Verbosity) {
        self.verbosity.store(verbosity as u8, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// One step more; at most everything.
    pub fn raise(&self) -> Verbosity {
        self.step(1)
    }

    /// One step less; at least errors.
    pub fn lower(&self) -> Verbosity {
        self.step(-1)
    }

    fn step(&self, by: isize) -> Verbosity {
        let now = usize::from(self.verbosity() as u8);
        let next = now.saturating_add_signed(by).min(Verbosity::ALL.len() - 1);
        let next = Verbosity::ALL[next];
        self.set(next);
        next
    }

    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        let verbosity = self.verbosity();
        let limit = if is_ours(metadata.target()) {
            verbosity.ours()
        } else {
            verbosity.theirs()
        };
        *metadata.level() <= limit
    }
}

fn is_ours(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or(target);
    matches!(name, "omnibus_csi" | "node_utils" | "exec" | "csi_proto")
        || name.starts_with("driver_")
}

// === impl Log ===

impl<S, W, O> Layer<S> for Log<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Fn() -> O + Send + Sync + 'static,
    O: Write,
{
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Spans carry the subject of lines of any level.
        if metadata.is_span() || self.control.allows(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.is_span() || self.control.allows(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let verbosity = self.control.verbosity();
        Some(verbosity.ours().max(verbosity.theirs()))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(tracing_subscriber::registry::Scope::from_root)
        {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.inherit(of_span);
            }
        }
        event.record(&mut fields);
        if !is_ours(event.metadata().target()) {
            fields.unlisted.clear();
        }
        let line = Line {
            metadata: event.metadata(),
            fields: &fields,
        };
        let text = match self.style {
            Style::Json => line.json(),
            Style::Plain => line.text(false),
            Style::Coloured => line.text(true),
        };
        // A log without a reader is no reason to stop serving.
        let _ = (self.writer)().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests;
