//! The staging record: the facts for a detach, on disk so that they survive a crash.
//!
//! It is an extended attribute of the staging directory, written before anything is attached and covered once the
//! volume is mounted. Unmounting uncovers it, and it is deleted with the directory. It is a hint: a volume that an
//! older driver staged has none, and then sysfs is used.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::devices::Facts;
use crate::{mount, nvme};
use csi_types::attachment::{AbsolutePath, Attachment};
use csi_types::error::{Error, Kind};

/// Only root sees the first; filesystems without it may have the second.
const NAMES: [&str; 2] = ["trusted.omnibus-csi", "user.omnibus-csi"];

/// Says that a mounted filesystem has not been brought to the size of its device yet.
const UNFINISHED: [&str; 2] = [
    "trusted.omnibus-csi.unfinished",
    "user.omnibus-csi.unfinished",
];

/// Says that this driver uses the directory or file as a mount point.
const MARK: [&str; 2] = ["trusted.omnibus-csi.target", "user.omnibus-csi.target"];

/// Says that a volume is handed to the guest of a pod: on its staging directory and on the target.
const HANDED: [&str; 2] = ["trusted.omnibus-csi.kata", "user.omnibus-csi.kata"];

/// The volume as its storage has described it: the ways to it that may be opened again while it is mounted.
const WAYS: [&str; 2] = ["trusted.omnibus-csi.ways", "user.omnibus-csi.ways"];

/// The size of the read buffer. A record has a few lines and is always smaller.
const BUFFER_SIZE: usize = 16 * 1024;

/// Adds `facts` to the record of the opened directory, in one step. What is there already stays: an
/// earlier call may have attached it. `false`: this filesystem keeps no records.
pub(super) fn add(directory: impl AsFd, facts: &Facts) -> Result<bool, Error> {
    let mut all = read(&directory)?;
    if all.contains(facts) {
        return Ok(true);
    }
    all.push(facts.clone());
    let lines: Vec<&str> = all.iter().map(Facts::as_str).collect();
    write(&directory, lines.join("\n").as_bytes())
}

/// The record of the opened directory.
pub(super) fn read(directory: impl AsFd) -> Result<Vec<Facts>, Error> {
    let path = link(&directory);
    let mut facts = Vec::new();
    for name in NAMES {
        let mut text = vec![0; BUFFER_SIZE];
        match rustix::fs::getxattr(&path, name, &mut text) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&text[..length]).into_owned();
                facts.extend(text.lines().filter_map(Facts::parse));
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(failed("read", errno)),
        }
    }
    Ok(facts)
}

/// Removes the record of the opened directory, after the detach.
pub(super) fn clear(directory: impl AsFd) -> Result<(), Error> {
    remove(UNFINISHED, &directory)?;
    remove(HANDED, &directory)?;
    remove(WAYS, &directory)?;
    remove(NAMES, directory)
}

fn remove(names: [&str; 2], directory: impl AsFd) -> Result<(), Error> {
    let path = link(&directory);
    for name in names {
        match rustix::fs::removexattr(&path, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(failed("clear", errno)),
        }
    }
    Ok(())
}

/// Marks an opened directory or file as a mount point of this driver. `true` if it was not marked before.
/// Best effort: without a mark only paths below the folders of the orchestrator are released.
pub(super) fn mark(place: impl AsFd) -> bool {
    let path = link(&place);
    for name in MARK {
        match rustix::fs::setxattr(&path, name, b"1", XattrFlags::CREATE) {
            Ok(()) => return true,
            Err(Errno::EXIST) => return false,
            Err(_) => {}
        }
    }
    false
}

/// Removes the mark.
pub(super) fn unmark(place: impl AsFd) -> Result<(), Error> {
    remove(MARK, place)
}

/// Whether an opened directory or file is marked as a mount point of this driver.
pub(super) fn is_marked(place: impl AsFd) -> bool {
    let path = link(&place);
    MARK.iter()
        .any(|name| rustix::fs::getxattr(&path, *name, &mut [0; 8]).is_ok())
}

/// Records that a volume is handed to a guest; replaces what is there. `false`: this filesystem keeps no records.
pub(super) fn keep_handed(directory: impl AsFd, text: &str) -> Result<bool, Error> {
    write_as(HANDED, directory, text.as_bytes())
}

/// What [`keep_handed`] has written.
pub(super) fn handed(directory: impl AsFd) -> Result<Option<String>, Error> {
    read_as(HANDED, directory)
}

