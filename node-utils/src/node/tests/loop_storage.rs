//! A storage of loop devices: what stands in for targets and subsystems in these tests.
//!
//! A volume is a file on the storage; attaching it puts a loop device on it. As with the real ones,
//! everything is found in sysfs again, what is attached twice is one device, and what is in use is
//! not detached. A test can make it fail in the ways that real storage fails.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::time::Instant;

use super::super::devices::{Devices, Facts};
use crate::device::{Attached, BlockDevice, DetachLock, StageLock};
use crate::kernel::{self, Kernel};
use crate::mount::{self, MountTable};
use crate::sys::loops;
use csi_types::attachment::{Attachment, VolumeContext, ZfsLocal};
use csi_types::error::{Effect, Error, Kind};
use csi_types::secrets::StageSecrets;

/// The storage and how it behaves. Clones are the same storage.
#[derive(Debug, Clone)]
pub(super) struct LoopStorage {
    directory: PathBuf,
    kernel: Kernel,
    pub(super) attaches: Arc<AtomicUsize>,
    /// The next attach brings the device and then says that it failed.
    pub(super) fails_after_attach: Arc<AtomicBool>,
    /// The number of ways that are missing, until the next attach.
    pub(super) lacks: Arc<AtomicUsize>,
    /// The next attach comes too late: what is mounted here was unmounted, and its device detached.
    pub(super) is_late_for: Arc<Mutex<Option<PathBuf>>>,
}

