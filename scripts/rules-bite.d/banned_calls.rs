//! One use of each call that `clippy.toml` bans, so that `scripts/rules-bite` can see each fire.
//! Compiled by clippy in a throw-away crate, never run, and no part of the workspace.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::mount as m;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

type Plain = fn(String) -> Status;

/// Child processes.
pub fn processes() {
    let _ = std::process::Command::new("true");
    let _ = tokio::process::Command::new("true");
}

/// The old mount calls.
pub fn mounts() -> io::Result<()> {
    m::mount("a", "b", "c", m::MountFlags::empty(), None::<&CStr>)?;
    m::mount_remount("b", m::MountFlags::empty(), "")?;
    m::mount_bind("a", "b")?;
    m::mount_bind_recursive("a", "b")?;
    m::mount_change("b", m::MountPropagationFlags::PRIVATE)?;
    m::mount_move("a", "b")?;
    m::unmount("b", m::UnmountFlags::empty())?;
    Ok(())
}

/// The same by another crate.
pub fn sys_mounts() -> io::Result<()> {
    sys_mount::Mount::builder().mount("a", "b")?;
    sys_mount::Mount::builder().mount_autodrop("a", "b", sys_mount::UnmountFlags::empty())?;
    sys_mount::Mount::new("a", "b")?;
    sys_mount::unmount("b", sys_mount::UnmountFlags::empty())?;
    Ok(())
}

/// The new mount calls.
pub fn new_mounts(fd: BorrowedFd<'_>) -> io::Result<()> {
    m::fsopen("a", m::FsOpenFlags::empty())?;
    m::fsmount(fd, m::FsMountFlags::empty(), m::MountAttrFlags::empty())?;
    m::move_mount(fd, "a", fd, "b", m::MoveMountFlags::empty())?;
    m::open_tree(fd, "a", m::OpenTreeFlags::empty())?;
    m::fspick(fd, "a", m::FsPickFlags::empty())?;
    m::fsconfig_set_flag(fd, "a")?;
    m::fsconfig_set_string(fd, "a", "b")?;
    m::fsconfig_set_binary(fd, "a", b"b")?;
    m::fsconfig_set_path(fd, "a", "b", fd)?;
    m::fsconfig_set_path_empty(fd, "a", fd)?;
    m::fsconfig_set_fd(fd, "a", fd)?;
    m::fsconfig_create(fd)?;
    m::fsconfig_reconfigure(fd)?;
    m::fsconfig_create_exclusive(fd)?;
    Ok(())
}

/// gRPC answers.
pub fn statuses(details: &[u8]) -> Vec<Status> {
    let plain: [Plain; 17] = [
        Status::ok,
        Status::cancelled,
        Status::unknown,
        Status::invalid_argument,
        Status::deadline_exceeded,
        Status::not_found,
        Status::already_exists,
        Status::permission_denied,
        Status::resource_exhausted,
        Status::failed_precondition,
        Status::aborted,
        Status::out_of_range,
        Status::unimplemented,
        Status::internal,
        Status::unavailable,
        Status::data_loss,
        Status::unauthenticated,
    ];
    let mut all: Vec<Status> = plain.iter().map(|make| make(String::new())).collect();
    all.push(Status::new(Code::Internal, ""));
    all.push(Status::from_error(Box::new(io::Error::other(""))));
    all.push(Status::with_details(Code::Internal, "", details.to_vec().into()));
    all.push(Status::with_metadata(Code::Internal, "", MetadataMap::new()));
    let details = details.to_vec().into();
    all.push(Status::with_details_and_metadata(Code::Internal, "", details, MetadataMap::new()));
    all
}

/// The async threads.
pub fn threads(runtime: &tokio::runtime::Runtime) {
    std::thread::sleep(std::time::Duration::ZERO);
    tokio::task::block_in_place(|| ());
    runtime.handle().block_on(async {});
}

/// The environment.
pub fn environment() {
    // SAFETY: never run.
    unsafe {
        std::env::set_var("A", "b");
        std::env::remove_var("A");
    }
}
