//! Lists: what lies below a parent is read, and filtered, sorted and cut here.

use std::collections::{BTreeMap, BTreeSet};

use driver_core::{Call, Error, Kind};
use driver_zfs::backend::{Cursor, Entry, ListFilter, ListQuery, ListScope, Listed};
use driver_zfs::id;
use driver_zfs::name::DatasetName;
use driver_zfs::observed::{Query, State, VolumeKind};
use driver_zfs::property::{Properties, PropertyName};

use super::pool_rows::{PoolRows, cursor_of};
use super::reads::{of_datasets, of_resource};
use super::{Api, Keep, reads::Reads};
use crate::Dialect;
use crate::api::Filter;
use crate::api::dataset::{Dataset, QueryDatasets};
use crate::api::resource::{QueryResources, Resource};
use crate::api::snapshot::{QuerySnapshots, Snapshot};
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::understood;

/// The properties of a volume that are read to list it.
const OF_VOLUMES: [&str; 5] = ["creation", "origin", "mountpoint", "refquota", "volsize"];

/// One scope of a list.
#[derive(Debug, Default)]
struct Part {
    entries: Vec<Entry>,
    /// Up to where all of it was read, if that is not all.
    horizon: Option<Cursor>,
}

/// The first datasets of a scope after a cursor, of all that the NAS answers in whatever order: more are never in
/// memory.
#[derive(Debug)]
struct FirstRows<'a> {
    scope: &'a ListScope,
    after: Option<Cursor>,
    max: usize,
    rows: BTreeMap<Cursor, Dataset>,
    /// The datasets above them, for the properties that they inherit.
    above: Vec<Dataset>,
    /// Whether some were left out.
    is_cut: bool,
}

impl FirstRows<'_> {
    fn push(&mut self, row: Dataset) -> bool {
        let Ok(name) = DatasetName::parse(&row.id) else {
            return false;
        };
        let level = level_of(self.scope, &name);
        if level.is_some_and(|level| level < usize::from(self.scope.depth)) {
            self.above.push(Dataset {
                properties: BTreeMap::new(),
                ..row
            });
            return true;
        }
        let of_kind = self.scope.kind.is_none_or(|kind| {
            let is_volume = kind == VolumeKind::Zvol;
            row.is_volume == is_volume
        });
        let wanted = match &self.scope.filter {
            ListFilter::Having(name) | ListFilter::Lacking(name, _) | ListFilter::Empty(name) => {
                row.user_properties.contains_key(name.as_str())
            }
            ListFilter::Helpers => true,
        };
        let Some(cursor) = cursor_of(&row).filter(|cursor| Some(*cursor) > self.after) else {
            return false;
        };
        if level != Some(usize::from(self.scope.depth)) || !of_kind || !wanted {
            return false;
        }
        self.rows.insert(cursor, row);
        if self.rows.len() > self.max + 1 {
            let last = self.rows.pop_last();
            self.is_cut = true;
            return last.is_none_or(|(last, _)| last != cursor);
        }
        true
    }
}

/// The first datasets of several scopes, of one answer.
#[derive(Debug)]
struct FirstOfEach<'a>(Vec<FirstRows<'a>>);

impl FirstOfEach<'_> {
    /// Each row is of one scope. The parent of a scope may lie in another one, which has no use for it.
    fn push(&mut self, row: Dataset) -> bool {
        let Ok(name) = DatasetName::parse(&row.id) else {
            return false;
        };
        let has = |one: &&mut FirstRows<'_>| {
            let level = level_of(one.scope, &name);
            level.is_some_and(|level| level <= usize::from(one.scope.depth))
        };
        let deepest = self.0.iter_mut().filter(has);
        let deepest = deepest.max_by_key(|one| one.scope.parent.as_str().len());
        deepest.is_some_and(|one| one.push(row))
    }
}

impl Keep<Dataset> for FirstOfEach<'_> {
    fn keep(&mut self, row: Dataset) -> bool {
        self.push(row)
    }
}

impl Keep<Resource> for FirstOfEach<'_> {
    fn keep(&mut self, row: Resource) -> bool {
        self.push(row.0)
    }
}

/// Whether only datasets are wanted, whatever is in them.
fn is_simple(scope: &ListScope) -> bool {
    scope.kind.is_some() && !matches!(scope.filter, ListFilter::Empty(_))
}

