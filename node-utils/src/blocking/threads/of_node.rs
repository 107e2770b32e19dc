//! The threads of the node half: a limit for each share or device, and a reserve for local paths.
//!
//! A server that does not answer keeps the threads of its own volumes and no others. Looking at its volumes, changing
//! them and forcing them away have a limit each: kubelets look again and again, an unmount has to get through, and it
//! is force that makes the other threads return.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{ACCOUNT, Account, Full, WAIT_TIMEOUT, one_of};
use csi_types::attachment::Attachment;

use crate::mount::{MountEntry, MountTable};

/// Of one server or device, for each purpose. More wait for the same server, which answers in milliseconds if it is
/// sound.
const EACH: usize = 16;
/// Of all shares and devices together: twelve that hang altogether, for each purpose, leave none.
const ELSEWHERE: usize = 12 * 3 * EACH;
/// For paths on local filesystems, where nothing waits for a server. They end in milliseconds.
const LOCAL: usize = 64;

/// The threads of one node.
#[derive(Debug)]
pub(crate) struct NodeThreads {
    local: Arc<Semaphore>,
    elsewhere: Arc<Semaphore>,
    /// Of each share or device with work.
    each: Mutex<HashMap<(Source, Purpose), Weak<Semaphore>>>,
}

/// A source that may hang: a server, or a disk with its own connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Source(String);

/// Why a thread is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// To read.
    Look,
    /// To mount, unmount or write.
    Change,
    /// To take away by force what does not answer.
    Force,
}

/// The account of one call. A clone is the same account.
#[derive(Debug, Clone)]
pub(crate) struct NodeAccount {
    threads: Arc<NodeThreads>,
    source: Option<Source>,
    own: Option<Arc<Semaphore>>,
}

/// One thread, until its work has really ended.
#[derive(Debug)]
pub(in crate::blocking) struct NodePermit {
    _own: Option<OwnedSemaphorePermit>,
    _all: OwnedSemaphorePermit,
}

/// The number of threads of a node.
pub const OF_A_NODE: usize = ELSEWHERE + LOCAL;

// === impl NodeThreads ===

impl NodeThreads {
    /// The account of a call about something from `source`. Without a source it is local.
    pub(crate) fn account(
        self: &Arc<Self>,
        source: Option<Source>,
        purpose: Purpose,
    ) -> NodeAccount {
        NodeAccount {
            threads: Arc::clone(self),
            own: source.as_ref().map(|source| self.limit(source, purpose)),
            source,
        }
    }

    fn limit(&self, source: &Source, purpose: Purpose) -> Arc<Semaphore> {
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        each.retain(|_, semaphore| semaphore.strong_count() > 0);
        let key = (source.clone(), purpose);
        each.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let own = Arc::new(Semaphore::new(EACH));
            each.insert(key, Arc::downgrade(&own));
            own
        })
    }
}

impl Default for NodeThreads {
    fn default() -> Self {
        Self {
            local: Arc::new(Semaphore::new(LOCAL)),
            elsewhere: Arc::new(Semaphore::new(ELSEWHERE)),
            each: Mutex::default(),
        }
    }
}

// === impl NodeAccount ===

impl NodeAccount {
    /// Runs `work` on this account.
    pub(crate) async fn on_account<F: Future>(self, work: F) -> F::Output {
        ACCOUNT.scope(Account::Node(self), work).await
    }

    /// The same for another purpose.
    fn meant_for(&self, purpose: Purpose) -> Self {
        self.threads.account(self.source.clone(), purpose)
    }

    /// A thread, as soon as one is free.
    pub(super) async fn take(&self) -> Result<NodePermit, Full> {
        let (own, all) = match &self.own {
            Some(own) => (
                Some(one_of(own, WAIT_TIMEOUT, Full::Own(EACH)).await?),
                &self.threads.elsewhere,
            ),
            None => (None, &self.threads.local),
        };
        Ok(NodePermit {
            _own: own,
            _all: one_of(all, WAIT_TIMEOUT, Full::Others(WAIT_TIMEOUT)).await?,
        })
    }
}

/// Runs `work` on the account of this task, but for another purpose.
pub(crate) async fn meant_for<F: Future>(purpose: Purpose, work: F) -> F::Output {
    match ACCOUNT.try_with(Account::clone) {
        Ok(Account::Node(account)) => account.meant_for(purpose).on_account(work).await,
        Ok(Account::Party(_)) | Err(_) => work.await,
    }
}

// === impl Source ===

impl Source {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Where a volume comes from; `None` for what is on this node.
    pub(crate) fn of_volume(attachment: &Attachment) -> Option<Self> {
        let source = match attachment {
            Attachment::Nfs(share) | Attachment::Smb(share) | Attachment::Lustre(share) => {
                share.server.to_string()
            }
            Attachment::Iscsi(iscsi) => iscsi.iqn.to_string(),
            Attachment::Nvmeof(nvmeof) => nvmeof.nqn.to_string(),
            Attachment::Objectivefs(volume) => volume.filesystem.to_string(),
            Attachment::Oneclient(volume) => volume.server.to_string(),
            Attachment::Hostpath(_) | Attachment::ZfsLocal(_) => return None,
        };
        Some(Self(source))
    }

