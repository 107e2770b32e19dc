//! Common parts of the tests of this crate: threads with mounts of their own.
//!
//! A mount namespace belongs to a thread; each test that mounts runs on a thread that has left the
//! common one, so that nothing it does is seen outside or survives it.

#![expect(
    clippy::disallowed_methods,
    reason = "mounts as other programs make them, in a private mount namespace"
)]

use std::ffi::CStr;
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags};

/// The payload of a panic that simulates a kill; not an error.
pub(crate) struct Killed;

/// Runs `test` with mounts of its own, in an empty directory on a fresh tmpfs. Where that is not
/// possible the test says so, and fails if `OMNIBUS_REQUIRE_ALL` is 1.
pub(crate) fn with_own_mounts(test: impl FnOnce(&Path) + Send + 'static) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let thread = std::thread::spawn(move || {
        if let Err(errno) = crate::sys::unshare(false) {
            let why = format!("no mounts of its own: {errno}; it needs root");
            crate::requirement::could_not_run(&name, &why);
            return;
        }
        let apart = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", apart).expect("private mounts");
        let dir = tempfile::tempdir().expect("directory");
        rustix::mount::mount("t", dir.path(), "tmpfs", MountFlags::empty(), None).expect("tmpfs");
        test(dir.path());
        rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).expect("unmount");
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `test` with descriptors of its own, so that it can count them.
pub(crate) fn with_own_descriptors(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        crate::sys::unshare(true).expect("descriptors of its own");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A bind mount as mount(8) makes it: without flags.
pub(crate) fn bind_plainly(from: &Path, to: &Path) {
    rustix::mount::mount_bind(from, to).expect("bind");
}

/// A filesystem in memory of the size that the options say.
pub(crate) fn small(at: &Path, options: &CStr) {
    rustix::mount::mount("t", at, "tmpfs", MountFlags::empty(), options).expect("tmpfs");
}

/// Lets mounts below the mount at `path` appear in later bind mounts of it, too.
pub(crate) fn share(path: &Path) {
    rustix::mount::mount_change(path, MountPropagationFlags::SHARED).expect("shared mounts");
}

/// Makes the filesystem at `path` read-only, as it does itself after an error, or writable again.
pub(crate) fn remount(path: &Path, read_only: bool) {
    let flags = if read_only {
        MountFlags::RDONLY
    } else {
        MountFlags::empty()
    };
    rustix::mount::mount_remount(path, flags, c"").expect("remount");
}
