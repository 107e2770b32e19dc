//! The text of an error, as callers, logs and terminals get it.

use driver_core::{Error, Kind};
use tokio::task::JoinError;

/// The most bytes of a message: it travels in a header.
pub(crate) const MAX_MESSAGE: usize = 4096;

/// The text of an error for callers and logs: its chain in one printable line.
///
/// The text of a panic anywhere in the chain is left out: it may contain anything.
pub(crate) fn of(error: &Error) -> String {
    let mut line = causes(error);
    if let Some(advice) = error.advice() {
        line.push_str(" (");
        line.push_str(advice);
        line.push(')');
    }
    printable(&line)
}

/// The text of [`of`] but for the advice, which has a place of its own elsewhere.
pub(crate) fn without_advice(error: &Error) -> String {
    printable(&causes(error))
}

fn causes(error: &Error) -> String {
    let mut line = error.to_string();
    let mut last: &(dyn std::error::Error + 'static) = error;
    while let Some(cause) = last.source() {
        line.push_str(": ");
        line.push_str(&said(cause));
        last = cause;
    }
    // Such an error names an object and nothing else.
    let last = last.downcast_ref::<Error>();
    if last.is_some_and(|last| last.kind() == Kind::NotFound) {
        line.push_str(": not found");
    }
    line
}

/// `text` on one line, line breaks and tabs as blanks, without control characters, at most [`MAX_MESSAGE`] bytes long. For messages
/// to callers and for logs: neither a terminal nor a line-based reader can be led astray by it.
pub(crate) fn printable(text: &str) -> String {
    printable_within(text, MAX_MESSAGE)
}

/// The text of [`printable`] in at most `limit` bytes.
pub(crate) fn printable_within(text: &str, limit: usize) -> String {
    let mut line = String::with_capacity(text.len().min(limit));
    for c in text.chars() {
        let fits = line.len();
        if matches!(c, '\n' | '\r' | '\t') {
            // Tools print several lines.
            line.push(' ');
        } else if is_unprintable(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
        if line.len() > limit {
            line.truncate(fits);
            while line.len() + '…'.len_utf8() > limit && line.pop().is_some() {}
            line.push('…');
            break;
        }
    }
    line
}

/// Controls, line separators, and characters that are not seen or change the direction of text.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

/// The text of one error, without its causes. The text of a panic is left out: it may contain
/// anything.
pub(crate) fn said(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<JoinError>() {
        Some(join) if join.is_panic() => "met a defect of this program".to_owned(),
        _ => error.to_string(),
    }
}
