//! The health of LUNs: of the volume of the NAS that each lies on, its own, and that of its target.

use std::collections::BTreeSet;

use async_trait::async_trait;
use driver_core::{
    Call, Condition, Conditions, Error, Health, HealthQuery, Page, PageRequest, VolumeId,
};

use super::Luns;
use crate::api::{Lun, Target};
use crate::health::{not_exported, of_lun, of_nas_volumes, of_place};
use crate::page::page;

const DOING: &str = "look at the health of volumes";

/// The LUN of a volume, and why no node reaches it.
struct Looked<'a> {
    lun: &'a Lun,
    export: Option<Condition>,
}

#[async_trait]
impl Health for Luns {
    async fn conditions(
        &self,
        call: &Call,
        query: HealthQuery<'_>,
    ) -> Result<Vec<Option<Conditions>>, Error> {
        let (luns, targets) = self.observe_these(call, query.ids).await?;
        let one = |id: &VolumeId| self.look_at(id, &luns, &targets);
        let looked: Vec<Option<Looked<'_>>> = query.ids.iter().map(one).collect();
        if looked.iter().any(Option::is_none) {
            self.check_nas(call, DOING).await?;
        }
        let paths = looked.iter().flatten().map(|volume| self.place(volume.lun));
        let paths: BTreeSet<&str> = paths.collect();
        let common = of_nas_volumes(&self.client, call, paths, DOING).await?;
        let exports = query.depth.has_exports();
        let whole = |volume: Looked<'_>| {
            let of_nas = common.get(self.place(volume.lun));
            let mut all = of_nas.map_or_else(Conditions::default, |all| of_place(volume.lun, all));
            all.extend(of_lun(volume.lun));
            all.extend(volume.export.filter(|_| exports));
            all
        };
        Ok(looked.into_iter().map(|volume| volume.map(whole)).collect())
    }

    /// A LUN of ours that no target shows is a volume that lost its export, unless DSM still works on it. Without a prefix and
    /// a suffix it may belong to another program.
    async fn candidates(
        &self,
        call: &Call,
        request: &PageRequest,
    ) -> Result<Page<VolumeId>, Error> {
        let (luns, targets) = self.observe_all(call, DOING).await?;
        if luns.is_empty() {
            self.check_nas(call, DOING).await?;
        }
        let counts = |lun: &Lun| {
            let id = self.names.id(&lun.name)?;
            let name = self.names.lun(&id)?;
            let is_ours = self.names.tells_ours() && !lun.is_action_locked;
            (is_ours || self.shown(lun, &name, &targets).is_some()).then_some(id)
        };
        let ids: Vec<VolumeId> = luns.iter().filter_map(counts).collect();
        page(ids, VolumeId::as_str, 'v', request)
    }
}

impl Luns {
    /// The LUN of one volume and the targets that may show it, or all.
    async fn observe_these(
        &self,
        call: &Call,
        ids: &[VolumeId],
    ) -> Result<(Vec<Lun>, Vec<Target>), Error> {
        let [id] = ids else {
            return self.observe_all(call, DOING).await;
        };
        let Some(name) = self.names.lun(id) else {
            return Ok((Vec::new(), Vec::new()));
        };
        let state = self.observe(call, &name, DOING).await?;
        Ok((state.lun.into_iter().collect(), state.targets))
    }

    /// The volume of the NAS that a LUN lies on.
    fn place<'a>(&'a self, lun: &'a Lun) -> &'a str {
        if lun.location.is_empty() {
            &self.settings.location
        } else {
            &lun.location
        }
    }

    /// The LUN of a volume. One that DSM works on, and that no target shows, is being made or goes.
    fn look_at<'a>(
        &self,
        id: &VolumeId,
        luns: &'a [Lun],
        targets: &[Target],
    ) -> Option<Looked<'a>> {
        let name = self.names.lun(id)?;
        let lun = luns.iter().find(|lun| lun.name == name.as_str())?;
        let export = match self.shown(lun, &name, targets) {
            None if lun.is_action_locked => return None,
            None => Some(format!("no target shows LUN `{}`", lun.name)),
            Some(shown) if shown.target.is_disabled => {
                Some(format!("target `{}` is disabled", shown.target.name))
            }
            Some(_) => None,
        };
        let export = export.map(|why| not_exported(&why));
        Some(Looked { lun, export })
    }
}
