//! The error messages of `zfs` and of its host, and their meaning.
//!
//! The table of the tests, in `words`, lists the versions with each message, and the source.

use driver_core::Kind;

use super::{KEPT, NO_TURN, NOT_INSTALLED};
use driver_zfs::step::Next;

/// A part of a message, its kind, how to continue, and the advice.
pub(super) type Reason = (&'static str, Kind, Next, &'static str);

const ALLOW: &str = "set zfs.cli.sudoEnabled, log in as root, or see `zfs allow`";
const ROOT: &str = "set zfs.cli.sudoEnabled, or log in as root";
const PROPERTIES: &str =
    "see zfs.datasetProperties and zfs.snapshotProperties in the configuration";
const NAMES: &str = "shorten zfs.datasetParentName, or _private.csi.volume.idTemplate";
const PART: &str = "another process receives into it: wait until it ends, or end it with \
                    `zfs receive -A` on the storage host";
const CHANGED: &str =
    "what has come there was changed, and takes no more: give the move up, and start it anew";
const SNAPSHOT_TAKEN: &str = "a snapshot was taken of what has come: exclude the dataset from snapshot tasks of that \
                              storage, destroy that snapshot, and run the round again";
/// ZFS also reports a reached limit of datasets or snapshots as missing space.
const FULL: &str =
    "the pool or a quota above is full, or a filesystem_limit or snapshot_limit above is reached";
const MODULES: &str = "the storage host has not loaded ZFS";

