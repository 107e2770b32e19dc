//! The kernel's list of mounts, `/proc/thread-self/mountinfo`, read line by line on demand.
//!
//! Lines are split on access and paths are decoded when they are compared: asking
//! about one mount among thousands allocates nothing. A line that cannot be understood is skipped,
//! because a newer kernel may know more than we do.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::place::Place;

/// Of this thread, not of the process: threads may differ in their mounts, as tests do.
const SOURCE: &str = "/proc/thread-self/mountinfo";

/// Room for some hundred mounts.
const INITIAL_CAPACITY: usize = 64 * 1024;

/// Filesystems with a server somewhere else.
const SERVERS: [&str; 8] = [
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "9p",
];

/// The text that the kernel adds to the root of a mount whose directory was removed.
const DELETED: &[u8] = b"//deleted";

/// A path as the mount table spells it, without links. Only its last component may be on a filesystem
/// that does not answer, and that is not accessed.
pub(crate) fn as_listed(path: &Path) -> PathBuf {
    match (path.parent().map(std::fs::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// The text of a mount table.
#[derive(Debug, Clone)]
pub struct MountTable(Vec<u8>);

/// One mount: a line of the table, split but not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountEntry<'a> {
    /// Its number.
    pub id: u64,
    /// The number of the mount it is mounted on.
    pub parent: u64,
    /// Major and minor device number of its filesystem.
    pub device: (u32, u32),
    root: &'a [u8],
    point: &'a [u8],
    options: &'a [u8],
    fs_type: &'a [u8],
    source: &'a [u8],
    super_options: &'a [u8],
}

/// A directory or file of a filesystem. Visible at several paths if the filesystem is mounted several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    device: (u32, u32),
    path: PathBuf,
}

// === impl MountTable ===

impl MountTable {
    /// Reads the table as it is now.
    pub fn read() -> io::Result<Self> {
        // Few large reads: what changes between two of them may be missed or seen twice.
        let mut text = Vec::with_capacity(INITIAL_CAPACITY);
        std::fs::File::open(SOURCE)?.read_to_end(&mut text)?;
        Ok(Self(text))
    }

    /// A table from its text.
    pub fn from_text(text: impl Into<Vec<u8>>) -> Self {
        Self(text.into())
    }

    /// The mounts in the order of the kernel: what is mounted over another comes after it.
    pub fn entries(&self) -> impl Iterator<Item = MountEntry<'_>> {
        self.0
            .split(|byte| *byte == b'\n')
            .filter_map(MountEntry::parse)
    }

    /// The mounts at exactly this path, spelled as the table does, the lowest layer first.
    pub fn layers<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = MountEntry<'a>> {
        self.entries().filter(move |entry| entry.is_at(path))
    }

    /// Where a mount is mounted, in terms of the filesystem below it. `None` if that is not visible.
    pub(crate) fn location(&self, mount: &MountEntry<'_>) -> Option<Location> {
        let mut mount = *mount;
        loop {
            let parent = self
                .by_id(mount.parent)
                .filter(|parent| parent.id != mount.id)?;
            if parent.point != mount.point {
                return parent.locate(&mount.point());
            }
            // A lower layer at the same path.
            mount = parent;
        }
    }

    /// Whether two entries are one mount that is visible at two paths: the folder that it is in is itself
    /// mounted at two paths, such as the root of the host at `/host`, or the data disk of the kubelet.
    pub(crate) fn is_same_mount(&self, one: &MountEntry<'_>, other: &MountEntry<'_>) -> bool {
        one.point == other.point || {
            let location = self.location(one);
            location.is_some() && location == self.location(other)
        }
    }

    /// The directory or file of `place`, whichever mounts it is visible through. `None` if the table does
    /// not know.
    pub(crate) fn location_of(&self, place: &Place) -> Option<Location> {
        let entry = place.entry(self)?;
        if place.is_mount_point() {
            self.location(&entry)
        } else {
            entry.locate(&place.canonical().ok()?)
        }
    }

    /// Whether a mount is mounted at this directory or file.
    pub(crate) fn is_mounted_at(&self, mount: &MountEntry<'_>, location: &Location) -> bool {
        self.location(mount).as_ref() == Some(location)
    }

    /// The mount with this number.
    pub fn by_id(&self, id: u64) -> Option<MountEntry<'_>> {
        self.entries().find(|entry| entry.id == id)
    }
}

