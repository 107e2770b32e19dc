//! The way a line looks.

use std::fmt::Write;

use serde_json::Value;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::fields::Fields;

/// One event, ready to be written.
pub(super) struct Line<'a> {
    pub(super) metadata: &'a Metadata<'a>,
    pub(super) fields: &'a Fields,
}

// === impl Line ===

impl Line<'_> {
    /// One object. The names of fields cannot collide with the four that every line has: the
    /// allow-list has none of them.
    pub(super) fn json(&self) -> String {
        let mut line = format!(
            "{{\"time\":{},\"level\":{},\"message\":{}",
            Value::from(now()),
            Value::from(level(*self.metadata.level())),
            Value::from(self.fields.message.as_str()),
        );
        for (name, value) in &self.fields.values {
            // Writing to a string does not fail.
            let _ = write!(line, ",{}:{value}", Value::from(*name));
        }
        if !self.fields.unlisted.is_empty() {
            let _ = write!(
                line,
                ",\"unlisted\":{}",
                Value::from(self.fields.unlisted.clone())
            );
        }
        let _ = writeln!(line, ",\"from\":{}}}", Value::from(self.metadata.target()));
        line
    }

    /// Time, level, message, fields.
    pub(super) fn text(&self, colour: bool) -> String {
        let level = level(*self.metadata.level());
        let mut line = now();
        let (on, off) = if colour {
            (escape(*self.metadata.level()), "\x1b[0m")
        } else {
            ("", "")
        };
        // Writing to a string does not fail.
        let _ = write!(line, " {on}{level:<5}{off} {}", self.fields.message);
        for (name, value) in &self.fields.values {
            let (on, off) = if colour {
                ("\x1b[2m", "\x1b[0m")
            } else {
                ("", "")
            };
            let _ = match value {
                Value::String(text) if is_word(text) => write!(line, " {on}{name}={off}{text}"),
                other => write!(line, " {on}{name}={off}{other}"),
            };
        }
        line.push('\n');
        line
    }
}

fn now() -> String {
    let mut text = String::with_capacity(160);
    // A clock before 1970 gives a strange line, not none.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', '"', '=', '\\'])
}

fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn escape(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    }
}
