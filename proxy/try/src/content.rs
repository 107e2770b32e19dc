//! What is written to volumes, and whether it is still there: every byte is compared.
//!
//! The content of an edition follows from its number, so that nothing has to be remembered. Calls
//! block, and run where that is allowed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use super::flags::AccessFlag;

/// How much is written, in bytes.
pub(super) const LENGTH: usize = 1 << 20;

/// A state of a volume's content that can be told from every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edition {
    /// What is written first, and what a snapshot keeps.
    First,
    /// What the volume holds after the change.
    Second,
    /// What is written to copies, to see that their source does not change.
    Other,
}

/// A folder with a file, as databases and their like have.
const FOLDER: &str = "folder";
const NOTE: &str = "folder/note.txt";
const DATA: &str = "data.bin";

// === impl Edition ===

impl Edition {
    fn seed(self) -> u64 {
        match self {
            Self::First => 0x9e37_79b9_7f4a_7c15,
            Self::Second => 0xbf58_476d_1ce4_e5b9,
            Self::Other => 0x94d0_49bb_1331_11eb,
        }
    }

    fn note(self) -> &'static str {
        match self {
            Self::First => "the first edition\n",
            Self::Second => "the second edition, and longer than the first\n",
            Self::Other => "something else\n",
        }
    }

    /// A file that only this edition has.
    fn own_file(self) -> &'static str {
        match self {
            Self::First => "only-in-the-first",
            Self::Second => "only-in-the-second",
            Self::Other => "only-in-a-copy",
        }
    }

    /// Bytes without repetition (xorshift64).
    fn bytes(self) -> Vec<u8> {
        let mut state = self.seed();
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
    pub(super) fn write(self, target: &Path, access: AccessFlag) -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        match access {
            AccessFlag::Block => OpenOptions::new()
                .write(true)
                .open(target)
                .and_then(|mut device| flushed(&mut device, &self.bytes()))
                .map_err(said),
            AccessFlag::Mount => self.write_files(target),
        }
    }

    fn write_files(self, target: &Path) -> Result<(), String> {
        let said = |name: &str| {
            let name = name.to_owned();
            move |error: io::Error| format!("{name}: {error}")
        };
        fs::create_dir_all(target.join(FOLDER)).map_err(said(FOLDER))?;
        for edition in [Self::First, Self::Second, Self::Other] {
            if edition != self {
                let name = edition.own_file();
                match fs::remove_file(target.join(name)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(said(name)(error));
                    }
                    _ => {}
                }
            }
        }
        let bytes = self.bytes();
        for (name, content) in self.files(&bytes) {
            File::create(target.join(name))
                .and_then(|mut file| flushed(&mut file, content))
                .map_err(said(name))?;
        }
        Ok(())
    }

    fn files(self, bytes: &[u8]) -> [(&'static str, &[u8]); 3] {
        [
            (DATA, bytes),
            (NOTE, self.note().as_bytes()),
            (self.own_file(), b""),
        ]
    }

    /// Looks whether the volume at `target` holds exactly this; the error is the first difference.
    pub(super) fn compare(self, target: &Path, access: AccessFlag) -> Result<(), String> {
        let bytes = self.bytes();
        if access == AccessFlag::Block {
            return same(target, "the device", &bytes, false);
        }
        for (name, content) in self.files(&bytes) {
            same(&target.join(name), name, content, true)?;
        }
        for edition in [Self::First, Self::Second, Self::Other] {
            let name = edition.own_file();
            if edition != self && target.join(name).symlink_metadata().is_ok() {
                return Err(format!("{name} is there, and should not be"));
            }
        }
        Ok(())
    }
}

fn flushed(file: &mut File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
}

fn same(path: &Path, name: &str, expected: &[u8], whole: bool) -> Result<(), String> {
    let most = expected.len() as u64 + u64::from(whole);
    let mut found = Vec::with_capacity(expected.len());
    File::open(path)
        .and_then(|file| file.take(most).read_to_end(&mut found))
        .map_err(|error| format!("{name}: {error}"))?;
    match found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected)
    {
        Some(at) => Err(format!("{name} differs from byte {at} on")),
        None if found.len() != expected.len() => {
            let (found, expected) = (found.len(), expected.len());
            Err(format!(
                "{name} has another length: {found} bytes, expected {expected}"
            ))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_found_and_nothing_else_passes_for_it() {
        let volume = tempfile::tempdir().unwrap();
        let (path, access) = (volume.path(), AccessFlag::Mount);
        Edition::First.write(path, access).unwrap();
        Edition::First.compare(path, access).unwrap();
        Edition::Second.write(path, access).unwrap();
        Edition::Second.compare(path, access).unwrap();
        assert!(
            Edition::First
                .compare(path, access)
                .unwrap_err()
                .contains("byte 0")
        );

        let mut data = fs::read(path.join(DATA)).unwrap();
        data[LENGTH - 1] ^= 1;
        fs::write(path.join(DATA), &data).unwrap();
        let difference = Edition::Second.compare(path, access).unwrap_err();
        assert_eq!(
            difference,
            format!("data.bin differs from byte {} on", LENGTH - 1)
        );
        data[LENGTH - 1] ^= 1;
        data.push(0);
        fs::write(path.join(DATA), &data).unwrap();
        assert!(
            Edition::Second
                .compare(path, access)
                .unwrap_err()
                .contains("another length")
        );
        data.pop();
        fs::write(path.join(DATA), &data).unwrap();
        fs::write(path.join("only-in-a-copy"), "").unwrap();
        assert!(
            Edition::Second
                .compare(path, access)
                .unwrap_err()
                .contains("should not be")
        );
    }

    #[test]
    fn a_device_is_compared_as_far_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("device");
        fs::write(&device, vec![0; LENGTH * 2]).unwrap();
        Edition::First.write(&device, AccessFlag::Block).unwrap();
        Edition::First.compare(&device, AccessFlag::Block).unwrap();
        assert!(Edition::Second.compare(&device, AccessFlag::Block).is_err());
        assert_eq!(fs::metadata(&device).unwrap().len(), 2 * LENGTH as u64);
    }
}
