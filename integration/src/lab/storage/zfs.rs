//! Datasets and zvols on the pool `tank`, and what is in them seen from the storage side.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::configfs;
use crate::lab::command;

/// Below which everything is made.
const PARENT: &str = "tank/csi/volumes";

/// A dataset with its folder.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Its name in the pool.
    pub name: String,
}

/// A zvol with its device.
#[derive(Debug, Clone)]
pub struct Zvol {
    /// Its name in the pool.
    pub name: String,
}

// === impl Dataset ===

impl Dataset {
    /// A new one, mounted at [`Dataset::folder`].
    pub fn create(name: &str) -> Self {
        let name = format!("{PARENT}/{name}");
        command::run(&["zfs", "create", &name]);
        Self { name }
    }

    /// A new one that is not mounted.
    pub fn create_unmounted(name: &str) -> Self {
        let name = format!("{PARENT}/{name}");
        command::run(&["zfs", "create", "-o", "canmount=noauto", &name]);
        Self { name }
    }

    /// The path where it is mounted on the storage host.
    pub fn folder(&self) -> PathBuf {
        Path::new("/").join(&self.name)
    }

    /// Puts a file into it, where it is mounted.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn fill(&self, file: &str, content: &[u8]) {
        fs::write(self.folder().join(file), content).expect("a file in it");
    }

    /// A file in it, read through a private mount.
    pub fn read(&self, file: &str) -> Vec<u8> {
        with_mount(&["-t", "zfs", "-o", "ro", &self.name], |folder| {
            fs::read(folder.join(file)).expect("the file is on the storage side")
        })
    }
}

// === impl Zvol ===

impl Zvol {
    /// A new one of so many bytes, without space of its own.
    pub fn create(name: &str, bytes: u64) -> Self {
        let name = format!("{PARENT}/{name}");
        command::run(&["zfs", "create", "-s", "-V", &bytes.to_string(), &name]);
        let zvol = Self { name };
        let device = zvol.device().display().to_string();
        command::run(&["udevadm", "wait", "--timeout=30", &device]);
        zvol
    }

    /// The device on the storage host.
    pub fn device(&self) -> PathBuf {
        Path::new("/dev/zvol").join(&self.name)
    }

    /// 32 digits that follow from its name, so that every export of it shows the same volume.
    pub fn serial(&self) -> String {
        let digest = Sha256::digest(self.name.as_bytes());
        let half = digest.first_chunk().expect("a digest has 32 bytes");
        format!("{:032x}", u128::from_be_bytes(*half))
    }

    /// Makes it larger.
    pub fn grow(&self, bytes: u64) {
        command::run(&["zfs", "set", &format!("volsize={bytes}"), &self.name]);
    }

    /// Destroys it, with everything in it.
    pub fn destroy(&self) {
        command::run(&["zfs", "destroy", "-r", &self.name]);
    }

    /// `length` bytes of the device itself, from `offset` on.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn raw(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut device = File::open(self.device()).expect("the zvol can be opened");
        device.seek(SeekFrom::Start(offset)).expect("an offset");
        let mut bytes = vec![0; length];
        device.read_exact(&mut bytes).expect("the zvol can be read");
        bytes
    }

    /// Puts bytes onto the device itself.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        let device = OpenOptions::new().write(true).open(self.device());
        let device = device.expect("the zvol can be opened");
        device.write_all_at(bytes, offset).expect("it is written");
        device.sync_all().expect("it reaches the pool");
    }

    /// Makes ext4 on it, with one file, once its device is there.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn fill(&self, file: &str, content: &[u8]) {
        let device = self.device().display().to_string();
        command::run(&["udevadm", "wait", "--timeout=60", &device]);
        command::run(&["mkfs.ext4", "-q", "-m", "0", &device]);
        with_mount(&[&device], |folder| {
            fs::write(folder.join(file), content).expect("a file in it");
        });
    }

    /// A file of the filesystem on it, while no other process has it open.
    pub fn read(&self, kind: &str, file: &str) -> Vec<u8> {
        let device = self.device().display().to_string();
        with_mount(&["-t", kind, "-o", "ro", &device], |folder| {
            fs::read(folder.join(file)).expect("the file is on the storage side")
        })
    }
}

fn with_mount<T>(what: &[&str], work: impl FnOnce(&Path) -> T) -> T {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let point = folder.path().display().to_string();
    let mut words = vec!["mount"];
    words.extend(what);
    words.push(&point);
    command::run(&words);
    let result = work(folder.path());
    command::run(&["umount", &point]);
    result
}

/// Tells udev, once it has nothing to do, of the zvols that it gave up because ZFS did not open them.
pub fn tell_udev_again() {
    if !Path::new("/run/udev/data").exists() || Path::new("/run/udev/queue").exists() {
        return;
    }
    let devices = configfs::names(Path::new("/sys/block"));
    for device in devices.iter().filter(|device| device.starts_with("zd")) {
        let device = Path::new("/sys/block").join(device);
        let number = fs::read_to_string(device.join("dev")).unwrap_or_default();
        let known = format!("/run/udev/data/b{}", number.trim());
        if !Path::new(&known).exists() {
            // It may be gone by now.
            let _ = fs::write(device.join("uevent"), "add");
        }
    }
}
