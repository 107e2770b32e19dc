//! Datasets and snapshots as callers see them, and the tokens of lists.

use std::time::{Duration, SystemTime};

use csi_types::Attachment;
use driver_core::text::GroupSnapshotId;
use driver_core::{
    Call, Elsewhere, Error, Kind, MadeFor, NodeId, Page, PageRequest, PageToken, Snapshot,
    SnapshotId, Source, Volume, VolumeId,
};

use super::ZfsDriver;
use crate::backend::{Cursor, Entry, ListFilter, ListQuery, ListScope};
use crate::context;
use crate::export::Subject;
use crate::name::{DatasetName, Object};
use crate::observed::{self, Dataset, State};
use crate::plan::is_complete;
use crate::plan::snapshot::Taken;
use crate::property::{Properties, PropertyName};
use crate::published::PublishedNodes;

/// The longest page: a reply must fit into 4 MiB.
pub(super) const MAX_PAGE: usize = 2_000;

/// The token of the page after this cursor. It is short, and never expires: positions never change.
pub(super) fn write_token(sort: &str, place: Cursor) -> PageToken {
    PageToken(format!("{sort}1/{}/{}", place.createtxg, place.guid))
}

/// The cursor of a token.
pub(super) fn read_token(sort: &str, token: &PageToken) -> Result<Cursor, Error> {
    let place = || {
        let rest = token.0.strip_prefix(sort)?.strip_prefix("1/")?;
        let (createtxg, guid) = rest.split_once('/')?;
        Some(Cursor {
            createtxg: createtxg.parse().ok()?,
            guid: guid.parse().ok()?,
        })
    };
    place().ok_or_else(|| {
        Error::new(Kind::Pending, "read the token of a list")
            .because("it is not a token of this list")
    })
}

/// The data of a snapshot that callers may see.
pub(super) fn attached(snapshot: &observed::Snapshot) -> Option<Properties> {
    let own = snapshot.csi_name().is_some() && !snapshot.is_doomed();
    own.then(|| snapshot.properties.clone())
}

/// The same for a snapshot that is a dataset.
pub(super) fn detached(dataset: &Dataset) -> Option<Properties> {
    let own = |name| dataset.properties.own(&name).is_some();
    let whole = dataset.is_managed() && own(PropertyName::SUCCESS);
    (whole && own(PropertyName::SNAPSHOT_NAME)).then(|| dataset.properties.clone())
}

impl ZfsDriver {
    /// One page of a list. `sort` distinguishes its tokens from those of other lists.
    pub(super) async fn page<T>(
        &self,
        call: &Call,
        sort: &str,
        scopes: Vec<ListScope>,
        page: &PageRequest,
        show: impl Fn(&Entry) -> Option<T>,
    ) -> Result<Page<T>, Error> {
        let max = page.max.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
        let after = page.after.as_ref();
        let after = after.map(|token| read_token(sort, token)).transpose()?;
        let properties = self.of_access();
        let query = ListQuery {
            scopes,
            after,
            max,
            properties,
        };
        let listed = self.backend.list(call, &query).await?;
        self.heard();
        Ok(Page {
            next: listed.next.map(|place| write_token(sort, place)),
            entries: listed.entries.iter().filter_map(show).collect(),
        })
    }

    /// A complete volume. Its attachment follows from the configuration and the dataset; the record
    /// is used if these are not enough.
    pub(super) fn volume(&self, dataset: &Dataset) -> Result<Volume, Error> {
        let defect = |why: &str| {
            Error::new(Kind::Internal, format!("show volume {}", dataset.name)).because(why)
        };
        let id = self.layout().volume_id(&dataset.name);
        let id = id.ok_or_else(|| defect("it is not below the parent of volumes"))?;
        let text = dataset.properties.own(&PropertyName::CONTEXT);
        let recorded = context::from_json(text.ok_or_else(|| defect("it has no context"))?)?;
        let subject = Subject {
            id: &id,
            dataset: &dataset.name,
            request: None,
            chosen: None,
            volume: Some(dataset),
        };
        let current = self.export.current_attachment(&subject);
        let recorded_nodes = PublishedNodes::of(dataset);
        let has_access = |(_, id): &(&NodeId, &NodeId)| self.export.lets_in(&subject, id);
        let published_to = recorded_nodes.iter().filter(has_access);
        let published_to = published_to.map(|(node, _)| node.clone()).collect();
        let limited = self.settings.policy.shows_size(self.kind());
        Ok(Volume {
            capacity: dataset.size().filter(|_| limited),
            attachment: current.unwrap_or(recorded),
            source: source(&dataset.properties),
            topology: self.settings.place.iter().cloned().collect(),
            made_for: made_for(&dataset.properties),
            published_to,
            id,
        })
    }

    /// The properties that show which nodes have access, in addition to
    /// [`ALWAYS`](crate::observed::ALWAYS).
    pub(super) fn of_access(&self) -> Vec<PropertyName> {
        if self.export.is_per_node() {
            self.export.reads()
        } else {
            Vec::new()
        }
    }

    /// The longest attachment of a volume: that of the longest id here.
    pub(super) fn longest_shown(&self) -> Option<Attachment> {
        let fits = |length| {
            let id = VolumeId::parse(&"x".repeat(length)).ok()?;
            let dataset = self.layout().volume(&id).ok()?;
            Some((id, dataset))
        };
        let mut lengths = (1..=self.settings.id_room.bytes()).rev();
        let (id, dataset) = lengths.find_map(fits)?;
        let unknown = State::default();
        let export_ref = self.export_ref(&id, &dataset);
        self.export
            .longest_attachment(&export_ref.subject(&unknown))
    }

