//! Snapshots. compat: "Synology": the name of a snapshot is its description, and `taken_by` says that it
//! is of CSI.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use driver_core::naming::snapshot_leaf;
use driver_core::{
    Call, CreateSnapshot, DeleteSnapshot, Error, GetSnapshot, Kind, Page, PageRequest, Snapshot,
    SnapshotFilter, Snapshots, VolumeId,
};

use super::Luns;
use super::export::changed;
use crate::api::{ListedLun, Lun, LunSnapshot};
use crate::error::{Code, Failure, unless_done};
use crate::page::page;
use crate::snapshot_id::{self, LunSnapshotId};

/// Who takes the snapshots. compat: "Synology": as democratic-csi, which finds ours and has its own found.
const TAKEN_BY: &str = "democratic-csi";
/// The longest name.
const LONGEST_NAME: usize = 127;
/// The LUNs that have snapshots.
const NO_SNAPSHOTS: &str = "DSM has snapshots of thin LUNs on Btrfs only: see \"Choose thin or thick\" in docs/synology.md";

/// Whether a snapshot is one of CSI. A DSM that does not say it might have any.
pub(super) fn is_ours(snapshot: &LunSnapshot) -> bool {
    snapshot.taken_by.as_deref().is_none_or(|by| by == TAKEN_BY)
}

/// Whether a volume stays because of it: those of CSI, and those that a user or a package of the NAS has locked.
/// Those of a schedule go with the volume.
pub(super) fn keeps_volume(snapshot: &LunSnapshot) -> bool {
    is_ours(snapshot) || snapshot.is_user_locked || snapshot.is_kept_by_packages
}

/// Of several with one name the first counts: two calls at once may have taken one each.
fn first<'a>(snapshots: impl IntoIterator<Item = &'a LunSnapshot>) -> Option<&'a LunSnapshot> {
    let order = |one: &&LunSnapshot| (one.seconds(), one.uuid.clone());
    snapshots.into_iter().min_by_key(order)
}

fn listed(source: VolumeId, lun: &str, snapshot: &LunSnapshot) -> Result<Snapshot, Error> {
    let created: SystemTime = UNIX_EPOCH + Duration::from_secs(snapshot.seconds());
    Ok(Snapshot {
        id: snapshot_id::write(lun, &snapshot.uuid)?,
        source,
        size: snapshot.size(),
        created,
        ready: true,
        topology: Vec::new(),
        group: None,
    })
}

// === impl Luns ===

impl Luns {
    /// Refuses a LUN that has no snapshots: one that says so, and a legacy one on ext4.
    async fn refuse_without_snapshots(
        &self,
        call: &Call,
        lun: &Lun,
        doing: &str,
    ) -> Result<(), Error> {
        let refused = |why: String| Error::invalid(doing).because(why).advise(NO_SNAPSHOTS);
        if lun.refuses_snapshots {
            return Err(refused(format!("LUN `{}` was made without them", lun.name)));
        }
        if !matches!(lun.kind.as_str(), "ADV" | "FILE" | "THIN") || lun.location.is_empty() {
            return Ok(());
        }
        let volume = self.client.existing_volume(call, &lun.location, doing);
        let volume = volume.await?;
        if volume.fs_type == "btrfs" {
            return Ok(());
        }
        let (filesystem, at) = (volume.fs_type.escape_debug(), &lun.location);
        Err(refused(format!("{at} is on {filesystem}")))
    }

    async fn take(
        &self,
        call: &Call,
        request: &CreateSnapshot,
        lun: &Lun,
        name: &str,
        doing: &str,
    ) -> Result<LunSnapshot, Error> {
        let mut template = self.settings.snapshot.over(
            "lunSnapshotTemplate",
            self.scope(),
            &request.parameters,
            &request.secrets,
        )?;
        template.set_missing("is_locked", false);
        template.set_missing("is_app_consistent", false);
        self.refuse_without_snapshots(call, lun, doing).await?;
        call.check(doing)?;
        let client = &self.client;
        let taken = client
            .take_snapshot(call, &template, &lun.uuid, TAKEN_BY, name)
            .await;
        let there = client.snapshots(call, &lun.uuid).await;
        let there = there.map_err(|failure| failure.while_doing(call, doing))?;
        let is_named = |known: &&LunSnapshot| is_ours(known) && known.description == name;
        let named: Vec<&LunSnapshot> = there.iter().filter(is_named).collect();
        let Some(found) = first(named.iter().copied()) else {
            return Err(match taken {
                Err(failure) => {
                    if failure.code().is_some() {
                        call.undone();
                    }
                    let has_none = failure.code() == Some(Code::BAD_LUN_TYPE);
                    let error = failure.while_doing(call, doing);
                    if has_none {
                        error.advise(NO_SNAPSHOTS)
                    } else {
                        error
                    }
                }
                Ok(_) => changed(doing),
            });
        };
        if let Ok(Some(uuid)) = &taken
            && *uuid != found.uuid
            && named.iter().any(|known| known.uuid == *uuid)
        {
            // Another call was first, and its snapshot is the one that was answered for. The second one
            // goes only if it is listed beside it: DSM may write the uuid of the first in another way.
            let deleted = client.delete_snapshot(call, uuid).await;
            deleted.map_err(|failure| failure.while_doing(call, doing))?;
        }
        Ok(found.clone())
    }
}

