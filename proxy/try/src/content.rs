//! What is written to volumes, and whether it is still there: every byte is compared.
//!
//! The content of an edition follows from its number, so that nothing has to be remembered. Calls block.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use crate::flags::Access;

/// How much is written, in bytes.
pub(crate) const LENGTH: usize = 1 << 20;

/// A state of a volume's content that can be told from every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edition {
    /// What is written first, and what a snapshot keeps.
    First,
    /// What the volume holds after the change.
    Second,
    /// What is written to copies, to see that their source does not change.
    Other,
}

// === impl Edition ===

impl Edition {
    const ALL: [Self; 3] = [Self::First, Self::Second, Self::Other];

    /// A file that only this edition has, in a folder as databases have.
    fn own_file(self) -> &'static str {
        match self {
            Self::First => "folder/only-in-the-first",
            Self::Second => "folder/only-in-the-second",
            Self::Other => "folder/only-in-a-copy",
        }
    }

    fn other_files(self) -> impl Iterator<Item = &'static str> {
        let others = Self::ALL.into_iter().filter(move |other| *other != self);
        others.map(Self::own_file)
    }

    /// Bytes without repetition (xorshift64).
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
        if access == Access::Block {
            let device = File::options().write(true).open(target);
            return flush(device, &self.bytes()).map_err(in_file("the device"));
        }
        fs::create_dir_all(target.join("folder")).map_err(in_file("folder"))?;
        for name in self.other_files() {
            let gone = fs::remove_file(target.join(name));
            let gone = gone.or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            });
            gone.map_err(in_file(name))?;
        }
        for (name, content) in [("data.bin", self.bytes()), (self.own_file(), Vec::new())] {
            flush(File::create(target.join(name)), &content).map_err(in_file(name))?;
        }
        Ok(())
    }

    /// Looks whether the volume at `target` holds exactly this; the error is the first difference.
    pub(crate) fn compare(self, target: &Path, access: Access) -> Result<(), String> {
        if access == Access::Block {
            return same(target, "the device", &self.bytes(), false);
        }
        same(&target.join("data.bin"), "data.bin", &self.bytes(), true)?;
        same(&target.join(self.own_file()), self.own_file(), &[], true)?;
        let mut others = self.other_files();
        match others.find(|name| target.join(name).symlink_metadata().is_ok()) {
            Some(name) => Err(format!("{name} is there, and should not be")),
            None => Ok(()),
        }
    }
}

fn in_file(name: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("{name}: {error}")
}

fn flush(file: io::Result<File>, content: &[u8]) -> io::Result<()> {
    let mut file = file?;
    file.write_all(content)?;
    file.sync_all()
}

fn same(path: &Path, name: &str, expected: &[u8], whole: bool) -> Result<(), String> {
    let most = expected.len() as u64 + u64::from(whole);
    let mut found = Vec::with_capacity(expected.len());
    File::open(path)
        .and_then(|file| file.take(most).read_to_end(&mut found))
        .map_err(in_file(name))?;
    let mut pairs = found.iter().zip(expected);
    match pairs.position(|(found, expected)| found != expected) {
        Some(at) => Err(format!("{name} differs from byte {at} on")),
        None if found.len() != expected.len() => {
            let (found, expected) = (found.len(), expected.len());
            Err(format!("{name} has {found} bytes, expected {expected}"))
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
        let (path, access) = (volume.path(), Access::Mount);
        let differs = |edition: Edition, how: &str| {
            let difference = edition.compare(path, access).unwrap_err();
            assert!(difference.contains(how), "{difference}");
        };
        for edition in Edition::ALL {
            edition.write(path, access).unwrap();
            edition.compare(path, access).unwrap();
        }
        differs(Edition::First, "byte 0");
        differs(Edition::Second, "byte 0");

        let data = path.join("data.bin");
        let good = fs::read(&data).unwrap();
        let mut bad = good.clone();
        bad[LENGTH - 1] ^= 1;
        fs::write(&data, &bad).unwrap();
        differs(Edition::Other, &format!("byte {}", LENGTH - 1));
        fs::write(&data, [&good[..], b"x"].concat()).unwrap();
        differs(Edition::Other, &format!("has {} bytes", LENGTH + 1));
        fs::write(&data, &good).unwrap();
        fs::write(path.join(Edition::First.own_file()), "").unwrap();
        differs(Edition::Other, "should not be");
    }

    #[test]
    fn a_device_is_compared_as_far_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("device");
        fs::write(&device, vec![0; LENGTH * 2]).unwrap();
        Edition::First.write(&device, Access::Block).unwrap();
        Edition::First.compare(&device, Access::Block).unwrap();
        assert!(Edition::Second.compare(&device, Access::Block).is_err());
        assert_eq!(fs::metadata(&device).unwrap().len(), 2 * LENGTH as u64);
    }
}
