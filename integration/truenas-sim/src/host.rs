//! The backend on real storage: the pools, nfsd, samba, LIO and nvmet of the machine it runs on.
//!
//! Datasets and snapshots are read from ZFS each time. What it cannot make fails; only access control lists
//! are remembered instead.

mod clients;
mod exports;
mod lio;
mod nvmet;
mod shares;
mod zfs;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use nas_host::command::{self, pipe, run};
use nas_host::configfs::{Object, converge};
use nas_host::usershares::{self, Usershares};
use nas_host::{Failed, lio as targets};
use serde_json::Value;

use crate::backend::{
    Backend, Dataset, Destroy, Kind, NewDataset, NfsClient, PermissionChange, Permissions, Pool,
    Problem, Scope, Session, SmbConnection, Snapshot,
};
use crate::rows::{Rows, text};
use zfs::{done, options, zfs};

type Answer<T> = Result<T, Problem>;

/// The storage of this machine.
#[derive(Debug)]
pub(crate) struct Host {
    pools: Vec<String>,
    exported: Arc<Mutex<Vec<Object>>>,
    shares: tokio::sync::Mutex<Usershares>,
    /// Access lists, which are remembered only.
    acls: Mutex<BTreeMap<String, Value>>,
}

/// Work that only an appliance can do.
fn unsupported<T>(what: &str) -> Answer<T> {
    let text = format!("truenas-sim cannot do this on real storage: {what}");
    Err(Problem::Other(text))
}

fn running(rows: &Rows, service: &str) -> bool {
    let mut services = rows.all("service");
    services.any(|row| text(row, "service") == service && text(row, "state") == "RUNNING")
}

/// Properties that ZFS takes only when a dataset is made, and from the source of a copy.
const FIXED: [&str; 6] = [
    "casesensitivity",
    "encryption",
    "normalization",
    "utf8only",
    "volblocksize",
    "volsize",
];

// === impl Host ===

impl Host {
    /// Takes pools of this machine, which are mounted below `/mnt` from now on.
    pub(crate) async fn open(pools: Vec<String>) -> Answer<Self> {
        for pool in &pools {
            let wanted = format!("/mnt/{pool}");
            let now = zfs(&["get", "-Ho", "value", "mountpoint", pool]).await?;
            if now.trim() != wanted {
                zfs(&["set", &format!("mountpoint={wanted}"), pool]).await?;
            }
        }
        Ok(Self {
            pools,
            exported: Arc::default(),
            shares: tokio::sync::Mutex::default(),
            acls: Mutex::default(),
        })
    }

    async fn dataset(&self, name: &str) -> Answer<Option<Dataset>> {
        let scope = Scope::Exact(vec![name.to_owned()]);
        Ok(self.datasets(&scope).await?.pop())
    }

    /// Waits for the device of a new volume, which comes later than the volume.
    async fn settle(&self, name: &str) -> Answer<()> {
        let made = self.dataset(name).await?;
        if made.is_some_and(|dataset| dataset.kind == Kind::Volume) {
            command::device(name).await?;
        }
        Ok(())
    }

    /// Sets and inherits properties of a dataset or a snapshot.
    async fn change(&self, name: &str, changes: Vec<(String, Option<String>)>) -> Answer<()> {
        let (set, inherited): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|(_, value)| value.is_some());
        let mut pairs: Vec<_> = set
            .into_iter()
            .map(|(property, value)| format!("{property}={}", value.unwrap_or_default()))
            .collect();
        // No more can be reserved than a volume is large.
        pairs.sort_by_key(|pair| !pair.starts_with("volsize="));
        for pair in &pairs {
            zfs(&["set", pair, name]).await?;
        }
        for (property, _) in &inherited {
            zfs(&["inherit", property, name]).await?;
        }
        Ok(())
    }

    fn acls(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.acls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses paths outside of the pools.
    fn inside(&self, path: &str) -> Answer<()> {
        let mut pools = self.pools.iter().map(|pool| format!("/mnt/{pool}"));
        let plain = !path.split('/').any(|part| part == "..");
        if plain && pools.any(|root| Path::new(path).starts_with(root)) {
            return Ok(());
        }
        Err(Problem::Missing(path.to_owned()))
    }

    /// Does something with what is exported, where it may block.
    async fn exported(
        &self,
        work: impl FnOnce(&mut Vec<Object>) -> Answer<()> + Send + 'static,
    ) -> Answer<()> {
        let exported = Arc::clone(&self.exported);
        let work = move || work(&mut exported.lock().unwrap_or_else(PoisonError::into_inner));
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(Problem::Other(error.to_string())))
    }
}

