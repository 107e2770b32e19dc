//! What a question wants to know of the pool, and the calls that read it. They run concurrently, except for
//! a call whose arguments depend on the answer of another.

use std::collections::BTreeSet;

use driver_core::{Call, Error, Kind};
use driver_zfs::id;
use driver_zfs::name::{DatasetName, NameError, Object, SnapshotLeaf, SnapshotRef};
use driver_zfs::observed::Query;
use driver_zfs::property::PropertyName;
use futures_util::future::try_join_all;

use super::Nas;
use super::native::zfs_name;
use super::picture::Picture;
use crate::Dialect;
use crate::api::Filter;
use crate::api::dataset::{Dataset, QueryDatasets};
use crate::api::replication::RunningCopies;
use crate::api::resource::{QueryResourceSnapshots, QueryResources};
use crate::api::snapshot::{FindSnapshots, NameSnapshots, QuerySnapshots, Snapshot};
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::understood;

/// What is read of every dataset, by its name in ZFS.
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

/// What `zfs.resource` shows besides.
const OF_RESOURCES: [&str; 2] = ["referenced", "logicalreferenced"];

/// What is read of every snapshot, where it has to be said.
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

/// So many snapshots are read one by one.
const FEW: usize = 16;

/// What a question wants to know.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Datasets by their names, with those above that say what is inherited.
    datasets: BTreeSet<DatasetName>,
    /// Datasets that are asked for, not only for what is inherited from them.
    asked: BTreeSet<DatasetName>,
    /// Pools that have to be there, where nothing in them is.
    pools: BTreeSet<DatasetName>,
    /// Datasets with what is on and below them.
    families: BTreeSet<DatasetName>,
    snapshots: BTreeSet<SnapshotRef>,
    named: Vec<(Vec<DatasetName>, SnapshotLeaf)>,
    native: Vec<String>,
}

// === impl Wanted ===

impl Wanted {
    /// What these queries want to know; those that `is_now` leaves out are only prepared: what is above
    /// their datasets is read.
    pub(super) fn of(
        queries: &[Query],
        properties: &[PropertyName],
        is_now: impl Fn(&Query) -> bool,
    ) -> Self {
        let mut wanted = Self::only(queries, properties, is_now);
        for query in queries {
            // A snapshot shows of its own dataset what it inherits.
            let above = match query {
                Query::Snapshot(_) => None,
                query => dataset_of(query).and_then(DatasetName::parent),
            };
            wanted.datasets.extend(above);
        }
        let named = queries.iter().filter_map(dataset_of);
        wanted.pools = named
            .filter_map(|name| DatasetName::parse(name.pool()).ok())
            .collect();
        wanted
    }

    /// The same without what is above.
    pub(super) fn only(
        queries: &[Query],
        properties: &[PropertyName],
        is_now: impl Fn(&Query) -> bool,
    ) -> Self {
        let native = properties.iter().filter(|name| !name.is_user());
        let mut wanted = Self {
            native: native.map(|name| name.as_str().to_owned()).collect(),
            ..Self::default()
        };
        for query in queries.iter().filter(|query| is_now(query)) {
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
                Query::System => {}
            }
        }
        // Nothing is copied into what something is asked for below.
        let below: BTreeSet<DatasetName> = queries
            .iter()
            .filter_map(dataset_of)
            .filter_map(DatasetName::parent)
            .collect();
        wanted.asked.retain(|name| !below.contains(name));
        wanted
    }

    fn ask(&mut self, name: &DatasetName) {
        self.asked.insert(name.clone());
        self.datasets.insert(name.clone());
    }
}

/// The dataset that a query is about.
fn dataset_of(query: &Query) -> Option<&DatasetName> {
    match query {
        Query::Dataset(name) | Query::Family(name) | Query::Nearest(name) => Some(name),
        Query::Snapshot(name) => Some(&name.dataset),
        Query::Named { .. } | Query::System => None,
    }
}

