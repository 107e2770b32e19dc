//! Everything that needs no lab, as one program.
#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod adopted;
#[path = "../../../zfs/tests/common/beside.rs"]
mod beside;
mod contract;
mod nodes;
#[path = "../../../zfs/tests/common/replay.rs"]
mod replay;
mod taken_over;
mod verdicts;

use driver_zfs::testing::MemoryHost;
use driver_zfs_local::NodeZfs;

/// A driver over a host in memory.
trait InMemory {
    /// The host.
    fn backend(&self) -> &MemoryHost;
}

impl InMemory for NodeZfs {
    fn backend(&self) -> &MemoryHost {
        self.storage().of().unwrap()
    }
}
