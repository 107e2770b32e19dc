//! The rows of the pool that have to be read to answer a question, and the calls that read them. They run
//! concurrently, except for a call whose arguments depend on the answer of another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use driver_core::{Call, Error, Kind};
use driver_zfs::id;
use driver_zfs::name::{DatasetName, NameError, Object, SnapshotLeaf, SnapshotRef};
use driver_zfs::observed::Query;
use driver_zfs::property::PropertyName;
use futures_util::future::try_join_all;

use super::Nas;
use super::native::zfs_name;
use super::pool_rows::PoolRows;
use crate::Dialect;
use crate::api::Filter;
use crate::api::dataset::{Dataset, QueryDatasets};
use crate::api::replication::RunningCopies;
use crate::api::resource::{QueryResourceSnapshots, QueryResources, Resource};
use crate::api::snapshot::{FindSnapshots, NameSnapshots, QuerySnapshots, Snapshot};
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::understood;
use crate::rows::RowMemory;

/// The properties that are read of every dataset, by their names in ZFS.
const OF_DATASETS: [&str; 10] = [
    "creation",
    "origin",
    "mountpoint",
    "refquota",
    "refreservation",
    "usedbydataset",
    "available",
    "volsize",
    "volblocksize",
    "used",
];

/// Further properties that `zfs.resource` shows.
const OF_RESOURCES: [&str; 2] = ["referenced", "logicalreferenced"];

/// The property that says whether the key is loaded.
const KEY: &str = "keystatus";

/// The properties of a mount that `zfs.resource` shows, where the key is asked for.
const OF_MOUNTS: [&str; 2] = ["mounted", "canmount"];

/// Further properties that are asked for until `pool.dataset.query` says whether a dataset is locked.
const OF_KEYS: [&str; 3] = ["encryption", "keyformat", "encryptionroot"];

/// The properties that are read of every snapshot, where they have to be named.
const OF_SNAPSHOTS: [&str; 8] = [
    "creation",
    "createtxg",
    "guid",
    "referenced",
    "logicalreferenced",
    "volsize",
    "clones",
    "defer_destroy",
];

/// So many snapshots are read one by one, and datasets of one parent where one that is missing hides the others.
const FEW: usize = 16;

/// The objects that have to be read to answer a question.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Datasets by their names.
    datasets: BTreeSet<DatasetName>,
    /// Datasets above these, which say what is inherited.
    above: BTreeSet<DatasetName>,
    /// Datasets that are asked for, not only for a snapshot on them.
    asked: BTreeSet<DatasetName>,
    /// Datasets that may well be missing.
    may_be_missing: BTreeSet<DatasetName>,
    /// Pools that have to be there, where nothing in them is.
    pools: BTreeSet<DatasetName>,
    /// Datasets with what is on and below them.
    families: BTreeSet<DatasetName>,
    snapshots: BTreeSet<SnapshotRef>,
    named: Vec<(Vec<DatasetName>, SnapshotLeaf)>,
    native: Vec<String>,
    /// Whether what it is about is yet to be made: what is on and below it is read once it is there.
    is_new: bool,
}

// === impl Reads ===

impl Reads {
    /// The reads for these queries. Those that are about something new ask for it in other calls than for objects that
    /// are there.
    pub(super) fn of(queries: &[Query], properties: &[PropertyName], is_new: bool) -> Self {
        let native = properties.iter().filter(|name| !name.is_user());
        let mut wanted = Self {
            native: native.map(|name| name.as_str().to_owned()).collect(),
            is_new,
            ..Self::default()
        };
        for query in queries {
            match query {
                Query::Dataset(name) => wanted.ask(name),
                Query::Family(name) => {
                    wanted.ask(name);
                    wanted.families.insert(name.clone());
                }
                Query::Snapshot(name) => {
                    wanted.datasets.insert(name.dataset.clone());
                    wanted.snapshots.insert(name.clone());
                }
                Query::Named { within, leaf, .. } => {
                    wanted.named.push((within.clone(), leaf.clone()));
                }
                Query::Nearest(name) => wanted.datasets.extend(name.with_ancestors()),
                Query::System | Query::Marks(_) | Query::Pool(_) => {}
            }
        }
        let names = || queries.iter().filter_map(dataset_of);
        let pools = names().filter_map(|name| DatasetName::parse(name.pool()).ok());
        wanted.pools = pools.collect();
        // A snapshot shows of its own dataset what it inherits.
        let asked = queries
            .iter()
            .filter(|query| !matches!(query, Query::Snapshot(_)));
        let above = asked.filter_map(dataset_of).filter_map(DatasetName::parent);
        wanted.above = above.collect();
        // Nothing is copied into what something is asked for below.
        let below: BTreeSet<DatasetName> = names().filter_map(DatasetName::parent).collect();
        let new = wanted.asked.iter().filter(|_| is_new);
        let new = new.filter(|name| !wanted.has_on_or_below(name));
        wanted.may_be_missing = new.cloned().collect();
        wanted.asked.retain(|name| !below.contains(name));
        wanted.above = wanted.above.difference(&wanted.datasets).cloned().collect();
        wanted
    }

