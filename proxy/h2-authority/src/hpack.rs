//! Reads header blocks of HTTP/2 (RFC 7541) and writes them without compression state.
//!
//! Only what the `authority` module needs: it must decode the headers of a client before the HTTP/2
//! library does. The decoder limits the size of its table and of its list, and any input that it
//! rejects ends the connection, because the compression state is lost with it.

use std::collections::VecDeque;

mod fixed;
mod huffman;

/// The size of the dynamic table while the server's SETTINGS say nothing else (RFC 9113 §6.5.2).
pub const TABLE_SIZE: usize = 4096;

/// The overhead of each entry in RFC 7541 §4.1.
const ENTRY_OVERHEAD: usize = 32;

/// One decoded header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The name, in lower case if the client follows the rules.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// Whether the client marked it as never indexed.
    pub never_indexed: bool,
}

/// Why a header block cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// It ends in the middle of a field.
    #[error("the header block is cut off")]
    Truncated,
    /// A number too large for any table or string.
    #[error("a number in the header block is too large")]
    Integer,
    /// A reference to an entry that does not exist.
    #[error("the header block refers to an entry that no table has")]
    Index,
    /// A string whose Huffman code is not valid.
    #[error("a string in the header block is not valid Huffman code")]
    Huffman,
    /// A change of the table's size that is too large or in the wrong place.
    #[error("the header block changes the size of its table against the rules")]
    TableSize,
    /// More header data than any client needs.
    #[error("the header list is too large")]
    ListTooLarge,
}

/// The decoding half of one direction of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: VecDeque<(Vec<u8>, Vec<u8>)>,
    table_size: usize,
    table_limit: usize,
    list_limit: usize,
}

/// The rest of a header block.
struct Reader<'a>(&'a [u8]);

// === impl Decoder ===

impl Decoder {
    /// A decoder with an empty table that rejects lists larger than `list_limit`.
    pub fn new(list_limit: usize) -> Self {
        Self {
            table: VecDeque::new(),
            table_size: 0,
            table_limit: TABLE_SIZE,
            list_limit,
        }
    }

    /// Reads a whole block. After an error the decoder must not be used again.
    pub fn decode(&mut self, block: &[u8]) -> Result<Vec<Field>, HpackError> {
        let mut fields = Vec::new();
        let mut list_size = 0;
        let mut reader = Reader(block);
        while let Some(first) = reader.peek() {
            if first & 0xe0 == 0x20 {
                // RFC 7541 §4.2: only before the first field.
                if !fields.is_empty() {
                    return Err(HpackError::TableSize);
                }
                self.resize(reader.integer(5)?)?;
                continue;
            }
            let field = self.field(first, &mut reader)?;
            list_size += field.size();
            if list_size > self.list_limit {
                return Err(HpackError::ListTooLarge);
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn field(&mut self, first: u8, reader: &mut Reader<'_>) -> Result<Field, HpackError> {
        if first & 0x80 != 0 {
            let (name, value) = self.entry(reader.integer(7)?)?;
            return Ok(Field {
                name,
                value,
                never_indexed: false,
            });
        }
        let indexed = first & 0x40 != 0;
        let index = reader.integer(if indexed { 6 } else { 4 })?;
        let name = if index == 0 {
            reader.string(self.list_limit)?
        } else {
            self.entry(index)?.0
        };
        let value = reader.string(self.list_limit)?;
        if indexed {
            self.insert(name.clone(), value.clone());
        }
        Ok(Field {
            name,
            value,
            never_indexed: first & 0xf0 == 0x10,
        })
    }

    fn entry(&self, index: usize) -> Result<(Vec<u8>, Vec<u8>), HpackError> {
        let index = index.checked_sub(1).ok_or(HpackError::Index)?;
        if let Some((name, value)) = fixed::TABLE.get(index) {
            return Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        }
        self.table
            .get(index - fixed::TABLE.len())
            .cloned()
            .ok_or(HpackError::Index)
    }

    fn insert(&mut self, name: Vec<u8>, value: Vec<u8>) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.evict(self.table_limit.saturating_sub(size));
        // An entry that is larger than the table empties it; that is no error (§4.4).
        if size <= self.table_limit {
            self.table_size += size;
            self.table.push_front((name, value));
        }
    }

    fn resize(&mut self, limit: usize) -> Result<(), HpackError> {
        if limit > TABLE_SIZE {
            return Err(HpackError::TableSize);
        }
        self.table_limit = limit;
        self.evict(limit);
        Ok(())
    }

    fn evict(&mut self, keep: usize) {
        while self.table_size > keep {
            let Some((name, value)) = self.table.pop_back() else {
                break;
            };
            self.table_size -= name.len() + value.len() + ENTRY_OVERHEAD;
        }
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn byte(&mut self) -> Result<u8, HpackError> {
        let (&first, rest) = self.0.split_first().ok_or(HpackError::Truncated)?;
        self.0 = rest;
        Ok(first)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], HpackError> {
        let (bytes, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(HpackError::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A number that begins in the low `prefix` bits of the next byte (§5.1).
    fn integer(&mut self, prefix: u8) -> Result<usize, HpackError> {
        let mask = (1_usize << prefix) - 1;
        let mut number = usize::from(self.byte()?) & mask;
        if number < mask {
            return Ok(number);
        }
        // Four more bytes are up to 2^28, far above every limit; more are an attack or a defect.
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(HpackError::Integer)
    }

    fn string(&mut self, limit: usize) -> Result<Vec<u8>, HpackError> {
        let huffman = self.peek().ok_or(HpackError::Truncated)? & 0x80 != 0;
        let length = self.integer(7)?;
        let bytes = self.bytes(length)?;
        if huffman {
            huffman::decode(bytes, limit)
        } else if length > limit {
            Err(HpackError::ListTooLarge)
        } else {
            Ok(bytes.to_vec())
        }
    }
}

// === impl Field ===

impl Field {
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD
    }

    /// Appends the field as a literal that does not use the table.
    pub fn encode(&self, block: &mut Vec<u8>) {
        block.push(if self.never_indexed { 0x10 } else { 0x00 });
        for text in [&self.name, &self.value] {
            encode_length(text.len(), block);
            block.extend_from_slice(text);
        }
    }
}

/// A length in seven bits, plain text.
#[expect(
    clippy::cast_possible_truncation,
    reason = "each byte takes seven bits"
)]
fn encode_length(length: usize, block: &mut Vec<u8>) {
    if length < 0x7f {
        block.push(length as u8);
        return;
    }
    block.push(0x7f);
    let mut rest = length - 0x7f;
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

#[cfg(test)]
mod tests;
