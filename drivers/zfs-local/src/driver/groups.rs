//! Groups of snapshots: all volumes of one are on this node.

use async_trait::async_trait;
use driver_core::{
    Call, CreateGroup, Driver, Error, GroupMembers, GroupSnapshot, Groups, Kind, VolumeId,
};
use driver_zfs::id::GroupPlace;
use driver_zfs::name::DatasetName;

use super::{NodeZfs, elsewhere, is_ours};

/// The volumes of a group, by the nodes that their ids name.
enum Nodes {
    /// None is of another node.
    Here,
    /// Each is of another node.
    Others,
    Both,
}

impl NodeZfs {
    fn nodes<'a>(&self, volumes: impl IntoIterator<Item = &'a VolumeId>) -> Nodes {
        let (others, here): (Vec<_>, Vec<_>) = volumes
            .into_iter()
            .partition(|volume| self.mark.is_foreign(volume));
        match (!here.is_empty(), !others.is_empty()) {
            (true, true) => Nodes::Both,
            (false, true) => Nodes::Others,
            _ => Nodes::Here,
        }
    }

    /// Replaces `NotFound` for volumes of other nodes.
    fn or_on_others<'a, T>(
        &self,
        volumes: impl IntoIterator<Item = &'a VolumeId>,
        doing: String,
        outcome: Result<T, Error>,
    ) -> Result<T, Error> {
        outcome.map_err(|error| match self.nodes(volumes) {
            _ if error.kind() != Kind::NotFound => error,
            Nodes::Here => error,
            Nodes::Others => elsewhere(doing),
            Nodes::Both => Error::new(Kind::Busy, doing)
                .because("its volumes are on several nodes, which take no snapshots at one moment")
                .advise("make a group for each node"),
        })
    }
}

fn volumes(group: &GroupPlace) -> impl Iterator<Item = &VolumeId> {
    group.members.iter().map(|(_, place)| &place.volume)
}

#[async_trait]
impl Groups for NodeZfs {
    async fn create_group(
        &self,
        call: &Call,
        request: CreateGroup<'_>,
    ) -> Result<GroupSnapshot, Error> {
        let doing = format!(
            "take group snapshot `{}`",
            request.name.as_str().escape_debug()
        );
        let taken = (&self.driver as &dyn Driver)
            .create_group(call, request)
            .await;
        self.or_on_others(request.volumes, doing, taken)
    }

    /// As of one snapshot: see `NodeZfs::delete_and_remember`.
    async fn delete_group(&self, call: &Call, request: GroupMembers<'_>) -> Result<(), Error> {
        let deletion = || (&self.driver as &dyn Driver).delete_group(call, request);
        // An id that no driver issued is left to the driver to reject.
        let Ok(group) = self.layout.group(request.id, request.snapshots) else {
            return deletion().await;
        };
        if matches!(self.nodes(volumes(&group)), Nodes::Here) {
            return deletion().await;
        }
        let object = format!("group snapshot {}", request.id);
        let homes = group.snapshots().map(|snapshot| snapshot.dataset.clone());
        let homes: Vec<DatasetName> = homes.collect();
        let seen = self.look_at_home(call, &homes).await?;
        let found = || homes.iter().filter_map(|home| seen.dataset(home));
        if found().next().is_none() && !self.was_deleted(&seen, &object)? {
            return Err(elsewhere(format!("delete {object}")));
        }
        if found().any(is_ours) {
            return self
                .delete_and_remember(call, seen, &object, deletion())
                .await;
        }
        deletion().await
    }

    async fn get_group(
        &self,
        call: &Call,
        request: GroupMembers<'_>,
    ) -> Result<GroupSnapshot, Error> {
        let group = self.layout.group(request.id, request.snapshots)?;
        let found = (&self.driver as &dyn Driver).get_group(call, request).await;
        let doing = format!("find group snapshot `{}`", group.id);
        self.or_on_others(volumes(&group), doing, found)
    }
}
