//! Groups of snapshots: copies that are made one after the other, where the class says that this is enough.
//!
//! Each is a snapshot like others, whose record names the group. They are made and deleted in the order of their
//! volumes: so a creation that was cut leaves the first ones, and a deletion the last ones. A creation that is given up
//! removes what it has made itself, the last one first: cut, it leaves what a retry completes. What it found stays: a group
//! that was answered and has lost its last ones looks like one that was cut.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use async_trait::async_trait;
use driver_core::{
    Call, CreateGroup, Effect, Error, GroupMembers, GroupSnapshot, Groups, Kind, Snapshot,
};

use crate::collection::Collection;
use crate::config::SnapshotDriver;
use crate::disk;
use crate::driver::DirectoryDriver;
use crate::failure::failed;
use crate::id::{GroupPlace, NamePart, SnapshotDir, VolumeDir};
use crate::record::{self, SnapshotRecord};
use crate::snapshots::{WantedSnapshot, record_of, unmarked};
use crate::store::Store;
use crate::volumes::Directories;

/// The parameter of a class that says what the snapshots of a group have in common.
const CONSISTENCY: &str = "consistency";
/// Its value: no moment.
const NONE: &str = "none";

impl Directories {
    /// The snapshots of a group that are there, in the order of its volumes.
    pub(crate) fn members(&self, group: &GroupPlace) -> Result<Vec<Option<Snapshot>>, Error> {
        let Some(on) = self.store.collection(Collection::Snapshots)? else {
            return Ok(group.members.iter().map(|_| None).collect());
        };
        let member = |(volume, dir): &(VolumeDir, SnapshotDir)| {
            let found = Store::find(&on, Collection::Snapshots, dir.as_str())?;
            let own = |record: &SnapshotRecord| {
                record.group.as_ref() == Some(&group.id) && record.source == *volume
            };
            // What cannot be read may be one of the group.
            let record = found.map_or(Ok(None), |found| record_of(dir, found))?;
            let record = record.filter(own);
            Ok(record.map(|record| self.snapshot(dir, &record)))
        };
        group.members.iter().map(member).collect()
    }

    /// Refuses snapshots of a group of which one cannot be made, as far as can be seen before the first copy.
    pub(crate) fn expect_members(&self, wanted: &[WantedSnapshot]) -> Result<(), Error> {
        let Some(first) = wanted.first() else {
            return Ok(());
        };
        for one in wanted {
            let volume = &one.volume;
            let found = self.store.look_for(Collection::Volumes, volume.as_str())?;
            if found.is_none() {
                return Err(Error::not_found(format!("volume {volume}")));
            }
        }
        let doing = first.doing();
        let collection = self.store.open_or_create(Collection::Snapshots)?;
        let readable = disk::open_dir(&collection, ".").map_err(|errno| failed(&doing, errno))?;
        if !record::can_be_kept(&readable) {
            return Err(unmarked(&doing));
        }
        for one in wanted {
            if let Some(found) = Store::find(&collection, Collection::Snapshots, one.dir.as_str())?
            {
                self.same(&found, one)?;
            }
        }
        // All have the same name.
        self.refuse_taken(&collection, first)
    }

    /// Removes the snapshots of a group, those that are there. While it is made, that is stopped.
    pub(crate) fn remove_members(&self, call: &Call, group: &GroupPlace) -> Result<(), Error> {
        self.pending.stop_group(&group.id, &deleting(group))?;
        let dirs: Vec<_> = group.members.iter().map(|(_, dir)| dir).collect();
        self.remove_each(call, group, &dirs)
    }

    /// Removes what a call has made of a group that cannot be made whole. Whether nothing of the group is left.
    pub(crate) fn take_back(
        &self,
        call: &Call,
        group: &GroupPlace,
        made: &[SnapshotDir],
    ) -> Result<bool, Error> {
        let dirs: Vec<_> = made.iter().rev().collect();
        self.remove_each(call, group, &dirs)?;
        Ok(self.members(group)?.iter().all(Option::is_none))
    }

    fn remove_each(
        &self,
        call: &Call,
        group: &GroupPlace,
        dirs: &[&SnapshotDir],
    ) -> Result<(), Error> {
        // All first: where one is in doubt, nothing is deleted.
        for dir in dirs {
            if let Some(found) = self.store.look_for(Collection::Snapshots, dir.as_str())? {
                is_member(group, dir, found)?;
            }
        }
        for dir in dirs {
            self.pending.stop(dir, Some(&group.id), &deleting(group))?;
            let may_go = |found: &OwnedFd| is_member(group, dir, found);
            // Also where it is not there: what an earlier call began is brought to its end.
            let place = (Collection::Snapshots, dir.as_str());
            self.store.remove_if(call, place, &may_go)?;
        }
        Ok(())
    }
}

// === impl DirectoryDriver ===