    /// A snapshot.
    pub(super) fn snapshot(&self, taken: &Taken) -> Result<Snapshot, Error> {
        let created = taken.properties.number(&PropertyName::CREATION);
        let created = Duration::from_secs(created.unwrap_or_default());
        let group = taken.properties.own(&PropertyName::GROUP);
        let group = group.and_then(|id| GroupSnapshotId::parse(id).ok());
        Ok(Snapshot {
            id: taken.place.id()?,
            source: taken.place.volume.clone(),
            size: taken.size(self.kind()),
            created: SystemTime::UNIX_EPOCH + created,
            ready: true,
            topology: self.settings.place.iter().cloned().collect(),
            group,
        })
    }

    pub(super) fn listed_volume(&self, entry: &Entry) -> Option<Volume> {
        let Entry::Dataset(dataset) = entry else {
            return None;
        };
        if !is_complete(dataset) || dataset.kind != self.kind() {
            return None;
        }
        left_out_if_unreadable(self.volume(dataset))
    }

    pub(super) fn listed_snapshot(&self, entry: &Entry) -> Option<Snapshot> {
        let (object, properties) = match entry {
            Entry::Snapshot(snapshot) => (Object::from(snapshot.name.clone()), attached(snapshot)?),
            Entry::Dataset(dataset) => (Object::from(dataset.name.clone()), detached(dataset)?),
        };
        let place = self.layout().place_of(&object)?;
        left_out_if_unreadable(self.snapshot(&Taken { place, properties }))
    }

    /// Whether an error may only mean that the pool of detached snapshots is missing. Examples of
    /// democratic-csi name one that does not exist: lists skip it. compat: "ZFS".
    pub(super) fn misses_detached_pool(&self, error: &Error) -> bool {
        let layout = self.layout();
        let elsewhere = |detached: &&DatasetName| detached.pool() != layout.volumes.pool();
        let Some(detached) = layout.detached.as_ref().filter(elsewhere) else {
            return false;
        };
        let missing = error.kind() == Kind::Unreachable;
        if missing {
            let error = error.chain();
            tracing::warn!(%detached, error, "listing without detached snapshots");
        }
        missing
    }

    /// The scopes of volumes.
    pub(super) fn volume_scopes(&self) -> Vec<ListScope> {
        let scope = |parent: &DatasetName| ListScope {
            parent: parent.clone(),
            depth: 1,
            kind: Some(self.kind()),
            filter: ListFilter::Having(PropertyName::CONTEXT),
        };
        self.layout().parents().map(scope).collect()
    }

    /// The scopes of snapshots, of one volume or of all.
    pub(super) fn snapshot_scopes(
        &self,
        of: Option<&VolumeId>,
        with_detached: bool,
    ) -> Result<Vec<ListScope>, Error> {
        let layout = self.layout();
        let wanted = ListFilter::Having(PropertyName::SNAPSHOT_NAME);
        let scope = |parent, depth, kind| ListScope {
            parent,
            depth,
            kind,
            filter: wanted.clone(),
        };
        let kind = Some(self.kind());
        let mut scopes = Vec::new();
        if let Some(id) = of {
            let below = |parent: &DatasetName| parent.child(id.as_str()).ok();
            scopes.push(scope(layout.volume(id)?, 0, None));
            let container = layout.detached.as_ref().filter(|_| with_detached);
            let container = container.and_then(below);
            scopes.extend(container.map(|container| scope(container, 1, kind)));
        } else {
            let parents = layout.parents().cloned();
            scopes.extend(parents.map(|parent| scope(parent, 1, None)));
            let detached = layout.detached.clone().filter(|_| with_detached);
            scopes.extend(detached.map(|parent| scope(parent, 2, kind)));
        }
        Ok(scopes)
    }
}

/// One that cannot be encoded must not hide all others.
fn left_out_if_unreadable<T>(shown: Result<T, Error>) -> Option<T> {
    shown
        .inspect_err(|error| tracing::warn!("left out of a list: {}", error.chain()))
        .ok()
}

/// The recorded source of a volume.
fn source(properties: &Properties) -> Option<Source> {
    let id = properties.own(&PropertyName::SOURCE_ID)?;
    match properties.own(&PropertyName::SOURCE_KIND)? {
        "snapshot" => SnapshotId::parse(id).ok().map(Source::Snapshot),
        "volume" => VolumeId::parse(id).ok().map(Source::Volume),
        word => Elsewhere::read(word, id).map(Source::Elsewhere),
    }
}

/// The claim that a volume was made for.
fn made_for(properties: &Properties) -> MadeFor {
    MadeFor::read(
        properties.own(&PropertyName::CLAIM),
        properties.own(&PropertyName::PERSISTENT_VOLUME),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_short_and_those_of_other_lists_are_refused() {
        let place = Cursor {
            createtxg: u64::MAX,
            guid: u64::MAX,
        };
        let token = write_token("v", place);
        assert!(
            token.0.len() <= 99,
            "room for the name of a connection: {}",
            token.0
        );
        assert_eq!(read_token("v", &token).unwrap(), place);
        for token in ["", "s1/1/2", "v1/1", "v1/a/b", "v1/1/2/3", "v1/-1/2"] {
            let error = read_token("v", &PageToken(token.into())).unwrap_err();
            assert_eq!(error.kind(), Kind::Pending, "{token:?}");
        }
    }
}
