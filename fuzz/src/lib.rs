//! Shared by the targets: how bytes become text, and the rules for every message to a human.
//!
//! A target asserts what holds for *every* input, not only the absence of panics. Its rules are
//! written from the specification, not derived from the parser.

use std::fmt::Display;

/// Represents any secret: no message may ever contain it.
pub const SECRET: &str = "hunter2-swordfish";

/// Separates the parts of an input. No name, path or template can contain it, and editors show it,
/// where NUL would make the seed a binary file.
const SEPARATOR: char = '\u{1e}';

/// The input as text with its parts; `None` if it is not UTF-8.
pub fn parts(data: &[u8]) -> Option<impl Iterator<Item = &str>> {
    Some(std::str::from_utf8(data).ok()?.split(SEPARATOR))
}

/// Asserts that a message is one line, and that no secret is in it. Returns it.
pub fn presentable(message: impl Display) -> String {
    let text = one_line(message);
    assert!(!text.contains(SECRET), "a secret in a message: {text:?}");
    text
}

/// Asserts that a message is one line. Returns it.
pub fn one_line(message: impl Display) -> String {
    let text = message.to_string();
    assert!(
        !text.chars().any(char::is_control),
        "a message with a control character: {text:?}"
    );
    text
}

/// Whether the CSI specification allows this text in a name or an id.
pub fn is_csi_text(text: &str, limit: usize) -> bool {
    let banned = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    !text.is_empty() && text.len() <= limit && !text.chars().any(banned)
}

/// Whether a path names the same place from any working directory.
pub fn is_plain_path(path: &str) -> bool {
    path.starts_with('/')
        && path.len() < 4096
        && !path.chars().any(char::is_control)
        && path.split('/').all(|part| part != "." && part != "..")
}
