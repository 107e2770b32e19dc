//! The health of shared folders: of the volume of the NAS that each lies on, and of its clients.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use driver_core::{
    Call, Conditions, Error, Health, HealthDepth, HealthQuery, Kind, Lister, Page, PageRequest,
    VolumeId,
};

use super::api::Share;
use super::{Access, Shares, lost};
use crate::error::Failure;
use crate::health::{not_exported, of_nas_volumes};

const DOING: &str = "look at the health of volumes";

#[async_trait]
impl Health for Shares {
    /// The clients of a folder are a call for each, and are looked at where it is one volume that is asked for.
    async fn conditions(
        &self,
        call: &Call,
        query: HealthQuery<'_>,
    ) -> Result<Vec<Option<Conditions>>, Error> {
        let shares = self.looked(call, query.ids).await?;
        let found: Vec<Option<&Share>> = query.ids.iter().map(|id| shares.get(id)).collect();
        if found.iter().any(Option::is_none) {
            self.check_nas(call, DOING).await?;
        }
        let paths = found.iter().flatten().map(|share| share.vol_path.as_str());
        let paths: BTreeSet<&str> = paths.collect();
        let common = of_nas_volumes(&self.client, call, paths, DOING).await?;
        let of_nas = |share: &Share| {
            let conditions = common.get(share.vol_path.as_str());
            conditions.cloned().unwrap_or_default()
        };
        if let ([Some(share)], HealthDepth::Exports) = (found.as_slice(), query.depth) {
            let share: &Share = share;
            let mut all = of_nas(share);
            let lacks = self.lacks_clients(call, share).await;
            if lacks.map_err(|failure| lost(call, failure, DOING))? {
                let why = format!(
                    "not all clients of the configuration may use `{}`",
                    share.name
                );
                all.add(not_exported(&why));
            }
            return Ok(vec![Some(all)]);
        }
        Ok(found.into_iter().map(|share| share.map(of_nas)).collect())
    }

    async fn candidates(&self, call: &Call, page: &PageRequest) -> Result<Page<VolumeId>, Error> {
        let listed = self.list_volumes(call, page).await?;
        Ok(listed.map(|volume| volume.id))
    }
}

impl Shares {
    /// The shared folders of these volumes that are whole.
    async fn looked(
        &self,
        call: &Call,
        ids: &[VolumeId],
    ) -> Result<BTreeMap<VolumeId, Share>, Error> {
        let mut all = BTreeMap::new();
        if let [id] = ids {
            let share = match self.find(call, id, DOING).await {
                Err(error) if error.kind() == Kind::Conflict => None,
                found => found?,
            };
            all.extend(share.map(|share| (id.clone(), share)));
        } else {
            for share in self.shares(call, DOING).await? {
                all.extend(self.names.id(&share).map(|id| (id, share)));
            }
        }
        all.retain(|_, share| share.is_whole());
        Ok(all)
    }

    /// Whether clients of the configuration have no access. DSM may write one of NFS in a form that is not known here:
    /// then their number counts.
    async fn lacks_clients(&self, call: &Call, share: &Share) -> Result<bool, Failure> {
        if self.is_open(call, share).await? {
            return Ok(false);
        }
        let Access::Nfs { clients, .. } = &self.access else {
            return Ok(true);
        };
        let rules = self.client.rules(call, &share.name).await?;
        Ok(rules.len() < clients.len())
    }
}
