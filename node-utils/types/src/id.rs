//! The strings of the CSI specification: names, ids and tokens, each with its alphabet and limit.
//!
//! A value of these types cannot be empty, too long or hold a control character. Which ids a
//! driver could have made is the driver's own, narrower grammar. Limits are those of the
//! specification, section "Size Limits"; see `docs/compatibility.md`, "Identifiers".

use std::fmt;
use std::sync::Arc;

/// Longest general string of the specification, in bytes.
pub const MAX_STRING: usize = 128;
/// Longest node id, in bytes.
pub const MAX_NODE_ID: usize = 256;
/// Longest id accepted from a caller. Wider than [`MAX_STRING`], because volumes of older drivers
/// may carry longer handles and must still be mounted and deleted.
pub const MAX_ID_IN: usize = 512;
/// Largest `map<string, string>`, keys and values together, in bytes.
pub const MAX_MAP: usize = 4096;

/// Why a string is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// It is required and missing.
    #[error("is empty")]
    Empty,
    /// It is longer than its limit.
    #[error("is {length} bytes long, the limit is {limit}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// It holds a character that the specification bans.
    #[error("holds the banned character {}", .0.escape_unicode())]
    Banned(char),
}

/// Whether the specification bans `c` from names.
pub fn is_banned(c: char) -> bool {
    matches!(c, '\u{0}'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}'..='\u{9f}')
}

/// Checks `value` against the alphabet of names and `limit`; empty values pass.
pub fn check_text(value: &str, limit: usize) -> Result<(), TextError> {
    if value.len() > limit {
        return Err(TextError::TooLong {
            length: value.len(),
            limit,
        });
    }
    value
        .chars()
        .find(|c| is_banned(*c))
        .map_or(Ok(()), |c| Err(TextError::Banned(c)))
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $limit:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the alphabet and the length.
            pub fn parse(value: &str) -> Result<Self, TextError> {
                if value.is_empty() {
                    return Err(TextError::Empty);
                }
                check_text(value, $limit)?;
                Ok(Self(value.into()))
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

text!(
    /// The name that the orchestrator suggests for a volume: the idempotency key of its creation.
    VolumeName, MAX_STRING
);
text!(
    /// The name that the orchestrator suggests for a snapshot.
    SnapshotName, MAX_STRING
);
text!(
    /// The id of a volume as its driver knows it, without a connection.
    VolumeId, MAX_ID_IN
);
text!(
    /// The id of a snapshot as its driver knows it, without a connection.
    SnapshotId, MAX_ID_IN
);
text!(
    /// The id of a group of snapshots as its driver knows it, without a connection.
    GroupSnapshotId, MAX_ID_IN
);
text!(
    /// The id of a node. What an orchestrator may send is as wide as for names; the one of this node,
    /// which people write, is checked more narrowly where it is read.
    NodeId, MAX_NODE_ID
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_128_bytes_pass_and_longer_ones_do_not() {
        assert!(VolumeName::parse(&"n".repeat(128)).is_ok());
        assert_eq!(
            VolumeName::parse(&"n".repeat(129)),
            Err(TextError::TooLong {
                length: 129,
                limit: 128
            })
        );
        assert!(
            VolumeName::parse(&"é".repeat(65)).is_err(),
            "the limit counts bytes"
        );
    }

    #[test]
    fn tab_newline_and_return_are_the_only_control_characters_of_names() {
        for c in (0..=0x9f)
            .filter_map(char::from_u32)
            .filter(|c| c.is_control())
        {
            let allowed = matches!(c, '\t' | '\n' | '\r');
            assert_eq!(
                VolumeName::parse(&format!("a{c}")).is_ok(),
                allowed,
                "{c:?}"
            );
        }
    }
}