impl From<Failed> for Problem {
    fn from(failed: Failed) -> Self {
        Self::Other(failed.0)
    }
}

/// A failure of a file or directory below `/mnt`.
fn of_path(path: &str, error: &std::io::Error) -> Problem {
    match error.kind() {
        std::io::ErrorKind::NotFound => Problem::Missing(path.to_owned()),
        std::io::ErrorKind::AlreadyExists => Problem::Exists(path.to_owned()),
        _ => Problem::Other(format!("{path}: {error}")),
    }
}

#[async_trait]
impl Backend for Host {
    async fn pools(&self) -> Answer<Vec<Pool>> {
        zfs::pools(&self.pools).await
    }

    async fn datasets(&self, scope: &Scope) -> Answer<Vec<Dataset>> {
        zfs::datasets(&self.pools, scope).await
    }

    async fn create_dataset(&self, new: NewDataset) -> Answer<()> {
        if new.key.is_some() {
            return unsupported("encryption");
        }
        if self.dataset(&new.name).await?.is_some() {
            return Err(Problem::Exists(new.name));
        }
        let mut properties = new.properties;
        let size = properties.remove("volsize");
        let options = options(properties.iter().chain(&new.user));
        let mut words = vec!["create"];
        words.extend(new.ancestors.then_some("-p"));
        // What is reserved for a volume is one of its properties.
        words.extend(size.iter().flat_map(|size| ["-s", "-V", size.as_str()]));
        words.extend(options.iter().map(String::as_str));
        words.push(&new.name);
        zfs(&words).await?;
        self.settle(&new.name).await
    }

    async fn set_properties(
        &self,
        name: &str,
        changes: Vec<(String, Option<String>)>,
    ) -> Answer<()> {
        let grows = changes.iter().any(|(property, _)| property == "volsize");
        self.change(name, changes).await?;
        if !grows {
            return Ok(());
        }
        let zvol = name.to_owned();
        self.exported(move |there| {
            let wanted = nvmet::announce(there, &zvol);
            Ok(converge(&mut Vec::new(), wanted)?)
        })
        .await
    }

    async fn destroy_dataset(&self, name: &str, how: Destroy) -> Answer<()> {
        if how.clones {
            let scope = Scope::Tree(vec![name.to_owned()]);
            for snapshot in self.snapshots(&scope).await? {
                self.hold(&snapshot.name, None, false).await?;
            }
        }
        let words: &[&str] = match (how.recursive, how.clones) {
            (_, true) => &["destroy", "-R", name],
            (true, false) => &["destroy", "-r", name],
            (false, false) => &["destroy", name],
        };
        zfs(words).await?;
        self.acls().retain(|path, _| Path::new(path).exists());
        Ok(())
    }

    async fn promote(&self, name: &str) -> Answer<()> {
        zfs(&["promote", name]).await.map(drop)
    }

    async fn rename_dataset(&self, name: &str, new_name: &str) -> Answer<()> {
        zfs(&["rename", name, new_name]).await?;
        self.settle(new_name).await
    }

    async fn set_key(&self, _name: &str, _key: Option<&str>) -> Answer<bool> {
        unsupported("encryption")
    }

    async fn snapshots(&self, scope: &Scope) -> Answer<Vec<Snapshot>> {
        zfs::snapshots(&self.pools, scope).await
    }

    async fn create_snapshots(
        &self,
        datasets: &[String],
        name: &str,
        user: &BTreeMap<String, String>,
    ) -> Answer<()> {
        let names: Vec<_> = datasets
            .iter()
            .map(|each| format!("{each}@{name}"))
            .collect();
        let words = [vec!["snapshot".to_owned()], options(user), names].concat();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        zfs(&words).await.map(drop)
    }

    async fn destroy_snapshot(&self, name: &str, defer: bool) -> Answer<()> {
        let words: &[&str] = if defer {
            &["destroy", "-d", name]
        } else {
            &["destroy", name]
        };
        zfs(words).await.map(drop)
    }

    async fn clone_snapshot(
        &self,
        snapshot: &str,
        target: &str,
        properties: BTreeMap<String, String>,
    ) -> Answer<()> {
        let words = [vec!["clone".to_owned()], options(&properties)].concat();
        let mut words: Vec<_> = words.iter().map(String::as_str).collect();
        words.extend([snapshot, target]);
        zfs(&words).await?;
        self.settle(target).await
    }

