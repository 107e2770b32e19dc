//! Header blocks: ours and another implementation must read the same fields in them.
//!
//! Input: a byte that chooses the limit of a list, then blocks, each after a byte with its length;
//! 255 stands for the rest of the input.
#![no_main]

use h2_authority::hpack::{Decoder, Field};
use libfuzzer_sys::fuzz_target;

/// The overhead of each field in addition to its text, by RFC 7541.
const OVERHEAD: usize = 32;

fuzz_target!(|data: &[u8]| {
    let Some((first, mut rest)) = data.split_first() else {
        return;
    };
    let limit = usize::from(*first) * 256;
    let mut ours = Decoder::new(limit);
    let mut theirs = fluke_hpack::Decoder::new();
    let mut encoder = fluke_hpack::Encoder::new();
    let mut mirror = Decoder::new(limit);
    while let Some((length, after)) = rest.split_first() {
        let length = match usize::from(*length) {
            255 => after.len(),
            length => length.min(after.len()),
        };
        let (block, after) = after.split_at(length);
        rest = after;
        let Ok(fields) = ours.decode(block) else {
            // The compression state is lost, and so is the connection.
            return;
        };
        let sizes = fields
            .iter()
            .map(|field| field.name.len() + field.value.len() + OVERHEAD);
        assert!(sizes.sum::<usize>() <= limit);
        if fields.is_empty() {
            // No client sends that; the other implementation refuses a change of its table's size
            // that no field follows.
            return;
        }
        let read = theirs.decode(block).expect("what we can read, others can");
        assert_eq!(pairs(&fields), read);
        written_anew(&fields, limit);
        // As a client writes them that uses its table as much as possible.
        let block = encoder.encode(read.iter().map(|(name, value)| (&name[..], &value[..])));
        let back = mirror
            .decode(&block)
            .expect("what others write, we can read");
        assert_eq!(pairs(&back), read);
    }
});

fn pairs(fields: &[Field]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pair = |field: &Field| (field.name.clone(), field.value.clone());
    fields.iter().map(pair).collect()
}

/// What we write needs no table, and decodes to the same fields in any decoder.
fn written_anew(fields: &[Field], limit: usize) {
    let mut block = Vec::new();
    for field in fields {
        field.encode(&mut block);
    }
    // Two lengths of three bytes and the first byte cost less than what the limit counts.
    assert!(block.len() <= limit);
    assert_eq!(Decoder::new(limit).decode(&block).as_deref(), Ok(fields));
    let read = fluke_hpack::Decoder::new().decode(&block);
    assert_eq!(read.expect("plain literals"), pairs(fields));
}
