//! Quotes any text as one word of a POSIX shell.
//!
//! It does not build command lines, and it does not serve csh, which expands `!` and rejects newlines even between
//! single quotes. Where the login shell may be csh (root on FreeBSD), the remote command is the constant `sh -s`
//! and the quoted words travel in the script on standard input, see [`crate::script`].
//!
//! Reference: POSIX, "Shell Command Language", 2.2.2.

/// The text holds a NUL byte, which no shell word and no argument can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("text holds a NUL byte, which no command can carry")]
pub struct NulByte;

/// Quotes `text` so that `sh`, `dash`, `bash` and `busybox sh` read it back unchanged, as one word.
///
/// Always single quotes, even where none are needed: one rule has no exceptions to get wrong.
pub fn quote(text: &str) -> Result<String, NulByte> {
    if text.contains('\0') {
        return Err(NulByte);
    }
    let mut word = String::with_capacity(text.len() + 2);
    word.push('\'');
    for character in text.chars() {
        match character {
            // Nothing escapes inside single quotes, so: close, a quoted quote, open.
            '\'' => word.push_str(r"'\''"),
            other => word.push(other),
        }
    }
    word.push('\'');
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::{NulByte, quote};

    #[test]
    fn quotes_even_what_needs_none() {
        assert_eq!(quote("tank/a").unwrap(), "'tank/a'");
        assert_eq!(quote("").unwrap(), "''");
    }

    #[test]
    fn a_single_quote_leaves_and_reenters_the_quotes() {
        assert_eq!(quote("a'b").unwrap(), r"'a'\''b'");
    }

    #[test]
    fn a_nul_byte_is_refused() {
        assert_eq!(quote("a\0b"), Err(NulByte));
    }
}