#[async_trait]
impl Snapshots for Luns {
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let source = &request.source;
        let name = snapshot_leaf(&request.name, LONGEST_NAME);
        let doing = format!("take snapshot `{name}` of volume `{source}`");
        let _turn = self.turn(call, &doing).await?;
        // DSM knows snapshots by LUN; a name is that of one volume only.
        let ours = |name: &str| self.names.id(name).is_some();
        let luns = self.client.luns_with_snapshots(call, ours).await;
        let missing = || Error::not_found(&doing).because(format!("there is no volume `{source}`"));
        let lun_name = self.names.lun(source).ok_or_else(missing)?;
        let is_named = |known: &LunSnapshot| is_ours(known) && known.description == name;
        let is_asked = |lun: &ListedLun| {
            lun.name == lun_name.as_str() || lun.snapshots.iter().flatten().any(is_named)
        };
        let luns = luns.and_then(|luns| self.client.readable(luns, is_asked));
        let luns = luns.map_err(|failure| failure.while_doing(call, doing.clone()))?;
        let lun = luns.iter().find(|lun| lun.name == lun_name.as_str());
        let lun = lun.ok_or_else(missing)?;
        if lun.is_action_locked {
            self.whole(call, source, &doing).await?;
        }
        let named = |lun: &'_ Lun| {
            let snapshots = lun.snapshots.iter().flatten();
            first(snapshots.filter(|known| is_named(known))).cloned()
        };
        if let Some(found) = luns
            .iter()
            .filter(|known| known.uuid == lun.uuid)
            .find_map(named)
        {
            return listed(source.clone(), &lun.uuid, &found);
        }
        if let Some(other) = luns.iter().find(|other| named(other).is_some()) {
            let why = format!("LUN `{}` has a snapshot of that name", other.name);
            return Err(Error::new(Kind::Conflict, doing).because(why));
        }
        let taken = self.take(call, request, lun, &name, &doing).await?;
        listed(source.clone(), &lun.uuid, &taken)
    }

    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error> {
        let id = request.id;
        let doing = format!("delete snapshot `{id}`");
        if LunSnapshotId::parse(id).is_none() {
            return Ok(());
        }
        let _turn = self.turn(call, &doing).await?;
        call.check(&doing)?;
        let (lun, snapshot) = match self.snapshot_source(call, id, &doing).await? {
            (Some(lun), Some(snapshot)) => (lun, snapshot),
            (Some(_), None) => return Ok(()),
            (None, _) => return self.check_nas(call, &doing).await,
        };
        let deleted = self.client.delete_snapshot(call, &snapshot.uuid).await;
        let look = async {
            let left = self.client.snapshots(call, &lun.uuid).await?;
            Ok::<_, Failure>(left.iter().all(|known| known.uuid != snapshot.uuid))
        };
        unless_done(call, &doing, deleted, look).await
    }

    async fn get_snapshot(&self, call: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error> {
        let id = request.id;
        let doing = format!("get snapshot `{id}`");
        let missing = || Error::not_found(&doing).because(format!("there is no snapshot `{id}`"));
        let (Some(lun), Some(snapshot)) = self.snapshot_source(call, id, &doing).await? else {
            return Err(missing());
        };
        let source = self.names.id(&lun.name).ok_or_else(missing)?;
        listed(source, &lun.uuid, &snapshot)
    }

    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        request: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let ours = |name: &str| self.names.id(name).is_some();
        let luns = self.client.luns_with_snapshots(call, ours).await;
        // One that cannot be read is of this connection if its name says so, or if it has snapshots of CSI.
        let is_asked = |lun: &ListedLun| {
            self.names.tells_ours() || lun.snapshots.iter().flatten().any(is_ours)
        };
        let luns = luns.and_then(|luns| self.client.readable(luns, is_asked));
        let luns = luns.map_err(|failure| failure.while_doing(call, "list snapshots"))?;
        if luns.is_empty() {
            self.check_nas(call, "list snapshots").await?;
        }
        let mut found = Vec::new();
        for lun in &luns {
            let Some(id) = self.names.id(&lun.name) else {
                continue;
            };
            if filter.source.as_ref().is_some_and(|source| *source != id) {
                continue;
            }
            for snapshot in lun
                .snapshots
                .iter()
                .flatten()
                .filter(|known| is_ours(known))
            {
                found.push(listed(id.clone(), &lun.uuid, snapshot)?);
            }
        }
        page(found, |snapshot| snapshot.id.as_str(), 's', request)
    }
}
