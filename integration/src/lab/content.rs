//! Test content: the same for the same seed, different at every offset.

/// `length` bytes that follow from `seed`.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = vec![0; length.next_multiple_of(8)];
    // In place, word by word: without optimisation, on an emulated processor, each call counts.
    for place in bytes.chunks_exact_mut(8) {
        // splitmix64: short, and no two blocks alike.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        place.copy_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Asserts that two contents are the same, and says where they are not.
///
/// # Panics
/// If they differ.
pub fn same(expected: &[u8], found: &[u8], what: &str) {
    assert_eq!(expected.len(), found.len(), "{what}: another length");
    if expected == found {
        return;
    }
    let differs = expected.iter().zip(found).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that is wrong");
}

/// A repeatable stream of random numbers from a seed.
#[derive(Debug, Clone)]
pub struct Rng(u64);

// === impl Rng ===

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        let word = bytes(self.0, 8);
        self.0 = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        self.0 % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_of_a_content_is_like_another() {
        let content = bytes(7, 1 << 16);
        let blocks: std::collections::BTreeSet<_> = content.chunks(512).collect();
        assert_eq!(blocks.len(), 128);
        assert_eq!(content, bytes(7, 1 << 16));
        assert_ne!(content, bytes(8, 1 << 16));
    }
}