impl DirectoryDriver {
    /// Refuses a class that asks for more than copies one after the other.
    fn refuse_class(&self, request: &CreateGroup<'_>) -> Result<(), Error> {
        let refused = || {
            let name = request.name.as_str().escape_debug();
            Error::invalid(format!("taking group snapshot `{name}`"))
        };
        match request.parameters.get(self.scope(), CONSISTENCY) {
            Some(NONE) => {}
            None => {
                return Err(refused()
                    .because("the snapshots of directories are copies, which are made one after the other")
                    .advise(format!(
                        "set the parameter `{CONSISTENCY}: {NONE}` of the class if each may be of another moment"
                    )));
            }
            Some(other) => {
                let other = other.escape_debug();
                return Err(refused()
                    .because(format!("the parameter `{CONSISTENCY}` is `{other}`"))
                    .advise(format!("its only value for directories is `{NONE}`")));
            }
        }
        match self.snapshot_driver(request.parameters)? {
            SnapshotDriver::Filecopy => Ok(()),
            SnapshotDriver::Backup(tool) => {
                let tool = tool.name();
                Err(refused()
                    .because(format!(
                        "a snapshot in the repository of {tool} cannot be one of a group"
                    ))
                    .advise("set the parameter `driver: filecopy` of the class"))
            }
        }
    }

    /// The snapshots of a group that are there, in the order of its volumes.
    async fn found_members(
        &self,
        call: &Call,
        group: &GroupPlace,
    ) -> Result<Vec<Option<Snapshot>>, Error> {
        let group = group.clone();
        self.run(call, "looking at a group of snapshots", move |on, _| {
            on.members(&group)
        })
        .await
    }

    /// Makes the snapshots that are not there, one after the other, and looks at all once more. `made` gets those that
    /// are its work, also before an error.
    async fn copied_members(
        &self,
        call: &Call,
        group: &GroupPlace,
        (name, found): (&NamePart, &[Option<Snapshot>]),
        made: &mut Vec<SnapshotDir>,
    ) -> Result<Vec<Option<Snapshot>>, Error> {
        let missing = members_of(group, name).into_iter().zip(found);
        let missing = missing.filter(|(_, found)| found.is_none());
        let missing: Vec<_> = missing.map(|(one, _)| one).collect();
        let (looking, wanted) = ("looking at the volumes of a group", missing.clone());
        self.run(call, looking, move |on, _| on.expect_members(&wanted))
            .await?;
        for one in missing {
            call.check(&one.doing())?;
            let dir = one.dir.clone();
            if self.copied_snapshot(call, one, None).await?.is_new {
                made.push(dir);
            }
        }
        // Another process may have deleted the group since.
        let members = self.found_members(call, group).await?;
        if members.iter().any(Option::is_none) {
            let doing = format!("taking group snapshot {}", group.id);
            return Err(Error::new(Kind::Pending, doing)
                .because("another process is deleting it at the same time"));
        }
        Ok(members)
    }

    /// The error of a group that could not be made whole. What was made of it waits for a retry, or is removed
    /// where none would complete it.
    async fn given_up(
        &self,
        call: &Call,
        (group, is_begun, made): (&GroupPlace, bool, Vec<SnapshotDir>),
        error: Error,
    ) -> Error {
        if !is_begun && call.effect() == Effect::None {
            return error;
        }
        match error.kind() {
            Kind::Invalid
            | Kind::NotFound
            | Kind::Conflict
            | Kind::OutOfRange
            | Kind::OutOfSpace => {}
            Kind::Busy
            | Kind::Pending
            | Kind::Unreachable
            | Kind::Timeout
            | Kind::Denied
            | Kind::Unsupported
            | Kind::Internal => return error.with_effect(Effect::Possible),
        }
        let place = group.clone();
        let removing = "removing the snapshots of a group that cannot be made";
        let removed = self.run(call, removing, move |on, call| {
            on.take_back(call, &place, &made)
        });
        match removed.await {
            Ok(true) => {
                call.undone();
                error.with_effect(Effect::None)
            }
            Ok(false) => {
                let group = group.id.as_str();
                tracing::warn!(
                    group,
                    "it cannot be made whole, and what was there of it before stays"
                );
                error.with_effect(Effect::Possible)
            }
            Err(removal) => {
                let (group, removal) = (group.id.as_str(), removal.chain());
                tracing::warn!(group, error = removal, "snapshots of a group are left");
                error.with_effect(Effect::Possible)
            }
        }
    }
}

fn deleting(group: &GroupPlace) -> String {
    format!("deleting group snapshot {}", group.id)
}