fn read_as(names: [&str; 2], directory: impl AsFd) -> Result<Option<String>, Error> {
    let path = link(&directory);
    for name in names {
        let mut text = vec![0; BUFFER_SIZE];
        match rustix::fs::getxattr(&path, name, &mut text) {
            Ok(length) => return Ok(Some(String::from_utf8_lossy(&text[..length]).into_owned())),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(failed("read", errno)),
        }
    }
    Ok(None)
}

/// Removes what [`keep_handed`] has written.
pub(super) fn forget_handed(directory: impl AsFd) -> Result<(), Error> {
    remove(HANDED, directory)
}

/// Keeps the ways to a volume, before the mount covers the opened directory. Best effort: without them a way that is lost
/// stays so until the next stage. A volume that says a key is not kept.
pub(super) fn keep_ways(directory: impl AsFd, volume: &Attachment) {
    if matches!(volume, Attachment::Nvmeof(volume) if nvme::says_key(volume)) {
        return;
    }
    let text = serde_json::to_string(&volume.to_context()).unwrap_or_default();
    if let Err(error) = write_as(WAYS, directory, text.as_bytes()) {
        tracing::debug!(error = %error.chain(), "the ways to a volume are not kept");
    }
}

/// The volume that [`keep_ways`] has written below the mount at `path`.
pub(super) fn ways(path: &AbsolutePath) -> Option<Attachment> {
    let covered = mount::open_covered(path.as_path()).ok()?;
    let text = read_as(WAYS, covered).ok()??;
    Attachment::parse(&serde_json::from_str(&text).ok()?).ok()
}

/// Marks a stage as unfinished, before the mount covers the opened directory.
pub(super) fn begin(directory: impl AsFd) -> Result<(), Error> {
    write_as(UNFINISHED, directory, b"1").map(drop)
}

/// Whether what is mounted at `path` covers the mark of an unfinished stage. Where that cannot be
/// found out it does not: old kernels do not show what is covered.
pub(super) fn is_unfinished(path: &AbsolutePath) -> bool {
    let Ok(covered) = mount::open_covered(path.as_path()) else {
        return false;
    };
    let path = link(&covered);
    UNFINISHED
        .iter()
        .any(|name| rustix::fs::getxattr(&path, *name, &mut [0; 8]).is_ok())
}

/// Removes the mark below the mount at `path`.
pub(super) fn finish(path: &AbsolutePath) -> Result<(), Error> {
    match mount::open_covered(path.as_path()) {
        Ok(covered) => remove(UNFINISHED, covered),
        Err(_) => Ok(()),
    }
}

fn write(directory: impl AsFd, text: &[u8]) -> Result<bool, Error> {
    write_as(NAMES, directory, text)
}

fn write_as(names: [&str; 2], directory: impl AsFd, text: &[u8]) -> Result<bool, Error> {
    let path = link(&directory);
    for name in names {
        match rustix::fs::setxattr(&path, name, text, XattrFlags::empty()) {
            Ok(()) => return Ok(true),
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(failed("write", errno)),
        }
    }
    Ok(false)
}

/// Attributes cannot be reached through a descriptor that only stands for a path, but through its
/// link in procfs.
fn link(directory: impl AsFd) -> String {
    format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())
}

fn failed(verb: &str, errno: Errno) -> Error {
    let doing = format!("{verb} the record of the staging directory");
    Error::new(Kind::Internal, doing).because(errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::Place;
    use crate::testing::with_own_mounts;

    #[test]
    fn a_mark_is_seen_and_taken_away_below_what_covers_it() {
        with_own_mounts(|base| {
            for name in ["s", "v"] {
                std::fs::create_dir(base.join(name)).expect("dir");
            }
            let path = AbsolutePath::parse(base.join("s").to_str().expect("text")).expect("path");
            begin(Place::open(path.as_path()).expect("open")).expect("mark");
            crate::testing::bind_plainly(&base.join("v"), path.as_path());
            assert!(is_unfinished(&path));
            finish(&path).expect("finish");
            assert!(!is_unfinished(&path));
            mount::unmount(path.as_path()).expect("unmount");
        });
    }

    #[test]
    fn a_record_keeps_every_attachment_until_it_is_cleared() {
        with_own_mounts(|base| {
            let place = Place::open(base).expect("open");
            let facts = |text: &str| Facts::parse(text).expect("facts");
            assert!(read(&place).expect("read").is_empty());
            assert!(add(&place, &facts("iscsi one")).expect("add"));
            assert!(add(&place, &facts("nvme two")).expect("add"));
            assert!(add(&place, &facts("iscsi one")).expect("again"));
            let both = [facts("iscsi one"), facts("nvme two")];
            assert_eq!(read(&place).expect("read"), both);
            clear(&place).expect("clear");
            clear(&place).expect("again");
            assert!(read(&place).expect("read").is_empty());
        });
    }
}
