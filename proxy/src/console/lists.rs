//! The lists of the console: volumes, snapshots, orphans.

use std::time::{Duration, SystemTime};

use driver_core::{
    Call, Capabilities, Elsewhere, Error, Orphan, Page, PageRequest, Snapshot, SnapshotFilter,
    Source, Volume,
};
use serde::Serialize;

use super::walk::Listing;
use crate::routing::connection::Connection;
use crate::telemetry::history::{History, seconds};

/// Younger objects may belong to a running call, as for the metrics.
const ORPHAN_AGE: Duration = Duration::from_hours(24);

/// All volumes.
#[derive(Debug)]
pub(super) struct Volumes<'a>(pub(super) &'a History);

/// All snapshots.
#[derive(Debug)]
pub(super) struct Snapshots;

/// All orphans that are old enough.
#[derive(Debug)]
pub(super) struct Orphans {
    now: SystemTime,
    before: SystemTime,
}

/// A volume.
#[derive(Debug, Serialize)]
pub(super) struct VolumeRow {
    handle: String,
    connection: String,
    id: String,
    driver: String,
    protocol: &'static str,
    /// Bytes; `None` where nothing limits it.
    size: Option<u64>,
    source: Option<SourceRow>,
    /// Known if the call that created it, or published it, was seen by this process.
    claim: Option<String>,
    nodes: Vec<String>,
}

/// The source of a volume.
#[derive(Debug, Serialize)]
pub(super) struct SourceRow {
    kind: &'static str,
    handle: String,
}

/// A snapshot.
#[derive(Debug, Serialize)]
pub(super) struct SnapshotRow {
    handle: String,
    connection: String,
    id: String,
    /// The handle of the volume that it is of.
    volume: String,
    volume_id: String,
    size: u64,
    created: u64,
    ready: bool,
}

/// An orphan.
#[derive(Debug, Serialize)]
pub(super) struct OrphanRow {
    connection: String,
    kind: &'static str,
    object: String,
    created: u64,
    age_seconds: u64,
}

/// Whether one of the texts has the word.
fn has(search: Option<&str>, texts: &[&str]) -> bool {
    let found = |word: &str| texts.iter().any(|text| text.to_lowercase().contains(word));
    search.is_none_or(found)
}

// === impl SourceRow ===

impl SourceRow {
    fn of(connection: &Connection, source: &Source) -> Self {
        let (kind, handle) = match source {
            Source::Snapshot(id) => ("snapshot", connection.snapshot_handle(id)),
            Source::Volume(id) => ("volume", connection.volume_handle(id)),
            Source::Elsewhere(Elsewhere::Snapshot(handle)) => {
                ("snapshot", handle.as_str().to_owned())
            }
            Source::Elsewhere(Elsewhere::Volume(handle)) => ("volume", handle.as_str().to_owned()),
        };
        Self { kind, handle }
    }
}

// === impl Volumes ===

impl Listing for Volumes<'_> {
    type Found = Volume;
    type Row = VolumeRow;

    fn has(&self, can: &Capabilities) -> bool {
        can.list_volumes
    }

    async fn ask(
        &self,
        connection: &Connection,
        call: &Call,
        page: &PageRequest,
    ) -> Result<Page<Volume>, Error> {
        connection.driver().list_volumes(call, page).await
    }

    fn row(
        &self,
        connection: &Connection,
        found: Volume,
        search: Option<&str>,
    ) -> Option<VolumeRow> {
        let name = connection.name().text();
        let known = self.0.known(name, found.id.as_str());
        let made_for = found.made_for;
        let row = VolumeRow {
            handle: connection.volume_handle(&found.id),
            connection: name.to_string(),
            id: found.id.as_str().to_owned(),
            driver: connection.driver().kind().to_owned(),
            protocol: found.attachment.kind(),
            size: found.capacity,
            source: found
                .source
                .map(|source| SourceRow::of(connection, &source)),
            claim: known
                .claim
                .or_else(|| made_for.claim.map(|claim| claim.to_string())),
            nodes: known.nodes,
        };
        let mut texts = vec![row.handle.as_str(), row.protocol, &row.driver];
        texts.extend(row.claim.as_deref());
        texts.extend(row.source.as_ref().map(|source| source.handle.as_str()));
        texts.extend(row.nodes.iter().map(String::as_str));
        has(search, &texts).then_some(row)
    }
}

// === impl Snapshots ===

impl Listing for Snapshots {
    type Found = Snapshot;
    type Row = SnapshotRow;

    fn has(&self, can: &Capabilities) -> bool {
        can.list_snapshots
    }

    async fn ask(
        &self,
        connection: &Connection,
        call: &Call,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let all = SnapshotFilter::default();
        connection.driver().list_snapshots(call, &all, page).await
    }

    fn row(
        &self,
        connection: &Connection,
        found: Snapshot,
        search: Option<&str>,
    ) -> Option<SnapshotRow> {
        let row = SnapshotRow {
            handle: connection.snapshot_handle(&found.id),
            connection: connection.name().text().to_string(),
            id: found.id.as_str().to_owned(),
            volume: connection.volume_handle(&found.source),
            volume_id: found.source.as_str().to_owned(),
            size: found.size,
            created: seconds(found.created),
            ready: found.ready,
        };
        has(search, &[&row.handle, &row.volume]).then_some(row)
    }
}

// === impl Orphans ===

impl Orphans {
    pub(super) fn new() -> Self {
        let now = SystemTime::now();
        let before = now.checked_sub(ORPHAN_AGE);
        Self {
            now,
            before: before.unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

impl Listing for Orphans {
    type Found = Orphan;
    type Row = OrphanRow;

    fn has(&self, can: &Capabilities) -> bool {
        can.orphans
    }

    async fn ask(
        &self,
        connection: &Connection,
        call: &Call,
        page: &PageRequest,
    ) -> Result<Page<Orphan>, Error> {
        connection.driver().orphans(call, self.before, page).await
    }

    fn row(
        &self,
        connection: &Connection,
        found: Orphan,
        search: Option<&str>,
    ) -> Option<OrphanRow> {
        let age = self.now.duration_since(found.created);
        let row = OrphanRow {
            connection: connection.name().text().to_string(),
            kind: found.kind.as_str(),
            object: found.object,
            created: seconds(found.created),
            age_seconds: age.unwrap_or_default().as_secs(),
        };
        has(search, &[&row.object, row.kind, &row.connection]).then_some(row)
    }
}
