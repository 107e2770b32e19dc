//! The guest: a boot sector that writes numbered blocks and prints their numbers, and what must be on its disk.

use std::fs;

use crate::lab::command::run;

/// The length of a block.
const SECTOR: usize = 512;

const SOURCE: &str = include_str!("guest.S");
/// The address at which a firmware starts a boot sector.
const START: &str = "0x7c00";
/// What is added from one word of a block to the next.
const STEP: u32 = 0x9e37_79b9;
/// The sectors before the block of number 1: the program, and the last number.
const FIRST: usize = 2;
/// The sectors behind the last block that must be as in a new volume.
const BEHIND: usize = 4096;

/// The begin of its disk, as the assembler of this machine makes it.
///
/// # Panics
/// If it does not fit.
pub(super) fn image() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name| folder.path().join(name).display().to_string();
    let (source, object, image) = (path("guest.S"), path("guest.o"), path("guest"));
    fs::write(&source, SOURCE).expect("a file");
    run(&["as", "--32", "-o", &object, &source]);
    let linked = ["ld", "-m", "elf_i386", "-Ttext", START];
    run(&[&linked[..], &["--oformat", "binary", "-o", &image, &object]].concat());
    let image = fs::read(image).expect("the linker wrote it");
    assert_eq!(image.len(), SECTOR, "the length of the guest");
    image
}

/// The last of the numbers that it printed, which are all from 1 on. It may have been ended within a line.
///
/// # Panics
/// If a number is missing, comes twice, or is none.
pub(super) fn last_of(printed: &str) -> u32 {
    let (lines, _) = printed.rsplit_once('\n').expect("a line");
    let mut last = 0;
    for line in lines.lines() {
        let number = u32::from_str_radix(line, 16).ok();
        assert_eq!(number, Some(last + 1), "the guest printed `{line}`");
        last += 1;
    }
    last
}

/// The number of bytes of its disk that [`verify`] needs.
pub(super) fn length(last: u32) -> usize {
    (FIRST + last as usize + BEHIND) * SECTOR
}

/// Compares its disk with what it printed. It may have been ended while it wrote the next number.
///
/// # Panics
/// At the first sector that is not right.
pub(super) fn verify(stored: &[u8], image: &[u8], last: u32) {
    let sectors: Vec<_> = stored.chunks(SECTOR).collect();
    assert!(sectors[0] == image, "the program");
    let (head, next) = (sectors[1], sectors[FIRST + last as usize]);
    let is_ahead = next == block(last + 1);
    assert!(is_ahead || is_new(next), "the block after {last}");
    assert!(
        head == block(last) || is_ahead && head == block(last + 1),
        "the last number is {:?}, and {last} was printed",
        head.first_chunk().map(|first| u32::from_le_bytes(*first))
    );
    for number in 1..=last {
        let found = sectors[FIRST + number as usize - 1];
        assert!(found == block(number), "block {number} of {last}");
    }
    let behind = &sectors[FIRST + last as usize + 1..];
    let foreign = behind.iter().position(|sector| !is_new(sector));
    assert_eq!(foreign, None, "a sector behind block {last}");
}

fn is_new(sector: &[u8]) -> bool {
    sector.iter().all(|byte| *byte == 0)
}

fn block(number: u32) -> Vec<u8> {
    let words = (0..128_u32).map(|index| number.wrapping_add(index.wrapping_mul(STEP)));
    words.flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    const LAST: u32 = 20;

    fn disk(head: u32, blocks: u32) -> Vec<u8> {
        let mut disk = vec![7; SECTOR];
        disk.extend(block(head));
        disk.extend((1..=blocks).flat_map(block));
        disk.resize(length(LAST), 0);
        disk
    }

    #[test]
    fn a_disk_is_right_at_each_moment_of_the_next_number() {
        for (head, blocks) in [(LAST, LAST), (LAST, LAST + 1), (LAST + 1, LAST + 1)] {
            verify(&disk(head, blocks), &[7; SECTOR], LAST);
        }
    }

    #[test]
    fn a_lost_late_or_foreign_block_is_found() {
        let refused = |disk: Vec<u8>| {
            catch_unwind(|| verify(&disk, &[7; SECTOR], LAST)).expect_err("wrong");
        };
        refused(disk(LAST, LAST - 1));
        refused(disk(LAST - 1, LAST));
        refused(disk(LAST + 1, LAST));
        refused(disk(LAST, LAST + 2));
        let mut doubled = disk(LAST, LAST);
        doubled.copy_within(5 * SECTOR..6 * SECTOR, 6 * SECTOR);
        refused(doubled);
        let mut spoiled = disk(LAST, LAST);
        spoiled[0] ^= 1;
        refused(spoiled);
    }

    #[test]
    fn numbers_are_counted_up_to_the_last_whole_line() {
        assert_eq!(last_of("00000001\n00000002\n0000"), 2);
        for printed in ["00000001\n00000003\n", "00000001\n00000001\n", "failed\n"] {
            catch_unwind(|| last_of(printed)).expect_err(printed);
        }
    }
}
