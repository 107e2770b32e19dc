//! The base directory of a driver, and the proof that it is the right one.
//!
//! A base is often a mounted filesystem. While it is not mounted, its path leads to an empty directory
//! of another disk, or to none. To use that would make volumes on the wrong disk, and would report
//! volumes as deleted that still exist. So a base carries a marker file with an id, and the node keeps
//! a record of the id of each base that it has used. The record lies outside of the base, in a directory
//! that survives a restart of the process.
//!
//! | in the base | on record, or in the configuration | answer |
//! |---|---|---|
//! | a marker, or directories of volumes or snapshots | nothing, or the same id | in use |
//! | a marker with another id, or none | an id | error |
//! | nothing of ours, or no directory | nothing | never used, or an error if the base may not be created |
//!
//! Marker and record are read only if the marker is another file than the one that was read last, or has changed
//! since: each call looks its mount, device, inode and time of change up, by one system call.
//!
//! Where the base is on a share, it counts without a marker only if its filesystem is that of a share.
//!
//! A base with volumes but without a marker was used by an earlier release or by democratic-csi. It is in
//! use, and gets its marker by the next call that changes something.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use csi_types::{AbsolutePath, hex};
use driver_core::config::Finding;
use driver_core::{Error, Kind};
use node_utils::Root;
use node_utils::beneath::{BeneathErrorKind, Mounts, open_beneath};
use node_utils::mount::MountTable;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};

use crate::collection::Collection;
use crate::crash_points;
use crate::disk;
use crate::failure::failed;
use crate::kind::DirectoryKind;
use crate::share;
use crate::staging_area::lock_marker;

/// The name of the marker in the base.
pub(crate) const MARKER: &str = ".omnibus-csi-base";
/// The name of a marker that is not written completely.
const MARKER_NEW: &str = ".omnibus-csi-base.new";
/// The first word of a marker and of a record: the version of their form.
const VERSION: &str = "1";
/// No marker and no record is longer: a path has at most 4096 bytes.
const MAX_TEXT: usize = 4096 + 64;

/// When a base that does not exist is created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Creation {
    /// By the first volume, unless the node has a record of it.
    #[default]
    IfNeverUsed,
    /// By each volume that finds none which was used before: nothing is ever mounted there.
    Always,
    /// By the administrator only.
    Never,
}

/// Why a base cannot be used. Its volumes and snapshots may still exist elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaseError {
    /// The node has used this base, and now it has no marker, or does not exist.
    #[error(
        "it is not the base with the id {0} that was used before; its filesystem may not be mounted"
    )]
    NotMounted(String),
    /// The marker is that of another base.
    #[error(
        "it is the base with the id {found}, and the one with the id {expected} was used before"
    )]
    Other {
        /// The id on record.
        expected: String,
        /// The id in the base.
        found: String,
    },
    /// There is no marker, and the filesystem is that of this machine.
    #[error("it has no marker, and is not on a mounted share")]
    NoShare,
    /// There is nothing of this driver, and the base is not to be created.
    #[error("it has neither a marker nor volumes; its filesystem may not be mounted")]
    Empty,
    /// There is nothing of this driver, so nothing can be deleted there.
    #[error("no volume was ever made in it; its filesystem may not be mounted")]
    NeverUsed,
    /// It would be made where it does not stay.
    #[error("it would be new, on {0}, the root filesystem of this process, which does not last")]
    Passing(&'static str),
    /// A marker or a record that cannot be read.
    #[error("{0} is damaged")]
    Damaged(AbsolutePath),
}

/// The base directory of one driver.
#[derive(Debug)]
pub(crate) struct Base {
    kind: DirectoryKind,
    path: AbsolutePath,
    creation: Creation,
    /// The id that the configuration names.
    configured: Option<BaseId>,
    /// The path by which nodes look for the base, if it is a directory of the node.
    node_path: Option<AbsolutePath>,
    /// The path where this node keeps its records, if there is such a place.
    records: Option<AbsolutePath>,
    /// The marker that was last found to be the one on record.
    seen: Mutex<Option<Identity>>,
}

