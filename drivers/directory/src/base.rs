//! The base directory of a driver, and the proof that it is the right one.
//!
//! A base is often a mounted filesystem. While it is not mounted, its path leads to an empty directory
//! of another disk, or to none. To use that would make volumes on the wrong disk, and would report
//! volumes as deleted that still exist. So a base carries a marker file with an id, and the node keeps
//! a record of the id of each base that it has used. The record lies outside of the base, in a directory
//! that survives a restart of the process.
//!
//! | in the base | on record | answer |
//! |---|---|---|
//! | a marker, or directories of volumes or snapshots | nothing, or the same id | in use |
//! | a marker with another id, or none | an id | error, unless the base may always be created |
//! | nothing of ours, or no directory | nothing | never used, or an error if the base may not be created |
//!
//! Marker and record are read only if the marker is another file than the one that was read last, or has changed
//! since: each call looks its mount, device, inode and time of change up, by one system call.
//!
//! Where the base is on a share, it counts without a marker only if its filesystem is that of a share.
//!
//! A base with volumes but without a marker was used by an earlier release or by democratic-csi. It is in
//! use, and gets its marker by the next call that changes something.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use csi_types::AbsolutePath;
use driver_core::{Error, Kind};
use node_utils::Root;
use node_utils::beneath::{BeneathErrorKind, Mounts, open_beneath};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};

use crate::crash_points;
use crate::disk;
use crate::failure::failed;
use crate::kind::DirectoryKind;
use crate::staging_area::LockFile;
use crate::store::Collection;

/// The name of the marker in the base.
pub(crate) const MARKER: &str = ".omnibus-csi-base";
/// The lock of the process that makes a marker.
const MARKER_LOCK: &str = ".omnibus-csi-base.lock";
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
    /// By the first volume, whatever the record says: nothing is ever mounted there.
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
    /// Where this node keeps its records, if there is such a place.
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
struct BaseId(String);

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
        let valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        valid.then(|| Self(id.to_owned()))
    }
}

/// 32 hexadecimal digits that nothing else has.
pub(crate) fn random_digits() -> Result<String, Errno> {
    let mut bytes = [0_u8; 16];
    // The kernel never cuts a request of up to 256 bytes short.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
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
            records,
            seen: Mutex::default(),
        }
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
        std::fs::create_dir_all(self.path.as_path())
            .map_err(|error| fail(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        crash_points::mark("make base");
        let root = Root::open(&self.path)
            .map_err(|error| Error::new(Kind::Unreachable, self.doing()).because(error))?;
        let id = self.mark(&root).map_err(fail)?;
        self.remember(&id);
        Ok(root)
    }

    /// Whether the directory is in use as this base, and how; an error if it may be the wrong one. And whether
    /// what was found needs no record, or is the one on record.
    fn is_used(&self, root: Option<&Root>) -> Result<(Option<Marked>, bool), Error> {
        let marker = root.map_or(Ok(None), |root| self.marker(root))?;
        let record = self.record()?;
        let always = self.creation == Creation::Always;
        let used = match (marker, record) {
            (Some(found), Some(expected)) if found == expected => {
                return Ok((Some(Marked(true)), true));
            }
            (Some(found), Some(expected)) if !always => {
                return Err(self.refuse(BaseError::Other {
                    expected: expected.0,
                    found: found.0,
                }));
            }
            (Some(found), _) => {
                self.remember(&found);
                return Ok((Some(Marked(true)), self.records.is_none()));
            }
            (None, Some(expected)) if !always => {
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
        let _lock = LockFile::take(root.as_fd(), MARKER_LOCK)?;
        if let Ok(Some(id)) = self.marker(root) {
            return Ok(id);
        }
        let id = BaseId::random()?;
        write_new(root.as_fd(), MARKER_NEW, &format!("{VERSION} {}\n", id.0))?;
        crash_points::mark("write marker");
        rustix::fs::renameat(root, MARKER_NEW, root, MARKER)?;
        crash_points::mark("name marker");
        disk::open_dir(root, ".").and_then(rustix::fs::fsync)?;
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

    /// Where the id of this base is on record.
    fn record_path(&self) -> Option<AbsolutePath> {
        self.records
            .as_ref()
            .map(|dir| dir.child(&self.record_name()))
    }

    fn record_name(&self) -> String {
        name_of("base", self.path.as_str())
    }

    /// The record that says that the repository at `location` was used, if there is one.
    pub(crate) fn record_of_use(&self, location: &str) -> Option<AbsolutePath> {
        let record = self.records.as_ref()?;
        let record = record.child(&name_of("repository", location));
        record.as_path().exists().then_some(record)
    }

    /// Records that the repository at `location` is in use: where it is missing later, no new one is made.
    pub(crate) fn record_use(&self, location: &str) {
        let Some(records) = &self.records else {
            return;
        };
        if self.record_of_use(location).is_some() {
            return;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let written = rustix::fs::open(records.as_path(), flags, Mode::empty()).and_then(|dir| {
            let text = format!("{VERSION} used\n");
            write_new(&dir, &name_of("repository", location), &text)?;
            rustix::fs::fsync(&dir)
        });
        if let Err(errno) = written {
            tracing::debug!(%records, error = %errno, "cannot record the repository");
        }
    }

    /// Puts the id on record. Failing that, the base is served without this protection.
    fn remember(&self, id: &BaseId) {
        let Some(records) = &self.records else {
            return;
        };
        if let Err(errno) = self.write_record(records, id) {
            tracing::debug!(base = %self.path, %records, error = %errno, "cannot record the base");
        }
    }

    fn write_record(&self, records: &AbsolutePath, id: &BaseId) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(records.as_path(), flags, Mode::empty())?;
        let new = format!(".{}.{}", self.record_name(), BaseId::random()?.0);
        let text = format!("{VERSION} {} {}\n", id.0, self.path);
        let written = write_new(&dir, &new, &text)
            .and_then(|()| rustix::fs::renameat(&dir, &*new, &dir, self.record_name()));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&dir, &*new, AtFlags::empty());
        }
        written.and_then(|()| rustix::fs::fsync(&dir))
    }

    /// Warns if a base that is not mounted would not be noticed after a restart.
    pub(crate) fn warn_without_record(&self) {
        let Some(records) = self
            .records
            .as_ref()
            .filter(|_| self.creation != Creation::Always)
        else {
            return;
        };
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
        let advice = match (&why, record) {
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
            _ => Kind::Unreachable,
        };
        Error::new(kind, self.doing()).because(why).advise(advice)
    }
}

/// The name of a record.
fn name_of(what: &str, of: &str) -> String {
    format!("{what}-{}", hex(&Sha256::digest(of)[..8]))
}

/// Removes what a process left that was killed while it made the marker.
pub(crate) fn remove_leftovers(root: &Root) -> Result<(), Errno> {
    if [MARKER_LOCK, MARKER_NEW]
        .iter()
        .all(|name| disk::is_absent(root, *name))
    {
        return Ok(());
    }
    let _lock = LockFile::take(root.as_fd(), MARKER_LOCK)?;
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

fn read(dir: impl AsFd, name: &str) -> Result<Vec<u8>, Errno> {
    read_all(open_beneath(dir, name, OFlags::RDONLY, Mounts::Enter)?)
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
