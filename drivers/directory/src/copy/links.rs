//! Files with several names: the first name that is found is copied, the others are linked to that copy.
//!
//! Until the end each such copy has one more name in a folder beside the target, because the directory
//! of its first name may not be open any more.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

use super::identity;
use crate::crash_points;
use crate::disk;

/// The place where the copies wait for their other names, beside the target.
const LINKS: &str = "links";

type Inode = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct Links {
    known: Mutex<Known>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    /// The name in the folder; `None` while the file is being copied.
    files: HashMap<Inode, Option<u64>>,
    folder: Option<Arc<OwnedFd>>,
    next: u64,
}

/// What is known of a file.
pub(super) enum Found<'a> {
    /// It has one name only.
    Single,
    /// It is to be copied, and other names of it wait for that.
    First(First<'a>),
    /// It was copied, and this is its number.
    Copied(u64),
}

/// The first name of a file. If its copy is not kept, the next name is the first one.
pub(super) struct First<'a> {
    links: &'a Links,
    inode: Inode,
}

// === impl Links ===

impl Links {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while another name of the file is being copied.
    pub(super) fn find(&self, stat: &Stat) -> Found<'_> {
        let inode = identity(stat);
        let mut known = self.known();
        loop {
            match known.files.get(&inode) {
                None if stat.st_nlink < 2 => return Found::Single,
                None => {
                    known.files.insert(inode, None);
                    return Found::First(First { links: self, inode });
                }
                Some(Some(number)) => return Found::Copied(*number),
                Some(None) => {
                    let woken = self.changed.wait(known);
                    known = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Gives a copy a further name.
    pub(super) fn link(&self, number: u64, to: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let folder = self.known().folder.clone().ok_or(Errno::NOENT)?;
        rustix::fs::linkat(folder, number.to_string(), to, name, AtFlags::empty())?;
        crash_points::mark("link file");
        Ok(())
    }

    /// Takes the extra names away, so that link counts are those of the source.
    pub(super) fn remove(&self, beside: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut known = self.known();
        let Some(folder) = known.folder.take() else {
            return Ok(());
        };
        for number in known.files.values().flatten() {
            rustix::fs::unlinkat(&folder, number.to_string(), AtFlags::empty())?;
            crash_points::mark("unlink");
        }
        rustix::fs::unlinkat(beside, LINKS, AtFlags::REMOVEDIR)
    }
}

// === impl First ===

impl First<'_> {
    /// Keeps the copy, `name` in `to`, for the other names.
    pub(super) fn keep(
        self,
        beside: BorrowedFd<'_>,
        to: &OwnedFd,
        name: &CStr,
    ) -> Result<(), Errno> {
        let mut known = self.links.known();
        let folder = if let Some(folder) = &known.folder {
            Arc::clone(folder)
        } else {
            rustix::fs::mkdirat(beside, LINKS, Mode::RWXU)?;
            let made = Arc::new(disk::open_path(beside, LINKS)?);
            known.folder = Some(Arc::clone(&made));
            made
        };
        let number = known.next;
        known.next += 1;
        drop(known);
        rustix::fs::linkat(to, name, folder, number.to_string(), AtFlags::empty())?;
        crash_points::mark("keep link");
        self.links.known().files.insert(self.inode, Some(number));
        Ok(())
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        let mut known = self.links.known();
        if known.files.get(&self.inode) == Some(&None) {
            known.files.remove(&self.inode);
        }
        self.links.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_further_name_is_linked_also_when_it_is_the_last_one_left() {
        let top = tempfile::tempdir().expect("folder");
        let (one, two) = (top.path().join("one"), top.path().join("two"));
        std::fs::write(&one, "content").expect("file");
        std::fs::hard_link(&one, &two).expect("link");
        let dir = OwnedFd::from(std::fs::File::open(top.path()).expect("open"));
        let look = |name| rustix::fs::statat(&dir, name, AtFlags::empty()).expect("look");
        let links = Links::default();
        for _ in 0..2 {
            let found = links.find(&look(c"one"));
            assert!(matches!(found, Found::First(_)), "it was not kept before");
        }
        let Found::First(first) = links.find(&look(c"one")) else {
            panic!("it was not kept before");
        };
        std::fs::write(top.path().join("copy"), "content").expect("file");
        first.keep(dir.as_fd(), &dir, c"copy").expect("kept");
        std::fs::remove_file(&one).expect("remove");
        let Found::Copied(number) = links.find(&look(c"two")) else {
            panic!("it was copied");
        };
        links.link(number, &dir, c"other").expect("linked");
        links.remove(dir.as_fd()).expect("removed");
        assert_eq!(look(c"copy").st_ino, look(c"other").st_ino);
        assert_eq!(look(c"copy").st_nlink, 2);
        std::fs::write(&one, "another one").expect("file");
        assert!(matches!(links.find(&look(c"one")), Found::Single));
    }
}
