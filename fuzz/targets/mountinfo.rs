//! The kernel's table of mounts, and mount options sorted by the program that reads them.
//!
//! Input: the table, and after a `U+001E` a list of options.
#![no_main]

use csi_types::{FsType, MountFlags};
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use node_utils::mount::{MountEntry, MountOptions, MountTable};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == 0x1e);
    table(parts.next().unwrap_or_default());
    if let Ok(list) = std::str::from_utf8(parts.next().unwrap_or_default()) {
        options(list);
    }
});

fn table(text: &[u8]) {
    let table = MountTable::from_text(text);
    let lines = text.split(|byte| *byte == b'\n').count();
    let entries: Vec<_> = table.entries().collect();
    assert!(entries.len() <= lines);
    for entry in &entries {
        let first = table.by_id(entry.id).expect("it is in the table");
        assert!(entries.iter().find(|other| other.id == entry.id) == Some(&first));
        let point = entry.point();
        assert!(entry.is_at(&point) && table.layers(&point).any(|layer| layer == *entry));
        assert!(entry.shows_the_same_as(entry));
        written_anew(entry);
    }
    // A truncated entry is lost; the entries before it are read as before.
    let cut = text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let shorter = MountTable::from_text(&text[..cut]);
    let kept: Vec<_> = shorter.entries().collect();
    assert!(kept == entries[..kept.len()] && entries.len() - kept.len() <= 1);
}

/// An entry written with every byte escaped is the same entry.
fn written_anew(entry: &MountEntry<'_>) {
    if entry.source().is_empty() {
        return;
    }
    let word = |read_only| if read_only { "ro" } else { "rw" };
    let line = format!(
        "{} {} {}:{} {}{} {} {} shared:1 - {} {} {}\n",
        entry.id,
        entry.parent,
        entry.device.0,
        entry.device.1,
        escaped(entry.root().as_os_str().as_bytes()),
        if entry.is_deleted() { "//deleted" } else { "" },
        escaped(entry.point().as_os_str().as_bytes()),
        word(entry.is_read_only()),
        escaped(entry.fs_type().as_bytes()),
        escaped(entry.source().as_bytes()),
        word(entry.is_filesystem_read_only()),
    );
    let table = MountTable::from_text(line);
    let read = table.by_id(entry.id).expect("a line");
    let facts = |entry: &MountEntry<'_>| {
        let numbers = (entry.id, entry.parent, entry.device);
        let flags = (
            entry.is_deleted(),
            entry.is_read_only(),
            entry.is_filesystem_read_only(),
        );
        (numbers, flags)
    };
    assert_eq!(facts(&read), facts(entry));
    assert_eq!((read.root(), read.point()), (entry.root(), entry.point()));
    assert_eq!(
        (read.fs_type(), read.source()),
        (entry.fs_type(), entry.source())
    );
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "\\{byte:03o}");
        text
    })
}

fn options(list: &str) {
    if let Ok(kind) = FsType::parse(list) {
        assert_eq!(kind.as_str(), list);
        assert!(!list.starts_with('-') && !list.contains(['/', ',', ' ']));
    }
    let flags = match MountFlags::parse(list.lines()) {
        Ok(flags) => flags,
        Err(error) => {
            one_line(error);
            return;
        }
    };
    assert_eq!(MountFlags::parse(flags.iter()).as_ref(), Ok(&flags));
    for flag in flags.iter() {
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == '\\';
        assert!(!flag.is_empty() && !flag.contains(odd));
        // Only quotes contain a comma, and they end where they began.
        let mut pieces = flag.split('"');
        assert!(
            pieces.clone().count() % 2 == 1
                && pieces.by_ref().step_by(2).all(|piece| !piece.contains(','))
        );
    }
    let sorted = MountOptions::sort(flags.iter());
    // No option is invented, and none with a value is lost.
    let MountOptions {
        data,
        user,
        operations,
        ..
    } = &sorted;
    let placed = || {
        data.iter()
            .chain(user)
            .chain(operations)
            .map(String::as_str)
    };
    assert!(placed().all(|option| flags.iter().any(|flag| flag == option)));
    for flag in flags.iter().filter(|flag| flag.contains('=')) {
        assert!(placed().any(|option| option == flag), "{flag:?} is lost");
    }
    let again = MountOptions::sort(placed());
    assert_eq!((&again.data, &again.user), (data, user));
    for name in sorted.not_for_bind() {
        assert!(!name.contains('='), "the value of {name:?} may be a secret");
    }
    // The same list twice means the same as once.
    let twice = MountOptions::sort(flags.iter().chain(flags.iter()));
    assert!(twice.attributes == sorted.attributes && twice.superblock == sorted.superblock);
}
