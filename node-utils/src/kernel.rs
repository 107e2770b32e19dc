//! The place where the kernel shows itself: sysfs, the device nodes and procfs, as plain files.
//!
//! Nothing is interpreted here and nothing is remembered; what an attribute means is known to the
//! module that reads it. The truth is in sysfs(5) and in the kernel's `Documentation/ABI`; a test
//! points a [`Kernel`] at a tree that was captured from a real one.

#[cfg(test)]
pub(crate) mod testing;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::device::DeviceNumber;

/// No attribute that is read here is longer; the kernel itself stops at a page.
const LONGEST: u64 = 64 * 1024;

/// The trees in which the kernel shows devices and processes, and the files of the machine that
/// belong to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    root: PathBuf,
    captured: bool,
}

// === impl Kernel ===

impl Kernel {
    /// The kernel that runs this process.
    pub fn here() -> Self {
        Self {
            root: PathBuf::from("/"),
            captured: false,
        }
    }

    /// A captured one, below `root`. There, a plain file that holds
    /// `major:minor` stands for a device node, which only root could make.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            captured: true,
        }
    }

    /// A path in sysfs.
    pub fn sys(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join("sys").join(below)
    }

    /// A path among the device nodes.
    pub fn dev(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join("dev").join(below)
    }

    /// A path in procfs.
    pub fn proc(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join("proc").join(below)
    }

    /// A file of the system that this process sees: in a container, that of the image.
    pub fn file(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }

    /// A file of the host, where its root is mounted into the container as in the image.
    pub fn host_file(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join("host").join(below)
    }

    /// The device that a path stands for, links followed; `None` if there is nothing or it is no
    /// block device.
    pub fn device_number(&self, path: &Path) -> io::Result<Option<DeviceNumber>> {
        let metadata = match std::fs::metadata(path) {
            Err(error) if is_absence(&error) => return Ok(None),
            result => result?,
        };
        if metadata.file_type().is_block_device() {
            return Ok(Some(DeviceNumber::from_raw(metadata.rdev())));
        }
        if self.captured && metadata.is_file() {
            return Ok(read(path)?.and_then(|text| DeviceNumber::parse(&text)));
        }
        Ok(None)
    }
}

/// The text of an attribute without the white space around it; `None` if there is no such
/// attribute, or the device behind it is gone.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    Ok(read_bytes(path)?.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
}

/// The bytes of an attribute, as [`read`].
pub fn read_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if is_absence(&error) => return Ok(None),
        result => result?,
    };
    let mut bytes = Vec::new();
    match file.take(LONGEST).read_to_end(&mut bytes) {
        Err(error) if is_absence(&error) => Ok(None),
        result => result.map(|_| Some(bytes)),
    }
}

/// The whole text of a file of procfs, which has no bound of its own; `None` as for [`read`].
pub fn read_all(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read(path) {
        Err(error) if is_absence(&error) => Ok(None),
        result => result.map(|bytes| Some(String::from_utf8_lossy(&bytes).into_owned())),
    }
}

/// The names in a directory in order; none if there is no such directory.
pub fn list(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        result => result?,
    };
    let mut names = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => names.extend(entry.file_name().into_string().ok()),
            // The directory was removed while it was read.
            Err(error) if is_absence(&error) => break,
            Err(error) => return Err(error),
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Writes an attribute in one system call, as the kernel wants it; `false` if there is no such
/// attribute, or the device behind it is gone. May block for as long as the kernel works on it.
pub fn write(path: &Path, text: &str) -> io::Result<bool> {
    // Never created: a plain file in the place of an attribute would look like success.
    let result = OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    match result {
        Ok(()) => {
            #[cfg(test)]
            testing::written(path, text);
            Ok(true)
        }
        Err(error) if is_absence(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether this means that what was asked for is not there (any more).
pub fn is_absence(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NXIO)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_no_error_and_is_never_created() {
        let dir = tempfile::tempdir().expect("directory");
        let missing = dir.path().join("a");
        assert_eq!(read(&missing).expect("read"), None);
        assert_eq!(read(&missing.join("b")).expect("read"), None);
        assert!(list(&missing).expect("list").is_empty());
        assert!(!write(&missing, "1").expect("write"));
        assert!(!missing.exists());
    }

    #[test]
    fn an_attribute_is_read_without_its_line_end() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("size");
        std::fs::write(&path, "2048\n").expect("write");
        assert_eq!(read(&path).expect("read").as_deref(), Some("2048"));
        assert!(write(&path, "1").expect("write"));
        assert_eq!(list(dir.path()).expect("list"), ["size"]);
    }

    #[test]
    fn only_a_captured_kernel_takes_a_plain_file_for_a_device() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("sda");
        std::fs::write(&path, "8:0\n").expect("write");
        let number = DeviceNumber { major: 8, minor: 0 };
        let captured = Kernel::at(dir.path()).device_number(&path);
        assert_eq!(captured.expect("look"), Some(number));
        assert_eq!(Kernel::here().device_number(&path).expect("look"), None);
        let missing = Kernel::here().device_number(&dir.path().join("sdb"));
        assert_eq!(missing.expect("look"), None);
    }

    #[test]
    fn a_captured_listing_becomes_a_tree_again() {
        let tree = testing::Tree::from_listing(
            "sys/devices/x/size = 8\nsys/class/block/x -> ../../devices/x\nsys/devices/x/empty/\n",
        );
        let kernel = tree.kernel();
        let size = read(&kernel.sys("class/block/x/size")).expect("read");
        assert_eq!(size.as_deref(), Some("8"));
        assert_eq!(tree.read("sys/devices/x/size"), "8\n");
        assert_eq!(
            list(&kernel.sys("class/block/x")).expect("list"),
            ["empty", "size"]
        );
    }
}