/// The first match counts: longer parts come first.
pub(super) const OF_ZFS: &[Reason] = &[
    (
        "its pool is not imported",
        Kind::Unreachable,
        Next::Tell,
        "import the pool: see `zpool import` on the storage host",
    ),
    (
        "no such pool '",
        Kind::Unreachable,
        Next::Tell,
        "import the pool: see `zpool import` on the storage host",
    ),
    // Before the message of the system about it.
    (
        "modules are not loaded",
        Kind::Unreachable,
        Next::Tell,
        MODULES,
    ),
    (
        "modules cannot be auto-loaded",
        Kind::Unreachable,
        Next::Tell,
        MODULES,
    ),
    (
        "/proc/self/mounts are required",
        Kind::Unreachable,
        Next::Tell,
        MODULES,
    ),
    ("Failed to load ", Kind::Unreachable, Next::Tell, MODULES),
    (
        "has children",
        Kind::Busy,
        Next::Observe,
        "something appeared on or below it just now",
    ),
    (
        "snapshot is cloned",
        Kind::Busy,
        Next::Observe,
        "it was just cloned",
    ),
    (
        "conflicting snapshot",
        Kind::Busy,
        Next::Tell,
        "two snapshots of the same name would collide: rename or destroy one of them",
    ),
    (
        "outside its encryption root",
        Kind::Busy,
        Next::Tell,
        "a clone of an encrypted dataset depends on the one it was made of",
    ),
    (
        "it's being held",
        Kind::Busy,
        Next::Tell,
        "a hold (zfs holds) keeps a snapshot",
    ),
    (
        KEPT,
        Kind::Busy,
        Next::Wait,
        "frequent changes of exports there delay nfsd in releasing this one",
    ),
    (
        "is busy",
        Kind::Busy,
        Next::Wait,
        "something uses the dataset on the storage host",
    ),
    (
        "Device busy",
        Kind::Busy,
        Next::Wait,
        "something uses the dataset on the storage host",
    ),
    (
        "esource busy",
        Kind::Busy,
        Next::Wait,
        "something uses the dataset on the storage host",
    ),
    ("partially-complete", Kind::Busy, Next::Tell, PART),
    (
        "on existing dataset without force",
        Kind::Busy,
        Next::Tell,
        PART,
    ),
    ("has been modified", Kind::Conflict, Next::Tell, CHANGED),
    (
        "match incremental source",
        Kind::Conflict,
        Next::Tell,
        SNAPSHOT_TAKEN,
    ),
    ("dataset already exists", Kind::Conflict, Next::Observe, ""),
    (
        "destination already exists",
        Kind::Conflict,
        Next::Observe,
        "",
    ),
    (
        "must specify -F to overwrite it",
        Kind::Conflict,
        Next::Observe,
        "",
    ),
    (
        "successfully created, but",
        Kind::Internal,
        Next::Observe,
        "",
    ),
    ("property may be set but", Kind::Internal, Next::Observe, ""),
    ("no such parent", Kind::NotFound, Next::Observe, ""),
    ("does not exist", Kind::NotFound, Next::Observe, ""),
    ("no such pool or dataset", Kind::NotFound, Next::Observe, ""),
    (
        "could not find any snapshots",
        Kind::NotFound,
        Next::Observe,
        "",
    ),
    (
        "size is less than current used or reserved space",
        Kind::OutOfRange,
        Next::Tell,
        "its content is larger than the requested size",
    ),
    (
        "size is greater than available space",
        Kind::OutOfSpace,
        Next::Tell,
        "the pool, or a quota above, has no room for it",
    ),
    ("out of space", Kind::OutOfSpace, Next::Tell, FULL),
    ("uota exceeded", Kind::OutOfSpace, Next::Tell, FULL),
    (
        "o space left on device",
        Kind::OutOfSpace,
        Next::Tell,
        "the pool, or a quota above, is full",
    ),
    ("not a cloned filesystem", Kind::Internal, Next::Observe, ""),
    (
        "source and target pools differ",
        Kind::Internal,
        Next::Tell,
        "a clone stays in the pool of its source",
    ),
    (
        "zpool does not tell",
        Kind::Unreachable,
        Next::Tell,
        "see zfs.cli.paths.zpool, and whether the login may run it",
    ),
    (
        "is currently suspended",
        Kind::Unreachable,
        Next::Tell,
        "see `zpool status` on the host",
    ),
    (
        "pool is unavailable",
        Kind::Unreachable,
        Next::Tell,
        "see `zpool status` on the host",
    ),
    (
        "I/O error",
        Kind::Unreachable,
        Next::Tell,
        "see `zpool status` on the host",
    ),
    (
        "nput/output error",
        Kind::Unreachable,
        Next::Tell,
        "see `zpool status` on the host",
    ),
    (
        "insufficient replicas",
        Kind::Unreachable,
        Next::Tell,
        "see `zpool status` on the host",
    ),
    (
        "pool is imported on a different host",
        Kind::Unreachable,
        Next::Tell,
        "import the pool where volumes are made, and nowhere else",
    ),
    (
        "pool is read-only",
        Kind::Denied,
        Next::Tell,
        "the pool is imported read-only",
    ),
    (
        "dataset is read-only",
        Kind::Denied,
        Next::Tell,
        "see the property readonly of the dataset on the storage host",
    ),
    (
        "ead-only file system",
        Kind::Denied,
        Next::Tell,
        "see the property readonly of the dataset on the storage host",
    ),
    ("only root can ", Kind::Denied, Next::Tell, ROOT),
    ("must be superuser ", Kind::Denied, Next::Tell, ROOT),
    ("ermission denied", Kind::Denied, Next::Tell, ALLOW),
    ("nsufficient privileges", Kind::Denied, Next::Tell, ALLOW),
    ("peration not permitted", Kind::Denied, Next::Tell, ALLOW),
    (
        "delegated administration is disabled",
        Kind::Denied,
        Next::Tell,
        ALLOW,
    ),
    (
        "key not loaded",
        Kind::Unreachable,
        Next::Tell,
        "load it: see `zfs load-key` on the storage host",
    ),
    (
        "key is not loaded",
        Kind::Unreachable,
        Next::Tell,
        "load it: see `zfs load-key` on the storage host",
    ),
    (
        "ey must be loaded",
        Kind::Unreachable,
        Next::Tell,
        "load it: see `zfs load-key` on the storage host",
    ),
    (
        "directory is not empty",
        Kind::Busy,
        Next::Tell,
        "its mountpoint on the storage host is not empty: move the content away",
    ),
    (
        "did not appear",
        Kind::Internal,
        Next::Tell,
        "the storage host makes no devices of zvols: see their property volmode, and its udev",
    ),
    ("invalid property", Kind::Invalid, Next::Tell, PROPERTIES),
    ("' must be ", Kind::Invalid, Next::Tell, PROPERTIES),
    ("' is readonly", Kind::Invalid, Next::Tell, PROPERTIES),
    (
        "does not apply to datasets",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    ("bad property list", Kind::Invalid, Next::Tell, PROPERTIES),
    ("bad numeric value", Kind::Invalid, Next::Tell, PROPERTIES),
    (
        "property value too long",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    (
        "must be upgraded to set this",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    (
        "invalid numeric suffix '",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    (
        "numeric value is too large",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    ("' is invalid", Kind::Invalid, Next::Tell, PROPERTIES),
    ("' is too long", Kind::Invalid, Next::Tell, PROPERTIES),
    ("' cannot be set", Kind::Invalid, Next::Tell, PROPERTIES),
    (
        "must be zero or a power of 2",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    (
        "must be a multiple of volume block size",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    (
        "volume size cannot be zero",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    (
        "use 'none' to disable",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    (
        "specified multiple times",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    (
        "can not be modified for snapshots",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    ("invalid keylocation", Kind::Invalid, Next::Tell, PROPERTIES),
    (
        "Encryption feature not enabled",
        Kind::Invalid,
        Next::Tell,
        PROPERTIES,
    ),
    ("Keyformat required", Kind::Invalid, Next::Tell, PROPERTIES),
    ("cannot set property", Kind::Invalid, Next::Tell, PROPERTIES),
    ("name is too long", Kind::Invalid, Next::Tell, NAMES),
    (
        "maximum name nesting depth exceeded",
        Kind::Invalid,
        Next::Tell,
        NAMES,
    ),
    (
        "is not a filesystem",
        Kind::Invalid,
        Next::Tell,
        "zfs.datasetParentName and zfs.detachedSnapshotsDatasetParentName have to be filesystems",
    ),
    (
        "contains large microzaps",
        Kind::Invalid,
        Next::Tell,
        "the source has had directories that no copy of ours takes (zap_micro_max_size, \
         feature large_microzap of the pool): clone it",
    ),
    // Without a reason: before 2.1 always.
    (
        "umount failed",
        Kind::Busy,
        Next::Wait,
        "something may use the dataset on the storage host",
    ),
    (
        "unmount failed",
        Kind::Busy,
        Next::Wait,
        "something may use the dataset on the storage host",
    ),
    // By the script of lists, after what `zfs` says, if it says why.
    (
        "not everything in '",
        Kind::Internal,
        Next::Tell,
        "see `zfs list -r` of that dataset on the storage host",
    ),
];

/// Failures of any command, mostly before it starts.
pub(super) const OF_HOST: &[Reason] = &[
    (
        "a password is required",
        Kind::Denied,
        Next::Tell,
        "sudo asks for a password: give the user a NOPASSWD rule for this program",
    ),
    (
        "a terminal is required",
        Kind::Denied,
        Next::Tell,
        "sudo asks for a password: give the user a NOPASSWD rule for this program",
    ),
    (
        "no tty present",
        Kind::Denied,
        Next::Tell,
        "sudo asks for a password: give the user a NOPASSWD rule for this program",
    ),
    (
        "is not allowed to execute",
        Kind::Denied,
        Next::Tell,
        "the user may not run this program by sudo on the storage host",
    ),
    (
        "may not run sudo",
        Kind::Denied,
        Next::Tell,
        "the user may not use sudo on the storage host",
    ),
    (
        "is not in the sudoers file",
        Kind::Denied,
        Next::Tell,
        "the user may not use sudo on the storage host",
    ),
    (
        "no folder for locks",
        Kind::Denied,
        Next::Tell,
        "locks are in /run, or in the home of a login that is not root: that folder must exist and be writable",
    ),
    (
        "command not found",
        Kind::Internal,
        Next::Tell,
        NOT_INSTALLED,
    ),
    (
        "as its pool is suspended",
        Kind::Unreachable,
        Next::Tell,
        "see `zpool status` on the storage host",
    ),
    // ZFS opens no zvol while it creates others: it gives up, and so does the caller, even the
    // kernel.
    (
        "it is busy, or not there",
        Kind::Busy,
        Next::Wait,
        "see what else has it open on the storage host",
    ),
    (
        NO_TURN,
        Kind::Pending,
        Next::Queue,
        "the lock of the shared configuration of the storage host is in use",
    ),
    (
        "neither flock nor lockf is installed",
        Kind::Internal,
        Next::Tell,
        "install flock, which is part of util-linux, on the storage host",
    ),
];
