//! The words of this machine's kernel about disks and filesystems.

use std::fs;

use super::command::run;

/// The lines that say that a disk, a session or a share went away under what used it: their parts in order, in
/// small letters.
const LOSSES: [&[&str]; 18] = [
    &["conn error"],
    &["recovery timed out"],
    &["i/o error"],
    &["critical ", " error"],
    &["ext4-fs", "error"],
    &["ext4-fs", "remount"],
    &["xfs", "error"],
    &["xfs", "shut"],
    &["jbd2", "error"],
    &["lost ", "write"],
    &["nfs:", "not responding"],
    &["rejecting i/o"],
    &["stale"],
    &["cifs:", "has not responded"],
    &["cifs:", "bad_network_name"],
    &["cifs:", "error"],
    &["cifs:", "no writable handle"],
    // The refusal of a subsystem that is gone, before a write fails.
    &["nvme", "connect invalid data parameter"],
];

/// A moment in the kernel's log.
#[derive(Debug)]
pub struct Since(String);

// === impl Since ===

impl Since {
    /// The present moment, which gets this name in the log.
    ///
    /// # Panics
    /// If the log cannot be written.
    pub fn now(name: &str) -> Self {
        let mark = format!("the lab: {name} begins");
        // Without its end the line is not shown before another one follows.
        fs::write("/dev/kmsg", format!("{mark}\n")).expect("the log of the kernel");
        Self(mark)
    }

    /// The line of this moment in a log.
    pub fn mark(&self) -> &str {
        &self.0
    }

    /// The lines since then that say that something was lost.
    ///
    /// # Panics
    /// If the kernel has forgotten that moment.
    pub fn losses(&self) -> Vec<String> {
        self.losses_in(&run(&["dmesg"]))
    }

    /// The same of another machine, in whose log the [mark](Self::mark) is as well.
    ///
    /// # Panics
    /// If the mark is not in it.
    pub fn losses_in(&self, log: &str) -> Vec<String> {
        let since = log.rsplit_once(&self.0);
        let (_, since) = since.expect("the kernel remembers the moment");
        since.lines().filter(is_loss).map(str::to_owned).collect()
    }
}

fn is_loss(line: &&str) -> bool {
    let line = line.to_lowercase();
    LOSSES.iter().any(|parts| has_in_order(&line, parts))
}

fn has_in_order(line: &str, parts: &[&str]) -> bool {
    let mut rest = Some(line);
    for part in parts {
        rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
    }
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_from_a_mount() {
        for loss in [
            "[ 1.0] blk_update_request: I/O error, dev sdb, sector 0 op 0x1:(WRITE)",
            "[ 1.0] critical medium error, dev sdb, sector 8",
            "[ 1.0] Buffer I/O error on dev sdb, logical block 9, lost async page write",
            "[ 1.0] EXT4-fs error (device sdb): ext4_find_entry: inode #2",
            "[ 1.0] JBD2: Detected IO errors while flushing file data on sdb-8",
            "[ 1.0]  connection1:0: detected conn error (1020)",
            "[ 1.0] nfs: server 127.0.0.1 not responding, timed out",
            "[ 1.0] CIFS: VFS: \\\\127.0.0.1 has not responded in 180 seconds. Reconnecting...",
            "[ 1.0] CIFS: VFS:  BAD_NETWORK_NAME: \\\\127.0.0.1\\pvc-1",
            "[ 1.0] CIFS: VFS: No writable handle in writepages rc=-9",
            "[ 1.0] nvme nvme1: Connect Invalid Data Parameter, subsysnqn \"nqn.2026-01.lab.served:pvc-1\"",
        ] {
            assert!(is_loss(&loss), "{loss}");
        }
        for other in [
            "[ 1.0] EXT4-fs (sdb): mounted filesystem with ordered data mode",
            "[ 1.0] EXT4-fs (sdb): unmounting filesystem",
            "[ 1.0] nvme nvme1: Removing ctrl: NQN \"nqn.2026-01.lab.served:pvc-1\"",
            "[ 1.0] error of critical weight",
            "[ 1.0] CIFS: Attempting to mount //127.0.0.1/pvc-1",
        ] {
            assert!(!is_loss(&other), "{other}");
        }
    }
}