    async fn hold(&self, snapshot: &str, tag: Option<&str>, set: bool) -> Answer<()> {
        if let (Some(tag), true) = (tag, set) {
            return zfs(&["hold", tag, snapshot]).await.map(drop);
        }
        let all = zfs::holds(snapshot).await?.into_keys();
        for each in all.filter(|each| tag.is_none_or(|tag| tag == each)) {
            zfs(&["release", &each, snapshot]).await?;
        }
        Ok(())
    }

    async fn set_snapshot_properties(
        &self,
        name: &str,
        changes: Vec<(String, Option<String>)>,
    ) -> Answer<()> {
        self.change(name, changes).await
    }

    async fn rollback(&self, snapshot: &str, newer: bool) -> Answer<()> {
        let words: &[&str] = if newer {
            &["rollback", "-r", snapshot]
        } else {
            &["rollback", snapshot]
        };
        zfs(words).await.map(drop)
    }

    async fn rename_snapshot(&self, snapshot: &str, new_name: &str) -> Answer<()> {
        zfs(&["rename", snapshot, new_name]).await.map(drop)
    }

    async fn copy(
        &self,
        snapshot: &str,
        target: &str,
        properties: &BTreeMap<String, String>,
        _: bool,
    ) -> Answer<()> {
        // Never with `-p`, so the snapshot has no user properties of its own here.
        let chosen = properties
            .iter()
            .filter(|(name, _)| !FIXED.contains(&name.as_str()));
        let options = options(chosen);
        let mut receive = vec!["zfs", "receive"];
        receive.extend(options.iter().map(String::as_str));
        receive.push(target);
        done(pipe(&["zfs", "send", snapshot], &receive).await?)?;
        self.settle(target).await
    }

    async fn permissions(&self, path: &str) -> Answer<Permissions> {
        self.inside(path)?;
        let found = fs::metadata(path).map_err(|error| of_path(path, &error))?;
        let above = Path::new(path).parent().map(fs::metadata);
        let above = above.and_then(Result::ok);
        Ok(Permissions {
            uid: found.uid().into(),
            gid: found.gid().into(),
            mode: found.mode() & 0o7777,
            acl: self.acls().get(path).cloned(),
            mount_point: above.is_some_and(|above| above.dev() != found.dev()),
            device: found.dev(),
        })
    }

    async fn set_permissions(&self, path: &str, change: PermissionChange) -> Answer<()> {
        self.inside(path)?;
        let id = |id: Option<i64>| id.and_then(|id| u32::try_from(id).ok());
        let owned = chown(path, id(change.uid), id(change.gid));
        owned.map_err(|error| of_path(path, &error))?;
        if let Some(mode) = change.mode {
            let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
            set.map_err(|error| of_path(path, &error))?;
        }
        match change.acl {
            Some(Some(acl)) => self.acls().insert(path.to_owned(), acl),
            Some(None) => self.acls().remove(path),
            None => None,
        };
        Ok(())
    }

    async fn make_directory(&self, path: &str, mode: u32) -> Answer<()> {
        self.inside(path)?;
        let made = fs::DirBuilder::new().mode(mode).create(path);
        made.map_err(|error| of_path(path, &error))
    }

    async fn apply_exports(&self, rows: &Rows) -> Answer<()> {
        exports::apply(&self.pools, rows).await?;
        usershares::apply(&mut *self.shares.lock().await, shares::wanted(rows)).await?;
        let (luns, subsystems) = (lio::objects(rows)?, nvmet::objects(rows)?);
        for (objects, modules) in [(&luns, targets::MODULES), (&subsystems, nvmet::MODULES)] {
            if !objects.is_empty() {
                run(&[&["modprobe", "-a"], &modules[..]].concat()).await?;
            }
        }
        let wanted = [luns, subsystems].concat();
        self.exported(|there| Ok(converge(there, wanted)?)).await
    }

    async fn sessions(&self) -> Answer<Vec<Session>> {
        let session = |(target, initiator)| Session {
            target,
            initiator,
            // LIO does not list it.
            address: String::new(),
        };
        Ok(targets::sessions().into_iter().map(session).collect())
    }

    async fn nfs_clients(&self) -> Answer<Vec<NfsClient>> {
        Ok(clients::of_nfs())
    }

    async fn smb_connections(&self) -> Answer<Vec<SmbConnection>> {
        clients::of_samba().await
    }

    /// The exports were applied.
    async fn left_port(&self, _subsystem: &str) {}
}
