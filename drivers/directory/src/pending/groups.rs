//! Groups of snapshots that are being made or deleted, in this process.
//!
//! A deletion stops the call that makes its group, and no other begins to: so one of both succeeds, however often their
//! callers ask.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver_core::text::GroupSnapshotId;
use driver_core::{Call, Error, Kind};
use tokio::sync::Notify;

use super::PendingCopies;

/// Groups that are being made or deleted, by the base and the id.
static GROUPS: Mutex<BTreeMap<(String, String), GroupCalls>> = Mutex::new(BTreeMap::new());

/// A group is not made any more.
static ENDED: Notify = Notify::const_new();

/// The calls for a group that go on.
#[derive(Debug, Default)]
struct GroupCalls {
    /// The one that makes it: from before the first copy to after the last.
    creation: Option<Call>,
    /// Those that delete it. None begins to make it as long as there is one, so that a deletion ends.
    deletions: usize,
}

/// A group that is being made, until this is dropped.
pub(crate) struct GroupWork {
    key: (String, String),
}

/// A group that is being deleted, until this is dropped.
pub(crate) struct GroupDeletion {
    key: (String, String),
}

fn all_groups() -> MutexGuard<'static, BTreeMap<(String, String), GroupCalls>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes what is kept of a group, and forgets one without a call.
fn change(key: &(String, String), change: impl FnOnce(&mut GroupCalls)) {
    let mut groups = all_groups();
    if let Some(calls) = groups.get_mut(key) {
        change(calls);
        if calls.creation.is_none() && calls.deletions == 0 {
            groups.remove(key);
        }
    }
}

// === impl PendingCopies ===

impl PendingCopies {
    /// Begins to make a group; an error while another call makes or deletes it.
    pub(crate) fn begin_group(
        &self,
        group: &GroupSnapshotId,
        call: &Call,
    ) -> Result<GroupWork, Error> {
        let key = self.key(group.as_str());
        let mut groups = all_groups();
        let calls = groups.entry(key.clone()).or_default();
        let other = match calls {
            GroupCalls { deletions: 1.., .. } => "another call is deleting it",
            GroupCalls {
                creation: Some(_), ..
            } => "another call is taking it",
            GroupCalls { creation: None, .. } => {
                calls.creation = Some(call.clone());
                return Ok(GroupWork { key });
            }
        };
        let doing = format!("taking group snapshot {group}");
        Err(Error::new(Kind::Pending, doing).because(other))
    }

    /// Begins to delete a group: no call begins to make it then.
    pub(crate) fn begin_deletion(&self, group: &GroupSnapshotId) -> GroupDeletion {
        let key = self.key(group.as_str());
        all_groups().entry(key.clone()).or_default().deletions += 1;
        GroupDeletion { key }
    }

    /// Stops the call that makes a group, and waits until it has ended, but no longer than that time.
    pub(crate) async fn end_group(&self, group: &GroupSnapshotId, patience: Duration) {
        let ended = async {
            loop {
                // From now on, an end is noticed.
                let ended = ENDED.notified();
                if self.stop_group(group, "").is_ok() {
                    break;
                }
                ended.await;
            }
        };
        // The deletion says what goes on.
        let _ = tokio::time::timeout(patience, ended).await;
    }

    /// Stops the call that makes a group, also between two copies; an error as long as it goes on.
    pub(crate) fn stop_group(&self, group: &GroupSnapshotId, doing: &str) -> Result<(), Error> {
        let groups = all_groups();
        let calls = groups.get(&self.key(group.as_str()));
        let Some(call) = calls.and_then(|calls| calls.creation.as_ref()) else {
            return Ok(());
        };
        call.cancel();
        Err(Error::new(Kind::Pending, doing)
            .because("it is being made: that has been stopped, and has not ended yet"))
    }
}

// === impl GroupWork ===

impl Drop for GroupWork {
    fn drop(&mut self) {
        change(&self.key, |calls| calls.creation = None);
        ENDED.notify_waiters();
    }
}

// === impl GroupDeletion ===

impl Drop for GroupDeletion {
    fn drop(&mut self) {
        change(&self.key, |calls| calls.deletions -= 1);
    }
}
