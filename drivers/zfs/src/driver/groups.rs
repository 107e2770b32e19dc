//! Groups of snapshots.

use async_trait::async_trait;
use driver_core::{Call, CreateGroup, Error, GroupMembers, GroupSnapshot, Groups, Kind, missing};

use super::ZfsDriver;
use crate::id::GroupPlace;
use crate::observed::Query;
use crate::plan::destroy::{DestroyGroup, have_parents};
use crate::plan::group::{self, TakeGroup};
use crate::plan::listed;
use crate::plan::snapshot::Taken;

/// The parameter of a class that makes copies of snapshots. They do not show one moment.
const DETACHED: &str = "detachedSnapshots";

impl ZfsDriver {
    fn grouping<'a>(
        &'a self,
        request: &CreateGroup<'a>,
        group: GroupPlace,
    ) -> Result<TakeGroup<'a>, Error> {
        if self.says(request.parameters, DETACHED) {
            return Err(
                Error::invalid(format!("take group snapshot `{}`", group.id))
                    .because("detached snapshots are copies, which are made one after the other")
                    .advise(format!("use a class without the parameter `{DETACHED}`")),
            );
        }
        let contract = group::contract(request.name, &group);
        let properties = self
            .settings
            .policy
            .of_snapshot(request.parameters, contract)?;
        Ok(TakeGroup {
            layout: self.layout(),
            group,
            name: request.name,
            properties,
        })
    }

    fn group(&self, group: &GroupPlace, taken: &[Taken]) -> Result<GroupSnapshot, Error> {
        let snapshots = taken.iter().map(|taken| self.snapshot(taken));
        let snapshots: Vec<_> = snapshots.collect::<Result<_, _>>()?;
        // One moment, which may be at the end of a second.
        let created = snapshots.iter().map(|snapshot| snapshot.created).min();
        let created = created.ok_or_else(|| Error::not_found(format!("group `{}`", group.id)))?;
        Ok(GroupSnapshot {
            id: group.id.clone(),
            snapshots,
            created,
            ready: true,
        })
    }
}

#[async_trait]
impl Groups for ZfsDriver {
    async fn create_group(
        &self,
        call: &Call,
        request: CreateGroup<'_>,
    ) -> Result<GroupSnapshot, Error> {
        let room = self.settings.id_room.bytes();
        let group = self
            .layout()
            .new_group(request.name, request.volumes, room)?;
        let verb = match self.grouping(&request, group.clone()) {
            Ok(verb) => verb,
            // There is all of it or nothing, so one of its snapshots tells.
            Err(error) => return Err(self.unless_partial(call, &group.members[0].1, error).await),
        };
        let taken = self.shown(call, &verb, |taken| self.group(&group, taken));
        let taken = taken.await;
        let doing = format!("find volumes {}", listed(request.volumes));
        let parents = group.parents(self.layout());
        missing::confirmed(taken, self.look_for_parents(call, &doing, &parents)).await
    }

    async fn delete_group(&self, call: &Call, request: GroupMembers<'_>) -> Result<(), Error> {
        let group = match self.layout().group(request.id, request.snapshots) {
            // There is no such group, and never was.
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            group => group?,
        };
        let verb = DestroyGroup {
            layout: self.layout(),
            group,
            leaves_marks: self.leaves_marks(),
        };
        self.converge(call, &verb).await
    }

    async fn get_group(
        &self,
        call: &Call,
        request: GroupMembers<'_>,
    ) -> Result<GroupSnapshot, Error> {
        let group = self.layout().group(request.id, request.snapshots)?;
        let parents = group.parents(self.layout());
        let snapshots = group.snapshots().cloned().map(Query::Snapshot);
        let above = parents
            .iter()
            .map(|parent| Query::Dataset(parent.name.clone()));
        let queries = snapshots.chain(above);
        let pool = self.observe(call, queries.collect()).await?;
        if let Some(taken) = group.taken(&pool) {
            return self.group(&group, &taken);
        }
        let missing = format!("group snapshot `{}`", group.id);
        have_parents(&format!("find {missing}"), &parents, &pool)?;
        let (left, all) = (group.left(&pool).len(), group.members.len());
        Err(match left {
            0 => Error::not_found(missing),
            _ => Error::not_found(missing).because(format!(
                "{left} of its {all} snapshots are left of a deletion"
            )),
        })
    }
}