    /// The same without what is known.
    pub(super) fn without(mut self, known: &PoolRows) -> Self {
        let is_known = |name: &DatasetName| known.datasets.contains_key(name.as_str());
        let asked = self.asked.clone();
        let families = self.families.clone();
        let may_be_missing = self.may_be_missing.clone();
        let stays = |name: &DatasetName| {
            let is_asked = asked.contains(name) || may_be_missing.contains(name);
            is_asked || families.contains(name) || !is_known(name)
        };
        self.datasets.retain(stays);
        self.above.retain(|name| !is_known(name));
        self.pools.retain(|name| !known.has_in_pool(name.as_str()));
        self
    }

    fn ask(&mut self, name: &DatasetName) {
        self.asked.insert(name.clone());
        self.datasets.insert(name.clone());
    }

    /// Whether a snapshot is asked for on or below a dataset: then that is there.
    fn has_on_or_below(&self, name: &DatasetName) -> bool {
        let mut snapshots = self.snapshots.iter().map(|snapshot| &snapshot.dataset);
        snapshots.any(|dataset| dataset == name || dataset.below(name).is_some())
    }

    /// Whether datasets, if any, are only wanted for the snapshots on them: these nearly always say enough.
    fn is_of_snapshots(&self) -> bool {
        let mut datasets = self.datasets.iter();
        let has_one = |name: &DatasetName| self.snapshots.iter().any(|on| on.dataset == *name);
        let none_else = self.asked.is_empty() && self.above.is_empty();
        none_else && datasets.all(has_one)
    }

    /// Further reads, once this was read: pools in which nothing is, and datasets that say of those found whether their
    /// properties are inherited.
    fn later(&self, seen: &PoolRows) -> Self {
        let found = |name: &DatasetName| seen.datasets.get(name.as_str());
        let has_own =
            |name: &&DatasetName| found(name).is_some_and(|it| !it.user_properties.is_empty());
        let pools = self.pools.iter();
        let pools = pools.filter(|pool| !seen.has_in_pool(pool.as_str()));
        let children = self.datasets.iter().filter(has_own);
        let above = children.filter_map(DatasetName::parent);
        let above = above.filter(|name| self.above.contains(name));
        let above = above.chain(seen.above_snapshots());
        let datasets = pools
            .cloned()
            .chain(above.filter(|name| found(name).is_none()));
        Self {
            datasets: datasets.collect(),
            native: self.native.clone(),
            ..Self::default()
        }
    }
}

/// The dataset that a query is about.
fn dataset_of(query: &Query) -> Option<&DatasetName> {
    match query {
        Query::Dataset(name) | Query::Family(name) | Query::Nearest(name) => Some(name),
        Query::Snapshot(name) => Some(&name.dataset),
        Query::Named { .. } | Query::Marks(_) | Query::Pool(_) | Query::System => None,
    }
}

