//! Subvolumes of btrfs, and what the filesystem counts and allows for each.
//!
//! Each subvolume has a qgroup of its number, where quotas are enabled. The layouts are those of
//! `linux/btrfs.h` and `linux/btrfs_tree.h`. The ioctls take no `O_PATH` descriptors.

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// The number of the ioctls of btrfs.
const BTRFS: u8 = 0x94;
/// `f_type` of btrfs.
pub const MAGIC: i64 = 0x9123_683E;
/// The inode number of the top directory of each subvolume.
const TOP: u64 = 256;
/// The tree of quotas, and the types of its items.
const QUOTA_TREE: u64 = 8;
const STATUS: u32 = 240;
const COUNTED: u32 = 242;
const LIMIT: u32 = 244;
/// Flags of the status. Nothing is counted after `INCONSISTENT`, until all is counted again.
const ON: u64 = 1;
const COUNTING: u64 = 1 << 1;
const INCONSISTENT: u64 = 1 << 2;
/// The flag of a limit of all bytes of a subvolume, those that it shares included.
const REFERENCED: u64 = 1;

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct NewSubvolume {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
struct Lookup {
    subvolume: u64,
    inode: u64,
    name: [u8; 4080],
}

/// `struct btrfs_ioctl_search_args`.
#[repr(C)]
struct Search {
    tree: u64,
    objects: [u64; 2],
    offsets: [u64; 2],
    transactions: [u64; 2],
    types: [u32; 2],
    items: u32,
    unused: u32,
    more_unused: [u64; 4],
    found: [u8; 3992],
}

/// `struct btrfs_ioctl_qgroup_create_args`.
#[repr(C)]
struct QgroupChange {
    create: u64,
    id: u64,
}

/// `struct btrfs_ioctl_qgroup_limit_args`.
#[repr(C)]
struct QgroupLimit {
    id: u64,
    flags: u64,
    referenced: u64,
    exclusive: u64,
    reserved: [u64; 2],
}

/// Whether a filesystem enforces limits of subvolumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quotas {
    /// It does not count.
    Off,
    /// It has lost count.
    Inconsistent,
    /// It does, or will when it has counted what it has.
    On,
}

/// The use and the limit of a subvolume, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// As of the last commit of the filesystem, at most half a minute ago.
    pub bytes: u64,
    /// 0 for any number.
    pub limit: u64,
}

/// Makes an empty subvolume; its mode is 0777 without the bits of the umask.
pub fn create(parent: impl AsFd, name: &str) -> Result<(), Errno> {
    let mut wanted = NewSubvolume {
        fd: 0,
        name: [0; 4088],
    };
    // The last byte stays NUL.
    if name.len() >= wanted.name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    wanted.name[..name.len()].copy_from_slice(name.as_bytes());
    call(parent, &mut wanted)
}

/// The number of the subvolume whose top an open directory is; `None` if it is no such top.
pub fn id(dir: impl AsFd) -> Result<Option<u64>, Errno> {
    let is_top = rustix::fs::fstat(&dir)?.st_ino == TOP;
    if !is_top || rustix::fs::fstatfs(&dir)?.f_type != MAGIC {
        return Ok(None);
    }
    let mut lookup = Lookup {
        subvolume: 0,
        inode: TOP,
        name: [0; 4080],
    };
    call(dir, &mut lookup)?;
    Ok(Some(lookup.subvolume))
}

/// Whether the filesystem of `fd` enforces limits.
pub fn quotas(fd: impl AsFd) -> Result<Quotas, Errno> {
    let flags = item(fd, STATUS, 0)?.map_or(0, |[_, _, flags, ..]| flags);
    Ok(state(flags))
}

/// The quota of a subvolume on the filesystem of `fd`. `NOENT` if there is none.
pub fn quota(fd: impl AsFd, id: u64) -> Result<Quota, Errno> {
    let [_, bytes, ..] = item(&fd, COUNTED, id)?.ok_or(Errno::NOENT)?;
    let limit = match item(fd, LIMIT, id)? {
        Some([flags, bytes, ..]) if flags & REFERENCED != 0 => bytes,
        _ => 0,
    };
    Ok(Quota { bytes, limit })
}

