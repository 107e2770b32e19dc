//! The size of the blocks of a zvol.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The size of the blocks of a zvol: `16K`, `16384`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize(u64);

/// Why a size of blocks is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not a size of blocks: a power of two from 512 to 16M, such as 16K")]
pub struct BlockSizeError;

// === impl BlockSize ===

impl BlockSize {
    /// The size that is taken unless one is given.
    pub const DEFAULT: Self = Self(16 << 10);

    /// Reads a number of bytes, with `K` or `M` behind it if it is one of those.
    pub fn parse(text: &str) -> Result<Self, BlockSizeError> {
        let text = text.trim().to_ascii_uppercase();
        let text = text.strip_suffix('B').unwrap_or(&text);
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K') => (&text[..text.len() - 1], 10),
            Some(b'M') => (&text[..text.len() - 1], 20),
            _ => (text, 0),
        };
        let number: u64 = digits.parse().map_err(|_| BlockSizeError)?;
        let bytes = number.checked_shl(shift).ok_or(BlockSizeError)?;
        let good = bytes.is_power_of_two() && (512..=16 << 20).contains(&bytes);
        if good && bytes >> shift == number {
            Ok(Self(bytes))
        } else {
            Err(BlockSizeError)
        }
    }

    /// The number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for BlockSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            _ => return Err(D::Error::custom(BlockSizeError)),
        };
        Self::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_blocks_are_read_as_zfs_and_people_write_them() {
        for (text, bytes) in [
            ("16K", 16 << 10),
            ("16k", 16 << 10),
            ("16KB", 16 << 10),
            ("4096", 4096),
            ("512", 512),
            ("1M", 1 << 20),
        ] {
            assert_eq!(
                BlockSize::parse(text).map(BlockSize::bytes),
                Ok(bytes),
                "{text}"
            );
        }
        for text in [
            "",
            "K",
            "0",
            "100",
            "12K",
            "32M",
            "256",
            "-1",
            "16KK",
            "99999999999999999M",
        ] {
            assert!(BlockSize::parse(text).is_err(), "{text}");
        }
    }
}