/// These scopes, with those together whose rows one answer has: before 25.10 it has all that is below a parent.
fn asked_together<'q>(dialect: &Dialect, scopes: Vec<&'q ListScope>) -> Vec<Vec<&'q ListScope>> {
    let mut groups: Vec<Vec<&ListScope>> = Vec::new();
    for scope in scopes {
        let has_it = |group: &&mut Vec<&ListScope>| {
            let first = group.first().filter(|_| !dialect.has_resource_query());
            first.is_some_and(|first| {
                let is_below = scope.parent.below(&first.parent).is_some();
                is_below && scope.filter == first.filter
            })
        };
        if let Some(group) = groups.iter_mut().find(has_it) {
            group.push(scope);
        } else {
            groups.push(vec![scope]);
        }
    }
    groups
}

impl Api {
    /// One part of a list.
    pub(super) async fn listed(
        &self,
        call: &Call,
        dialect: &Dialect,
        query: &ListQuery,
    ) -> Result<Listed, Error> {
        let mut entries = Vec::new();
        let mut horizon: Option<Cursor> = None;
        let (simple, others): (Vec<_>, Vec<_>) =
            query.scopes.iter().partition(|scope| is_simple(scope));
        for scopes in asked_together(dialect, simple) {
            for part in self.first_datasets(call, dialect, &scopes, query).await? {
                entries.extend(part.entries);
                horizon = [horizon, part.horizon].into_iter().flatten().min();
            }
        }
        for scope in others {
            entries.extend(Box::pin(self.entries(call, dialect, scope)).await?);
        }
        entries.sort_by_key(Entry::cursor);
        entries.retain(|entry| query.after.is_none_or(|after| entry.cursor() > after));
        entries.retain(|entry| horizon.is_none_or(|horizon| entry.cursor() <= horizon));
        let more = entries.len() > query.max;
        entries.truncate(query.max);
        let next = entries.last().filter(|_| more).map(Entry::cursor);
        Ok(Listed {
            next: next.or(horizon),
            entries,
        })
    }

    /// The first datasets of each scope, in one call: their parents are in its answer. All others are below the first.
    async fn first_datasets(
        &self,
        call: &Call,
        dialect: &Dialect,
        scopes: &[&ListScope],
        query: &ListQuery,
    ) -> Result<Vec<Part>, Error> {
        let Some(scope) = scopes.first() else {
            return Ok(Vec::new());
        };
        let first_rows = |scope| FirstRows {
            scope,
            after: query.after,
            max: query.max,
            rows: BTreeMap::new(),
            above: Vec::new(),
            is_cut: false,
        };
        let keep = || FirstOfEach(scopes.iter().copied().map(first_rows).collect());
        let parent = scope.parent.as_str();
        let of_volumes = ListFilter::Having(PropertyName::CONTEXT);
        let properties = if scope.filter == of_volumes {
            OF_VOLUMES.map(str::to_owned).to_vec()
        } else {
            of_datasets(dialect)
        };
        let read = if dialect.has_resource_query() {
            let query = QueryResources {
                paths: vec![parent.to_owned()],
                properties,
                depth: Some(scope.depth),
            };
            self.nas.read_rows(call, &query, keep).await
        } else {
            let either = [
                Filter::eq("id", parent),
                Filter::starts_with("id", &format!("{parent}/")),
            ];
            let query = QueryDatasets {
                filters: vec![Filter::either(either)],
                properties,
                user_properties: true,
                short: true,
                ..QueryDatasets::default()
            };
            self.nas.read_rows(call, &query, keep).await
        };
        let (found, was_missing) = match read {
            Err(error) if error.kind() == ApiKind::NotFound => (keep(), true),
            read => {
                let found = read.map_err(|error| understood(format!("list {parent}"), &error))?;
                (found, false)
            }
        };
        let FirstOfEach(found) = found;
        if found.first().is_none_or(|first| first.above.is_empty()) {
            // A pool that is not there is no empty list.
            let parents = [Query::Dataset(scope.parent.clone())];
            let wanted = Reads::of(&parents, &[], false);
            let nothing = PoolRows::default();
            let seen = self.nas.pool_rows(call, dialect, &wanted, &nothing).await?;
            is_whole(scope, was_missing, &seen.state(&parents)?)?;
        }
        let parts = found.into_iter().map(|found| part_of(dialect, found));
        parts.collect()
    }

