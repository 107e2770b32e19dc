//! The backend in memory: a tree of datasets, snapshots and clones with their arithmetic.

mod space;
mod state;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::backend::{
    Backend, Dataset, Destroy, NewDataset, NfsClient, PermissionChange, Permissions, Pool, Problem,
    Scope, Session, SmbConnection, Snapshot,
};
use crate::rows::Rows;
use state::State;

/// Datasets, snapshots and files in memory.
#[derive(Debug, Default)]
pub struct Model {
    state: Mutex<State>,
}

type Answer<T> = Result<T, Problem>;

impl Model {
    /// A model with these pools, each with its size in bytes.
    pub fn new(pools: &[(String, u64)]) -> Self {
        let model = Self::default();
        for (name, size) in pools {
            model.lock().add_pool(name, *size);
        }
        model
    }

    /// A dataset takes this much space from now on, as if a client had written to it.
    pub fn write(&self, dataset: &str, bytes: u64) {
        if let Some(node) = self.lock().nodes.get_mut(dataset) {
            node.referenced = bytes;
        }
    }

    /// A pool has this state from now on: `ONLINE`, `DEGRADED`, `SUSPENDED`; with another one its datasets are gone.
    pub fn set_pool_status(&self, pool: &str, status: &str) {
        let mut state = self.lock();
        state.statuses.insert(pool.to_owned(), status.to_owned());
    }

    /// A filesystem is mounted, or is not, from now on.
    pub fn set_mounted(&self, dataset: &str, is_mounted: bool) {
        let mut state = self.lock();
        if is_mounted {
            state.unmounted.remove(dataset);
        } else {
            state.unmounted.insert(dataset.to_owned());
        }
    }

    /// An initiator or a host connects.
    pub fn connect(&self, session: Session) {
        self.lock().sessions.push(session);
    }

    /// All clients disconnect from a target or subsystem.
    pub fn disconnect(&self, target: &str) {
        self.lock()
            .sessions
            .retain(|session| session.target != target);
    }

    /// A client of NFS 4 opens a file in the filesystem that is mounted here, and keeps it open.
    pub fn open(&self, path: &str, name: &str, address: &str) {
        let mut state = self.lock();
        let device = state.files.get(path).map(|file| file.device);
        state.clients.push(NfsClient {
            name: name.to_owned(),
            address: address.to_owned(),
            holds: device.into_iter().collect(),
        });
    }

    /// The clients of NFS 4 of this address go.
    pub fn close(&self, address: &str) {
        self.lock()
            .clients
            .retain(|client| client.address != address);
    }

    /// A client connects to an SMB share.
    pub fn use_share(&self, connection: SmbConnection) {
        self.lock().connections.push(connection);
    }

