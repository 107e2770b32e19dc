//! What the targets share: how bytes become text, and what is true of every message to a human.
//!
//! A target states what holds for *every* input, not only that nothing panics. The truth about the
//! parsers is theirs; where a target judges them it does so with rules written down anew, from the
//! specification and not from the parser.

use std::fmt::Display;

/// Stands for any secret: no message may ever hold it.
pub const SECRET: &str = "hunter2-swordfish";

/// Separates the parts of an input. No name, path or template can hold it, and it shows in an
/// editor where NUL would make the seed a binary file.
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

/// Whether the CSI specification lets a name or an id hold this text.
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