    async fn entries(
        &self,
        call: &Call,
        dialect: &Dialect,
        scope: &ListScope,
    ) -> Result<Vec<Entry>, Error> {
        let said = |error: ApiError| understood(format!("list {}", scope.parent), &error);
        let needs_snapshots = scope.kind.is_none() || matches!(scope.filter, ListFilter::Empty(_));
        let snapshots = async {
            if needs_snapshots {
                self.snapshots_below(call, dialect, scope).await
            } else {
                Ok(Some(Vec::new()))
            }
        };
        let datasets = self.datasets_below(call, dialect, scope);
        let (datasets, snapshots) = tokio::try_join!(datasets, snapshots).map_err(said)?;
        let was_missing = datasets.is_none() || snapshots.is_none();
        let mut rows = PoolRows {
            by_resource: dialect.has_resource_query(),
            ..PoolRows::default()
        };
        rows.extend(datasets.unwrap_or_default(), snapshots.unwrap_or_default());
        let parents = [Query::Dataset(scope.parent.clone())];
        let above = if rows.has(&scope.parent.clone().into()) {
            rows.state(&parents)?
        } else {
            // A pool that is not there is no empty list.
            let wanted = Reads::of(&parents, &[], false);
            let nothing = PoolRows::default();
            let seen = self.nas.pool_rows(call, dialect, &wanted, &nothing).await?;
            seen.state(&parents)?
        };
        is_whole(scope, was_missing, &above)?;
        if scope.kind.is_some() {
            datasets_of(&rows, scope)
        } else {
            snapshots_of(&rows, scope)
        }
    }

    /// The parent and the datasets below it, as deep as is asked for, and one deeper where it matters what is in
    /// them. `None` if something was missing.
    async fn datasets_below(
        &self,
        call: &Call,
        dialect: &Dialect,
        scope: &ListScope,
    ) -> Result<Option<Vec<Dataset>>, ApiError> {
        let parent = scope.parent.as_str();
        let properties = of_datasets(dialect);
        let deeper = u8::from(matches!(scope.filter, ListFilter::Empty(_)));
        let depth = scope.depth + deeper;
        if !dialect.has_resource_query() {
            let below = Filter::starts_with("id", &format!("{parent}/"));
            let itself = Filter::eq("id", parent);
            let query = QueryDatasets {
                filters: vec![match depth {
                    0 => itself,
                    _ => Filter::either([itself, below]),
                }],
                properties,
                user_properties: true,
                short: true,
                ..QueryDatasets::default()
            };
            return self.nas.read(call, &query).await.map(Some);
        }
        let query = QueryResources {
            paths: vec![parent.to_owned()],
            properties,
            depth: (depth > 0).then_some(depth),
        };
        match self.nas.read(call, &query).await {
            Err(error) if error.kind() == ApiKind::NotFound => Ok(None),
            found => Ok(Some(found?.into_iter().map(|found| found.0).collect())),
        }
    }

