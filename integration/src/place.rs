//! A temporary folder in which one server lives: its storage, its socket, its log, its mounts.
//!
//! The folder outlives its servers, so that a killed one can be restarted on the same state.
//! Remaining mounts below it are unmounted at the end, so that a failed test leaves nothing behind;
//! a test of mounts calls [`Place::mounts`] before that.
#![expect(
    clippy::disallowed_methods,
    reason = "cleans up what the program under test may have left mounted"
)]

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A temporary folder in which one server lives.
#[derive(Debug)]
pub struct Place {
    root: TempDir,
}

// === impl Place ===

impl Place {
    /// A new folder with `base` for storage, `node` for mounts and `canary`, which must stay
    /// unchanged.
    pub fn new() -> Self {
        let root = TempDir::with_prefix("omnibus-").expect("a temporary folder");
        let place = Self { root };
        for folder in [place.base(), place.node(), place.canary()] {
            fs::create_dir(folder).expect("a folder in a new folder");
        }
        fs::write(place.canary().join("untouched"), "canary").expect("a file in a new folder");
        place
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// The storage.
    pub fn base(&self) -> PathBuf {
        self.path().join("base")
    }

    /// The folder of staging and target paths.
    pub fn node(&self) -> PathBuf {
        self.path().join("node")
    }

    /// A folder beside the storage that no test may change.
    pub fn canary(&self) -> PathBuf {
        self.path().join("canary")
    }

    /// The socket of the server.
    pub fn socket(&self) -> PathBuf {
        self.path().join("csi.sock")
    }

    /// The configuration of the server.
    pub fn config(&self) -> PathBuf {
        self.path().join("config.yaml")
    }

    /// The output of all servers here, in order.
    pub fn log(&self) -> PathBuf {
        self.path().join("log")
    }

    /// The mounts below here, in the order of mounting.
    pub fn mounts(&self) -> Vec<PathBuf> {
        mounts_below(self.path())
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        unmount_below(self.path());
    }
}

/// Unmounts the leftovers of a failed or interrupted program below `folder`.
pub fn unmount_below(folder: &Path) {
    for mount in mounts_below(folder).iter().rev() {
        let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The mounts below `folder`, in the order of mounting.
pub fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|escaped| PathBuf::from(unescape(escaped)))
        .filter(|mount| mount.starts_with(folder))
        .collect()
}

/// Undoes the `\040` of mountinfo.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 4);
        if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            plain.push(char::from(byte));
            rest = &rest[at + 4..];
        } else {
            plain.push('\\');
            rest = &rest[at + 1..];
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_in_a_mount_point_is_read_back() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
    }
}
