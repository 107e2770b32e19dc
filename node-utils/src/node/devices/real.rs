//! The devices of real storage: disks of iSCSI targets, namespaces of NVMe over fabrics, and zvols of
//! this node.
//!
//! Only translates: the typed attachment into what each of them wants to know, and the line of the
//! record into what a detach has to know.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::super::no_device;
use super::{Devices, Facts};
use crate::device::{self, Attached, BlockDevice, StageLock};
use crate::iscsi::{self, IscsiFacts};
use crate::kernel::Kernel;
use crate::nvme::{self, NvmeFacts};
use crate::tools::Tools;
use csi_types::attachment::{Attachment, DeviceId, Iscsi, ZfsLocal};
use csi_types::error::{Error, Kind};
use csi_types::secrets::StageSecrets;

/// The time that udev may take to link a zvol that is there. It needs milliseconds, and seconds where hundreds of
/// volumes are imported at once.
const LINKED: Duration = Duration::from_secs(20);

/// The attachers of a real node.
#[derive(Debug)]
pub(in crate::node) struct Attachers {
    tools: Tools,
    kernel: Kernel,
}

/// The volume that a line of facts names.
enum Known {
    Iscsi(IscsiFacts),
    Nvme(NvmeFacts),
}

// === impl Known ===

impl Known {
    fn parse(facts: &Facts) -> Option<Self> {
        let text = facts.as_str();
        let nvme = || NvmeFacts::parse(text).map(Self::Nvme);
        IscsiFacts::parse(text).map(Self::Iscsi).or_else(nvme)
    }

    /// The facts of sysfs about a device.
    fn of(kernel: &Kernel, device: &BlockDevice) -> Result<Option<Self>, Error> {
        if let Some(facts) = nvme::facts_of(kernel, device)? {
            return Ok(Some(Self::Nvme(facts)));
        }
        Ok(iscsi::facts_of(kernel, device)?.map(Self::Iscsi))
    }

    fn line(&self) -> Option<Facts> {
        match self {
            Self::Iscsi(facts) => Facts::parse(&facts.to_string()),
            Self::Nvme(facts) => Facts::parse(&facts.to_string()),
        }
    }
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
        let deadline = deadline.min(Instant::now() + LINKED);
        let device = device::until(deadline, &doing, look).await?;
        let device = device.ok_or_else(|| {
            Error::new(Kind::NotFound, doing).advise("is it a zvol, and its pool imported here?")
        })?;
        device.wait_for_node(&self.kernel, deadline).await?;
        Ok(Attached {
            paths: vec![device.clone()],
            device,
            identity: None,
        })
    }

    /// Through whatever portals: they may have been others when the volume was attached.
    fn is_disk(&self, device: &BlockDevice, volume: &Iscsi) -> Result<bool, Error> {
        let Some(facts) = iscsi::facts_of(&self.kernel, device)? else {
            return Ok(false);
        };
        if (facts.iqn(), facts.lun()) != (&volume.iqn, volume.lun) {
            return Ok(false);
        }
        self.is_expected(device, volume.device_id.as_ref())
    }

    /// Whether it says that it is what the volume context names, if that names anything.
    fn is_expected(
        &self,
        device: &BlockDevice,
        expected: Option<&DeviceId>,
    ) -> Result<bool, Error> {
        let Some(expected) = expected else {
            return Ok(true);
        };
        let identity = device.wwid(&self.kernel)?;
        Ok(identity.is_some_and(|identity| identity.is(expected.as_str())))
    }
}

#[async_trait]
impl Devices for Attachers {
    fn shows_zvol(&self, zvol: &ZfsLocal) -> Result<bool, Error> {
        Ok(BlockDevice::by_path(&self.kernel, &self.zvol(zvol))?.is_some())
    }

    fn facts(&self, volume: &Attachment) -> Option<Facts> {
        let known = match volume {
            Attachment::Iscsi(volume) => Known::Iscsi(IscsiFacts::of(volume)),
            Attachment::Nvmeof(volume) => Known::Nvme(NvmeFacts::of(volume)),
            _ => return None,
        };
        known.line()
    }

    fn facts_of(&self, device: &BlockDevice) -> Result<Option<Facts>, Error> {
        Ok(Known::of(&self.kernel, device)?.and_then(|known| known.line()))
    }

    fn is_volume(&self, device: &BlockDevice, volume: &Attachment) -> Result<bool, Error> {
        match volume {
            Attachment::Iscsi(volume) => self.is_disk(device, volume),
            Attachment::Nvmeof(volume) => {
                let facts = nvme::facts_of(&self.kernel, device)?;
                Ok(facts == Some(NvmeFacts::of(volume))
                    && self.is_expected(device, volume.device_id.as_ref())?)
            }
            Attachment::ZfsLocal(zvol) => {
                let found = BlockDevice::by_path(&self.kernel, &self.zvol(zvol))?;
                Ok(found.is_some() && found == Some(device.disk(&self.kernel)?))
            }
            _ => Ok(false),
        }
    }

    fn brings(&self, device: &BlockDevice) -> Result<bool, Error> {
        // A mount of a whole zvol excludes all others.
        let is_zvol = device.disk(&self.kernel)?.name().starts_with("zd");
        Ok(is_zvol || self.facts_of(device)?.is_some())
    }