    /// Where the filesystem that holds a directory of this node comes from, if that is another machine: a base on a
    /// network mount that hangs must not take the threads of local paths.
    pub(crate) fn of_directory(table: &MountTable, directory: &Path) -> Option<Self> {
        let holders = table
            .entries()
            .filter(|entry| directory.starts_with(entry.point()));
        // Of several at one place the last covers the others.
        let holder = holders.max_by_key(|entry| entry.point().as_os_str().len())?;
        holder.is_remote().then(|| Self::of_mount(&holder))
    }

    /// Where a mounted filesystem comes from: its server, or its device.
    pub(crate) fn of_mount(entry: &MountEntry<'_>) -> Self {
        if !entry.is_remote() {
            let (major, minor) = entry.device;
            return Self(format!("{major}:{minor}"));
        }
        let source = entry.source();
        if entry.fs_type().starts_with("fuse") {
            return Self(source.into_owned());
        }
        let unc = source
            .strip_prefix("//")
            .and_then(|rest| rest.split('/').next());
        let server = unc.or_else(|| source.split_once(":/").map(|(server, _)| server));
        Self(server.unwrap_or(&source).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nas(name: &str) -> Source {
        Source(name.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_takes_its_own_threads_and_no_others() {
        let threads = Arc::new(NodeThreads::default());
        let (mut hung, mut refused) = (Vec::new(), 0);
        // Far more than there are: as many volumes, each looked at once a minute.
        for _ in 0..3 * EACH {
            match threads
                .account(Some(nas("dead")), Purpose::Look)
                .take()
                .await
            {
                Ok(permit) => hung.push(permit),
                Err(full) => {
                    assert_eq!(full, Full::Own(EACH));
                    refused += 1;
                }
            }
        }
        assert_eq!((hung.len(), refused), (EACH, 2 * EACH));
        // It can still be unmounted, and so can all others.
        for (source, purpose) in [
            (Some(nas("dead")), Purpose::Change),
            (Some(nas("dead")), Purpose::Force),
            (Some(nas("sound")), Purpose::Change),
            (Some(nas("sound")), Purpose::Look),
            (None, Purpose::Look),
        ] {
            let account = threads.account(source, purpose);
            account.take().await.expect("a thread");
        }
        hung.clear();
        let account = threads.account(Some(nas("dead")), Purpose::Look);
        account.take().await.expect("they have returned");
        drop(account);
        threads.account(None, Purpose::Look);
        threads.account(Some(nas("other")), Purpose::Look);
        let kept = threads.each.lock().expect("lock").len();
        assert_eq!(kept, 1, "only of what has work");
    }

    #[tokio::test(start_paused = true)]
    async fn local_paths_have_a_reserve_however_many_servers_are_dead() {
        let threads = Arc::new(NodeThreads::default());
        let mut hung = Vec::new();
        for number in 0..ELSEWHERE / EACH {
            let account = threads.account(Some(nas(&format!("dead {number}"))), Purpose::Change);
            for _ in 0..EACH {
                hung.push(account.take().await.expect("a thread"));
            }
        }
        let sound = threads.account(Some(nas("sound")), Purpose::Change);
        let refused = sound.take().await.expect_err("all are taken");
        assert_eq!(refused, Full::Others(WAIT_TIMEOUT));
        let local = threads.account(None, Purpose::Change);
        local.take().await.expect("a thread");
        drop(hung);
    }

    #[test]
    fn a_base_directory_on_a_network_mount_counts_for_its_server_and_a_local_one_for_the_reserve() {
        let table = MountTable::from_text(
            "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             30 20 0:50 / /srv/nas rw - nfs4 10.0.0.1:/tank rw\n\
             31 30 8:16 / /srv/nas/disk rw - ext4 /dev/sdb rw\n",
        );
        let source = |path: &str| Source::of_directory(&table, Path::new(path));
        assert_eq!(source("/srv/nas/volumes/pvc-1"), Some(nas("10.0.0.1")));
        for local in [
            "/srv/nas/disk/pvc-1",
            "/srv/nasty/pvc-1",
            "/var/lib/volumes/pvc-1",
        ] {
            assert_eq!(source(local), None, "{local}");
        }
    }

    #[test]
    fn shares_of_one_server_are_one_source_and_each_device_is_its_own() {
        let table = MountTable::from_text(
            "30 1 0:50 / /k/a rw - nfs4 10.0.0.1:/tank/a rw\n\
             31 1 0:51 / /k/b rw - nfs4 10.0.0.1:/tank/b rw\n\
             32 1 0:52 / /k/c rw - nfs4 [fd00::1]:/tank/a rw\n\
             33 1 0:53 / /k/d rw - cifs //10.0.0.1/a rw\n\
             34 1 0:54 / /k/e rw - fuse.objectivefs s3://bucket/a rw\n\
             35 1 8:16 / /k/f rw - ext4 /dev/sdb rw\n",
        );
        let sources: Vec<_> = table
            .entries()
            .map(|entry| Source::of_mount(&entry).0)
            .collect();
        let expected = [
            "10.0.0.1",
            "10.0.0.1",
            "[fd00::1]",
            "10.0.0.1",
            "s3://bucket/a",
            "8:16",
        ];
        assert_eq!(sources, expected);
    }
}
