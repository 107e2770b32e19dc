//! Facts of the storage about the volumes that a person looks at: their use, exports, and origins.
//!
//! It is asked for at most a page of volumes, and within seconds; what is not known by then is said to be unknown.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use driver_core::{
    Error, GetSnapshot, Kind, PageRequest, Snapshot, SnapshotFilter, SnapshotId, Source, VolumeId,
};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::time::Instant;

use super::query::Query;
use super::walk::{Silent, late};
use super::{Console, Refusal};
use crate::message;
use crate::routing::connection::Connection;
use crate::routing::connections::VolumeHandle;
use crate::telemetry::history::seconds;

/// Volumes that are asked for at once.
const MOST: usize = 100;
/// The time of one question. A person waits for it.
const QUESTION: Duration = Duration::from_secs(5);
/// Exports of a connection that are looked at, at a time: the calls of the process have 16 threads of it.
const AT_ONCE: usize = 4;
/// The time of a whole family.
const FAMILY: Duration = Duration::from_secs(8);
/// The most steps from a volume to its oldest origin, and from there.
const GENERATIONS: usize = 32;
/// The most members of a family that are shown.
const MEMBERS: usize = 500;
/// Volumes of a page while children are searched for.
const PAGE: usize = 2_000;
/// The most children of all volumes of a connection that are remembered during a search.
const CHILDREN: usize = 20_000;

/// The facts of some volumes.
#[derive(Debug, Serialize)]
pub(super) struct Details {
    rows: Vec<Detail>,
    silent: Vec<Silent>,
}

/// The facts of one volume.
#[derive(Debug, Serialize)]
struct Detail {
    handle: String,
    /// Bytes on the storage, if its driver can tell.
    used: Option<u64>,
    export: ExportState,
    /// Why something is not known.
    error: Option<String>,
}

/// The state of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ExportState {
    Exported,
    Missing,
    /// The driver exports nothing, or cannot tell.
    None,
    /// The volume is not there any more.
    Gone,
    Unknown,
}

/// A volume with all that it comes from, and all that comes from it.
#[derive(Debug, Serialize)]
pub(super) struct Family {
    /// In the order of the tree: each after its parent.
    members: Vec<Member>,
    /// Why something may be missing.
    incomplete: Option<String>,
}

/// A volume or a snapshot of a family.
#[derive(Debug, Serialize)]
struct Member {
    kind: &'static str,
    handle: String,
    /// Its distance from the root.
    depth: usize,
    size: Option<u64>,
    created: Option<u64>,
    /// Whether it is there: the origin of a copy may be deleted.
    exists: bool,
    /// Whether it is the volume that was asked for.
    asked: bool,
}

/// The children of volumes and snapshots of a connection.
#[derive(Debug, Default)]
struct Children {
    of_snapshots: HashMap<SnapshotId, Vec<(VolumeId, Option<u64>)>>,
    of_volumes: HashMap<VolumeId, Vec<(VolumeId, Option<u64>)>>,
    count: usize,
}

/// A family that is being put together.
struct Search<'a> {
    connection: &'a Connection,
    asked: &'a VolumeId,
    until: Instant,
    children: Children,
    seen: HashSet<VolumeId>,
    family: Family,
}

// === impl Console ===

impl Console {
    /// The use and the export of each volume that the query names.
    pub(super) async fn details(&self, query: &Query<'_>) -> Result<Details, Refusal> {
        let handles: Vec<&str> = query.all("volume").collect();
        if handles.len() > MOST {
            return Err(Refusal::bad(format!("ask for at most {MOST} volumes")));
        }
        let opened = handles.iter().map(|handle| self.volume(handle));
        let (mut groups, mut rows) = (BTreeMap::new(), Vec::new());
        for (handle, opened) in handles.iter().zip(join_all(opened).await) {
            match opened {
                Ok((connection, id)) => {
                    let name = connection.name().clone();
                    let group = groups.entry(name).or_insert((connection, Vec::new()));
                    group.1.push(((*handle).to_owned(), id));
                }
                Err(error) => rows.push(Detail::unknown(handle, &error)),
            }
        }
        let mut details = Details {
            rows,
            silent: Vec::new(),
        };
        let asked = groups
            .into_values()
            .map(|(connection, volumes)| async move { details_of(&connection, &volumes).await });
        for (rows, silent) in join_all(asked).await {
            details.rows.extend(rows);
            details.silent.extend(silent);
        }
        Ok(details)
    }

