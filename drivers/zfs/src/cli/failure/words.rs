//! The words of `zfs` and of its host, by how they are known: the table is the test.
//!
//! The lab has ZFS 2.3.9 on Linux: what it said was captured. All other words were read in the sources of
//! OpenZFS at the tags 0.8.6, 2.0.7, 2.1.15, 2.2.7 and 2.3.4 (`libzfs_util.c`, `libzfs_dataset.c`,
//! `libzfs_sendrecv.c`, `libzfs_mount.c`, `zfs_main.c`, `libshare`), which FreeBSD has from 13.0 on; FreeBSD
//! differs where the system itself is quoted. Nobody has heard those.

use super::tests::failed;
use super::*;
use Kind::{
    Busy, Conflict, Denied, Internal, Invalid, NotFound, OutOfRange, OutOfSpace, Unreachable,
};
use Next::{Observe, Tell, Wait};

/// What was said, what it means, and what follows.
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
    (
        "cannot create 'tank/n': 'compression' must be one of 'on | off'",
        Invalid,
        Tell,
    ),
];

/// Read in the sources of every version from 0.8 to 2.3.
const IN_ALL: &[Word] = &[
    // There, or not there.
    (
        "cannot open 'tank/a': no such pool or dataset",
        NotFound,
        Observe,
    ),
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
        "cannot rename to 'tank/a@t': pool or dataset exists",
        Conflict,
        Observe,
    ),
    // In the way.
    (
        "cannot destroy 'tank/z': volume has children",
        Busy,
        Observe,
    ),
    (
        "cannot destroy 'tank/a': volume has dependent clones",
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
        "cannot receive: destination tank/q contains partially-complete state from \"zfs receive -s\".",
        Busy,
        Tell,
    ),
    // No room.
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
    ("cannot create 'tank/a': I/O error", Unreachable, Tell),
    (
        "cannot open 'tank/a': insufficient replicas",
        Unreachable,
        Tell,
    ),
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
    // Properties.
    ("cannot create 'tank/n': 'used' is readonly", Invalid, Tell),
    (
        "cannot create 'tank/n': 'quota' does not apply to datasets of this type",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': bad property list: invalid property 'a b'",
        Invalid,
        Tell,
    ),
    (
        "cannot create 'tank/n': bad numeric value '10Q'",
        Invalid,
        Tell,
    ),
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
    // It is made, or set, and something after that failed: what is there is looked at.
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
    // What nothing can be made of.
    (
        "cannot share 'tank/q': 'canmount' property is set to 'off'",
        Internal,
        Tell,
    ),
    ("cannot receive: invalid backup stream", Internal, Tell),
    ("cannot mount '/tank/q': mount failed", Internal, Tell),
    ("internal error: out of memory", Internal, Tell),
];

/// Read in the sources of some versions, or in those of what they run.
const IN_SOME: &[Word] = &[
    // 0.8 on Linux, which runs `umount`; the line before it is that of util-linux.
    (
        "umount: /tank/q: target is busy.\ncannot unmount '/tank/q': umount failed",
        Busy,
        Wait,
    ),
    ("cannot unmount '/tank/q': umount failed", Busy, Wait),
    // From 2.0 on where the system gives another reason than those that libzfs knows; FreeBSD 13.0 always.
    ("cannot unmount '/tank/q': unmount failed", Busy, Wait),
    // From 2.0 on; libshare failed after the dataset was made.
    (
        "cannot share 'tank/q: system error'\nfilesystem successfully created, but not shared",
        Internal,
        Observe,
    ),
    // 0.8: libshare failed.
    (
        "cannot share 'tank/q': share(1M) failed\nfilesystem successfully created, but not shared",
        Internal,
        Observe,
    ),
    // From 2.3 on.
    (
        "cannot destroy snapshot tank/a@s: it's being held. Run 'zfs holds -r tank/a@s' to see holders.",
        Busy,
        Tell,
    ),
    // The C library: of Linux, of FreeBSD.
    (
        "chown: changing ownership of '/tank/q': Operation not permitted",
        Denied,
        Tell,
    ),
    ("chmod: /tank/q: Operation not permitted", Denied, Tell),
    (
        "cannot mount '/tank/q': failed to create mountpoint: Read-only file system",
        Denied,
        Tell,
    ),
    (
        "cannot mount '/tank/q': failed to create mountpoint: Permission denied",
        Denied,
        Tell,
    ),
    (
        "setfacl: /tank/q: No space left on device",
        OutOfSpace,
        Tell,
    ),
    ("setfacl: /tank/q: Disk quota exceeded", OutOfSpace, Tell),
    ("setfacl: /tank/q: Disc quota exceeded", OutOfSpace, Tell),
    ("cannot unmount '/tank/q': Device busy", Busy, Wait),
    // sudo.
    ("sudo: a password is required", Denied, Tell),
    (
        "sudo: a terminal is required to read the password; either use the -S option",
        Denied,
        Tell,
    ),
    (
        "sudo: no tty present and no askpass program specified",
        Denied,
        Tell,
    ),
    ("csi is not in the sudoers file.", Denied, Tell),
    (
        "Sorry, user csi is not allowed to execute '/sbin/zfs list' as root on nas.",
        Denied,
        Tell,
    ),
    ("Sorry, user csi may not run sudo on nas.", Denied, Tell),
];

/// Said by scripts of ours, after what `zfs` said.
const OURS: &[Word] = &[
    (
        "mkdir: cannot create directory '/x': Permission denied\nno folder for locks",
        Denied,
        Tell,
    ),
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
            "cannot open 'tank/a': no such pool or dataset",
        ]
    );
}
