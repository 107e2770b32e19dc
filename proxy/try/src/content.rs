//! The content of volumes, and whether it is still there: every byte is compared. Calls block.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::flags::Access;

/// The length of the content, in bytes.
pub(crate) const LENGTH: usize = 1 << 20;

/// A content that differs from every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edition {
    /// The first content, and what a snapshot keeps.
    First,
    /// The content after the change.
    Second,
    /// The content of copies, to see that their source does not change.
    Other,
}

// === impl Edition ===

impl Edition {
    /// Bytes without repetition (xorshift64), which follow from the edition.
    fn bytes(self) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * self as u64 + 1);
        let mut bytes = Vec::with_capacity(LENGTH);
        while bytes.len() < LENGTH {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        bytes
    }

    /// Makes this the content of the volume at `target`, down to the storage.
    pub(crate) fn write(self, target: &Path, access: Access) -> Result<(), String> {
        let path = place(target, access);
        let folder = path.parent().filter(|_| access == Access::Mount);
        let written = folder.map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            let new = access == Access::Mount;
            let mut file = File::options().write(true).create(new).open(&path)?;
            file.write_all(&self.bytes())?;
            file.sync_all()
        });
        written.map_err(|error| format!("write {}: {error}", path.display()))
    }

    /// Looks whether the volume at `target` holds this; the error is the first difference.
    pub(crate) fn compare(self, target: &Path, access: Access) -> Result<(), String> {
        let path = place(target, access);
        let mut found = vec![0; LENGTH];
        let read = File::open(&path).and_then(|mut file| file.read_exact(&mut found));
        read.map_err(|error| format!("read {}: {error}", path.display()))?;
        match found.iter().zip(self.bytes()).position(|(a, b)| *a != b) {
            Some(at) => Err(format!("{} differs from byte {at} on", path.display())),
            None => Ok(()),
        }
    }
}

/// The device, or a file in a folder as databases have.
fn place(target: &Path, access: Access) -> PathBuf {
    match access {
        Access::Block => target.to_owned(),
        Access::Mount => target.join("folder/data.bin"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_found_and_nothing_else_passes_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("device");
        fs::write(&device, vec![0; LENGTH * 2]).unwrap();
        for (target, access) in [(folder.path(), Access::Mount), (&device, Access::Block)] {
            Edition::First.write(target, access).unwrap();
            Edition::First.compare(target, access).unwrap();
            Edition::Second.write(target, access).unwrap();
            Edition::Second.compare(target, access).unwrap();
            let difference = Edition::First.compare(target, access).unwrap_err();
            assert!(difference.contains("byte 0"), "{difference}");

            let path = place(target, access);
            let mut data = fs::read(&path).unwrap();
            data[LENGTH - 1] ^= 1;
            fs::write(&path, &data).unwrap();
            let difference = Edition::Second.compare(target, access).unwrap_err();
            assert!(difference.contains("byte 1048575"), "{difference}");
            fs::write(&path, &data[..LENGTH - 1]).unwrap();
            assert!(Edition::Second.compare(target, access).is_err());
        }
        assert!(
            Edition::First
                .write(&folder.path().join("none"), Access::Block)
                .is_err()
        );
    }
}