/// The paths that go into each call. On 25.10 one that is missing hides the others, so only datasets in each other go
/// together: they are nearly always all there. What is above others is left out where it would be a call of its own,
/// unless nothing else shows that its pool is there.
fn in_calls(
    names: &BTreeSet<DatasetName>,
    above: &BTreeSet<DatasetName>,
    dialect: &Dialect,
) -> Vec<Vec<DatasetName>> {
    let mut calls: Vec<Vec<DatasetName>> = Vec::new();
    let all = names.iter().map(|name| (name, false));
    for (name, is_above) in all.chain(above.iter().map(|name| (name, true))) {
        let is_with = |call: &&mut Vec<DatasetName>| {
            let mut others = call.iter();
            let nested = others.any(|other| {
                other == name || name.below(other).is_some() || other.below(name).is_some()
            });
            nested || dialect.has_resource_destroy()
        };
        if let Some(call) = calls.iter_mut().find(is_with) {
            call.push(name.clone());
            continue;
        }
        let mut others = calls.iter().flatten();
        if !is_above || !others.any(|other| other.pool() == name.pool()) {
            calls.push(vec![name.clone()]);
        }
    }
    calls
}

/// Takes out of names those that lie below one parent and are too many to be looked up one by one, where one that is
/// missing hides the others.
fn crowds(
    names: &mut BTreeSet<DatasetName>,
    dialect: &Dialect,
) -> Vec<(DatasetName, BTreeSet<DatasetName>)> {
    if dialect.has_resource_destroy() {
        return Vec::new();
    }
    let mut crowds: BTreeMap<DatasetName, BTreeSet<DatasetName>> = BTreeMap::new();
    for name in names.iter() {
        if let Some(parent) = name.parent() {
            crowds.entry(parent).or_default().insert(name.clone());
        }
    }
    crowds.retain(|_, children| children.len() > FEW);
    names.retain(|name| !crowds.values().any(|children| children.contains(name)));
    crowds.into_iter().collect()
}

/// The datasets that were cloned of these snapshots: a walk over all of the NAS.
fn clones_of<'n>(origins: impl IntoIterator<Item = &'n str>) -> QueryDatasets {
    QueryDatasets {
        filters: vec![Filter::any_of("origin.rawvalue", origins)],
        properties: owned(&["origin"]),
        ..QueryDatasets::default()
    }
}