/// The marker as a file. That of another base was made at another time; on a copy of the disk it is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    mount: u64,
    device: (u32, u32),
    inode: u64,
    changed: (i64, u32),
}

/// Whether a base that is in use has its marker.
#[derive(Debug, Clone, Copy)]
struct Marked(bool);

/// The id of a base, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseId(String);

// === impl BaseId ===

impl BaseId {
    fn random() -> Result<Self, Errno> {
        random_digits().map(Self)
    }

    /// Reads a marker or a record: the version, the id, and in a record the path.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let id = words
            .next()
            .filter(|word| *word == VERSION)
            .and(words.next())?;
        Self::new(id)
    }

    /// An id as the configuration names it.
    pub(crate) fn new(id: &str) -> Option<Self> {
        let valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        valid.then(|| Self(id.to_ascii_lowercase()))
    }
}

/// 32 hexadecimal digits that nothing else has.
pub(crate) fn random_digits() -> Result<String, Errno> {
    let mut bytes = [0_u8; 16];
    // The kernel never cuts a request of up to 256 bytes short.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

// === impl Identity ===

impl Identity {
    fn of(root: &Root) -> Option<Self> {
        let wanted = StatxFlags::INO | StatxFlags::CTIME | StatxFlags::MNT_ID;
        let found = rustix::fs::statx(root, MARKER, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
        let said = StatxFlags::from_bits_retain(found.stx_mask);
        said.contains(wanted).then_some(Self {
            mount: found.stx_mnt_id,
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        })
    }
}

// === impl Base ===

impl Base {
    pub(crate) fn new(
        kind: DirectoryKind,
        path: AbsolutePath,
        creation: Creation,
        records: Option<AbsolutePath>,
    ) -> Self {
        Self {
            kind,
            path,
            creation,
            configured: None,
            node_path: None,
            records,
            seen: Mutex::default(),
        }
    }

    /// The base with this id only.
    pub(crate) fn with_id(mut self, id: Option<BaseId>) -> Self {
        self.configured = id;
        self
    }

    /// The base that nodes look for at this path.
    pub(crate) fn for_nodes(mut self, path: Option<AbsolutePath>) -> Self {
        self.node_path = path;
        self
    }

    /// The path by which nodes look for the base, if that is another directory of this machine, or none. Two paths of one
    /// directory, such as by a bind mount, are no fault.
    pub(crate) fn misled_nodes(&self, root: &Root) -> Option<Finding> {
        let node_path = self
            .node_path
            .as_ref()
            .filter(|node_path| **node_path != self.path)?;
        let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
        let own = rustix::fs::fstat(root).ok().map(identity)?;
        let why = match rustix::fs::stat(node_path.as_path()).map(identity) {
            Ok(found) if found == own => return None,
            Ok(_) => "which is another directory",
            Err(Errno::NOENT | Errno::NOTDIR) => "which is not there",
            // It cannot be seen from here.
            Err(_) => return None,
        };
        let own = &self.path;
        Some(Finding::doubtful(
            format!("{}.shareBasePath", self.kind.section()),
            format!(
                "volumes are made in {own} (`controllerBasePath`), and nodes look for them in {node_path}, {why}"
            ),
            format!(
                "set it to {own}; it is right only if pods are served by a process that has the base at {node_path}"
            ),
        ))
    }

    pub(crate) fn path(&self) -> &AbsolutePath {
        &self.path
    }

    /// Opens the base for reading; `None` if it was never used.
    pub(crate) fn open(&self) -> Result<Option<Root>, Error> {
        Ok(self.look()?.map(|(root, _)| root))
    }

    /// Opens it, and says whether it has its marker.
    fn look(&self) -> Result<Option<(Root, Marked)>, Error> {
        let root = match Root::open(&self.path) {
            Ok(root) => Some(root),
            Err(error) if error.kind() == BeneathErrorKind::NotFound => None,
            Err(error) => {
                let kind = match error.kind() {
                    BeneathErrorKind::Denied => Kind::Internal,
                    _ => Kind::Unreachable,
                };
                return Err(Error::new(kind, self.doing()).because(error).advise(
                    "`controllerBasePath` has to be a directory that this process can use",
                ));
            }
        };
        let identity = root.as_ref().and_then(Identity::of);
        if self.is_seen(identity) {
            return Ok(root.map(|root| (root, Marked(true))));
        }
        let (used, is_recorded) = self.is_used(root.as_ref())?;
        if is_recorded {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = identity;
        }
        Ok(root.zip(used))
    }

    fn is_seen(&self, identity: Option<Identity>) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        identity.is_some() && *seen == identity
    }

    /// Opens the base to delete something in it: nothing is reported as deleted from a base that was
    /// never used, unless nothing can be mounted there.
    pub(crate) fn open_to_delete(&self) -> Result<Option<Root>, Error> {
        match self.look()? {
            None if self.creation != Creation::Always => Err(self.refuse(BaseError::NeverUsed)),
            None => Ok(None),
            Some((root, marked)) => Ok(Some(self.adopted(root, marked))),
        }
    }

    /// Opens the base to make something in it; creates one that was never used.
    pub(crate) fn open_or_create(&self) -> Result<Root, Error> {
        if let Some((root, marked)) = self.look()? {
            return Ok(self.adopted(root, marked));
        }
        let fail = |errno| failed(format!("creating the base directory {}", self.path), errno);
        // A command that tries something out keeps nothing anyway.
        if self.records.is_some() {
            self.refuse_passing()?;
        }
        std::fs::create_dir_all(self.path.as_path())
            .map_err(|error| fail(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        crash_points::mark("make base");
        let root = Root::open(&self.path)
            .map_err(|error| Error::new(Kind::Unreachable, self.doing()).because(error))?;
        let id = self.mark(&root).map_err(fail)?;
        tracing::info!(base = %self.path, base_id = id.0, "made the base directory");
        self.remember(&id);
        Ok(root)
    }

    /// Refuses a new base in the layer of a container, or on a root filesystem in memory: its volumes would be gone
    /// with the container or the next boot, also where the directory itself is part of the image.
    pub(crate) fn refuse_passing(&self) -> Result<(), Error> {
        if self.creation == Creation::Always {
            return Ok(());
        }
        let found = self.nearest(passing_root);
        match found.map_err(|errno| failed(self.doing(), errno))? {
            Some(name) => Err(self.refuse(BaseError::Passing(name))),
            None => Ok(()),
        }
    }

    /// Whether the directory is in use as this base, and how; an error if it may be the wrong one. And whether
    /// what was found needs no record, or is the one on record.
    fn is_used(&self, root: Option<&Root>) -> Result<(Option<Marked>, bool), Error> {
        let marker = root.map_or(Ok(None), |root| self.marker(root))?;
        let known = match &self.configured {
            Some(id) => Some(id.clone()),
            None => self.record()?,
        };
        let always = self.creation == Creation::Always;
        let used = match (marker, known) {
            (Some(found), Some(expected)) if found == expected => {
                return Ok((Some(Marked(true)), true));
            }
            (Some(found), Some(expected)) => {
                return Err(self.refuse(BaseError::Other {
                    expected: expected.0,
                    found: found.0,
                }));
            }
            (Some(found), None) => {
                self.remember(&found);
                return Ok((Some(Marked(true)), self.records.is_none()));
            }
            (None, Some(expected)) => {
                return Err(self.refuse(BaseError::NotMounted(expected.0)));
            }
            (None, _) if !always && !self.is_on_share(root)? => {
                return Err(self.refuse(BaseError::NoShare));
            }
            (None, _) if root.is_some_and(has_collections) => Some(Marked(false)),
            (None, _) if self.creation == Creation::Never => {
                return Err(self.refuse(BaseError::Empty));
            }
            (None, _) => None,
        };
        Ok((used, false))
    }

    /// Whether the share has to be mounted before this can be the base: it has no marker, and lies on a
    /// filesystem of this machine.
    pub(crate) fn lacks_share(&self) -> Result<bool, Error> {
        if self.creation == Creation::Always {
            return Ok(false);
        }
        let root = match Root::open(&self.path) {
            Ok(root) => Some(root),
            Err(error) if error.kind() == BeneathErrorKind::NotFound => None,
            // The same look says why, with all that is to be done about it.
            Err(_) => return Ok(false),
        };
        let is_marked = root
            .as_ref()
            .is_some_and(|root| !matches!(self.marker(root), Ok(None)));
        Ok(!is_marked && !self.is_on_share(root.as_ref())?)
    }

    /// Whether the base is on the filesystem of a share, if it has to be.
    fn is_on_share(&self, root: Option<&Root>) -> Result<bool, Error> {
        if !self.kind.is_of_share() {
            return Ok(true);
        }
        let stat = match root {
            Some(root) => rustix::fs::fstatfs(root),
            None => self.nearest(|path| rustix::fs::statfs(path)),
        };
        let stat = stat.map_err(|errno| failed(self.doing(), errno))?;
        Ok(self.kind.is_mounted_as(&stat))
    }

    /// The option by which the share of the base is mounted that keeps locks from other machines, if there is one.
    pub(crate) fn option_that_loses_locks(&self, root: &Root) -> Option<String> {
        if !self.kind.is_of_share() {
            return None;
        }
        let wanted = StatxFlags::MNT_ID;
        let found = rustix::fs::statx(root, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        let table = MountTable::read().ok()?;
        share::option_that_loses_locks(&table.by_id(found.stx_mnt_id)?)
    }

    /// Asks about the base or, if it does not exist, about the directory in which it would be made.
    pub(crate) fn nearest<T>(&self, ask: impl Fn(&Path) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut path = self.path.as_path();
        loop {
            match (ask(path), path.parent()) {
                (Err(Errno::NOENT), Some(parent)) => path = parent,
                (done, _) => return done,
            }
        }
    }

    /// The base, which gets a marker if it is of before markers. Without one it is served all the same.
    fn adopted(&self, root: Root, marked: Marked) -> Root {
        if marked.0 {
            return root;
        }
        match self.mark(&root) {
            Ok(id) => {
                tracing::info!(base = %self.path, base_id = id.0, "marked the base directory");
                self.remember(&id);
            }
            Err(errno) => {
                tracing::warn!(base = %self.path, error = %errno, "cannot mark the base directory");
            }
        }
        root
    }

    /// Makes the marker, unless another process was faster.
    fn mark(&self, root: &Root) -> Result<BaseId, Errno> {
        let _lock = lock_marker(root)?;
        if let Ok(Some(id)) = self.marker(root) {
            return Ok(id);
        }
        let id = BaseId::random()?;
        put(root, MARKER, &format!("{VERSION} {}\n", id.0))?;
        Ok(id)
    }

    fn marker(&self, root: &Root) -> Result<Option<BaseId>, Error> {
        let path = self.path.child(MARKER);
        self.parsed(&path, read(root.as_fd(), MARKER))
    }

    fn record(&self) -> Result<Option<BaseId>, Error> {
        let Some(path) = self.record_path() else {
            return Ok(None);
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path.as_path(), flags, Mode::empty());
        self.parsed(&path, file.and_then(|file| read_all(&file)))
    }

    fn parsed(
        &self,
        path: &AbsolutePath,
        text: Result<Vec<u8>, Errno>,
    ) -> Result<Option<BaseId>, Error> {
        let text = match text {
            Ok(text) => text,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(format!("reading {path}"), errno)),
        };
        let id = std::str::from_utf8(&text).ok().and_then(BaseId::parse);
        id.map(Some)
            .ok_or_else(|| self.refuse(BaseError::Damaged(path.clone())))
    }

    /// The path where the id of this base is on record.
    fn record_path(&self) -> Option<AbsolutePath> {
        self.records
            .as_ref()
            .map(|dir| dir.child(&self.record_name()))
    }

    fn record_name(&self) -> String {
        name_of("base", self.path.as_str())
    }

    /// The file that says that the repository at `location` was used, and the id that it had, if there is one. It is in
    /// the base, which outlives this process and its folders.
    pub(crate) fn record_of_use(
        &self,
        location: &str,
    ) -> Result<Option<(AbsolutePath, String)>, Error> {
        let name = use_of(location);
        let Some(root) = self.open()? else {
            return Ok(None);
        };
        let text = match read(root.as_fd(), &name) {
            Ok(text) => String::from_utf8(text).unwrap_or_default(),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(format!("reading {}", self.path.child(&name)), errno)),
        };
        let id = text.split_ascii_whitespace().nth(1).unwrap_or_default();
        let is_id = id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let record = self.path.child(&name);
        Ok(Some((record, if is_id { id } else { "" }.to_owned())))
    }

    /// Whether records are kept at all.
    pub(crate) fn keeps_records(&self) -> bool {
        self.records.is_some()
    }

    /// Records that the repository at `location` is in use, and its id: where it is missing later, no new one is made.
    pub(crate) fn record_use(&self, location: &str, id: &str) {
        let Ok(Some(root)) = self.open() else {
            return;
        };
        let text = format!("{VERSION} {id}\n");
        let recorded = lock_marker(&root).and_then(|_lock| put(&root, &use_of(location), &text));
        if let Err(errno) = recorded {
            tracing::warn!(
                base = %self.path,
                error = %errno,
                "cannot record the repository in the base: if it is missing later, a new one is made in its place"
            );
        }
    }

    /// Puts the id on record. Failing that, the base is served without this protection.
    fn remember(&self, id: &BaseId) {
        let Some(records) = &self.records else {
            return;
        };
        let text = format!("{VERSION} {} {}\n", id.0, self.path);
        if let Err(errno) = write_record(records, &self.record_name(), &text) {
            tracing::debug!(base = %self.path, %records, error = %errno, "cannot record the base");
        }
    }

    /// Warns if a base that is not mounted would not be noticed after a restart.
    pub(crate) fn warn_without_record(&self) {
        let Some(records) = self.records.as_ref().filter(|_| self.configured.is_none()) else {
            return;
        };
        if let Ok(Some(filesystem)) = passing_root(records.as_path()) {
            tracing::warn!(
                base = %self.path,
                %records,
                filesystem,
                "the record of the base directories goes with this container or boot: after that, one that is not \
                 mounted would be taken for a new one; keep that folder on the machine, or set `baseId`"
            );
        }
        let access = Access::WRITE_OK | Access::EXEC_OK;
        if let Err(errno) = rustix::fs::accessat(CWD, records.as_path(), access, AtFlags::EACCESS) {
            tracing::warn!(
                base = %self.path,
                %records,
                error = %errno,
                "cannot record which base directories are in use: after a restart, one that is not \
                 mounted would be taken for a new one"
            );
        }
    }

    fn doing(&self) -> String {
        format!("using the base directory {}", self.path)
    }

    fn refuse(&self, why: BaseError) -> Error {
        let record = self.record_path();
        // What is mounted nowhere would be in the layer of a container: neither a directory nor `createBase` helps.
        let passes = matches!(self.nearest(passing_root), Ok(Some(_)));
        let advice = match (&why, record) {
            (
                BaseError::Empty | BaseError::NeverUsed | BaseError::NoShare | BaseError::Passing(_),
                _,
            ) if passes => format!(
                "mount a directory of the machine or the filesystem of the base at {}: what is made there without one \
                 goes with this container or boot; only if it may be lost, set `createBase: true`",
                self.path
            ),
            (BaseError::NotMounted(_) | BaseError::Other { .. }, _) if self.configured.is_some() => {
                "mount the filesystem of the base; if the base was replaced on purpose, correct `baseId`: the id is in \
                 the file `.omnibus-csi-base` of the base, which the first volume makes while the key is left out"
                    .to_owned()
            }
            (BaseError::NotMounted(_) | BaseError::Other { .. }, Some(record)) => format!(
                "mount the filesystem of the base; if the base was replaced on purpose, remove {record}"
            ),
            (BaseError::Empty, _) => format!(
                "mount the filesystem of the base; if it is new, make the directory {}/{}",
                self.path,
                Collection::Volumes.dir()
            ),
            (BaseError::NoShare, _) => format!(
                "mount the share at {}; if this is the server itself, set `createBase: true`",
                self.path
            ),
            (BaseError::Damaged(path), _) => format!("compare {path} with a backup, or remove it"),
            _ => "mount the filesystem of the base; if nothing is ever mounted there, set \
                  `createBase: true`"
                .to_owned(),
        };
        let kind = match why {
            BaseError::Damaged(_) => Kind::Internal,
            BaseError::Passing(_) => Kind::Busy,
            _ => Kind::Unreachable,
        };
        Error::new(kind, self.doing()).because(why).advise(advice)
    }
}

/// Writes a record, which is there as a whole or not at all.
fn write_record(records: &AbsolutePath, name: &str, text: &str) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(records.as_path(), flags, Mode::empty())?;
    let new = format!(".{name}.{}", random_digits()?);
    let written =
        write_new(&dir, &new, text).and_then(|()| rustix::fs::renameat(&dir, &*new, &dir, name));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(&dir, &*new, AtFlags::empty());
    }
    written.and_then(|()| rustix::fs::fsync(&dir))
}

