//! Lists of volumes and snapshots, in pages that every client can receive.
//!
//! Clients refuse messages above 4 MiB and sidecars never raise that, so a reply stays below a
//! fourth of it, whatever was asked for: a page is asked of the driver again, smaller, until it
//! fits.

use std::sync::Arc;

use csi_proto::v1;
use driver_core::{Error, Kind, PageRequest, SnapshotFilter};
use prost::Message;

use super::{about, about_snapshot, about_volume, offered};
use crate::connection::Connection;
use crate::decode::{self, ListSnapshotsRequest};
use crate::encode;
use crate::inflight::Keys;
use crate::rpc::{Job, Task};
use crate::service::Plugin;

/// The largest reply, in bytes.
const MAX_REPLY: usize = 1 << 20;
/// The most entries of a page: what fits into a reply when the entries are of ordinary size.
const MAX_ENTRIES: usize = 2_000;

pub(super) fn volumes(
    plugin: &Arc<Plugin>,
    request: v1::ListVolumesRequest,
) -> Result<Job<v1::ListVolumesResponse>, Error> {
    offered(plugin, "list volumes", |can| can.list_volumes)?;
    let page = decode::page(request.max_entries, request.starting_token)?;
    let connection = plugin.connections.leading().clone();
    Ok(Job::new(
        about(&connection),
        Keys::none(),
        async move |task| {
            let mut sizes = Sizes::new(page);
            loop {
                let listing = connection.driver().list_volumes(&task.call, &sizes.page);
                let found = task.ask("list_volumes", listing).await?;
                let reply = v1::ListVolumesResponse {
                    next_token: encode::next_token(&found)?,
                    entries: found
                        .entries
                        .iter()
                        .map(|v| entry(&connection, v))
                        .collect(),
                };
                if sizes.fits(reply.entries.len(), reply.encoded_len()) {
                    return Ok(reply);
                }
            }
        },
    ))
}

fn entry(
    connection: &Connection,
    volume: &driver_core::Volume,
) -> v1::list_volumes_response::Entry {
    let condition = super::volumes::with_condition(connection).then(encode::normal);
    v1::list_volumes_response::Entry {
        volume: Some(encode::volume(connection, volume)),
        status: condition.map(|condition| v1::list_volumes_response::VolumeStatus {
            published_node_ids: Vec::new(),
            volume_condition: Some(condition),
        }),
    }
}

pub(super) fn snapshots(
    plugin: &Arc<Plugin>,
    request: v1::ListSnapshotsRequest,
) -> Result<Job<v1::ListSnapshotsResponse>, Error> {
    offered(plugin, "list snapshots", |can| can.list_snapshots)?;
    let request = ListSnapshotsRequest::decode(request)?;
    if let Some(handle) = &request.snapshot {
        let (connection, id) = plugin.connections.of_snapshot(handle);
        let subject = about_snapshot(&connection, handle.as_str());
        let source = request
            .source
            .map(|source| plugin.connections.of_volume(&source).1);
        return Ok(Job::new(subject, Keys::none(), async move |task| {
            let found = connection.driver().get_snapshot(&task.call, &id);
            let found = task.ask("get_snapshot", found).await;
            one_or_none(found, source.as_ref())
        }));
    }
    let (connection, filter, subject) = match request.source {
        None => {
            let connection = plugin.connections.leading().clone();
            let subject = about(&connection);
            (connection, SnapshotFilter::default(), subject)
        }
        Some(handle) => {
            let (connection, id) = plugin.connections.of_volume(&handle);
            let subject = about_volume(&connection, handle.as_str());
            (connection, SnapshotFilter { source: Some(id) }, subject)
        }
    };
    Ok(Job::new(subject, Keys::none(), async move |task| {
        list_snapshots(&task, &connection, &filter, request.page).await
    }))
}

async fn list_snapshots(
    task: &Task,
    connection: &Connection,
    filter: &SnapshotFilter,
    page: PageRequest,
) -> Result<v1::ListSnapshotsResponse, Error> {
    let mut sizes = Sizes::new(page);
    loop {
        let driver = connection.driver();
        let listing = driver.list_snapshots(&task.call, filter, &sizes.page);
        let found = task.ask("list_snapshots", listing).await?;
        let entries = found.entries.iter().map(|snapshot| {
            let snapshot = Some(encode::snapshot(snapshot));
            v1::list_snapshots_response::Entry { snapshot }
        });
        let reply = v1::ListSnapshotsResponse {
            entries: entries.collect(),
            next_token: encode::next_token(&found)?,
        };
        if sizes.fits(reply.entries.len(), reply.encoded_len()) {
            return Ok(reply);
        }
    }
}

/// The list of one snapshot, which is empty if there is none such.
fn one_or_none(
    found: Result<driver_core::Snapshot, Error>,
    source: Option<&driver_core::VolumeId>,
) -> Result<v1::ListSnapshotsResponse, Error> {
    let snapshot = match found {
        Ok(snapshot) => snapshot,
        Err(error) if error.kind() == Kind::NotFound => {
            return Ok(v1::ListSnapshotsResponse::default());
        }
        Err(error) => return Err(error),
    };
    let wanted = source.is_none_or(|source| *source == snapshot.source);
    let entry = v1::list_snapshots_response::Entry {
        snapshot: Some(encode::snapshot(&snapshot)),
    };
    Ok(v1::ListSnapshotsResponse {
        entries: wanted.then_some(entry).into_iter().collect(),
        next_token: String::new(),
    })
}

/// Finds a size of page whose reply is small enough.
#[derive(Debug)]
struct Sizes {
    page: PageRequest,
}

// === impl Sizes ===

impl Sizes {
    fn new(mut page: PageRequest) -> Self {
        page.max = Some(page.max.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES));
        Self { page }
    }

    /// Whether a reply can be sent; if not, the next page to ask for is smaller. A single entry is
    /// always sent: it cannot be made smaller.
    fn fits(&mut self, entries: usize, bytes: usize) -> bool {
        if bytes <= MAX_REPLY || entries <= 1 {
            return true;
        }
        // A little less than what would fit if all entries were alike.
        let proportional = entries * (MAX_REPLY / 1024) / (bytes / 1024 + 1);
        self.page.max = Some(proportional.clamp(1, entries - 1));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_too_large_is_asked_for_again_until_it_fits_or_has_one_entry() {
        let mut sizes = Sizes::new(PageRequest::default());
        assert_eq!(sizes.page.max, Some(MAX_ENTRIES));
        let mut tries = 0;
        // Entries that grow: the worst case for a guess in proportion.
        let weight = |n: usize| n * n * 10;
        let mut entries = MAX_ENTRIES;
        while !sizes.fits(entries, weight(entries)) {
            let next = sizes.page.max.expect("a size");
            assert!(next < entries);
            entries = next;
            tries += 1;
        }
        assert!(weight(entries) <= MAX_REPLY && tries < 10, "{tries} tries");
        assert!(sizes.fits(1, 5 * MAX_REPLY));
    }

    #[test]
    fn nobody_gets_more_than_asked_for_nor_more_than_fits() {
        let asked = |max| Sizes::new(PageRequest { max, after: None }).page.max;
        assert_eq!(asked(Some(3)), Some(3));
        assert_eq!(asked(Some(1_000_000)), Some(MAX_ENTRIES));
        assert_eq!(asked(None), Some(MAX_ENTRIES));
    }
}
