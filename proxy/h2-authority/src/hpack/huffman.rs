//! The Huffman code of RFC 7541, appendix B.
//!
//! The code is canonical: within one length, codes count up with the symbol, and each length
//! continues where the shorter one stopped. So the lengths are the complete table.

use super::HpackError;

/// The length in bits of the code of each byte, and last that of the end-of-string symbol.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SYMBOLS: usize = 257;
const END_OF_STRING: u16 = 256;
const LONGEST: usize = 30;

/// The codes sorted by length.
struct Codes {
    /// All symbols, by length and then by value.
    symbols: [u16; SYMBOLS],
    /// Per length: its first code, where its symbols begin, and how many they are.
    lengths: [(u32, u16, u16); LONGEST + 1],
}

const CODES: Codes = Codes::from_lengths();

// === impl Codes ===

impl Codes {
    #[expect(clippy::cast_possible_truncation, reason = "there are 257 symbols")]
    const fn from_lengths() -> Self {
        let mut codes = Self {
            symbols: [0; SYMBOLS],
            lengths: [(0, 0, 0); LONGEST + 1],
        };
        let (mut next_code, mut placed, mut length) = (0_u32, 0_u16, 1);
        while length <= LONGEST {
            next_code <<= 1;
            let begin = placed;
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if LENGTHS[symbol] as usize == length {
                    codes.symbols[placed as usize] = symbol as u16;
                    placed += 1;
                }
                symbol += 1;
            }
            codes.lengths[length] = (next_code, begin, placed - begin);
            next_code += (placed - begin) as u32;
            length += 1;
        }
        codes
    }

    /// The symbol of a code, if the code is complete.
    fn symbol(&self, code: u32, length: usize) -> Option<u16> {
        let (first, begin, count) = self.lengths[length];
        let offset = code.checked_sub(first)?;
        (offset < u32::from(count)).then(|| self.symbols[usize::from(begin) + offset as usize])
    }
}

/// Reads a string of at most `limit` bytes.
pub(super) fn decode(coded: &[u8], limit: usize) -> Result<Vec<u8>, HpackError> {
    static TABLE: Codes = CODES;
    let mut text = Vec::with_capacity(coded.len().saturating_mul(8) / 5);
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in coded {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            let Some(symbol) = TABLE.symbol(code, length) else {
                if length == LONGEST {
                    return Err(HpackError::Huffman);
                }
                continue;
            };
            if symbol == END_OF_STRING {
                return Err(HpackError::Huffman);
            }
            if text.len() == limit {
                return Err(HpackError::ListTooLarge);
            }
            text.push(u8::try_from(symbol).map_err(|_| HpackError::Huffman)?);
            (code, length) = (0, 0);
        }
    }
    // The rest must be the beginning of end-of-string, all ones, and less than a byte (§5.2).
    if length < 8 && code == (1 << length) - 1 {
        Ok(text)
    } else {
        Err(HpackError::Huffman)
    }
}

/// Writes a string; only the tests' clients need it.
#[cfg(test)]
pub(super) fn encode(text: &[u8]) -> Vec<u8> {
    let mut bits: Vec<bool> = Vec::new();
    for byte in text {
        let (length, code) = (1..=LONGEST)
            .find_map(|length| {
                let (first, begin, count) = CODES.lengths[length];
                (0..count)
                    .find(|at| CODES.symbols[usize::from(begin + at)] == u16::from(*byte))
                    .map(|at| (length, first + u32::from(at)))
            })
            .unwrap();
        bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
    }
    bits.resize(bits.len().next_multiple_of(8), true);
    bits.chunks(8)
        .map(|byte| byte.iter().fold(0, |sum, bit| sum << 1 | u8::from(*bit)))
        .collect()
}