/// Nothing, where the NAS says that it is this path that is missing.
fn missing<T: Default>(path: &str, outcome: Result<T, ApiError>) -> Result<T, ApiError> {
    match outcome {
        Err(error) if error.kind() == ApiKind::NotFound && error.message().contains(path) => {
            Ok(T::default())
        }
        outcome => outcome,
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

impl Nas {
    /// Reads what is wanted: in one exchange, and a second one for what depends on the first. `known` was read
    /// before, and is not read again.
    pub(super) async fn pool_rows(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Reads,
        known: &PoolRows,
    ) -> Result<PoolRows, Error> {
        let doing = || match wanted.asked.first() {
            Some(name) => format!("look at {name}"),
            None => "look at the pool".to_owned(),
        };
        let said = |error: ApiError| understood(doing(), &error);
        let none = BTreeSet::new();
        let families = if wanted.is_new {
            &none
        } else {
            &wanted.families
        };
        let (datasets, members, snapshots, named) = tokio::try_join!(
            self.datasets(call, dialect, wanted),
            self.members(call, dialect, families),
            self.snapshots(call, dialect, wanted),
            self.named(call, wanted),
        )
        .map_err(said)?;
        let mut rows = PoolRows {
            by_resource: dialect.has_resource_query(),
            named,
            ..PoolRows::default()
        };
        rows.extend(datasets, snapshots);
        rows.extend(members.0, members.1);
        if wanted.is_new {
            let there = |name: &&DatasetName| rows.datasets.contains_key(name.as_str());
            let there = wanted.families.iter().filter(there).cloned().collect();
            let members = self.members(call, dialect, &there).await.map_err(said)?;
            rows.extend(members.0, members.1);
        }
        let mut whole = known.clone();
        whole.lay(rows.clone());
        let later = wanted.later(&whole);
        let later = self.datasets(call, dialect, &later).await.map_err(said)?;
        for dataset in later.into_iter().map(Arc::new) {
            whole.add(Arc::clone(&dataset));
            rows.add(dataset);
        }
        let (clones, copies) = tokio::try_join!(
            self.clones(call, dialect, wanted, &rows),
            self.copies(call, wanted, &whole),
        )
        .map_err(said)?;
        for clone in &clones {
            rows.add_clone(clone);
        }
        rows.copying = copies;
        Ok(rows)
    }

    /// Makes the calls by which volumes and snapshots are looked for, of ones that there are not.
    pub(crate) async fn looks_of_datasets(
        &self,
        call: &Call,
        dialect: &Dialect,
    ) -> Result<(), Error> {
        let doing = "look for volumes and snapshots";
        let odd = |error: NameError| Error::new(Kind::Internal, doing).because(error);
        let volume = DatasetName::parse("omnibus-csi/check").map_err(odd)?;
        let taken = SnapshotRef::parse("omnibus-csi/other@check").map_err(odd)?;
        let origin = taken.to_string();
        let queries = [Query::Family(volume), Query::Snapshot(taken)];
        let wanted = Reads::of(&queries, &[], false);
        let of_clones = clones_of([origin.as_str()]);
        let said = |error: ApiError| understood(doing, &error);
        let nothing = PoolRows::default();
        self.pool_rows(call, dialect, &wanted, &nothing).await?;
        self.read(call, &of_clones).await.map_err(said)?;
        let named = FindSnapshots {
            name: "check".to_owned(),
            below: "omnibus-csi".to_owned(),
        };
        self.read(call, &named).await.map_err(said)?;
        self.read(call, &RunningCopies)
            .await
            .map(drop)
            .map_err(said)
    }

    fn names_of_datasets(dialect: &Dialect, wanted: &Reads) -> Vec<String> {
        let mut names = owned(&OF_DATASETS);
        if dialect.has_resource_query() {
            names.extend(owned(&OF_RESOURCES));
        }
        let more = wanted.native.iter().map(|name| zfs_name(name).to_owned());
        names.extend(more);
        if wanted.native.iter().any(|name| name == KEY) {
            let more = if dialect.has_resource_query() {
                OF_MOUNTS.as_slice()
            } else {
                OF_KEYS.as_slice()
            };
            names.extend(owned(more));
        }
        names
    }

    async fn datasets(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Reads,
    ) -> Result<Vec<Dataset>, ApiError> {
        if wanted.is_of_snapshots() {
            return Ok(Vec::new());
        }
        let properties = Self::names_of_datasets(dialect, wanted);
        if !dialect.has_resource_query() {
            let names = wanted.datasets.union(&wanted.pools);
            let names = names.chain(&wanted.above).map(DatasetName::as_str);
            let query = QueryDatasets {
                filters: vec![Filter::any_of("id", names)],
                properties,
                user_properties: true,
                snapshots: false,
                short: false,
            };
            return self.read(call, &query).await;
        }
        let read = |paths: Vec<String>, depth: Option<u8>| {
            let query = QueryResources {
                paths,
                properties: properties.clone(),
                depth,
            };
            async move { self.read(call, &query).await }
        };
        let one = |name: &DatasetName| {
            let depth = wanted.families.contains(name).then_some(1);
            let path = name.to_string();
            let found = read(vec![path.clone()], depth);
            async move { missing(&path, found.await) }
        };
        let together = |names: Vec<DatasetName>| {
            let found = read(names.iter().map(ToString::to_string).collect(), None);
            async move {
                match found.await {
                    Err(error) if error.kind() == ApiKind::NotFound && names.len() > 1 => {
                        let each = try_join_all(names.iter().map(one)).await?;
                        Ok(each.into_iter().flatten().collect())
                    }
                    found => missing(names[0].as_str(), found),
                }
            }
        };
        let is_alone = |name: &&DatasetName| {
            let may_be_missing = wanted.may_be_missing.contains(*name);
            (may_be_missing && !dialect.has_resource_destroy()) || wanted.families.contains(*name)
        };
        let (alone, rest): (Vec<_>, Vec<_>) = wanted.datasets.iter().partition(is_alone);
        let mut rest = rest.into_iter().cloned().collect();
        let crowds = crowds(&mut rest, dialect);
        let mut above = wanted.above.clone();
        // Each comes with the datasets below it.
        above.retain(|name| !crowds.iter().any(|(parent, _)| parent == name));
        let calls = in_calls(&rest, &above, dialect);
        let crowd = |(parent, names): (DatasetName, BTreeSet<DatasetName>)| {
            let properties = &properties;
            async move {
                if let Some(rows) = self.crowd(call, properties, &parent, &names).await? {
                    return Ok::<_, ApiError>(rows);
                }
                let each = try_join_all(names.iter().map(one)).await?;
                Ok(each.into_iter().flatten().collect())
            }
        };
        let (alone, rest, crowds) = tokio::try_join!(
            try_join_all(alone.into_iter().map(one)),
            try_join_all(calls.into_iter().map(together)),
            try_join_all(crowds.into_iter().map(crowd)),
        )?;
        let found = alone.into_iter().chain(rest).chain(crowds).flatten();
        Ok(found.map(|found| found.0).collect())
    }

    /// Datasets of one parent, with it, in one call. `None` where it is missing, or something below it went away while
    /// it was read.
    async fn crowd(
        &self,
        call: &Call,
        properties: &[String],
        parent: &DatasetName,
        names: &BTreeSet<DatasetName>,
    ) -> Result<Option<Vec<Resource>>, ApiError> {
        let query = QueryResources {
            paths: vec![parent.to_string()],
            properties: properties.to_vec(),
            depth: Some(1),
        };
        let mut rows = match self.read(call, &query).await {
            Err(error) if error.kind() == ApiKind::NotFound => return Ok(None),
            found => found?,
        };
        let mut wanted: BTreeSet<&str> = names.iter().map(DatasetName::as_str).collect();
        wanted.insert(parent.as_str());
        rows.retain(|row| wanted.contains(row.0.id.as_str()));
        Ok(Some(rows))
    }

    /// The datasets and snapshots below families and on them.
    async fn members(
        &self,
        call: &Call,
        dialect: &Dialect,
        families: &BTreeSet<DatasetName>,
    ) -> Result<(Vec<Dataset>, Vec<Snapshot>), ApiError> {
        let one = |name: &DatasetName| {
            let path = name.to_string();
            async move {
                if dialect.has_resource_destroy() {
                    return self.snapshots_by_path(call, path).await;
                }
                self.snapshots_of(call, dialect, path).await
            }
        };
        let (children, snapshots) = tokio::try_join!(
            self.children(call, dialect, families),
            try_join_all(families.iter().map(one)),
        )?;
        Ok((children, snapshots.into_iter().flatten().collect()))
    }

    /// The datasets below families, where they do not come with them, and the clones of their snapshots.
    async fn children(
        &self,
        call: &Call,
        dialect: &Dialect,
        families: &BTreeSet<DatasetName>,
    ) -> Result<Vec<Dataset>, ApiError> {
        if dialect.has_resource_query() || families.is_empty() {
            return Ok(Vec::new());
        }
        let below = |name: &DatasetName| {
            [
                Filter::starts_with("id", &format!("{name}/")),
                Filter::starts_with("origin.rawvalue", &format!("{name}@")),
            ]
        };
        let query = QueryDatasets {
            filters: vec![Filter::either(families.iter().flat_map(below))],
            properties: owned(&["creation", "origin"]),
            user_properties: true,
            snapshots: false,
            short: false,
        };
        self.read(call, &query).await
    }

    async fn snapshots(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Reads,
    ) -> Result<Vec<Snapshot>, ApiError> {
        let single = wanted.snapshots.iter();
        let single = single.filter(|name| !wanted.families.contains(&name.dataset));
        let one = |name: &SnapshotRef| {
            let path = name.to_string();
            async move {
                if dialect.has_resource_destroy() {
                    return self.snapshots_by_path(call, path).await;
                }
                self.snapshot(call, dialect, &path).await
            }
        };
        let found = try_join_all(single.map(one)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// A snapshot, or all of a dataset, on 26.
    async fn snapshots_by_path(
        &self,
        call: &Call,
        path: String,
    ) -> Result<Vec<Snapshot>, ApiError> {
        let found = self.read(call, &of_resource(vec![path.clone()])).await;
        missing(&path, found)
    }

    /// One snapshot, up to 25.10.
    async fn snapshot(
        &self,
        call: &Call,
        dialect: &Dialect,
        id: &str,
    ) -> Result<Vec<Snapshot>, ApiError> {
        let query = QuerySnapshots {
            holds: dialect.has_holds(),
            ..QuerySnapshots::by_id(id)
        };
        self.read(call, &query).await
    }

    /// The snapshots of one dataset, up to 25.10: their names, and then each by its own. Where these are many, one
    /// walk over all snapshots of the NAS is less.
    pub(super) async fn snapshots_of(
        &self,
        call: &Call,
        dialect: &Dialect,
        dataset: String,
    ) -> Result<Vec<Snapshot>, ApiError> {
        let of = QuerySnapshots {
            holds: dialect.has_holds(),
            ..QuerySnapshots::of(&dataset)
        };
        let names = self.read(call, &NameSnapshots { dataset }).await?;
        if names.len() > FEW {
            return self.read(call, &of).await;
        }
        let each = names
            .iter()
            .map(|found| self.snapshot(call, dialect, &found.id));
        let found = try_join_all(each).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The objects with the name of a snapshot that is looked for.
    async fn named(
        &self,
        call: &Call,
        wanted: &Reads,
    ) -> Result<Vec<(Object, RowMemory)>, ApiError> {
        // Snapshots of volumes lie in the first one, and snapshots that are datasets in the other one.
        let places = wanted.named.iter();
        let places = places.flat_map(|(within, leaf)| {
            let places = within.iter().enumerate();
            places.map(move |(at, name)| (at == 0, name, leaf))
        });
        let one = |(attached, within, leaf): (bool, &DatasetName, &SnapshotLeaf)| {
            let snapshots = FindSnapshots {
                name: leaf.as_str().to_owned(),
                below: within.to_string(),
            };
            let datasets = QueryDatasets {
                filters: vec![
                    Filter::starts_with("id", &format!("{within}/")),
                    Filter::ends_with("id", &format!("/{leaf}")),
                ],
                ..QueryDatasets::default()
            };
            async move {
                let ids: Vec<(String, RowMemory)> = if attached {
                    let found = self.read(call, &snapshots).await?;
                    found.into_iter().map(|it| (it.id, it.memory)).collect()
                } else {
                    let found = self.read(call, &datasets).await?;
                    found.into_iter().map(|it| (it.id, it.memory)).collect()
                };
                Ok::<_, ApiError>(ids)
            }
        };
        let found = try_join_all(places.map(one)).await?;
        let ids = found.into_iter().flatten();
        let object = |(id, memory): (String, RowMemory)| Some((Object::parse(&id).ok()?, memory));
        Ok(ids.filter_map(object).collect())
    }

    /// The clones of the snapshots of families, and of helpers, where these do not say it themselves: that is a walk
    /// over all datasets.
    async fn clones(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Reads,
        rows: &PoolRows,
    ) -> Result<Vec<Dataset>, ApiError> {
        let counts = |snapshot: &&Arc<Snapshot>| {
            let of_family = wanted
                .families
                .iter()
                .any(|name| name.as_str() == snapshot.dataset);
            let of_family = of_family && dialect.has_resource_query();
            let name = SnapshotRef::parse(&snapshot.id).ok();
            let asked = name.filter(|name| wanted.snapshots.contains(name));
            of_family || asked.is_some_and(|name| id::is_helper(&name.leaf))
        };
        let silent = |snapshot: &&Arc<Snapshot>| snapshot.clones().is_none();
        let origins: BTreeSet<&str> = rows
            .snapshots
            .values()
            .filter(counts)
            .filter(silent)
            .map(|snapshot| snapshot.id.as_str())
            .collect();
        if origins.is_empty() {
            return Ok(Vec::new());
        }
        let query = clones_of(origins);
        self.read(call, &query).await
    }

    /// Into which datasets without our mark something is being copied.
    async fn copies(
        &self,
        call: &Call,
        wanted: &Reads,
        rows: &PoolRows,
    ) -> Result<BTreeSet<String>, ApiError> {
        let bare = |name: &&DatasetName| rows.may_be_a_part(name);
        if !wanted.asked.iter().any(|name| bare(&name)) {
            return Ok(BTreeSet::new());
        }
        let copies = self.read(call, &RunningCopies).await?;
        Ok(copies
            .into_iter()
            .filter_map(|copy| copy.target())
            .collect())
    }
}

/// Reads snapshots through `zfs.resource`.
pub(super) fn of_resource(paths: Vec<String>) -> QueryResourceSnapshots {
    QueryResourceSnapshots {
        paths,
        properties: owned(&OF_SNAPSHOTS),
        recursive: false,
        holds: true,
    }
}

/// The properties that are read of datasets in lists.
pub(super) fn of_datasets(dialect: &Dialect) -> Vec<String> {
    Nas::names_of_datasets(dialect, &Reads::default())
}
