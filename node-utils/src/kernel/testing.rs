//! Kernels for tests: trees in a temporary directory that look like sysfs.
//!
//! A tree is made from a listing, captured from a real machine with `find`, or built by hand from
//! the few attributes that a test is about. Attributes are plain files: what is written to one is
//! read back from it, so a test sees what it was asked to do.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::Kernel;

/// Called with each attribute that is written, and the text. Returns whether to call it again.
type Listener = Box<dyn Fn(&Path, &str) -> bool + Send>;

static LISTENERS: Mutex<Vec<(PathBuf, Listener)>> = Mutex::new(Vec::new());

/// Notifies the simulated kernel of a tree that an attribute was written. Like the kernel, it acts before the
/// write returns.
pub(super) fn written(path: &Path, text: &str) {
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    listeners.retain(|(root, tell)| !path.starts_with(root) || tell(path, text));
}

/// A tree and its directory, which is removed with it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: tempfile::TempDir,
}

// === impl Tree ===

impl Tree {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().expect("directory");
        for tree in ["sys/class/block", "sys/dev/block", "dev", "proc"] {
            std::fs::create_dir_all(root.path().join(tree)).expect("directory");
        }
        Self { root }
    }

    /// From a listing, a path relative to the root on each line: `path -> target` is a link,
    /// `path = text` a file with one line (`\n` is a line end in it), `path/` a directory.
    pub(crate) fn from_listing(listing: &str) -> Self {
        let tree = Self::new();
        for line in listing.lines().filter(|line| !line.is_empty()) {
            if let Some((path, target)) = line.split_once(" -> ") {
                tree.link(path, target);
            } else if let Some((path, text)) = line.split_once(" = ") {
                tree.file(path, &format!("{}\n", text.replace("\\n", "\n")));
            } else {
                std::fs::create_dir_all(tree.path(line)).expect("directory");
            }
        }
        tree
    }

    /// The kernel that shows it.
    pub(crate) fn kernel(&self) -> Kernel {
        Kernel::at(self.root.path())
    }

    /// Calls `tell` for each attribute that is written, until it returns `false`.
    pub(crate) fn on_write(&self, tell: impl Fn(&Path, &str) -> bool + Send + 'static) {
        let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.push((self.root.path().to_owned(), Box::new(tell)));
    }

    pub(crate) fn path(&self, path: &str) -> std::path::PathBuf {
        self.root.path().join(path)
    }

    /// Makes a file, or changes it.
    pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        std::fs::write(path, text).expect("write");
        self
    }

    /// Makes a link with just this target.
    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        symlink(target, path).expect("link");
        self
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).expect("read")
    }

    /// Removes a file, a link or a whole directory.
    pub(crate) fn remove(&self, path: &str) -> &Self {
        let path = self.path(path);
        if path.is_dir() && !path.is_symlink() {
            std::fs::remove_dir_all(path).expect("remove");
        } else {
            std::fs::remove_file(path).expect("remove");
        }
        self
    }

    /// A block device whose directory is `sys/devices/<home>/block/<name>`, with its node.
    pub(crate) fn disk(&self, home: &str, name: &str, number: &str, sectors: u64) -> &Self {
        self.block(&format!("{home}/block/{name}"), number, sectors)
    }

    /// A partition of a disk made with the same `home`.
    pub(crate) fn partition(&self, home: &str, disk: &str, index: u32, number: &str) -> &Self {
        let digit = disk.ends_with(|c: char| c.is_ascii_digit());
        let name = format!("{disk}{}{index}", if digit { "p" } else { "" });
        let below = format!("{home}/block/{disk}/{name}");
        self.file(
            &format!("sys/devices/{below}/partition"),
            &format!("{index}\n"),
        );
        self.block(&below, number, 2048)
    }

    /// A map of the device mapper over these devices.
    pub(crate) fn map(&self, name: &str, number: &str, uuid: &str, over: &[&str]) -> &Self {
        self.disk("virtual", name, number, 2048);
        let directory = format!("sys/devices/virtual/block/{name}");
        self.file(&format!("{directory}/dm/uuid"), &format!("{uuid}\n"));
        for below in over {
            self.link(
                &format!("{directory}/slaves/{below}"),
                &format!("../../{below}"),
            );
            let holder = format!("sys/class/block/{below}/holders/{name}");
            self.link(&holder, &format!("../../{name}"));
        }
        self
    }

    fn block(&self, below: &str, number: &str, sectors: u64) -> &Self {
        let directory = format!("sys/devices/{below}");
        let name = Path::new(below)
            .file_name()
            .expect("name")
            .to_str()
            .expect("text");
        self.file(&format!("{directory}/dev"), &format!("{number}\n"));
        self.file(&format!("{directory}/size"), &format!("{sectors}\n"));
        self.file(&format!("{directory}/ro"), "0\n");
        self.file(
            &format!("dev/{}", name.replace('!', "/")),
            &format!("{number}\n"),
        );
        self.link(
            &format!("sys/class/block/{name}"),
            &format!("../../devices/{below}"),
        );
        self.link(
            &format!("sys/dev/block/{number}"),
            &format!("../../devices/{below}"),
        )
    }
}