// === impl MountEntry ===

impl<'a> MountEntry<'a> {
    /// Splits one line: `id parent major:minor root point options tag* - type source options`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line
            .split(|byte| *byte == b' ')
            .filter(|field| !field.is_empty());
        let id = number(fields.next()?)?;
        let parent = number(fields.next()?)?;
        let device = fields.next()?;
        let colon = device.iter().position(|byte| *byte == b':')?;
        let device = (
            u32::try_from(number(&device[..colon])?).ok()?,
            u32::try_from(number(&device[colon + 1..])?).ok()?,
        );
        let root = fields.next()?;
        let point = fields.next()?;
        let options = fields.next()?;
        // Any number of optional fields, ended by a single hyphen.
        fields.find(|field| *field == b"-")?;
        Some(Self {
            id,
            parent,
            device,
            root,
            point,
            options,
            fs_type: fields.next()?,
            // The source may be the empty string, and then the super options stand in its place.
            source: fields.next().unwrap_or_default(),
            super_options: fields.next().unwrap_or_default(),
        })
    }

    /// The place where it is mounted.
    pub fn point(&self) -> Cow<'a, Path> {
        path(decode(self.point))
    }

    /// The directory of its filesystem that is shown there.
    pub fn root(&self) -> Cow<'a, Path> {
        path(decode(self.root.strip_suffix(DELETED).unwrap_or(self.root)))
    }

    /// The directory or file at `path`, which this mount shows.
    pub(crate) fn locate(&self, path: &Path) -> Option<Location> {
        let relative = path.strip_prefix(&*self.point()).ok()?;
        // Without a trailing slash where it is the root of the mount.
        let path = self
            .root()
            .components()
            .chain(relative.components())
            .collect();
        Some(Location {
            device: self.device,
            path,
        })
    }

    /// Whether that directory was removed since.
    pub fn is_deleted(&self) -> bool {
        self.root.ends_with(DELETED)
    }

    /// Whether it is mounted at exactly this path.
    pub fn is_at(&self, path: &Path) -> bool {
        decode(self.point) == path.as_os_str().as_bytes()
    }

    /// Whether both show the same directory of the same filesystem. All directories of one NFS export that are
    /// mounted have the same number and the root `/`; the source tells them apart.
    pub fn shows_the_same_as(&self, other: &MountEntry<'_>) -> bool {
        let is_same = self.device == other.device && self.root == other.root;
        is_same && (!self.is_remote() || self.source == other.source)
    }

    /// Whether this mount is read-only, whatever its filesystem is.
    pub fn is_read_only(&self) -> bool {
        has_word(self.options, b"ro")
    }

    /// Whether the filesystem itself is read-only. ext4 says so in words of its own after an error,
    /// since Linux 6.15.
    pub fn is_filesystem_read_only(&self) -> bool {
        [&b"ro"[..], b"emergency_ro", b"shutdown"]
            .iter()
            .any(|word| has_word(self.super_options, word))
    }

    /// The options of its filesystem, with commas between them.
    pub fn filesystem_options(&self) -> Cow<'a, str> {
        text(decode(self.super_options))
    }

    /// The type of its filesystem.
    pub fn fs_type(&self) -> Cow<'a, str> {
        text(decode(self.fs_type))
    }

    /// Whether its filesystem depends on a server or a process.
    pub(crate) fn is_remote(&self) -> bool {
        let name = self.fs_type();
        SERVERS.contains(&&*name) || name.starts_with("fuse")
    }

    /// The device or share it comes from, as its filesystem spells it.
    pub fn source(&self) -> Cow<'a, str> {
        text(decode(self.source))
    }
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn has_word(options: &[u8], word: &[u8]) -> bool {
    options
        .split(|byte| *byte == b',')
        .any(|option| option == word)
}