/// Which paths go into one call. On 25.10 one that is missing hides the others, so only datasets in each other go
/// together: they are nearly always all there.
fn in_calls<'n>(
    names: impl IntoIterator<Item = &'n DatasetName>,
    dialect: &Dialect,
) -> Vec<Vec<DatasetName>> {
    let mut calls: Vec<Vec<DatasetName>> = Vec::new();
    for name in names {
        let is_with = |call: &&mut Vec<DatasetName>| {
            let inside = call.iter().any(|other| name.below(other).is_some());
            inside || dialect.has_resource_destroy()
        };
        match calls.iter_mut().find(is_with) {
            Some(call) => call.push(name.clone()),
            None => calls.push(vec![name.clone()]),
        }
    }
    calls
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
    /// Reads what is wanted: in one exchange, and a second one for what depends on the first.
    pub(super) async fn picture(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Wanted,
    ) -> Result<Picture, Error> {
        let doing = || match wanted.asked.first() {
            Some(name) => format!("look at {name}"),
            None => "look at the pool".to_owned(),
        };
        let said = |error: ApiError| understood(doing(), &error);
        let (datasets, children, snapshots, named) = tokio::try_join!(
            self.datasets(call, dialect, wanted),
            self.children(call, dialect, wanted),
            self.snapshots(call, dialect, wanted),
            self.named(call, wanted),
        )
        .map_err(said)?;
        let mut picture = Picture {
            by_resource: dialect.has_resource_query(),
            ..Picture::default()
        };
        for dataset in datasets.into_iter().chain(children) {
            picture.add(dataset);
        }
        picture.named = named;
        for snapshot in snapshots {
            picture.add_snapshot(snapshot);
        }
        let (pools, clones, copies) = tokio::try_join!(
            self.pools(call, dialect, wanted, &picture),
            self.clones(call, dialect, wanted, &picture),
            self.copies(call, wanted, &picture),
        )
        .map_err(said)?;
        for pool in pools {
            picture.add(pool);
        }
        for clone in clones {
            picture.add_clone(clone);
        }
        picture.copying = copies;
        Ok(picture)
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
        let wanted = Wanted::of(&queries, &[], |_| true);
        let of_clones = clones_of([origin.as_str()]);
        let said = |error: ApiError| understood(doing, &error);
        self.picture(call, dialect, &wanted).await?;
        self.read(call, &of_clones).await.map_err(said)?;
        self.read(call, &RunningCopies)
            .await
            .map(drop)
            .map_err(said)
    }

    fn names_of_datasets(dialect: &Dialect, wanted: &Wanted) -> Vec<String> {
        let mut names = owned(&OF_DATASETS);
        if dialect.has_resource_query() {
            names.extend(owned(&OF_RESOURCES));
        }
        let more = wanted.native.iter().map(|name| zfs_name(name).to_owned());
        names.extend(more);
        names
    }

    async fn datasets(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Wanted,
    ) -> Result<Vec<Dataset>, ApiError> {
        if wanted.datasets.is_empty() {
            return Ok(Vec::new());
        }
        let properties = Self::names_of_datasets(dialect, wanted);
        if !dialect.has_resource_query() {
            let names = wanted.datasets.union(&wanted.pools);
            let names = names.map(DatasetName::as_str);
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
        // What is asked for may well be missing.
        let is_alone = |name: &&DatasetName| {
            let asked = wanted.asked.contains(*name) && !dialect.has_resource_destroy();
            asked || wanted.families.contains(*name)
        };
        let (alone, rest): (Vec<_>, Vec<_>) = wanted.datasets.iter().partition(is_alone);
        let calls = in_calls(rest, dialect);
        let (alone, rest) = tokio::try_join!(
            try_join_all(alone.into_iter().map(one)),
            try_join_all(calls.into_iter().map(together)),
        )?;
        let found = alone.into_iter().chain(rest).flatten();
        Ok(found.map(|found| found.0).collect())
    }

    /// Reads the pools in which nothing was found.
    async fn pools(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Wanted,
        picture: &Picture,
    ) -> Result<Vec<Dataset>, ApiError> {
        let unseen = wanted
            .pools
            .iter()
            .filter(|pool| !picture.has_in_pool(pool));
        let pools = Wanted {
            datasets: unseen.cloned().collect(),
            ..Wanted::default()
        };
        self.datasets(call, dialect, &pools).await
    }

    /// What lies below families, where that does not come with them, and the clones of their snapshots.
    async fn children(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Wanted,
    ) -> Result<Vec<Dataset>, ApiError> {
        if dialect.has_resource_query() || wanted.families.is_empty() {
            return Ok(Vec::new());
        }
        let below = |name: &DatasetName| {
            [
                Filter::starts_with("id", &format!("{name}/")),
                Filter::starts_with("origin.rawvalue", &format!("{name}@")),
            ]
        };
        let query = QueryDatasets {
            filters: vec![Filter::either(wanted.families.iter().flat_map(below))],
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
        wanted: &Wanted,
    ) -> Result<Vec<Snapshot>, ApiError> {
        let single = wanted.snapshots.iter();
        let single = single.filter(|name| !wanted.families.contains(&name.dataset));
        let single = single.map(|name| (true, name.to_string()));
        let families = wanted.families.iter().map(|name| (false, name.to_string()));
        let one = |(is_snapshot, path): (bool, String)| async move {
            if dialect.has_resource_destroy() {
                let found = self.read(call, &of_resource(vec![path.clone()])).await;
                return missing(&path, found);
            }
            if is_snapshot {
                self.snapshot(call, dialect, &path).await
            } else {
                self.snapshots_of(call, dialect, path).await
            }
        };
        let found = try_join_all(single.chain(families).map(one)).await?;
        Ok(found.into_iter().flatten().collect())
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

    /// What is called like a snapshot that is looked for.
    async fn named(&self, call: &Call, wanted: &Wanted) -> Result<Vec<Object>, ApiError> {
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
                let ids: Vec<String> = if attached {
                    let found = self.read(call, &snapshots).await?;
                    found.into_iter().map(|found| found.id).collect()
                } else {
                    let found = self.read(call, &datasets).await?;
                    found.into_iter().map(|found| found.id).collect()
                };
                Ok::<_, ApiError>(ids)
            }
        };
        let found = try_join_all(places.map(one)).await?;
        let ids = found.into_iter().flatten();
        Ok(ids.filter_map(|id| Object::parse(&id).ok()).collect())
    }

    /// What was cloned of the snapshots of families, and of helpers, where these do not say it themselves: that is
    /// a walk over all datasets.
    async fn clones(
        &self,
        call: &Call,
        dialect: &Dialect,
        wanted: &Wanted,
        picture: &Picture,
    ) -> Result<Vec<Dataset>, ApiError> {
        let counts = |snapshot: &&Snapshot| {
            let of_family = wanted
                .families
                .iter()
                .any(|name| name.as_str() == snapshot.dataset);
            let of_family = of_family && dialect.has_resource_query();
            let name = SnapshotRef::parse(&snapshot.id).ok();
            let asked = name.filter(|name| wanted.snapshots.contains(name));
            of_family || asked.is_some_and(|name| id::is_helper(&name.leaf))
        };
        let silent = |snapshot: &&Snapshot| snapshot.clones().is_none();
        let origins: BTreeSet<&str> = picture
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
        wanted: &Wanted,
        picture: &Picture,
    ) -> Result<BTreeSet<String>, ApiError> {
        let bare = |name: &&DatasetName| picture.may_be_a_part(name);
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

/// What is read of datasets in lists.
pub(super) fn of_datasets(dialect: &Dialect) -> Vec<String> {
    Nas::names_of_datasets(dialect, &Wanted::default())
}