impl LoopStorage {
    pub(super) fn at(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).expect("storage");
        Self {
            directory: directory.to_owned(),
            kernel: Kernel::here(),
            attaches: Arc::default(),
            fails_after_attach: Arc::default(),
            lacks: Arc::default(),
            is_late_for: Arc::default(),
        }
    }

    /// Puts a volume on the storage.
    pub(super) fn put(&self, name: &str, size: u64) {
        let file = File::create(self.file(name)).expect("volume");
        file.set_len(size).expect("size");
    }

    /// Makes a volume larger.
    pub(super) fn grow(&self, name: &str, size: u64) {
        let file = OpenOptions::new().write(true).open(self.file(name));
        file.expect("volume").set_len(size).expect("size");
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(super) fn attachment(name: &str) -> Attachment {
        let pairs = [
            ("node_attach_driver", "iscsi"),
            ("portal", "192.0.2.1:3260"),
            ("lun", "0"),
        ];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut context = VolumeContext::from(pairs);
        context.insert("iqn".to_owned(), format!("iqn.2026-01.test:{name}"));
        Attachment::parse(&context).expect("attachment")
    }

    /// The target of a volume, which no other test has.
    fn target(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    /// The loop devices on files of this storage, with the names of the files.
    pub(super) fn attached(&self) -> Vec<(String, BlockDevice)> {
        let mut found = Vec::new();
        for name in kernel::list(&self.kernel.sys("block")).expect("sysfs") {
            let Ok(Some(device)) = BlockDevice::by_name(&self.kernel, &name) else {
                continue;
            };
            if let Some(volume) = self.volume_of(&device) {
                found.push((volume, device));
            }
        }
        found
    }

    pub(super) fn device(&self, name: &str) -> BlockDevice {
        let mut attached = self.attached().into_iter();
        attached
            .find(|(volume, _)| volume == name)
            .expect("attached")
            .1
    }

    /// Removes a device while it is in use, as far as a loop device allows that.
    pub(super) fn clear(&self, device: &BlockDevice) {
        let fd = rustix::fs::open(
            device.node(&self.kernel),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let _ = fd.and_then(loops::clear);
    }

    fn volume_of(&self, device: &BlockDevice) -> Option<String> {
        let backing = device.attribute(&self.kernel, "loop/backing_file").ok()??;
        let path = Path::new(backing.strip_suffix(" (deleted)").unwrap_or(&backing));
        let name = path.strip_prefix(&self.directory).ok()?;
        Some(name.to_str()?.to_owned())
    }

    fn name_of(volume: &Attachment) -> String {
        let context = volume.to_context();
        context["iqn"].rsplit(':').next().expect("name").to_owned()
    }

    fn make(&self, name: &str) -> Result<BlockDevice, Error> {
        let failed = |errno: Errno| Error::new(Kind::Internal, "attach").because(errno);
        let backing = rustix::fs::open(
            self.file(name),
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let backing = backing.map_err(|_| Error::not_found(format!("no volume {name}")))?;
        let open = |path: PathBuf| {
            rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed)
        };
        let control = open(self.kernel.dev("loop-control"))?;
        loop {
            let name = format!("loop{}", loops::free(&control).map_err(failed)?);
            let device = open(self.kernel.dev(&name))?;
            match loops::configure(&device, &backing, [0; loops::NAME], false, 0) {
                Ok(()) => {
                    let device = BlockDevice::by_name(&self.kernel, &name)?;
                    return Ok(device.expect("it was made"));
                }
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

#[async_trait]
impl Devices for LoopStorage {
    fn shows_zvol(&self, _: &ZfsLocal) -> Result<bool, Error> {
        Ok(false)
    }

    fn facts(&self, volume: &Attachment) -> Option<Facts> {
        Facts::parse(&format!("storage {}", Self::name_of(volume)))
    }

    fn facts_of(&self, device: &BlockDevice) -> Result<Option<Facts>, Error> {
        let name = self.volume_of(device);
        Ok(name.and_then(|name| Facts::parse(&format!("storage {name}"))))
    }

    fn is_volume(&self, device: &BlockDevice, volume: &Attachment) -> Result<bool, Error> {
        Ok(self.volume_of(device) == Some(Self::name_of(volume)))
    }

    async fn attach(
        &self,
        volume: &Attachment,
        _: &StageSecrets,
        deadline: Instant,
    ) -> Result<(Attached, Option<StageLock>), Error> {
        self.attaches.fetch_add(1, Ordering::Relaxed);
        let name = Self::name_of(volume);
        let late = self.is_late_for.lock().expect("no test has failed").take();
        if let Some(path) = late {
            mount::unmount(&path).expect("unmount");
            self.detach(&self.facts(volume).expect("facts"), deadline)
                .await?;
        }
        self.lacks.store(0, Ordering::Relaxed);
        let lock = StageLock::of(&self.target(&name), deadline).await?;
        let known = self
            .attached()
            .into_iter()
            .find(|(known, _)| *known == name);
        let device = match known {
            Some((_, device)) => device,
            None => self.make(&name)?,
        };
        if self.fails_after_attach.swap(false, Ordering::Relaxed) {
            return Err(Error::new(Kind::Unreachable, "scan").with_effect(Effect::Possible));
        }
        let attached = Attached {
            paths: vec![device.clone()],
            device,
            identity: None,
        };
        Ok((attached, Some(lock)))
    }

    async fn lacking(
        &self,
        _: &BlockDevice,
        _: &Attachment,
        _: Instant,
    ) -> Result<Vec<String>, Error> {
        let lacks = 0..self.lacks.load(Ordering::Relaxed);
        Ok(lacks.map(|number| format!("10.0.0.{number}")).collect())
    }

    async fn detach(&self, facts: &Facts, deadline: Instant) -> Result<(), Error> {
        let name = facts
            .as_str()
            .strip_prefix("storage ")
            .expect("ours")
            .to_owned();
        let _alone = DetachLock::of(&self.target(&name), deadline).await?;
        for (volume, device) in self.attached() {
            if volume != name {
                continue;
            }
            let table = MountTable::read().expect("table");
            if let Some(usage) = device.in_use(&self.kernel, &table)? {
                let doing = format!("detach {device}, which is {usage}");
                return Err(Error::new(Kind::Busy, doing));
            }
            self.clear(&device);
            // The kernel lets go with the last descriptor, and a child of another test that has not
            // come to its program yet has a copy of each.
            while self.volume_of(&device).as_ref() == Some(&volume) {
                if Instant::now() >= deadline {
                    return Err(Error::new(Kind::Timeout, format!("detach {device}")));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        Ok(())
    }

    async fn rescan(&self, device: &BlockDevice, _: Option<u64>, _: Instant) -> Result<(), Error> {
        let fd = rustix::fs::open(
            device.node(&self.kernel),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        fd.and_then(loops::refresh)
            .map_err(|errno| Error::new(Kind::Internal, "rescan").because(errno))
    }
}
