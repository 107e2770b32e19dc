//! Folders, attributes and links of configfs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;

use crate::lab::command;

/// Loads a module of the kernel, if this process has not done so.
pub fn module(name: &'static str) {
    static LOADED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut loaded = LOADED.lock().expect("no holder panicked");
    if loaded.insert(name) {
        command::run(&["modprobe", name]);
    }
}

/// Makes a folder, which in configfs makes an object.
///
/// # Panics
/// If the kernel refuses.
pub fn make(folder: &Path) {
    fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
}

/// Removes a folder, which in configfs removes an object; one that is gone is fine.
///
/// # Panics
/// If the kernel refuses.
pub fn remove(folder: &Path) {
    if folder.exists() {
        fs::remove_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    }
}

/// Writes an attribute.
///
/// # Panics
/// If the kernel refuses.
pub fn set(folder: &Path, attribute: &str, value: &str) {
    let path = folder.join(attribute);
    fs::write(&path, value).unwrap_or_else(|error| panic!("{} = {value}: {error}", path.display()));
}

/// Links one object into another.
///
/// # Panics
/// If the kernel refuses.
pub fn link(object: &Path, from: &Path) {
    symlink(object, from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// Takes a link away; one that is gone is fine.
///
/// # Panics
/// If the kernel refuses.
pub fn unlink(from: &Path) {
    if from.is_symlink() {
        fs::remove_file(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
}

/// The names in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
