//! The fields of a line, as far as they may be written.

use std::fmt::{self, Write};

use serde_json::Value;
use tracing::field::{Field, Visit};

use crate::message::is_unprintable;

/// Every field that may stand in a log. What is not here is dropped, not masked: it may be a
/// request, and a request may hold anything.
pub(super) const ALLOWED: &[&str] = &[
    "address",
    "attributes",
    "base",
    "base_id",
    "because",
    "bytes",
    "claim",
    "code",
    "command",
    "connection",
    "detached",
    "device",
    "disk",
    "doing",
    "driver",
    "dropped",
    "duration_ms",
    "elapsed",
    "elapsed_ms",
    "ended",
    "ending",
    "error",
    "facts",
    "files",
    "filesystem",
    "fingerprint",
    "goes_on",
    "grace",
    "group",
    "host",
    "in_flight",
    "is_shared",
    "key",
    "location",
    "name",
    "node",
    "object",
    "of",
    "option",
    "options",
    "origin",
    "outcome",
    "panic",
    "path",
    "paths",
    "percent",
    "pid",
    "place",
    "portal",
    "portals",
    "records",
    "request_id",
    "routes",
    "rpc",
    "seconds",
    "session",
    "shared",
    "shows",
    "signal",
    "size",
    "snapshot",
    "socket",
    "source",
    "steps",
    "suppressed",
    "target",
    "target_path",
    "to",
    "transport",
    "usage",
    "variable",
    "verb",
    "verbosity",
    "version",
    "volume",
    "why",
];

/// More of a value is not for a log.
const LONGEST: usize = 4096;

/// The fields of one event or span, and its message.
#[derive(Debug, Default)]
pub(super) struct Fields {
    pub(super) message: String,
    pub(super) values: Vec<(&'static str, Value)>,
    /// Names of fields that were dropped: that a line of ours says less than it should is seen.
    pub(super) unlisted: Vec<&'static str>,
}

// === impl Fields ===

impl Fields {
    /// Takes over what a span around says.
    pub(super) fn inherit(&mut self, outer: &Self) {
        for (name, value) in &outer.values {
            self.set(name, value.clone());
        }
    }

    fn set(&mut self, name: &'static str, value: Value) {
        match self.values.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.values.push((name, value)),
        }
    }

    fn put(&mut self, field: &Field, value: impl FnOnce() -> Value) {
        if ALLOWED.contains(&field.name()) {
            self.set(field.name(), value());
        } else {
            self.unlisted.push(field.name());
        }
    }

    fn put_text(&mut self, field: &Field, text: &dyn fmt::Display) {
        if field.name() == "message" {
            self.message = harmless(text);
        } else {
            self.put(field, || Value::String(harmless(text)));
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, || Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, || Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, || Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, || Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field, &value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put_text(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_text(field, &format_args!("{value:?}"));
    }
}

/// Text without control characters, and not without end.
fn harmless(text: &dyn fmt::Display) -> String {
    struct Harmless(String);
    impl Write for Harmless {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for character in text.chars() {
                if self.0.len() >= LONGEST {
                    self.0.push('…');
                    return Err(fmt::Error);
                }
                if is_unprintable(character) {
                    self.0.extend(character.escape_default());
                } else {
                    self.0.push(character);
                }
            }
            Ok(())
        }
    }
    let mut harmless = Harmless(String::new());
    // The only error is our own: enough was written.
    let _ = write!(harmless, "{text}");
    harmless.0
}