    /// The snapshots below the parent. `None` if something was missing.
    async fn snapshots_below(
        &self,
        call: &Call,
        dialect: &Dialect,
        scope: &ListScope,
    ) -> Result<Option<Vec<Snapshot>>, ApiError> {
        let parent = scope.parent.as_str();
        let found = if dialect.has_resource_destroy() {
            let mut query = of_resource(vec![parent.to_owned()]);
            query.recursive = scope.depth > 0;
            self.nas.read(call, &query).await
        } else if scope.depth == 0 {
            self.nas
                .snapshots_of(call, dialect, parent.to_owned())
                .await
        } else {
            let query = QuerySnapshots {
                filters: vec![Filter::starts_with("dataset", &format!("{parent}/"))],
                holds: dialect.has_holds(),
                ..QuerySnapshots::default()
            };
            self.nas.read(call, &query).await
        };
        match found {
            Err(error) if error.kind() == ApiKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }
}

/// One scope of an answer.
fn part_of(dialect: &Dialect, found: FirstRows<'_>) -> Result<Part, Error> {
    let last = found.rows.last_key_value().map(|(cursor, _)| *cursor);
    let mut rows = PoolRows {
        by_resource: dialect.has_resource_query(),
        ..PoolRows::default()
    };
    for dataset in found.above.into_iter().chain(found.rows.into_values()) {
        rows.add(dataset);
    }
    Ok(Part {
        entries: datasets_of(&rows, found.scope)?,
        horizon: last.filter(|_| found.is_cut),
    })
}

/// Refuses a list that was cut short: 25.10 names the parent when anything below it goes away while it is read, so only
/// a parent that does not exist has nothing in it.
fn is_whole(scope: &ListScope, was_missing: bool, above: &State) -> Result<(), Error> {
    if was_missing && above.dataset(&scope.parent).is_some() {
        let doing = format!("list {}", scope.parent);
        return Err(Error::new(Kind::Unreachable, doing)
            .because("something in it went away while it was read")
            .advise("the same call reads it again"));
    }
    Ok(())
}

/// The number of levels that a dataset lies below the parent of a scope, if it is that or below it.
fn level_of(scope: &ListScope, name: &DatasetName) -> Option<usize> {
    match name.below(&scope.parent) {
        Some(rest) => Some(rest.split('/').count()),
        None => (*name == scope.parent).then_some(0),
    }
}

/// Whether a dataset lies on the level that is asked for.
fn is_at(scope: &ListScope, name: &DatasetName) -> bool {
    level_of(scope, name) == Some(usize::from(scope.depth))
}

fn wanted(filter: &ListFilter, properties: &Properties) -> bool {
    match filter {
        ListFilter::Having(name) | ListFilter::Empty(name) => properties.own(name).is_some(),
        ListFilter::Lacking(having, lacking) => {
            properties.own(having).is_some() && properties.own(lacking).is_none()
        }
        ListFilter::Helpers => true,
    }
}

fn datasets_of(rows: &PoolRows, scope: &ListScope) -> Result<Vec<Entry>, Error> {
    // What has something on or below it.
    let snapshots = rows.snapshots.values();
    let full: BTreeSet<&str> = snapshots
        .map(|snapshot| snapshot.dataset.as_str())
        .chain(rows.datasets.keys().filter_map(|id| {
            let (parent, _) = id.rsplit_once('/')?;
            Some(parent)
        }))
        .collect();
    let mut entries = Vec::new();
    for (id, dataset) in &rows.datasets {
        let Some(name) = DatasetName::parse(id)
            .ok()
            .filter(|name| is_at(scope, name))
        else {
            continue;
        };
        let empty = !matches!(scope.filter, ListFilter::Empty(_)) || !full.contains(id.as_str());
        let dataset = rows.dataset(&name, dataset)?;
        if Some(dataset.kind) == scope.kind && empty && wanted(&scope.filter, &dataset.properties) {
            entries.push(Entry::Dataset(dataset));
        }
    }
    Ok(entries)
}

fn snapshots_of(rows: &PoolRows, scope: &ListScope) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for snapshot in rows.snapshots.values() {
        let snapshot = rows.snapshot(snapshot)?;
        let helper = scope.filter != ListFilter::Helpers || id::is_helper(&snapshot.name.leaf);
        if is_at(scope, &snapshot.name.dataset)
            && helper
            && wanted(&scope.filter, &snapshot.properties)
        {
            entries.push(Entry::Snapshot(snapshot));
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use driver_zfs::observed::VolumeKind;

    use super::*;

    fn row(level: &str, created: u64) -> Dataset {
        let text = format!(
            r#"{{"id": "tank/v{level}", "type": "FILESYSTEM", "creation": {{"rawvalue": "{created}"}},
                "user_properties": {{"{}": "x"}}}}"#,
            PropertyName::CONTEXT.as_str()
        );
        serde_json::from_str(&text).expect("a row")
    }

    #[test]
    fn only_the_first_rows_of_a_page_stay_in_memory() {
        let scope = ListScope {
            parent: DatasetName::parse("tank/v").expect("a name"),
            depth: 1,
            kind: Some(VolumeKind::Filesystem),
            filter: ListFilter::Having(PropertyName::CONTEXT),
        };
        let mut first = FirstRows {
            scope: &scope,
            after: Some(Cursor {
                createtxg: 20,
                guid: u64::MAX,
            }),
            max: 10,
            rows: BTreeMap::new(),
            above: Vec::new(),
            is_cut: false,
        };
        assert!(first.push(row("", 1)), "what they inherit from");
        assert!(!first.push(row("/a/b", 50)), "too deep");
        for number in 0..1000_u64 {
            // In whatever order.
            let created = number * 7919 % 1000;
            first.push(row(&format!("/{created}"), created));
            assert!(first.rows.len() <= 11);
        }
        let shown: Vec<u64> = first.rows.keys().map(|cursor| cursor.createtxg).collect();
        assert_eq!(shown, (21..32).collect::<Vec<_>>());
        assert!(first.is_cut);
    }
}