    /// All clients disconnect from an SMB share.
    pub fn leave_share(&self, share: &str) {
        self.lock()
            .connections
            .retain(|connection| connection.share != share);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for Model {
    async fn pools(&self) -> Answer<Vec<Pool>> {
        Ok(self.lock().pools())
    }

    async fn datasets(&self, scope: &Scope) -> Answer<Vec<Dataset>> {
        let state = self.lock();
        let usage = state.usage();
        Ok(state
            .names(scope)
            .iter()
            .map(|name| state.dataset(name, &usage))
            .collect())
    }

    async fn create_dataset(&self, new: NewDataset) -> Answer<()> {
        self.lock().create(new)
    }

    async fn set_properties(
        &self,
        name: &str,
        changes: Vec<(String, Option<String>)>,
    ) -> Answer<()> {
        self.lock().set(name, changes)
    }

    async fn destroy_dataset(&self, name: &str, how: Destroy) -> Answer<()> {
        self.lock().destroy(name, how)
    }

    async fn promote(&self, name: &str) -> Answer<()> {
        self.lock().promote(name)
    }

    async fn rename_dataset(&self, name: &str, new_name: &str) -> Answer<()> {
        self.lock().rename(name, new_name)
    }

    async fn set_key(&self, name: &str, key: Option<&str>) -> Answer<bool> {
        self.lock().set_key(name, key)
    }

    async fn snapshots(&self, scope: &Scope) -> Answer<Vec<Snapshot>> {
        let state = self.lock();
        let names = state.names(scope);
        Ok(names
            .iter()
            .flat_map(|name| state.snapshots_of(name))
            .collect())
    }

    async fn create_snapshots(
        &self,
        datasets: &[String],
        name: &str,
        user: &BTreeMap<String, String>,
    ) -> Answer<()> {
        self.lock().snapshot(datasets, name, user)
    }

    async fn destroy_snapshot(&self, name: &str, defer: bool) -> Answer<()> {
        self.lock().destroy_snapshot(name, defer)
    }

    async fn clone_snapshot(
        &self,
        snapshot: &str,
        target: &str,
        properties: BTreeMap<String, String>,
    ) -> Answer<()> {
        self.lock().clone_snapshot(snapshot, target, properties)
    }

    async fn hold(&self, snapshot: &str, tag: Option<&str>, set: bool) -> Answer<()> {
        self.lock().hold(snapshot, tag, set)
    }

    async fn set_snapshot_properties(
        &self,
        name: &str,
        changes: Vec<(String, Option<String>)>,
    ) -> Answer<()> {
        let mut state = self.lock();
        let snapshot = state.find_snapshot(name)?;
        for (key, value) in changes {
            match value {
                Some(value) => snapshot.user.insert(key, value),
                None => snapshot.user.remove(&key),
            };
        }
        Ok(())
    }

    async fn rollback(&self, snapshot: &str, newer: bool) -> Answer<()> {
        self.lock().rollback(snapshot, newer)
    }

    async fn rename_snapshot(&self, snapshot: &str, new_name: &str) -> Answer<()> {
        self.lock().rename_snapshot(snapshot, new_name)
    }

    async fn copy(
        &self,
        snapshot: &str,
        target: &str,
        properties: &BTreeMap<String, String>,
        snapshot_user: bool,
    ) -> Answer<()> {
        self.lock()
            .copy(snapshot, target, properties, snapshot_user)
    }

    async fn permissions(&self, path: &str) -> Answer<Permissions> {
        self.lock()
            .files
            .get(path)
            .cloned()
            .ok_or_else(|| Problem::Missing(path.to_owned()))
    }

    async fn set_permissions(&self, path: &str, change: PermissionChange) -> Answer<()> {
        let mut state = self.lock();
        let file = state
            .files
            .get_mut(path)
            .ok_or_else(|| Problem::Missing(path.to_owned()))?;
        file.uid = change.uid.unwrap_or(file.uid);
        file.gid = change.gid.unwrap_or(file.gid);
        file.mode = change.mode.unwrap_or(file.mode);
        if let Some(acl) = change.acl {
            file.acl = acl;
        }
        Ok(())
    }

    async fn make_directory(&self, path: &str, mode: u32) -> Answer<()> {
        let mut state = self.lock();
        if state.files.contains_key(path) {
            return Err(Problem::Exists(path.to_owned()));
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let Some(device) = state.files.get(parent).map(|file| file.device) else {
            return Err(Problem::Missing(parent.to_owned()));
        };
        let directory = Permissions {
            uid: 0,
            gid: 0,
            mode,
            acl: None,
            mount_point: false,
            device,
        };
        state.files.insert(path.to_owned(), directory);
        Ok(())
    }

    async fn apply_exports(&self, _rows: &Rows) -> Answer<()> {
        Ok(())
    }

    async fn sessions(&self) -> Answer<Vec<Session>> {
        Ok(self.lock().sessions.clone())
    }

    async fn nfs_clients(&self) -> Answer<Vec<NfsClient>> {
        Ok(self.lock().clients.clone())
    }

    async fn smb_connections(&self) -> Answer<Vec<SmbConnection>> {
        Ok(self.lock().connections.clone())
    }

    async fn left_port(&self, subsystem: &str) {
        self.disconnect(subsystem);
    }
}