/// Writes a file of the base, which is there as a whole or not at all. The marker has to be locked.
fn put(root: &Root, name: &str, text: &str) -> Result<(), Errno> {
    write_new(root.as_fd(), MARKER_NEW, text)?;
    crash_points::mark("write marker");
    rustix::fs::renameat(root, MARKER_NEW, root, name)?;
    crash_points::mark("name marker");
    disk::open_dir(root, ".").and_then(rustix::fs::fsync)
}

/// Whether a path is on a root filesystem that does not last, and what that is.
fn passing_root(path: &Path) -> Result<Option<&'static str>, Errno> {
    let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev);
    if device(path)? != device(Path::new("/"))? {
        return Ok(None);
    }
    Ok(passing(rustix::fs::statfs(path)?.f_type))
}

/// What a filesystem is called whose content ends with a container or a boot, where it is that of the root.
fn passing(f_type: i64) -> Option<&'static str> {
    match f_type {
        0x794c_7630 => Some("overlayfs"),
        0x0102_1994 => Some("tmpfs"),
        0x8584_58f6 => Some("ramfs"),
        _ => None,
    }
}

/// The name of the file that says which repository at `location` was used.
fn use_of(location: &str) -> String {
    format!(".omnibus-csi-{}", name_of("repository", location))
}

