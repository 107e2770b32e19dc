//! A driver that has orphans, and volumes whose exports can be lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use driver_core::config::CommonConfig;
use driver_core::{
    AccessRules, BackendIdentity, Call, CreateVolume, DeleteVolume, Driver, Error, Exports, Kind,
    Lister, Maintenance, NodeId, Orphan, OrphanKind, Page, PageRequest, PageToken, Parameters,
    Volume, VolumeId, VolumeName,
};
use tokio::time::Instant;

use super::volume;
use crate::routing::connection::Connection;
use crate::routing::connections::ConnectionName;

/// The volumes.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) orphans: Vec<Orphan>,
    pub(crate) volumes: Vec<&'static str>,
    /// Volumes that are not exported.
    pub(crate) lost: BTreeSet<&'static str>,
    /// The volumes that cannot be read, or removed.
    pub(crate) stuck: BTreeSet<&'static str>,
    /// The volumes whose export cannot be restored.
    pub(crate) refused: BTreeSet<&'static str>,
    /// The volumes that the host does not answer about.
    pub(crate) silent: BTreeSet<&'static str>,
    /// The volumes about which the host never says anything.
    pub(crate) hung: BTreeSet<&'static str>,
    /// The volumes that make the program panic.
    pub(crate) defects: BTreeSet<&'static str>,
    /// The volumes that are gone when its turn comes.
    pub(crate) gone: BTreeSet<&'static str>,
    /// The volumes that nodes have.
    pub(crate) published: BTreeSet<&'static str>,
    /// The list has one page.
    pub(crate) is_whole: bool,
    /// Each question of exports, and when it was asked.
    pub(crate) asked: Vec<(Instant, String)>,
    /// The list fails after this many pages.
    pub(crate) pages: Option<usize>,
    /// The number of volumes that are read at this moment, and how many at most.
    pub(crate) busy: (usize, usize),
}

/// Has orphans and exports, and nothing else.
#[derive(Debug)]
pub(crate) struct Keeper {
    held: Mutex<Held>,
    can: bool,
}

/// An orphan of so many seconds.
pub(crate) fn orphan(object: &str, age: u64) -> Orphan {
    Orphan {
        kind: OrphanKind::HalfVolume,
        object: object.to_owned(),
        identity: format!("id of {object}"),
        created: SystemTime::now() - Duration::from_secs(age),
    }
}

// === impl Keeper ===

impl Keeper {
    pub(crate) fn of(held: Held) -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::new(held),
            can: true,
        })
    }

    /// One that has neither.
    pub(crate) fn without() -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::default(),
            can: false,
        })
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, Held> {
        self.held
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A connection of this name over it.
    pub(crate) fn connection(self: &Arc<Self>, name: &str) -> Arc<Connection> {
        let name = ConnectionName::parse(name).expect("a name");
        let config = CommonConfig::default();
        Arc::new(Connection::of(name, self.clone(), &config))
    }

    fn trouble(&self, object: &str) -> Result<(), Error> {
        assert!(!self.held().defects.contains(object), "hunter2");
        if self.held().gone.contains(object) {
            return Err(Error::not_found(object.to_owned()));
        }
        if self.held().silent.contains(object) {
            return Err(Error::new(Kind::Unreachable, format!("work on {object}")));
        }
        if self.held().stuck.contains(object) {
            return Err(Error::new(Kind::Busy, format!("work on {object}")).because("it is stuck"));
        }
        Ok(())
    }

    fn note(&self, question: &str) {
        let asked = (Instant::now(), question.to_owned());
        self.held().asked.push(asked);
    }

    /// One page of two, unless all are on one.
    fn page<T: Clone>(&self, all: &[T], page: &PageRequest) -> Result<Page<T>, Error> {
        let from: usize = page
            .after
            .as_ref()
            .map_or(0, |at| at.0.parse().expect("ours"));
        if self.held().pages == Some(from / 2) {
            return Err(Error::new(Kind::Unreachable, "list"));
        }
        let size = if self.held().is_whole { all.len() } else { 2 };
        let to = (from + size).min(all.len());
        Ok(Page {
            entries: all[from..to].to_vec(),
            next: (to < all.len()).then(|| PageToken(to.to_string())),
        })
    }
}

#[async_trait::async_trait]
impl Driver for Keeper {
    fn kind(&self) -> &'static str {
        "keeper"
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&[])
    }

    fn backend_identity(&self) -> BackendIdentity {
        BackendIdentity("keeper".to_owned())
    }

    fn name_volume(&self, _: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        Err(self.unsupported("name volume"))
    }

    async fn probe(&self, _: &Call) -> Vec<Error> {
        Vec::new()
    }

    async fn create_volume(&self, _: &Call, _: &CreateVolume) -> Result<Volume, Error> {
        Err(self.unsupported("create volume"))
    }

    async fn delete_volume(&self, _: &Call, _: DeleteVolume<'_>) -> Result<(), Error> {
        Err(self.unsupported("delete volume"))
    }

    fn makes_volumes(&self) -> bool {
        false
    }

    fn lister(&self) -> Option<&dyn Lister> {
        Some(self)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.can.then_some(self)
    }

    fn exports(&self) -> Option<&dyn Exports> {
        self.can.then_some(self)
    }
}

#[async_trait::async_trait]
impl Lister for Keeper {
    async fn get_volume(&self, _: &Call, _: &VolumeId) -> Result<Volume, Error> {
        Err(self.unsupported("get volume"))
    }

    async fn list_volumes(&self, _: &Call, page: &PageRequest) -> Result<Page<Volume>, Error> {
        self.note("list");
        let ids = self.held().volumes.clone();
        let published = self.held().published.clone();
        let of = |id: &&'static str| {
            let node = published.contains(id).then(|| NodeId::parse("node-1"));
            Volume {
                published_to: node.into_iter().map(|node| node.expect("a node")).collect(),
                ..volume(&VolumeId::parse(id).expect("an id"), "/x", None)
            }
        };
        let all: Vec<Volume> = ids.iter().map(of).collect();
        self.page(&all, page)
    }
}

#[async_trait::async_trait]
impl Maintenance for Keeper {
    async fn orphans(
        &self,
        _: &Call,
        before: SystemTime,
        page: &PageRequest,
    ) -> Result<Page<Orphan>, Error> {
        let mut all = self.held().orphans.clone();
        all.retain(|orphan| orphan.created < before);
        self.page(&all, page)
    }

    async fn remove_orphan(&self, _: &Call, _: SystemTime, orphan: &Orphan) -> Result<(), Error> {
        self.trouble(&orphan.object)?;
        self.held().orphans.retain(|other| other != orphan);
        Ok(())
    }
}

#[async_trait::async_trait]
impl Exports for Keeper {
    async fn is_exported(&self, _: &Call, id: &VolumeId) -> Result<bool, Error> {
        self.note(id.as_str());
        {
            let mut held = self.held();
            let (now, most) = held.busy;
            held.busy = (now + 1, most.max(now + 1));
        }
        // Others get their turn.
        tokio::task::yield_now().await;
        self.held().busy.0 -= 1;
        let is_hung = self.held().hung.contains(id.as_str());
        if is_hung {
            std::future::pending::<()>().await;
        }
        self.trouble(id.as_str())?;
        Ok(!self.held().lost.contains(id.as_str()))
    }

    async fn repair_export(&self, _: &Call, id: &VolumeId) -> Result<(), Error> {
        self.trouble(id.as_str())?;
        if self.held().refused.contains(id.as_str()) {
            return Err(Error::new(Kind::Denied, format!("export {id}")));
        }
        self.held().lost.remove(id.as_str());
        Ok(())
    }
}
