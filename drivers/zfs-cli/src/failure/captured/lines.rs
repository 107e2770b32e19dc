//! Messages of some versions or systems, and of the programs that `zfs` runs: read in the sources
//! of each.

use super::Word;
use super::{
    Busy, Denied, Internal, Invalid, NotFound, Observe, OutOfSpace, Tell, Unreachable, Wait,
};

pub(super) const IN_SOME: &[Word] = &[
    // 0.8 on Linux, which runs mount(8) and umount(8); the line before its own is that of util-linux, read
    // in the sources of its 2.31 to 2.40.
    (
        "umount: /tank/q: target is busy.\ncannot unmount '/tank/q': umount failed",
        Busy,
        Wait,
    ),
    ("cannot unmount '/tank/q': umount failed", Busy, Wait),
    // The same where it is not root, util-linux up to 2.34.
    (
        "umount: only root can use \"--types\" option\ncannot unmount '/tank/q': umount failed",
        Denied,
        Tell,
    ),
    (
        "mount: only root can use \"--no-canonicalize\" option\ncannot mount 'tank/q': Invalid argument",
        Denied,
        Tell,
    ),
    // The same, util-linux from 2.35 on; what mounts is then mount.zfs of ZFS.
    (
        "umount: /tank/q: must be superuser to unmount.\ncannot unmount '/tank/q': umount failed",
        Denied,
        Tell,
    ),
    (
        "filesystem 'tank/q' can not be mounted: Operation not permitted\ncannot mount 'tank/q': Invalid argument",
        Denied,
        Tell,
    ),
    // 0.8: without a reason.
    (
        "cannot mount '/tank/q': failed to create mountpoint",
        Internal,
        Tell,
    ),
    // 0.8: libshare failed.
    (
        "cannot share 'tank/q': share(1M) failed\nfilesystem successfully created, but not shared",
        Internal,
        Observe,
    ),
    // From 2.0 on: always in 2.0, later where the system gives a reason that libzfs does not know.
    ("cannot unmount '/tank/q': unmount failed", Busy, Wait),
    // From 2.0 on; libshare failed after the dataset was made.
    (
        "cannot share 'tank/q: system error': NFS share creation failed\nfilesystem successfully created, but not shared",
        Internal,
        Observe,
    ),
    // From 2.1 on.
    (
        "cannot unmount '/tank/q': no such pool or dataset",
        NotFound,
        Observe,
    ),
    // From 2.1.7 on.
    (
        "cannot open 'tank/a': insufficient replicas",
        Unreachable,
        Tell,
    ),
    // From 2.2 on.
    (
        "cannot resume recv tank/q: Resuming recv on existing dataset without force",
        Busy,
        Tell,
    ),
    // From 2.3 on.
    (
        "warning: cannot send 'tank/a@s': source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream",
        Invalid,
        Tell,
    ),
    // From 2.3.3 on; before that the dataset is busy.
    (
        "cannot destroy snapshot tank/a@s: it's being held. Run 'zfs holds -r tank/a@s' to see holders.",
        Busy,
        Tell,
    ),
    // From 2.3.7 on, on Linux.
    (
        "cannot set mount attributes for 'tank/q': mount failed\nproperty may be set but unable to remount filesystem",
        Internal,
        Observe,
    ),
    // From 2.0 on, on FreeBSD, where ZFS is not loaded; the system says why.
    (
        "Failed to load zfs module: Operation not permitted",
        Unreachable,
        Tell,
    ),
    (
        "Failed to load zfs module: No such file or directory",
        Unreachable,
        Tell,
    ),
    // FreeBSD 12 and older, which add what the system says.
    ("cannot unmount '/tank/q': Device busy", Busy, Wait),
    // From 2.0 on, with what any system says.
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
    // The message of the system, after the name of a GNU tool: the same with every C library.
    (
        "chown: changing ownership of '/tank/q': Operation not permitted",
        Denied,
        Tell,
    ),
    (
        "setfacl: /tank/q: No space left on device",
        OutOfSpace,
        Tell,
    ),
    // The same by FreeBSD.
    ("chmod: /tank/q: Operation not permitted", Denied, Tell),
    // EBUSY, EDQUOT and EIO by glibc.
    ("setfacl: /tank/q: Device or resource busy", Busy, Wait),
    ("setfacl: /tank/q: Disk quota exceeded", OutOfSpace, Tell),
    ("setfacl: /tank/q: Input/output error", Unreachable, Tell),
    // By musl.
    ("setfacl: /tank/q: Resource busy", Busy, Wait),
    ("setfacl: /tank/q: Quota exceeded", OutOfSpace, Tell),
    ("setfacl: /tank/q: I/O error", Unreachable, Tell),
    // EDQUOT by FreeBSD; its EBUSY is above.
    ("setfacl: /tank/q: Disc quota exceeded", OutOfSpace, Tell),
    // sudo, from its source.
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