/// Whether what has the place of one of a group is that. By now it may be a snapshot alone, or one of another group.
fn is_member(group: &GroupPlace, dir: &SnapshotDir, found: impl AsFd) -> Result<bool, Error> {
    match record_of(dir, found)? {
        Some(record) => Ok(record.group.as_ref() == Some(&group.id)),
        None => Err(Error::new(Kind::Busy, deleting(group))
            .because(format!(
                "`s/{dir}` has no record that says whether it is one of the group"
            ))
            .advise(
                "remove it from the base directory by hand if it is one. If it is not, \
                 `deletionPolicy: Retain` lets Kubernetes forget the group",
            )),
    }
}

/// The snapshots of a group, as they are asked for.
pub(crate) fn members_of(group: &GroupPlace, name: &NamePart) -> Vec<WantedSnapshot> {
    let together: BTreeSet<_> = group.members.iter().map(|(_, dir)| dir.clone()).collect();
    let together = Arc::new(together);
    let member = |(volume, dir): &(VolumeDir, SnapshotDir)| WantedSnapshot {
        together: Arc::clone(&together),
        volume: volume.clone(),
        name: name.clone(),
        dir: dir.clone(),
        group: Some(group.id.clone()),
    };
    group.members.iter().map(member).collect()
}

/// Refuses a group whose deletion was cut: what is left of it is older than what would be made now.
pub(crate) fn refuse_rest(group: &GroupPlace, found: &[Option<Snapshot>]) -> Result<(), Error> {
    let left = found.iter().flatten().count();
    if left == 0 || found.first().is_some_and(Option::is_some) {
        return Ok(());
    }
    let why = format!(
        "{left} of its {} snapshots are left of a deletion",
        found.len()
    );
    let exists = format!("group snapshot {} exists", group.id);
    // It is there until it is deleted, and so it is not forgotten.
    Err(Error::new(Kind::Conflict, exists)
        .because(why)
        .with_effect(Effect::Possible))
}

/// The group, if all of its snapshots are there.
fn whole(group: &GroupPlace, found: Vec<Option<Snapshot>>) -> Result<GroupSnapshot, Error> {
    let all = found.len();
    let snapshots: Vec<_> = found.into_iter().flatten().collect();
    let missing = Error::not_found(format!("group snapshot {}", group.id));
    // A group is as old as its first snapshot.
    let created = snapshots.iter().map(|snapshot| snapshot.created).min();
    match (created, snapshots.len()) {
        (Some(created), there) if there == all => Ok(GroupSnapshot {
            id: group.id.clone(),
            ready: snapshots.iter().all(|snapshot| snapshot.ready),
            snapshots,
            created,
        }),
        (None, _) => Err(missing),
        (Some(_), there) => {
            let why = format!("{there} of its {all} snapshots are there");
            Err(missing.because(why))
        }
    }
}

#[async_trait]
impl Groups for DirectoryDriver {
    async fn create_group(
        &self,
        call: &Call,
        request: CreateGroup<'_>,
    ) -> Result<GroupSnapshot, Error> {
        let room = self.directories.id_room;
        let group = GroupPlace::new(request.name, request.volumes, room)?;
        if let Err(error) = self.refuse_class(&request) {
            // An earlier call, with other parameters, may have started it.
            let found = self.found_members(call, &group).await;
            let is_absent = found.is_ok_and(|found| found.iter().all(Option::is_none));
            return Err(if is_absent {
                error
            } else {
                error.with_effect(Effect::Possible)
            });
        }
        // Until what cannot be made whole is removed, too.
        let _work = self.directories.pending.begin_group(&group.id, call)?;
        let found = self.found_members(call, &group).await?;
        refuse_rest(&group, &found)?;
        if found.iter().all(Option::is_some) {
            return whole(&group, found);
        }
        let is_begun = found.iter().any(Option::is_some);
        let (name, mut made) = (NamePart::of(request.name), Vec::new());
        let copied = self.copied_members(call, &group, (&name, found.as_slice()), &mut made);
        match copied.await {
            Ok(members) => whole(&group, members),
            Err(error) => Err(self.given_up(call, (&group, is_begun, made), error).await),
        }
    }

    async fn delete_group(&self, call: &Call, request: GroupMembers<'_>) -> Result<(), Error> {
        let group = match GroupPlace::find(request.id, request.snapshots) {
            // There is no such group, and never was.
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            group => group?,
        };
        // The deletion succeeds, and not the creation that it stops. If each only stopped the other, neither might ever.
        let pending = &self.directories.pending;
        let _deletion = pending.begin_deletion(&group.id);
        let patience = self.patience.min(call.remaining());
        pending.end_group(&group.id, patience).await;
        self.run(call, "deleting a group of snapshots", move |on, call| {
            on.remove_members(call, &group)
        })
        .await
    }

    async fn get_group(
        &self,
        call: &Call,
        request: GroupMembers<'_>,
    ) -> Result<GroupSnapshot, Error> {
        let group = GroupPlace::find(request.id, request.snapshots)?;
        let found = self.found_members(call, &group).await?;
        whole(&group, found)
    }
}