    async fn attach(
        &self,
        volume: &Attachment,
        secrets: &StageSecrets,
        deadline: Instant,
    ) -> Result<(Attached, Option<StageLock>), Error> {
        let (attached, lock) = match volume {
            Attachment::Iscsi(volume) => {
                iscsi::attach(&self.tools, &self.kernel, volume, secrets, deadline).await?
            }
            Attachment::Nvmeof(volume) => {
                nvme::attach(&self.tools, &self.kernel, volume, deadline).await?
            }
            Attachment::ZfsLocal(zvol) => return Ok((self.find_zvol(zvol, deadline).await?, None)),
            other => return Err(no_device(other)),
        };
        Ok((attached, Some(lock)))
    }

    async fn lacking(
        &self,
        device: &BlockDevice,
        volume: &Attachment,
        deadline: Instant,
    ) -> Result<Vec<String>, Error> {
        match volume {
            Attachment::Iscsi(volume) => {
                iscsi::lacking(&self.kernel, device, volume, deadline).await
            }
            Attachment::Nvmeof(volume) => nvme::lacking(&self.kernel, volume, deadline).await,
            _ => Ok(Vec::new()),
        }
    }

    async fn detach(&self, facts: &Facts, deadline: Instant) -> Result<(), Error> {
        match Known::parse(facts) {
            Some(Known::Iscsi(facts)) => {
                iscsi::detach(&self.tools, &self.kernel, &facts, deadline).await
            }
            Some(Known::Nvme(facts)) => {
                nvme::detach(&self.tools, &self.kernel, &facts, deadline).await
            }
            None => {
                let doing = format!("detach `{facts}`");
                Err(Error::new(Kind::Unsupported, doing)
                    .advise("this build does not know that kind; a newer one has recorded it"))
            }
        }
    }

    async fn rescan(
        &self,
        device: &BlockDevice,
        at_least: Option<u64>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let doing = format!("find the storage of {device}");
        let known = {
            let (kernel, device) = (self.kernel.clone(), device.clone());
            move || Known::of(&kernel, &device)
        };
        match device::look(deadline, &doing, known).await? {
            Some(Known::Iscsi(_)) => {
                iscsi::rescan(&self.tools, &self.kernel, device, deadline).await
            }
            Some(Known::Nvme(_)) => {
                nvme::rescan(&self.tools, &self.kernel, device, at_least, deadline)
                    .await
                    .map(drop)
            }
            // A zvol shows its size by itself.
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use exec::testing::Scripted;

    use super::*;
    use crate::kernel::testing::Tree;
    use csi_types::attachment::VolumeContext;

    /// One subsystem with two namespaces by two routes, captured with native multipath.
    const NVME: &str = include_str!("../../nvme/captured/native.listing");

    fn attachers(tree: &Tree) -> Attachers {
        Attachers::new(Tools::all_through(Arc::new(Scripted::new())), tree.kernel())
    }

    fn disk(tree: &Tree, name: &str) -> BlockDevice {
        let disk = BlockDevice::by_name(&tree.kernel(), name);
        disk.expect("look").expect("disk")
    }

    #[test]
    fn a_namespace_that_says_to_be_another_volume_is_not_the_volume() {
        let tree = Tree::from_listing(NVME);
        let (attachers, disk) = (attachers(&tree), disk(&tree, "nvme0n2"));
        let is_volume = |identity: &[(&str, &str)]| {
            let pairs = [
                ("node_attach_driver", "nvmeof"),
                ("transport", "tcp://192.0.2.1"),
                ("nqn", "nqn.2026-11.lab:dev-a"),
                ("nsid", "1"),
            ];
            let pairs = pairs.iter().chain(identity);
            let context: VolumeContext = pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            let volume = Attachment::parse(&context).expect("attachment");
            attachers.is_volume(&disk, &volume).expect("look")
        };
        assert!(is_volume(&[]));
        let one = "uuid.00000001-1111-2222-3333-444444444444";
        assert!(is_volume(&[("device_id", one)]));
        let other = "uuid.00000002-1111-2222-3333-444444444444";
        assert!(!is_volume(&[("device_id", other)]));
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_waited_for_beside_the_runtime_and_not_for_ever() {
        let tree = Tree::new();
        tree.disk("x", "nvme0n1", "259:0", 2048);
        let attribute = tree.path("sys/devices/x/block/nvme0n1/nsid");
        tree.file("sys/devices/x/block/nvme0n1/device/subsysnqn", "nqn.a\n");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &attribute, fifo, mode, 0).expect("fifo");
        let (attachers, disk) = (attachers(&tree), disk(&tree, "nvme0n1"));
        let (done, outcome) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("runtime");
            let soon = Instant::now() + Duration::from_millis(50);
            let rescanned = runtime.block_on(attachers.rescan(&disk, None, soon));
            let _ = done.send(rescanned.expect_err("no answer").kind());
            // A wait in the kernel keeps its thread.
            runtime.shutdown_background();
        });
        let outcome = outcome.recv_timeout(Duration::from_secs(20));
        // Releases waiting threads.
        let _ = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&attribute);
        assert_eq!(outcome, Ok(Kind::Timeout));
    }
}
