//! The signs of a volume on a node, in words.

use std::path::{Path, PathBuf};

use super::super::*;
use crate::device::DeviceNumber;
use crate::mount::MountEntry;

/// The state of the paths of the volume, and whether its device is attached.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    staging: String,
    target: String,
    devices: String,
}

/// The table, or `None` where its cells cannot be made; that is said aloud.
pub(super) fn where_the_table_is() -> Option<PathBuf> {
    for path in ["/dev/fuse", "/dev/loop-control"] {
        if let Err(error) = fs::File::options().read(true).write(true).open(path) {
            let why = format!("{path}: {error}");
            crate::requirement::could_not_run("the table of states", &why);
            return None;
        }
    }
    Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/node-states.md"))
}

impl Look {
    pub(super) fn at(bench: &Bench) -> Self {
        let staging = bench.path("k/s");
        let block = staging.join("block_device");
        let table = MountTable::read().expect("table");
        let shows_device = table.layers(&block).count() > 0;
        let mut names: Vec<_> = bench
            .storage
            .attached()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        names.sort_unstable();
        let is_named = |name: &str| names.iter().any(|known| known == name);
        let devices = match (is_named("one"), is_named("two")) {
            (false, _) => "detached",
            (true, _) => "attached",
        };
        Self {
            staging: describe(bench, &table, if shows_device { &block } else { &staging }),
            target: describe(bench, &table, &bench.path("k/t")),
            devices: devices.to_owned(),
        }
    }

    /// The differences by now.
    pub(super) fn since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        let mut note = |name: &str, now: &str, then: &str| {
            if now != then {
                changes.push(format!("{name}{now}"));
            }
        };
        note("staging: ", &self.staging, &before.staging);
        note("target: ", &self.target, &before.target);
        note("", &self.devices, &before.devices);
        changes
    }
}

fn describe(bench: &Bench, table: &MountTable, path: &Path) -> String {
    let layers: Vec<_> = table
        .layers(path)
        .map(|entry| name(bench, &entry))
        .collect();
    match layers.as_slice() {
        [] => plain(path).to_owned(),
        [one] => one.clone(),
        [first, ..] => format!("{} times {first}", layers.len()),
    }
}

fn name(bench: &Bench, entry: &MountEntry<'_>) -> String {
    let kernel = Kernel::here();
    if entry.fs_type().starts_with("fuse") {
        return "a mount that does not answer".to_owned();
    }
    let root = entry.root().into_owned();
    let deleted = if entry.is_deleted() { ", deleted" } else { "" };
    for (directory, what) in [("one", "the volume"), ("two", "another volume")] {
        if root.ends_with(directory) {
            return format!("{what}{deleted}{}", read_only(entry));
        }
    }
    for (volume, device) in bench.storage.attached() {
        let what = match &*volume {
            "one" => "the volume",
            "gone" => "the device that is gone",
            _ => "another volume",
        };
        let shown = root.file_name().and_then(|name| name.to_str());
        if DeviceNumber::from(entry.device) == device.number() || shown == Some(device.name()) {
            return format!("{what}{}", read_only(entry));
        }
        let faces = Loop::all_over(&kernel, &device).expect("look");
        if faces
            .iter()
            .any(|face| shown.is_some_and(|name| face.node(&kernel).ends_with(name)))
        {
            return format!("{what}, read-only");
        }
    }
    format!("{} of {}", entry.fs_type(), root.display())
}

fn read_only(entry: &MountEntry<'_>) -> &'static str {
    if entry.is_read_only() {
        ", read-only"
    } else {
        ""
    }
}

fn plain(path: &Path) -> &'static str {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return "nothing";
    };
    if metadata.is_symlink() {
        return "a link";
    }
    if metadata.is_file() {
        return if metadata.len() == 0 {
            "an empty file"
        } else {
            "a file"
        };
    }
    match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => "an empty directory",
        _ => "a directory with content",
    }
}