    /// A volume's connection, and its id there; within a time, because its driver may have to be built.
    async fn volume(&self, handle: &str) -> Result<(Arc<Connection>, VolumeId), Error> {
        let parsed = VolumeHandle::parse(handle);
        let handle = parsed.map_err(|error| Error::invalid("read a handle").because(error))?;
        let opened = self.plugin.connections.of_volume(&handle);
        let opened = tokio::time::timeout(QUESTION, opened).await;
        opened.unwrap_or_else(|_| Err(late(QUESTION)))
    }

    /// The family of the volume that the query names.
    pub(super) async fn family(&self, query: &Query<'_>) -> Result<Family, Refusal> {
        let handle = query
            .text("volume")
            .ok_or_else(|| Refusal::bad("`volume` is missing"))?;
        let refused = |error: &Error| Refusal {
            status: match error.kind() {
                Kind::NotFound => "404 Not Found",
                Kind::Invalid => "400 Bad Request",
                _ => "503 Service Unavailable",
            },
            error: message::of(error),
        };
        let (connection, id) = self.volume(handle).await.map_err(|error| refused(&error))?;
        let mut search = Search {
            connection: &connection,
            asked: &id,
            until: Instant::now() + FAMILY,
            children: Children::default(),
            seen: HashSet::new(),
            family: Family {
                members: Vec::new(),
                incomplete: None,
            },
        };
        search.all().await.map_err(|error| refused(&error))?;
        Ok(search.family)
    }
}

/// One question for the use of all, and one for the export of each.
async fn details_of(
    connection: &Connection,
    volumes: &[(String, VolumeId)],
) -> (Vec<Detail>, Option<Silent>) {
    let ids: Vec<VolumeId> = volumes.iter().map(|(_, id)| id.clone()).collect();
    let until = Instant::now() + QUESTION;
    let used = async {
        if connection.driver().usage_reporter().is_none() {
            return Ok(vec![None; ids.len()]);
        }
        within(connection, until, async |connection, call| {
            connection.driver().used(call, &ids).await
        })
        .await
    };
    let exports: Vec<_> = ids.iter().map(|id| export(connection, id, until)).collect();
    let exports = stream::iter(exports).buffered(AT_ONCE).collect::<Vec<_>>();
    let (used, exports) = tokio::join!(used, exports);
    let silent = used.as_ref().err().map(|error| Silent {
        connection: connection.name().text().to_string(),
        error: message::of(error),
    });
    let used = used
        .unwrap_or_default()
        .into_iter()
        .chain(std::iter::repeat(None));
    let rows = volumes.iter().zip(used).zip(exports);
    let rows = rows.map(|(((handle, _), used), (export, error))| Detail {
        handle: handle.clone(),
        used,
        export,
        error,
    });
    (rows.collect(), silent)
}

/// The state of the export of a volume, and why that is not known.
async fn export(
    connection: &Connection,
    id: &VolumeId,
    until: Instant,
) -> (ExportState, Option<String>) {
    if !connection.can().exports {
        return (ExportState::None, None);
    }
    let asked = within(connection, until, async |connection, call| {
        connection.driver().is_exported(call, id).await
    });
    match asked.await {
        Ok(true) => (ExportState::Exported, None),
        Ok(false) => (ExportState::Missing, None),
        Err(error) if error.kind() == Kind::NotFound => (ExportState::Gone, None),
        Err(error) => (ExportState::Unknown, Some(message::of(&error))),
    }
}

/// Asks a driver until a moment.
async fn within<T>(
    connection: &Connection,
    until: Instant,
    ask: impl AsyncFnOnce(&Connection, &driver_core::Call) -> Result<T, Error>,
) -> Result<T, Error> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(late(QUESTION));
    }
    let asked = connection.ask_within(left, "ask its storage", async |call| {
        ask(connection, call).await
    });
    match tokio::time::timeout(left, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(late(QUESTION)),
    }
}

// === impl Detail ===

impl Detail {
    fn unknown(handle: &str, error: &Error) -> Self {
        Self {
            handle: handle.to_owned(),
            used: None,
            export: ExportState::Unknown,
            error: Some(message::of(error)),
        }
    }
}

// === impl Search ===

