//! A new tree on the disk before it gets its name: after a power loss the content must be there if the name is.
//!
//! `syncfs` writes whatever waits for the disk, also that of other pods: beside a gigabyte of theirs it takes two
//! seconds. So a small tree is written file by file, which takes 0.2 s for a thousand files. Beyond that each file's
//! own flush costs more than the rest of the disk.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{Advice, AtFlags, FileType, OFlags};
use rustix::io::Errno;

use crate::disk;

/// The most entries that are written one by one.
const MOST: usize = 1000;
/// The most directories above an entry: each is open while its entries are written.
const DEPTH: usize = 16;

/// What is done with each file and directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The kernel begins to write, so that all files get their place on the disk in one transaction.
    Start,
    Finish,
}

/// Writes the tree to the disk, and itself.
pub(crate) fn write_out(tree: BorrowedFd<'_>) -> Result<(), Errno> {
    match one_by_one(tree, MOST) {
        Ok(true) => Ok(()),
        // Without root a file whose mode forbids it is not opened.
        Ok(false) | Err(Errno::ACCESS | Errno::PERM) => rustix::fs::syncfs(tree),
        Err(errno) => Err(errno),
    }
}

/// Writes a tree of up to `most` entries; `false` if there are more.
fn one_by_one(tree: BorrowedFd<'_>, most: usize) -> Result<bool, Errno> {
    for step in [Step::Start, Step::Finish] {
        let mut left = most;
        if !below(tree, step, DEPTH, &mut left)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Does `step` for what is below a directory, and for itself; `false` if that is too much or too deep.
fn below(dir: BorrowedFd<'_>, step: Step, depth: usize, left: &mut usize) -> Result<bool, Errno> {
    let listed = disk::open_dir(dir, c".")?;
    for (name, kind) in disk::entries(listed.as_fd())? {
        let Some(now) = left.checked_sub(1) else {
            return Ok(false);
        };
        *left = now;
        let name = name.as_c_str();
        match kind_of(dir, name, kind)? {
            FileType::Directory => {
                let Some(depth) = depth.checked_sub(1) else {
                    return Ok(false);
                };
                let child = disk::open_dir(dir, name)?;
                if !below(child.as_fd(), step, depth, left)? {
                    return Ok(false);
                }
            }
            FileType::RegularFile => file(&open(dir, name)?, step)?,
            // The directory has all there is of a link, a pipe or a device.
            _ => {}
        }
    }
    if step == Step::Finish {
        rustix::fs::fsync(&listed)?;
    }
    Ok(true)
}

fn kind_of(dir: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Result<FileType, Errno> {
    if listed != FileType::Unknown {
        return Ok(listed);
    }
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

fn open(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    // A pipe in its place must not hold this thread.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    open_beneath(dir, name, flags, Mounts::Refuse)
}

fn file(file: &OwnedFd, step: Step) -> Result<(), Errno> {
    match step {
        // Only a hint: without it the flush of each file is a transaction of its own, and slower.
        Step::Start => {
            let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
            Ok(())
        }
        Step::Finish => rustix::fs::fsync(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;

    fn open_tree(path: &std::path::Path) -> OwnedFd {
        std::fs::File::open(path).expect("open").into()
    }

    #[test]
    fn a_tree_with_entries_of_every_kind_is_written_without_waiting_for_anything_else() {
        let top = tempfile::tempdir().expect("folder");
        std::fs::create_dir_all(top.path().join("a/b")).expect("folders");
        for name in ["one", "a/two", "a/b/three"] {
            std::fs::write(top.path().join(name), name).expect("file");
        }
        std::os::unix::fs::symlink("/nowhere", top.path().join("link")).expect("link");
        let tree = open_tree(top.path());
        rustix::fs::mknodat(&tree, "pipe", FileType::Fifo, Mode::RWXU, 0).expect("pipe");
        assert_eq!(one_by_one(tree.as_fd(), 7), Ok(true));
        assert_eq!(one_by_one(tree.as_fd(), 6), Ok(false), "too many");
        write_out(tree.as_fd()).expect("written");
        let text = std::fs::read_to_string(top.path().join("a/b/three"));
        assert_eq!(text.expect("file"), "a/b/three");
    }

    #[test]
    fn a_tree_that_is_too_deep_is_left_to_the_whole_filesystem() {
        let top = tempfile::tempdir().expect("folder");
        let deepest = |levels: usize| vec!["d"; levels].join("/");
        std::fs::create_dir_all(top.path().join(deepest(DEPTH))).expect("folders");
        let tree = open_tree(top.path());
        assert_eq!(one_by_one(tree.as_fd(), MOST), Ok(true));
        std::fs::create_dir(top.path().join(deepest(DEPTH + 1))).expect("folder");
        assert_eq!(one_by_one(tree.as_fd(), MOST), Ok(false));
        write_out(tree.as_fd()).expect("written");
    }
}
