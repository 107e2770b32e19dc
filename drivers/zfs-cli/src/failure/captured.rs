//! The messages of `zfs` and of its host, by source: the table is the test.
//!
//! The lab has ZFS 2.3.9 on Linux: its messages were captured. All other messages of `zfs` were
//! read in the sources of OpenZFS at the tags 0.8.6, 2.0.7, 2.1.15, 2.2.7, 2.3.0, 2.3.4 and 2.3.9
//! (`libzfs_util.c`, `libzfs_util_os.c`, `libzfs_compat.c`, `libzfs_dataset.c`,
//! `libzfs_sendrecv.c`, `libzfs_mount.c`, `libzfs_mount_os.c`, `libzfs_crypto.c`, `zfs_main.c`,
//! `mount_zfs.c`, `libshare`). FreeBSD has these from 13.0 on; entries that only older ones have
//! are marked. Errors of the system that `zfs` quotes differ and were not captured.

mod lines;

use self::lines::IN_SOME;
use super::tests::failed;
use super::*;
use Kind::{
    Busy, Conflict, Denied, Internal, Invalid, NotFound, OutOfRange, OutOfSpace, Unreachable,
};
use Next::{Observe, Tell, Wait};

/// The message, its kind, and how to continue.
type Word = (&'static str, Kind, Next);

/// Captured from ZFS 2.3.9 on Linux.
const CAPTURED: &[Word] = &[
    (
        "cannot create 'tank/a': dataset already exists",
        Conflict,
        Observe,
    ),
    (
        "cannot create snapshot 'tank/a@s': dataset already exists",
        Conflict,
        Observe,
    ),
    (
        "cannot open 'tank/a@nope': dataset does not exist",
        NotFound,
        Observe,
    ),
    (
        "cannot create 'tank/x/y/z': parent does not exist",
        NotFound,
        Observe,
    ),
    (
        "cannot destroy 'tank/a': filesystem has children\nuse '-r' to destroy the following datasets:\ntank/a@s1",
        Busy,
        Observe,
    ),
    (
        "cannot promote 'tank/b': not a cloned filesystem",
        Internal,
        Observe,
    ),
    (
        "cannot set property for 'tank/q': size is less than current used or reserved space",
        OutOfRange,
        Tell,
    ),
    (
        "cannot set property for 'tank/q': size is greater than available space",
        OutOfSpace,
        Tell,
    ),
    ("cannot create 'tank/big': out of space", OutOfSpace, Tell),
    (
        "cannot unmount '/tank/q': pool or dataset is busy",
        Busy,
        Wait,
    ),
    ("cannot destroy 'tank/z': dataset is busy", Busy, Wait),
    ("cannot create 'tank/u': permission denied", Denied, Tell),
    ("cannot unmount '/tank/q': permission denied", Denied, Tell),
    (
        "filesystem successfully created, but it may only be mounted by root",
        Internal,
        Observe,
    ),
    (
        "cannot receive new filesystem stream: destination 'tank/q' exists\nmust specify -F to overwrite it",
        Conflict,
        Observe,
    ),
    (
        "cannot create 'tank/n': invalid property 'nosuch'",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': 'volblocksize' must be power of 2 from 512B to 16M",
        Invalid,
        Tell,
    ),
    // Shortened: it names every one.
    (
        "cannot create 'tank/n': 'compression' must be one of 'on | off'",
        Invalid,
        Tell,
    ),
];

/// Read in the sources of every version from 0.8 to 2.3.
const IN_ALL: &[Word] = &[
    // Existing, or missing.
    (
        "cannot create 'gone/a': no such pool 'gone'",
        Unreachable,
        Tell,
    ),
    (
        "cannot create 'tank/x/y': no such parent 'tank/x'",
        NotFound,
        Observe,
    ),
    (
        "cannot restore to tank/q@s: destination already exists",
        Conflict,
        Observe,
    ),
    (
        "cannot receive incremental stream: destination tank/q has been modified\nsince most recent snapshot",
        Conflict,
        Tell,
    ),
    (
        "cannot receive incremental stream: most recent snapshot of tank/q does not\nmatch incremental source",
        Conflict,
        Tell,
    ),
    (
        "cannot rename 'tank/a@s': dataset already exists",
        Conflict,
        Observe,
    ),
    (
        "could not find any snapshots to destroy; check snapshot names.",
        NotFound,
        Observe,
    ),
    // In the way.
    (
        "cannot destroy 'tank/z': volume has children",
        Busy,
        Observe,
    ),
    (
        "cannot destroy snapshots: snapshot is cloned",
        Busy,
        Observe,
    ),
    (
        "cannot promote 'tank/b': conflicting snapshot 'tank/b@s' from parent 'tank/a@s'",
        Busy,
        Tell,
    ),
    (
        "cannot destroy snapshot tank/a@s: dataset is busy",
        Busy,
        Wait,
    ),
    (
        "cannot mount 'tank/q': mountpoint or dataset is busy",
        Busy,
        Wait,
    ),
    ("cannot mount '/tank/q': directory is not empty", Busy, Tell),
    (
        "cannot receive new filesystem stream: destination tank/q contains partially-complete state from \"zfs receive -s\".",
        Busy,
        Tell,
    ),
    (
        "cannot mount 'tank/q': Contains partially-completed state from \"zfs receive -s\", which can be resumed with \"zfs send -t\"",
        Busy,
        Tell,
    ),
    (
        "cannot promote 'tank/b': cannot promote dataset outside its encryption root",
        Busy,
        Tell,
    ),
    (
        "cannot create 'tank/b': source and target pools differ",
        Internal,
        Tell,
    ),
    // No space.
    (
        "cannot receive new filesystem stream: destination tank/q space quota exceeded.",
        OutOfSpace,
        Tell,
    ),
    (
        "cannot receive new filesystem stream: out of space",
        OutOfSpace,
        Tell,
    ),
    (
        "cannot create snapshot 'tank/a@s': out of space",
        OutOfSpace,
        Tell,
    ),
    (
        "cannot set property for 'tank/z': out of space",
        OutOfSpace,
        Tell,
    ),
    // Not allowed.
    (
        "cannot create 'tank/a': delegated administration is disabled on pool",
        Denied,
        Tell,
    ),
    ("cannot create 'tank/a': pool is read-only", Denied, Tell),
    (
        "cannot set property for 'tank/a': dataset is read-only",
        Denied,
        Tell,
    ),
    (
        "cannot mount 'tank/q': Insufficient privileges",
        Denied,
        Tell,
    ),
    // The pool, and its keys.
    (
        "cannot open 'tank': pool I/O is currently suspended",
        Unreachable,
        Tell,
    ),
    ("cannot open 'tank': pool is unavailable", Unreachable, Tell),
    // A script of ours.
    ("zpool does not tell how the pool is", Unreachable, Tell),
    ("cannot create 'tank/a': I/O error", Unreachable, Tell),
    (
        "cannot mount '/tank/e': encryption key not loaded",
        Unreachable,
        Tell,
    ),
    (
        "cannot create 'tank/e/a': encryption root's key is not loaded or provided",
        Unreachable,
        Tell,
    ),
    (
        "cannot receive new filesystem stream: inherited key must be loaded",
        Unreachable,
        Tell,
    ),
    (
        "cannot create 'tank/a': pool is imported on a different host",
        Unreachable,
        Tell,
    ),
    // Linux, where ZFS is not loaded; from 2.2 on without `/sbin/`.
    (
        "The ZFS modules are not loaded.\nTry running '/sbin/modprobe zfs' as root to load them.",
        Unreachable,
        Tell,
    ),
    (
        "The ZFS modules cannot be auto-loaded.\nTry running '/sbin/modprobe zfs' as root to manually load them.",
        Unreachable,
        Tell,
    ),
    (
        "/dev/zfs and /proc/self/mounts are required.\nTry running 'udevadm trigger' and 'mount -t proc proc /proc' as root.",
        Unreachable,
        Tell,
    ),
    // Names.
    ("cannot create 'tank/n': name is too long", Invalid, Tell),
    (
        "cannot promote 'tank/n': dataset name is too long",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': maximum name nesting depth exceeded",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/z/n': parent is not a filesystem",
        Invalid,
        Tell,
    ),
    (
        "cannot receive new filesystem stream: parent 'tank/z' is not a filesystem",
        Invalid,
        Tell,
    ),
    // Properties.
    ("cannot create 'tank/n': 'used' is readonly", Invalid, Tell),
    (
        "cannot create 'tank/n': 'quota' does not apply to datasets of this type",
        Invalid,
        Tell,
    ),
    ("bad property list: invalid property 'a b'", Invalid, Tell),
    ("bad property list: no properties specified", Invalid, Tell),
    (
        "cannot set property for 'tank/n': property setting is not allowed on bootable datasets",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': bad numeric value 'abc'",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': invalid numeric suffix 'Q'",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': numeric value is too large",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': use 'none' to disable quota/refquota",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': 'auto' is invalid value for 'quota'",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': 'sharenfs' is too long",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': property name 'x:y' is too long",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': component of 'mountpoint' is too long",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': 'mountpoint' must be an absolute path, 'none', or 'legacy'",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': 'sharenfs' cannot be set to invalid options",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': invalid 'special_small_blocks=3' property: must be zero or a power of 2 from 512B to 16M",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': volume size cannot be zero",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': volume size must be a multiple of volume block size",
        Invalid,
        Tell,
    ),
    ("cannot create 'tank/n': invalid keylocation", Invalid, Tell),
    (
        "cannot create 'tank/n': Encryption feature not enabled.",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': Keyformat required for new encryption root.",
        Invalid,
        Tell,
    ),
    (
        "cannot create snapshot 'tank/a@s': this property can not be modified for snapshots",
        Invalid,
        Tell,
    ),
    ("property 'x:y' specified multiple times", Invalid, Tell),
    (
        "cannot set property for 'tank/n': property value too long",
        Invalid,
        Tell,
    ),
    (
        "cannot set property for 'tank/n': pool and or dataset must be upgraded to set this property or value",
        Invalid,
        Tell,
    ),
    (
        "cannot set property for 'tank/n': invalid property value",
        Invalid,
        Tell,
    ),
    // The change was made, and a later step failed: the next observation shows it.
    (
        "filesystem successfully created, but not mounted",
        Internal,
        Observe,
    ),
    (
        "filesystem successfully created, but not shared",
        Internal,
        Observe,
    ),
    (
        "property may be set but unable to remount filesystem",
        Internal,
        Observe,
    ),
    (
        "property may be set but unable to reshare filesystem",
        Internal,
        Observe,
    ),
    // Unknown messages.
    (
        "cannot share 'tank/q': 'canmount' property is set to 'off'",
        Internal,
        Tell,
    ),
    ("cannot receive: invalid backup stream", Internal, Tell),
    ("internal error: out of memory", Internal, Tell),
];

/// Messages of our scripts, after that of `zfs`.
const OURS: &[Word] = &[
    (
        "mkdir: cannot create directory '/x': Permission denied\nno folder for locks",
        Denied,
        Tell,
    ),
    ("not everything in 'tank/v' could be listed", Internal, Tell),
    (
        "cannot open 'tank': dataset does not exist\nits pool is not imported",
        Unreachable,
        Tell,
    ),
    (
        "cannot open 'tank/a': dataset does not exist\ncannot open 'tank': some new words\nits pool cannot be looked at",
        Internal,
        Tell,
    ),
    (
        "cannot open 'tank/a': dataset does not exist\ncannot open 'tank': I/O error\nits pool cannot be looked at",
        Unreachable,
        Tell,
    ),
    (
        "cannot open 'tank/a': dataset does not exist\ncannot open 'tank': permission denied\nits pool cannot be looked at",
        Denied,
        Tell,
    ),
    (
        "cannot unmount tank/q: nfsd keeps it for some time",
        Busy,
        Wait,
    ),
    ("/dev/zvol/tank/z did not appear", Internal, Tell),
    ("some new words", Internal, Tell),
    ("", Internal, Tell),
];

#[test]
fn words_are_kinds() {
    for (said, kind, next) in [CAPTURED, IN_ALL, IN_SOME, OURS].concat() {
        let failed = of(&failed(said), "change it", Effect::Possible);
        assert_eq!((failed.error.kind(), failed.next), (kind, next), "{said}");
        assert_eq!(failed.error.effect(), Effect::Possible, "{said}");
    }
}

#[test]
fn every_piece_of_a_complaint_is_the_first_one_in_some_words() {
    let all = [CAPTURED, IN_ALL, IN_SOME, OURS].concat();
    let found = |piece: &str| {
        let mut first = all.iter().filter_map(|(said, ..)| find(OF_ZFS, said));
        first.any(|(first, ..)| *first == piece)
    };
    let pieces = OF_ZFS.iter().map(|(piece, ..)| piece);
    let idle: Vec<_> = pieces.filter(|piece| !found(piece)).collect();
    assert!(idle.is_empty(), "{idle:?}");
}

#[test]
fn no_words_of_a_failure_are_an_answer_but_those_of_absence() {
    let absent: Vec<&str> = [CAPTURED, IN_ALL, IN_SOME, OURS]
        .concat()
        .into_iter()
        .map(|(said, ..)| said)
        .filter(|said| {
            is_only_absence(&Output {
                status: exec::Status::Exit(1),
                stdout: Vec::new(),
                stderr: said.as_bytes().to_vec(),
            })
        })
        .collect();
    assert_eq!(
        absent,
        [
            "cannot open 'tank/a@nope': dataset does not exist",
            "could not find any snapshots to destroy; check snapshot names.",
            "cannot unmount '/tank/q': no such pool or dataset",
        ]
    );
}
