//! Whether a device holds nothing at all where anything would show.
//!
//! A disk is given a filesystem only if its beginning and its end are zeros: there every format that
//! `blkid` or we know has its first or its last label, and unknown content is still data. Where they are zeros
//! `blkid` has nothing to find and is not run. Samples between them find data without a label, and an ext4 whose
//! beginning was overwritten.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The part at the start that is read: the labels of partition tables, filesystems, volume managers
/// and encryption, and the first two of ZFS. The farthest that is known is the second header of LUKS 2,
/// 4 MiB from the start, which `blkid -p` passes over.
const HEAD: u64 = 5 << 20;
/// The end: the copy of a GPT, the labels of RAID, the last two of ZFS. The farthest that `blkid`
/// looks for is that of a Promise RAID, 3,087 sectors from the end.
const TAIL: u64 = 2 << 20;
/// One read.
const PIECE: usize = 256 * 1024;
/// The number of samples between the beginning and the end, at equal distances.
const SAMPLES: u64 = 32;
/// The length of a sample.
const SAMPLE: u64 = 4096;
/// The distance of the groups of an ext filesystem for blocks of 1, 2 and 4 KiB, and the groups with a copy of the
/// superblock (`sparse_super` of ext4(5)). With blocks of 1 KiB it is one block further, within the sample.
const EXT_GROUPS: [u64; 3] = [8 << 20, 32 << 20, 128 << 20];
const EXT_COPIES: [u64; 5] = [1, 3, 5, 7, 9];
/// A blank piece: compared as a whole, it costs nothing beside the reading.
static BLANK: [u8; PIECE] = [0; PIECE];

/// The way to make a device blank, for errors.
pub(crate) const HOW_TO_EMPTY: &str = "overwrite all of it with zeros (`blkdiscard --zeroout`)";

/// The parts of a device of that size which have to be zeros.
fn windows(size: u64) -> impl Iterator<Item = (u64, u64)> {
    let head = (0, size.min(HEAD));
    let tail = (size.saturating_sub(TAIL).max(head.1), size);
    let between = tail.0 - head.1;
    let spread = (1..=SAMPLES).map(move |number| {
        let at = head.1 + between / (SAMPLES + 1) * number;
        at / SAMPLE * SAMPLE
    });
    let of_ext = |group: u64| EXT_COPIES.map(|copy| group * copy);
    let samples = spread.chain(EXT_GROUPS.into_iter().flat_map(of_ext));
    let samples = samples.map(move |at| (at.max(head.1), (at + SAMPLE).min(tail.0)));
    let ends = [head, tail].into_iter();
    ends.chain(samples).filter(|(from, to)| from < to)
}

/// Whether the beginning, the end and the samples between them are zeros. `except` is a part that does not count.
pub(super) fn is_blank(device: &File, size: u64, except: (u64, u64)) -> io::Result<bool> {
    let mut piece = vec![0; PIECE];
    for (from, to) in windows(size) {
        let mut at = from;
        while at < to {
            let length = usize::try_from(to - at).unwrap_or(PIECE).min(PIECE);
            let part = &mut piece[..length];
            // Less than there should be is an error, and so is a bad sector.
            device.read_exact_at(part, at)?;
            let counts = |offset: usize| {
                let position = at + offset as u64;
                !(except.0..except.1).contains(&position)
            };
            let zero = |(offset, byte): (usize, &u8)| *byte == 0 || !counts(offset);
            if *part != BLANK[..length] && !part.iter().enumerate().all(zero) {
                return Ok(false);
            }
            at += length as u64;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(size: u64) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(size).expect("a size");
        file
    }

    #[test]
    fn one_byte_anywhere_in_the_beginning_or_the_end_is_seen() {
        let size = 16 << 20;
        for at in [0, 511, 1024, HEAD - 1, size - TAIL, size - 1] {
            let file = device(size);
            assert!(is_blank(&file, size, (0, 0)).expect("read"));
            file.write_all_at(&[1], at).expect("written");
            assert!(!is_blank(&file, size, (0, 0)).expect("read"), "{at}");
            assert!(is_blank(&file, size, (at, at + 1)).expect("read"), "{at}");
        }
    }

    #[test]
    fn data_that_fills_the_middle_is_seen_and_so_is_a_copy_of_an_ext_superblock() {
        let size = 300 << 20;
        let file = device(size);
        // A thirtieth of the device, at any place.
        for at in [10, 47, 133, 200, 288] {
            file.write_all_at(&vec![7; 10 << 20], at << 20)
                .expect("written");
            assert!(!is_blank(&file, size, (0, 0)).expect("read"), "{at}");
            file.write_all_at(&vec![0; 10 << 20], at << 20)
                .expect("written");
        }
        let block = 1024;
        for at in [
            128 << 20,
            32 << 20,
            96 << 20,
            (8 << 20) + block,
            (72 << 20) + block,
        ] {
            file.write_all_at(&[0x53, 0xef], at + 56).expect("written");
            assert!(!is_blank(&file, size, (0, 0)).expect("read"), "{at}");
            file.write_all_at(&[0, 0], at + 56).expect("written");
        }
        assert!(is_blank(&file, size, (0, 0)).expect("read"));
    }

    #[test]
    fn a_device_that_ends_early_is_an_error_and_not_blank() {
        assert!(is_blank(&device(1 << 20), 2 << 20, (0, 0)).is_err());
    }

    proptest! {
        #[test]
        fn a_small_device_is_looked_at_whole(size in 1..=HEAD + TAIL, at in any::<prop::sample::Index>()) {
            let file = device(size);
            let at = at.index(usize::try_from(size).expect("small")) as u64;
            file.write_all_at(&[7], at).expect("written");
            prop_assert!(!is_blank(&file, size, (0, 0)).expect("read"));
        }
    }
}