impl Search<'_> {
    async fn all(&mut self) -> Result<(), Error> {
        let root = self.root().await?;
        if let Err(error) = self.find_children().await {
            self.is_incomplete(&message::of(&error));
        }
        self.volume(root, None, 0).await;
        Ok(())
    }

    fn is_incomplete(&mut self, why: &str) {
        self.family.incomplete.get_or_insert_with(|| why.to_owned());
    }

    /// The oldest volume that the one that was asked for comes from, whether it is there or not.
    async fn root(&mut self) -> Result<VolumeId, Error> {
        let mut root = self.asked.clone();
        for generation in 0..GENERATIONS {
            let found = within(self.connection, self.until, async |connection, call| {
                connection.driver().get_volume(call, &root).await
            });
            let source = match found.await {
                Ok(found) => found.source,
                Err(error) if generation > 0 && error.kind() == Kind::NotFound => return Ok(root),
                Err(error) => return Err(error),
            };
            let origin = match source {
                Some(Source::Volume(id)) => id,
                Some(Source::Snapshot(id)) => {
                    let found = within(self.connection, self.until, async |connection, call| {
                        connection
                            .driver()
                            .get_snapshot(call, GetSnapshot::new(&id))
                            .await
                    });
                    match found.await {
                        Ok(snapshot) => snapshot.source,
                        Err(error) if error.kind() == Kind::NotFound => return Ok(root),
                        Err(error) => return Err(error),
                    }
                }
                // Another storage has it.
                Some(Source::Elsewhere(_)) | None => return Ok(root),
            };
            root = origin;
        }
        self.is_incomplete("the line of origins is too long");
        Ok(root)
    }

    /// Reads the volumes of the connection once, for those that come from another.
    async fn find_children(&mut self) -> Result<(), Error> {
        let mut page = PageRequest {
            max: Some(PAGE),
            after: None,
        };
        if !self.connection.can().list_volumes {
            return Ok(());
        }
        loop {
            let listed = within(self.connection, self.until, async |connection, call| {
                connection.driver().list_volumes(call, &page).await
            });
            let listed = listed.await?;
            for volume in listed.entries {
                let child = (volume.id, volume.capacity);
                match volume.source {
                    Some(Source::Snapshot(of)) => {
                        self.children
                            .of_snapshots
                            .entry(of)
                            .or_default()
                            .push(child);
                    }
                    Some(Source::Volume(of)) => {
                        self.children.of_volumes.entry(of).or_default().push(child);
                    }
                    Some(Source::Elsewhere(_)) | None => continue,
                }
                self.children.count += 1;
            }
            if self.children.count >= CHILDREN {
                self.is_incomplete("there are too many copies to look at all of them");
                return Ok(());
            }
            match listed.next {
                None => return Ok(()),
                next => page.after = next,
            }
        }
    }

    /// Adds a volume, its snapshots, and what comes from it.
    async fn volume(&mut self, id: VolumeId, size: Option<u64>, depth: usize) {
        if depth > GENERATIONS || !self.seen.insert(id.clone()) {
            return;
        }
        let found = within(self.connection, self.until, async |connection, call| {
            connection.driver().get_volume(call, &id).await
        });
        let found = found.await;
        let is_gone = found
            .as_ref()
            .is_err_and(|error| error.kind() == Kind::NotFound);
        let size = found.ok().and_then(|found| found.capacity).or(size);
        let fits = self.add(Member {
            kind: "volume",
            handle: self.connection.volume_handle(&id),
            depth,
            size,
            created: None,
            exists: !is_gone,
            asked: id == *self.asked,
        });
        if !fits {
            return;
        }
        for snapshot in self.snapshots(&id).await {
            let fits = self.add(Member {
                kind: "snapshot",
                handle: self.connection.snapshot_handle(&snapshot.id),
                depth: depth + 1,
                size: Some(snapshot.size),
                created: Some(seconds(snapshot.created)),
                exists: true,
                asked: false,
            });
            if !fits {
                return;
            }
            let copies = self.children.of_snapshots.remove(&snapshot.id);
            for (copy, size) in copies.unwrap_or_default() {
                Box::pin(self.volume(copy, size, depth + 2)).await;
            }
        }
        for (copy, size) in self.children.of_volumes.remove(&id).unwrap_or_default() {
            Box::pin(self.volume(copy, size, depth + 1)).await;
        }
    }

    async fn snapshots(&mut self, of: &VolumeId) -> Vec<Snapshot> {
        if !self.connection.can().list_snapshots {
            return Vec::new();
        }
        let filter = SnapshotFilter {
            source: Some(of.clone()),
            ..SnapshotFilter::default()
        };
        let page = PageRequest {
            max: Some(MEMBERS),
            after: None,
        };
        let listed = within(self.connection, self.until, async |connection, call| {
            connection
                .driver()
                .list_snapshots(call, &filter, &page)
                .await
        });
        match listed.await {
            Ok(listed) => {
                if listed.next.is_some() {
                    self.is_incomplete("there are more snapshots than are shown");
                }
                listed.entries
            }
            Err(error) => {
                self.is_incomplete(&message::of(&error));
                Vec::new()
            }
        }
    }

    fn add(&mut self, member: Member) -> bool {
        if self.family.members.len() >= MEMBERS {
            self.is_incomplete("the family is larger than what is shown");
            return false;
        }
        self.family.members.push(member);
        true
    }
}
