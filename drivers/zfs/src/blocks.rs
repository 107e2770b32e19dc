//! The blocks of a zvol: which of them a snapshot holds, and which differ from an older snapshot.
//!
//! Both follow from the records of `zfs send`, without their content. A record of freed blocks says too much: ZFS
//! repeats holes that were never written. Only what the older snapshot held can have been freed, so such a record
//! counts where that one has data. compat: "Group snapshots and changed blocks".

mod changes;
mod records;

pub use changes::{Before, Records, changed, held};
pub use records::{Item, Malformed, Parser, RECORD, Sent};
