//! Lists: what lies below a parent is read, and filtered, sorted and cut here.

use std::collections::BTreeSet;

use driver_core::{Call, Error};
use driver_zfs::backend::{Entry, ListFilter, ListQuery, ListScope, Listed};
use driver_zfs::id;
use driver_zfs::name::DatasetName;
use driver_zfs::observed::Query;
use driver_zfs::property::Properties;

use super::look::{of_datasets, of_resource};
use super::picture::Picture;
use super::{Api, look::Wanted};
use crate::Dialect;
use crate::api::Filter;
use crate::api::dataset::{Dataset, QueryDatasets};
use crate::api::resource::QueryResources;
use crate::api::snapshot::{QuerySnapshots, Snapshot};
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::understood;

impl Api {
    /// One part of a list.
    pub(super) async fn listed(
        &self,
        call: &Call,
        dialect: &Dialect,
        query: &ListQuery,
    ) -> Result<Listed, Error> {
        let mut entries = Vec::new();
        for scope in &query.scopes {
            entries.extend(self.entries(call, dialect, scope).await?);
        }
        entries.sort_by_key(Entry::cursor);
        entries.retain(|entry| query.after.is_none_or(|after| entry.cursor() > after));
        let more = entries.len() > query.max;
        entries.truncate(query.max);
        let next = entries.last().filter(|_| more).map(Entry::cursor);
        Ok(Listed { entries, next })
    }

    async fn entries(
        &self,
        call: &Call,
        dialect: &Dialect,
        scope: &ListScope,
    ) -> Result<Vec<Entry>, Error> {
        let said = |error: ApiError| understood(format!("list {}", scope.parent), &error);
        let needs_snapshots = scope.kind.is_none() || matches!(scope.filter, ListFilter::Empty(_));
        let parents = [Query::Dataset(scope.parent.clone())];
        let wanted = Wanted::of(&parents, &[], |_| true);
        let snapshots = async {
            if needs_snapshots {
                self.snapshots_below(call, dialect, scope).await
            } else {
                Ok(Vec::new())
            }
        };
        let (mut picture, datasets, snapshots) = tokio::try_join!(
            self.picture(call, dialect, &wanted),
            async {
                self.datasets_below(call, dialect, scope)
                    .await
                    .map_err(said)
            },
            async { snapshots.await.map_err(said) },
        )?;
        // A pool that is not there is no empty list.
        picture.state(&parents)?;
        for dataset in datasets {
            picture.add(dataset);
        }
        for snapshot in snapshots {
            picture.snapshots.insert(snapshot.id.clone(), snapshot);
        }
        if scope.kind.is_some() {
            datasets_of(&picture, scope)
        } else {
            snapshots_of(&picture, scope)
        }
    }

    /// The datasets below the parent, as deep as is asked for, and one deeper where it matters what is in
    /// them.
    async fn datasets_below(
        &self,
        call: &Call,
        dialect: &Dialect,
        scope: &ListScope,
    ) -> Result<Vec<Dataset>, ApiError> {
        let parent = scope.parent.as_str();
        let properties = of_datasets(dialect);
        if scope.kind.is_none() && scope.depth == 0 {
            return Ok(Vec::new());
        }
        if !dialect.has_resource_query() {
            let query = QueryDatasets {
                filters: vec![Filter::starts_with("id", &format!("{parent}/"))],
                properties,
                user_properties: true,
                snapshots: false,
            };
            return self.nas.read(call, &query).await;
        }
        let deeper = u8::from(matches!(scope.filter, ListFilter::Empty(_)));
        let query = QueryResources {
            paths: vec![parent.to_owned()],
            properties,
            depth: Some(scope.depth + deeper),
        };
        match self.nas.read(call, &query).await {
            Err(error) if error.kind() == ApiKind::NotFound => Ok(Vec::new()),
            found => Ok(found?.into_iter().map(|found| found.0).collect()),
        }
    }

    async fn snapshots_below(
        &self,
        call: &Call,
        dialect: &Dialect,
        scope: &ListScope,
    ) -> Result<Vec<Snapshot>, ApiError> {
        let parent = scope.parent.as_str();
        let found = if dialect.has_resource_destroy() {
            let mut query = of_resource(vec![parent.to_owned()]);
            query.recursive = scope.depth > 0;
            self.nas.read(call, &query).await
        } else {
            let filter = if scope.depth == 0 {
                Filter::eq("dataset", parent)
            } else {
                Filter::starts_with("dataset", &format!("{parent}/"))
            };
            let query = QuerySnapshots {
                filters: vec![filter],
                holds: dialect.has_holds(),
                ..QuerySnapshots::default()
            };
            self.nas.read(call, &query).await
        };
        match found {
            Err(error) if error.kind() == ApiKind::NotFound => Ok(Vec::new()),
            found => found,
        }
    }
}

/// How many levels a dataset lies below the parent of a scope.
fn is_at(scope: &ListScope, name: &DatasetName) -> bool {
    match name.below(&scope.parent) {
        Some(rest) => rest.split('/').count() == usize::from(scope.depth),
        None => *name == scope.parent && scope.depth == 0,
    }
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

fn datasets_of(picture: &Picture, scope: &ListScope) -> Result<Vec<Entry>, Error> {
    // What has something on or below it.
    let snapshots = picture.snapshots.values();
    let full: BTreeSet<&str> = snapshots
        .map(|snapshot| snapshot.dataset.as_str())
        .chain(picture.datasets.keys().filter_map(|id| {
            let (parent, _) = id.rsplit_once('/')?;
            Some(parent)
        }))
        .collect();
    let mut entries = Vec::new();
    for (id, dataset) in &picture.datasets {
        let Some(name) = DatasetName::parse(id)
            .ok()
            .filter(|name| is_at(scope, name))
        else {
            continue;
        };
        let empty = !matches!(scope.filter, ListFilter::Empty(_)) || !full.contains(id.as_str());
        let dataset = picture.dataset(&name, dataset)?;
        if Some(dataset.kind) == scope.kind && empty && wanted(&scope.filter, &dataset.properties) {
            entries.push(Entry::Dataset(dataset));
        }
    }
    Ok(entries)
}

fn snapshots_of(picture: &Picture, scope: &ListScope) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for snapshot in picture.snapshots.values() {
        let snapshot = picture.snapshot(snapshot)?;
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
