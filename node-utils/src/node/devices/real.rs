//! The devices of real storage: namespaces of NVMe over fabrics, and zvols of this node.
//!
//! Only translates: the typed attachment into what each of them wants to know, and the line of the
//! record into what a detach has to know.

use std::path::PathBuf;

use async_trait::async_trait;
use tokio::time::Instant;

use super::super::unserved;
use super::{Devices, Facts};
use crate::attachment::{Attachment, ZfsLocal};
use crate::device::{self, Attached, BlockDevice};
use crate::error::{Error, Kind};
use crate::kernel::Kernel;
use crate::nvme::{self, NvmeFacts};
use crate::secrets::StageSecrets;
use crate::tools::Tools;

/// What attaches on a real node.
#[derive(Debug)]
pub(in crate::node) struct Attachers {
    tools: Tools,
    kernel: Kernel,
}

// === impl Attachers ===

impl Attachers {
    pub(in crate::node) fn new(tools: Tools, kernel: Kernel) -> Self {
        Self { tools, kernel }
    }

    /// The link that udev makes for a zvol.
    fn zvol(&self, volume: &ZfsLocal) -> PathBuf {
        self.kernel.dev("zvol").join(volume.asset.as_str())
    }

    async fn find_zvol(&self, volume: &ZfsLocal, deadline: Instant) -> Result<Attached, Error> {
        let doing = format!("wait for the device of the zvol `{}`", volume.asset);
        let look = {
            let (kernel, path) = (self.kernel.clone(), self.zvol(volume));
            move || BlockDevice::by_path(&kernel, &path)
        };
        let device = device::until(deadline, &doing, look).await?;
        let device = device.ok_or_else(|| {
            Error::new(Kind::NotFound, doing).advise("is it a zvol, and its pool imported here?")
        })?;
        Ok(Attached {
            paths: vec![device.clone()],
            device,
            identity: None,
        })
    }
}

fn line(facts: &NvmeFacts) -> Option<Facts> {
    Facts::parse(&facts.to_string())
}

#[async_trait]
impl Devices for Attachers {
    fn serves(&self, volume: &Attachment) -> Result<bool, Error> {
        match volume {
            Attachment::Nvmeof(_) => Ok(true),
            Attachment::ZfsLocal(zvol) => {
                Ok(BlockDevice::by_path(&self.kernel, &self.zvol(zvol))?.is_some())
            }
            _ => Ok(false),
        }
    }

    fn facts(&self, volume: &Attachment) -> Option<Facts> {
        match volume {
            Attachment::Nvmeof(volume) => line(&NvmeFacts::of(volume)),
            _ => None,
        }
    }

    fn facts_of(&self, device: &BlockDevice) -> Result<Option<Facts>, Error> {
        let facts = nvme::facts_of(&self.kernel, device)?;
        Ok(facts.as_ref().and_then(line))
    }

    fn is_volume(&self, device: &BlockDevice, volume: &Attachment) -> Result<bool, Error> {
        match volume {
            Attachment::Nvmeof(volume) => {
                let facts = nvme::facts_of(&self.kernel, device)?;
                Ok(facts == Some(NvmeFacts::of(volume)))
            }
            Attachment::ZfsLocal(zvol) => {
                let found = BlockDevice::by_path(&self.kernel, &self.zvol(zvol))?;
                Ok(found.is_some() && found == Some(device.disk(&self.kernel)?))
            }
            _ => Ok(false),
        }
    }

    fn brings(&self, device: &BlockDevice) -> Result<bool, Error> {
        // Whoever mounts a whole zvol wants all of it.
        let is_zvol = device.disk(&self.kernel)?.name().starts_with("zd");
        Ok(is_zvol || self.facts_of(device)?.is_some())
    }

    fn target<'a>(&self, facts: &'a Facts) -> &'a str {
        // The kind and the number of the volume come first.
        facts.as_str().split(' ').nth(2).unwrap_or_default()
    }

    async fn attach(
        &self,
        volume: &Attachment,
        _: &StageSecrets,
        deadline: Instant,
    ) -> Result<Attached, Error> {
        match volume {
            Attachment::Nvmeof(volume) => {
                nvme::attach(&self.tools, &self.kernel, volume, deadline).await
            }
            Attachment::ZfsLocal(zvol) => self.find_zvol(zvol, deadline).await,
            other => Err(unserved(other)),
        }
    }

    async fn detach(&self, facts: &Facts, deadline: Instant) -> Result<(), Error> {
        let Some(facts) = NvmeFacts::parse(facts.as_str()) else {
            let doing = format!("detach `{facts}`");
            return Err(Error::new(Kind::Unsupported, doing)
                .advise("this build does not know that kind; a newer one has recorded it"));
        };
        nvme::detach(&self.tools, &self.kernel, &facts, deadline).await
    }

    async fn rescan(
        &self,
        device: &BlockDevice,
        at_least: Option<u64>,
        deadline: Instant,
    ) -> Result<(), Error> {
        if nvme::facts_of(&self.kernel, device)?.is_none() {
            // A zvol shows its size by itself.
            return Ok(());
        }
        let asked = nvme::rescan(&self.tools, &self.kernel, device, at_least, deadline).await;
        asked.map(drop)
    }
}
