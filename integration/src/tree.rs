//! A folder as a value: everything in it, with owners, modes, times, contents and attributes, so
//! that two states can be compared and the difference named.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The type and permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// When it was last modified, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// The size of a file.
    pub size: u64,
    /// Digest of a file's content, or the target of a link.
    pub content: Vec<u8>,
    /// Extended attributes, ACLs among them.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first entry, in order, that is the same file.
    pub same_as: Option<PathBuf>,
}

/// A folder and everything below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree(pub BTreeMap<PathBuf, Entry>);

// === impl Entry ===

impl Entry {
    /// Something that is no file, by what is known of it.
    pub fn of_text(text: &str) -> Self {
        Self {
            mode: 0,
            owner: (0, 0),
            modified: (0, 0),
            size: 0,
            content: text.as_bytes().to_vec(),
            attributes: BTreeMap::new(),
            same_as: None,
        }
    }
}

// === impl Tree ===

impl Tree {
    /// Reads a folder, without files that vanish while it is read, and without sockets.
    pub fn read(root: &Path) -> Self {
        let mut tree = Self::default();
        let mut links = BTreeMap::new();
        tree.add(root, root, &mut links);
        tree
    }

    /// Without the entries that `unwanted` matches.
    #[must_use]
    pub fn without(mut self, unwanted: impl Fn(&Path) -> bool) -> Self {
        self.0.retain(|path, _| !unwanted(path));
        self
    }

    /// Reads the content of a folder, and the folder itself without the attributes that a driver
    /// sets on it.
    pub fn read_content(root: &Path) -> Self {
        let mut tree = Self::read(root);
        if let Some(entry) = tree.0.get_mut(Path::new("")) {
            entry.attributes.clear();
            entry.modified = (0, 0);
        }
        tree
    }

    /// Without the times of folders, which change when an entry is created and removed again.
    #[must_use]
    pub fn without_folder_times(mut self) -> Self {
        for entry in self.0.values_mut() {
            if entry.mode & 0o170_000 == 0o040_000 {
                entry.modified = (0, 0);
            }
        }
        self
    }

    /// The differences of `other`, one line for each entry; empty if there are none.
    pub fn difference(&self, other: &Self) -> String {
        let mut lines = Vec::new();
        for (path, entry) in &self.0 {
            match other.0.get(path) {
                None => lines.push(format!("- {}", path.display())),
                Some(now) if now != entry => {
                    lines.push(format!("~ {}: {entry:?} -> {now:?}", path.display()));
                }
                Some(_) => {}
            }
        }
        for path in other.0.keys().filter(|path| !self.0.contains_key(*path)) {
            lines.push(format!("+ {}", path.display()));
        }
        lines.join("\n")
    }

    fn add(&mut self, root: &Path, path: &Path, links: &mut BTreeMap<(u64, u64), PathBuf>) {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return;
        };
        let kind = metadata.file_type();
        if kind.is_socket() {
            return;
        }
        let name = path.strip_prefix(root).unwrap_or(path).to_owned();
        let content = if kind.is_file() {
            fs::read(path).map_or_else(|_| Vec::new(), |bytes| Sha256::digest(bytes).to_vec())
        } else if kind.is_symlink() {
            fs::read_link(path).map_or_else(|_| Vec::new(), |to| to.as_os_str().as_bytes().to_vec())
        } else {
            Vec::new()
        };
        let mut same_as = None;
        if !kind.is_dir() && metadata.nlink() > 1 {
            let first = links
                .entry((metadata.dev(), metadata.ino()))
                .or_insert_with(|| name.clone());
            same_as = (*first != name).then(|| first.clone());
        }
        let entry = Entry {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            size: if kind.is_dir() { 0 } else { metadata.size() },
            content,
            attributes: attributes(path),
            same_as,
        };
        self.0.insert(name, entry);
        if kind.is_dir() {
            let mut entries: Vec<_> = fs::read_dir(path)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect();
            entries.sort();
            for entry in entries {
                self.add(root, &entry, links);
            }
        }
    }
}

fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let Ok(length) = rustix::fs::llistxattr(path, names.as_mut_slice()) else {
        return BTreeMap::new();
    };
    names.truncate(length);
    let mut found = BTreeMap::new();
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 64 << 10];
        if let Ok(length) = rustix::fs::lgetxattr(path, name, value.as_mut_slice()) {
            value.truncate(length);
            found.insert(name.to_vec(), value);
        }
    }
    found
}
