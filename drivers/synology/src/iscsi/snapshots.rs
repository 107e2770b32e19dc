//! Snapshots. compat: "Synology": the name of a snapshot is its description, and `taken_by` says that it
//! is of CSI.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use driver_core::naming::snapshot_leaf;
use driver_core::{
    Call, CreateSnapshot, Error, Kind, Page, PageRequest, Snapshot, SnapshotFilter, SnapshotId,
    Snapshots, VolumeId,
};

use super::Luns;
use super::export::changed;
use crate::api::{Lun, LunSnapshot};
use crate::error::Code;
use crate::page::page;
use crate::snapshot_id::{self, LunSnapshotId};

/// Who takes the snapshots. compat: "Synology": as democratic-csi, which finds ours and has its own found.
const TAKEN_BY: &str = "democratic-csi";
/// The longest name.
const LONGEST_NAME: usize = 127;

/// Whether a snapshot is one of CSI. A DSM that does not say it might have any.
pub(super) fn is_ours(snapshot: &LunSnapshot) -> bool {
    snapshot.taken_by.as_deref().is_none_or(|by| by == TAKEN_BY)
}

/// Whether a volume stays because of it: those of CSI, and those that someone has locked. Those of a
/// schedule go with the volume.
pub(super) fn keeps_volume(snapshot: &LunSnapshot) -> bool {
    is_ours(snapshot) || snapshot.is_user_locked
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
        size: snapshot.total_size,
        created,
        ready: true,
        topology: Vec::new(),
        group: None,
    })
}

// === impl Luns ===

impl Luns {
    async fn take(
        &self,
        call: &Call,
        request: &CreateSnapshot,
        lun: &Lun,
        name: &str,
        doing: &str,
    ) -> Result<LunSnapshot, Error> {
        let template = self.settings.snapshot.over(
            "lunSnapshotTemplate",
            self.scope(),
            &request.parameters,
            &request.secrets,
        )?;
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
                    failure.while_doing(call, doing)
                }
                Ok(_) => changed(call, doing),
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
        let (lun, _) = self.whole(call, source, &doing).await?;
        // DSM knows snapshots by LUN; a name is that of one volume only.
        let luns = self.client.luns_with_snapshots(call).await;
        let luns = luns.map_err(|failure| failure.while_doing(call, doing.clone()))?;
        let named = |lun: &'_ Lun| {
            let snapshots = lun.snapshots.iter().flatten();
            let named = snapshots.filter(|known| is_ours(known) && known.description == name);
            first(named).cloned()
        };
        if let Some(found) = luns
            .iter()
            .filter(|known| known.uuid == lun.uuid)
            .find_map(named)
        {
            return listed(source.clone(), &lun.uuid, &found);
        }
        let others = luns
            .iter()
            .filter(|other| self.names.id(&other.name).is_some());
        if let Some(other) = others.into_iter().find(|other| named(other).is_some()) {
            let why = format!("LUN `{}` has a snapshot of that name", other.name);
            return Err(Error::new(Kind::Conflict, doing).because(why));
        }
        let taken = self.take(call, request, &lun, &name, &doing).await?;
        listed(source.clone(), &lun.uuid, &taken)
    }

    async fn delete_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<(), Error> {
        let doing = format!("delete snapshot `{id}`");
        if LunSnapshotId::parse(id).is_none() {
            return Ok(());
        }
        call.check(&doing)?;
        let (lun, snapshot) = match self.snapshot_source(call, id, &doing).await {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let deleted = self.client.delete_snapshot(call, &snapshot.uuid).await;
        let left = self.client.snapshots(call, &lun.uuid).await;
        let left = left.map_err(|failure| failure.while_doing(call, doing.clone()))?;
        if left.iter().all(|known| known.uuid != snapshot.uuid) {
            return Ok(());
        }
        match deleted {
            Err(failure) if failure.code() != Some(Code(18_990_532)) => {
                Err(failure.while_doing(call, doing))
            }
            _ => Err(changed(call, &doing)),
        }
    }

    async fn get_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<Snapshot, Error> {
        let doing = format!("get snapshot `{id}`");
        let (lun, snapshot) = self.snapshot_source(call, id, &doing).await?;
        let source = self.names.id(&lun.name);
        let source = source.ok_or_else(|| {
            Error::not_found(doing).because("its LUN is no volume of this connection")
        })?;
        listed(source, &lun.uuid, &snapshot)
    }

    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        request: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let luns = self.client.luns_with_snapshots(call).await;
        let luns = luns.map_err(|failure| failure.while_doing(call, "list snapshots"))?;
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