/// Sets the limit of a subvolume, in bytes; 0 takes it away.
pub fn set_limit(fd: impl AsFd, id: u64, bytes: u64) -> Result<(), Errno> {
    let mut wanted = QgroupLimit {
        id,
        flags: REFERENCED,
        referenced: if bytes == 0 { u64::MAX } else { bytes },
        exclusive: 0,
        reserved: [0; 2],
    };
    call(fd, &mut wanted)
}

/// Removes the qgroup of a subvolume that was deleted. `BUSY` while its blocks are being freed.
pub fn remove_quota(fd: impl AsFd, id: u64) -> Result<(), Errno> {
    call(fd, &mut QgroupChange { create: 0, id })
}

fn state(flags: u64) -> Quotas {
    if flags & ON == 0 {
        Quotas::Off
    } else if flags & (INCONSISTENT | COUNTING) == INCONSISTENT {
        Quotas::Inconsistent
    } else {
        Quotas::On
    }
}

/// The first numbers of an item of the tree of quotas; `None` if there is no such item, or no tree.
fn item(fd: impl AsFd, kind: u32, id: u64) -> Result<Option<[u64; 3]>, Errno> {
    let mut search = Search {
        tree: QUOTA_TREE,
        objects: [0; 2],
        offsets: [id; 2],
        transactions: [0, u64::MAX],
        types: [kind; 2],
        items: 1,
        unused: 0,
        more_unused: [0; 4],
        found: [0; 3992],
    };
    match call(fd, &mut search) {
        Ok(()) if search.items > 0 => {}
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    // Behind a `btrfs_ioctl_search_header`.
    let numbers = search.found[32..].as_chunks::<8>().0;
    Ok(Some(
        [0, 1, 2].map(|place: usize| u64::from_le_bytes(numbers[place])),
    ))
}

/// Structures that one ioctl reads or writes.
trait Data {
    const OPCODE: Opcode;
}

impl Data for NewSubvolume {
    const OPCODE: Opcode = opcode::write::<Self>(BTRFS, 14);
}

impl Data for Search {
    const OPCODE: Opcode = opcode::read_write::<Self>(BTRFS, 17);
}

impl Data for Lookup {
    const OPCODE: Opcode = opcode::read_write::<Self>(BTRFS, 18);
}

impl Data for QgroupChange {
    const OPCODE: Opcode = opcode::write::<Self>(BTRFS, 42);
}

impl Data for QgroupLimit {
    const OPCODE: Opcode = opcode::read::<Self>(BTRFS, 43);
}

struct Call<'a, T>(&'a mut T);

#[expect(unsafe_code, reason = "rustix has none of the ioctls of btrfs")]
// SAFETY: the number of each ioctl holds the size of its data, which the kernel compares; the kernel reads or
// writes that much and keeps no pointer. Any bytes are a valid value of each of the types.
unsafe impl<T: Data> Ioctl for Call<'_, T> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        T::OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

fn call<T: Data>(fd: impl AsFd, data: &mut T) -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "rustix has none of the ioctls of btrfs")]
    // SAFETY: as above. Another filesystem has no ioctl of these numbers: they hold the sizes of their data.
    unsafe {
        rustix::ioctl::ioctl(fd, Call(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<NewSubvolume>(), 4096);
        assert_eq!(size_of::<Lookup>(), 4096);
        assert_eq!(std::mem::offset_of!(Search, found), 104);
        assert_eq!(size_of::<Search>(), 4096);
        assert_eq!(size_of::<QgroupChange>(), 16);
        assert_eq!(size_of::<QgroupLimit>(), 48);
    }

    #[test]
    fn another_filesystem_has_no_subvolumes() {
        let proc = std::fs::File::open("/proc").expect("open");
        assert_eq!(id(&proc), Ok(None));
        assert!(quotas(&proc).is_err());
        assert!(create(&proc, "one").is_err());
    }

    #[test]
    fn quotas_that_lost_count_are_not_enforced_and_those_that_are_being_counted_are() {
        assert_eq!(state(0), Quotas::Off);
        assert_eq!(state(INCONSISTENT), Quotas::Off);
        assert_eq!(state(ON), Quotas::On);
        assert_eq!(state(ON | INCONSISTENT), Quotas::Inconsistent);
        assert_eq!(state(ON | INCONSISTENT | COUNTING), Quotas::On);
    }
}
