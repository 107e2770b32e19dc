//! Datasets and zvols of the node become volumes.
//!
//! As those of a host do, with what only the node can tell: its zvols are disks here, which anything on it may use. The
//! id is the name alone, as democratic-csi gives it: the dataset keeps its name, and the mark of no node is added.

use async_trait::async_trait;
use csi_types::attachment::DatasetName;
use driver_core::{
    AdoptVolume, Adopter, Adoption, AdoptionState, Call, Error, Kind, Volume, VolumeId,
};
use driver_zfs::observed::VolumeKind;
use node_utils::device;

use super::NodeZfs;

impl NodeZfs {
    /// Rejects an id that says of itself that it is of another node: its volume would be looked for there.
    fn check_mark(&self, id: &VolumeId) -> Result<(), Error> {
        if !self.mark.is_foreign(id) {
            return Ok(());
        }
        let dataset = self.layout.volume(id)?;
        let why = "its name ends as ids of volumes of another node do, by `-n` and eight hexadecimal digits";
        Err(Error::invalid(format!("adopt {dataset}"))
            .because(why)
            .advise("rename it: `zfs rename`"))
    }

    /// Rejects a disk that something on this node has open for itself, mounted or below another device.
    async fn check_device(&self, call: &Call, id: &VolumeId) -> Result<(), Error> {
        let dataset = self.layout.volume(id)?;
        let doing = || format!("adopt {dataset}");
        let zvol = DatasetName::parse(dataset.as_str());
        let zvol = zvol.map_err(|error| Error::invalid(doing()).because(error))?;
        match device::zvol_in_use(&self.kernel, &zvol, call.deadline()).await? {
            None => Ok(()),
            Some(usage) => Err(Error::new(Kind::Busy, doing())
                .because(format!("its device is {usage}"))
                .advise("end what uses it first")),
        }
    }
}

#[async_trait]
impl Adopter for NodeZfs {
    async fn plan_adoption(&self, call: &Call, request: &AdoptVolume) -> Result<Adoption, Error> {
        let plan = self.driver.plan_adoption(call, request).await?;
        // What is a volume already may be used by its pods.
        if plan.state == AdoptionState::Open {
            self.check_mark(&plan.id)?;
            if self.layout.kind == VolumeKind::Zvol {
                self.check_device(call, &plan.id).await?;
            }
        }
        Ok(plan)
    }

    async fn adopt_volume(&self, call: &Call, request: &AdoptVolume) -> Result<Volume, Error> {
        self.plan_adoption(call, request).await?;
        self.driver.adopt_volume(call, request).await
    }
}