fn path(bytes: Cow<'_, [u8]>) -> Cow<'_, Path> {
    match bytes {
        Cow::Borrowed(bytes) => Cow::Borrowed(Path::new(OsStr::from_bytes(bytes))),
        Cow::Owned(bytes) => Cow::Owned(Path::new(OsStr::from_bytes(&bytes)).to_owned()),
    }
}

fn text(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Undoes the octal escapes of the kernel, `\040` and the like. Anything else stays as it is.
fn decode(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(field);
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) =
            (first, tail)
        {
            bytes.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = tail;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    const TABLE: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:25 / /proc rw,nosuid,nodev,noexec,relatime shared:12 master:3 propagate_from:4 unbindable - proc proc rw
41 22 8:1 /data/v/a//deleted /stage\\040one ro,relatime - ext4 /dev/sda1 rw
nonsense
42 22 8:17 / /t rw - ext4 /dev/sdb1 ro
43 42 0:60 /x\\134y\\011\\012 /t rw - tmpfs  rw,size=1k
44 22 x:y / /bad rw - tmpfs tmpfs rw
";

    #[test]
    fn every_field_of_a_line_is_understood_and_bad_lines_are_skipped() {
        let table = MountTable::from_text(TABLE);
        assert_eq!(
            table.entries().map(|entry| entry.id).collect::<Vec<_>>(),
            [22, 30, 41, 42, 43]
        );
        let stage = table.by_id(41).expect("entry");
        assert_eq!(stage.point(), PathBuf::from("/stage one"));
        assert_eq!(stage.root(), PathBuf::from("/data/v/a"));
        assert_eq!((stage.parent, stage.device), (22, (8, 1)));
        assert!(stage.is_deleted() && stage.is_read_only() && !stage.is_filesystem_read_only());
        assert!(table.by_id(42).expect("entry").is_filesystem_read_only());
        let root = table.by_id(22).expect("entry");
        assert_eq!((&*root.fs_type(), &*root.source()), ("ext4", "/dev/sda1"));
        assert!(
            !root.is_filesystem_read_only(),
            "errors=remount-ro is not ro"
        );
        assert_eq!(
            table.by_id(43).expect("entry").root(),
            PathBuf::from("/x\\y\t\n")
        );
    }

    #[test]
    fn layers_come_from_the_bottom_up() {
        let table = MountTable::from_text(TABLE);
        let layers: Vec<_> = table
            .layers(Path::new("/t"))
            .map(|entry| entry.id)
            .collect();
        assert_eq!(layers, [42, 43]);
        assert_eq!(table.layers(Path::new("/nowhere")).count(), 0);
    }

    #[test]
    fn the_table_of_this_thread_has_a_root() {
        let table = MountTable::read().expect("read");
        assert!(table.layers(Path::new("/")).count() > 0);
    }

    fn encode(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |mut text, byte| {
            if matches!(byte, b' ' | b'\t' | b'\n' | b'\\') || !byte.is_ascii_graphic() {
                let _ = write!(text, "\\{byte:03o}");
            } else {
                text.push(char::from(*byte));
            }
            text
        })
    }

    proptest! {
        #[test]
        fn what_the_kernel_escapes_is_read_back(name in "[^/\0]{1,40}", id in any::<u64>()) {
            let line = format!(
                "{id} 1 0:1 /{0} /mnt/{0} rw - tmpfs tmpfs rw\n", encode(name.as_bytes())
            );
            let table = MountTable::from_text(line);
            let entry = table.by_id(id).expect("entry");
            let point = PathBuf::from(format!("/mnt/{name}"));
            prop_assert!(entry.is_at(&point));
            prop_assert_eq!(entry.point(), point);
        }

        #[test]
        fn no_text_makes_the_reader_fail(text in prop::collection::vec(any::<u8>(), 0..400)) {
            for entry in MountTable::from_text(text).entries() {
                let _ = (entry.point(), entry.root(), entry.source(), entry.is_deleted());
            }
        }

        #[test]
        fn cutting_a_table_short_loses_lines_but_invents_none(length in 0..TABLE.len()) {
            let whole: Vec<u64> =
                MountTable::from_text(TABLE).entries().map(|entry| entry.id).collect();
            let cut = MountTable::from_text(&TABLE.as_bytes()[..length]);
            let ids: Vec<u64> = cut.entries().map(|entry| entry.id).collect();
            prop_assert_eq!(&whole[..ids.len()], &ids[..]);
        }
    }
}
