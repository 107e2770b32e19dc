//! The attachments and mounts of this machine, as the kernel shows it.
//!
//! Read from sysfs, procfs and the iSCSI database alone, never from what a tool says. Two readings
//! are compared: what is there after an unstage and was not there before the stage was left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The time that the kernel may take to finish what was asked of it: controllers and SMB sessions go
/// asynchronously.
const SETTLING: Duration = Duration::from_secs(20);

/// One thing a line: mounts, sessions, controllers, disks, maps, loops, records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers(pub BTreeSet<String>);

// === impl Leftovers ===

impl Leftovers {
    /// The present state.
    pub fn read() -> Self {
        let mut all = BTreeSet::new();
        mounts(&mut all);
        for class in [
            "iscsi_session",
            "iscsi_connection",
            "iscsi_host",
            "scsi_disk",
            "nvme",
            "nvme-subsystem",
        ] {
            for name in names(&Path::new("/sys/class").join(class)) {
                all.insert(format!("{class} {name}"));
            }
        }
        blocks(&mut all);
        for root in ["/etc/iscsi/nodes", "/var/lib/iscsi/nodes"] {
            records(Path::new(root), &mut all);
        }
        network_shares(&mut all);
        Self(all)
    }

    /// What is here and not in `before`.
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }

    /// Waits until nothing is there that was not there before, and nothing is missing.
    ///
    /// # Panics
    /// If that does not come about.
    pub async fn back_to(before: &Self, what: &str) {
        let deadline = Instant::now() + SETTLING;
        loop {
            let now = Self::read();
            if now == *before {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{what} left behind {:#?}\nand took away {:#?}",
                now.beyond(before),
                before.beyond(&now)
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn text(file: impl AsRef<Path>) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn mounts(all: &mut BTreeSet<String>) {
    for line in text("/proc/self/mountinfo").lines() {
        let (left, right) = line.split_once(" - ").unwrap_or((line, ""));
        let left: Vec<_> = left.split(' ').collect();
        let right: Vec<_> = right.split(' ').collect();
        if let ([_, _, _, root, point, ..], [kind, source, ..]) = (&left[..], &right[..])
            // Mounted by systemd on access.
            && *kind != "autofs"
            && !point.starts_with("/run/user")
            && *point != "/proc/sys/fs/binfmt_misc"
        {
            all.insert(format!("mount {point} of {root} {kind} {source}"));
        }
    }
}

fn blocks(all: &mut BTreeSet<String>) {
    for name in names(Path::new("/sys/block")) {
        let folder = Path::new("/sys/block").join(&name);
        if name.starts_with("loop") {
            // Loop devices are never removed, only emptied.
            let file = text(folder.join("loop/backing_file"));
            if !file.is_empty() {
                all.insert(format!("loop {name} over {}", file.trim()));
            }
        } else if name.starts_with("dm-") {
            let (uuid, map) = (text(folder.join("dm/uuid")), text(folder.join("dm/name")));
            all.insert(format!("map {} {}", map.trim(), uuid.trim()));
        } else {
            all.insert(format!("disk {name}"));
        }
    }
}

fn records(folder: &Path, all: &mut BTreeSet<String>) {
    for name in names(folder) {
        let path = folder.join(name);
        if path.is_dir() {
            records(&path, all);
        } else {
            all.insert(format!("record {}", path.display()));
        }
    }
}

fn network_shares(all: &mut BTreeSet<String>) {
    for (kind, file) in [
        ("server", "/proc/fs/nfsfs/servers"),
        ("volume", "/proc/fs/nfsfs/volumes"),
    ] {
        for line in text(file).lines().skip(1) {
            let words: Vec<_> = line.split_whitespace().collect();
            all.insert(format!("nfs {kind} {}", words.join(" ")));
        }
    }
    // Beside shares, each session with its user counts.
    for line in text("/proc/fs/cifs/DebugData").lines() {
        let line = line.trim();
        if line.contains("\\\\") || line.contains("Session Status:") || line.starts_with("User:") {
            let words: Vec<_> = line.split_whitespace().collect();
            all.insert(format!("smb {}", words.join(" ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_and_removals_are_distinguished() {
        let set = |words: &[&str]| Leftovers(words.iter().map(|&word| word.to_owned()).collect());
        let (before, now) = (set(&["disk vda", "disk sdb"]), set(&["disk vda", "map m"]));
        assert_eq!(now.beyond(&before), ["map m"]);
        assert_eq!(before.beyond(&now), ["disk sdb"]);
    }

    #[test]
    fn this_machine_has_mounts() {
        let now = Leftovers::read();
        assert!(now.0.iter().any(|line| line.starts_with("mount / of ")));
    }
}