/// The name of a record.
fn name_of(what: &str, of: &str) -> String {
    format!("{what}-{}", hex(&Sha256::digest(of)[..8]))
}

/// Removes what a process left that was killed while it made the marker.
pub(crate) fn remove_leftovers(root: &Root) -> Result<(), Errno> {
    if disk::is_absent(root, MARKER_NEW) {
        return Ok(());
    }
    let _lock = lock_marker(root)?;
    match rustix::fs::unlinkat(root, MARKER_NEW, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// Whether there are directories of volumes or snapshots, of this driver or of democratic-csi.
fn has_collections(root: &Root) -> bool {
    let collections = [Collection::Volumes, Collection::Snapshots];
    // Also one that is no directory: it is an error for the call that opens it, and no empty base.
    collections
        .iter()
        .any(|collection| !disk::is_absent(root, collection.dir()))
}

/// Reads a file that others may write to, or replace: by a pipe, which must not be waited for.
fn read(dir: impl AsFd, name: &str) -> Result<Vec<u8>, Errno> {
    let file = open_beneath(dir, name, OFlags::RDONLY | OFlags::NONBLOCK, Mounts::Enter)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    if kind != FileType::RegularFile {
        // No text: it is damaged.
        return Ok(Vec::new());
    }
    read_all(file)
}

fn read_all(file: impl AsFd) -> Result<Vec<u8>, Errno> {
    let mut text = vec![0; MAX_TEXT];
    let mut length = 0;
    loop {
        match rustix::io::read(&file, &mut text[length..])? {
            0 => break,
            read => length += read,
        }
    }
    text.truncate(length);
    Ok(text)
}

/// Writes a file, to the disk.
fn write_new(dir: impl AsFd, name: &str, text: &str) -> Result<(), Errno> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let file = rustix::fs::openat(dir, name, flags, mode)?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    rustix::fs::fsync(&file)
}
