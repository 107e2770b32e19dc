//! Directories given to the network by nfsd and samba.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lab::command;
use crate::wait::until_blocking;

/// The SMB user that the provisioning scripts make, and the password.
pub const SMB_USER: (&str, &str) = ("csi", "lab-password");

/// Exports a directory to this machine by NFS. The number tells exports apart.
pub fn nfs(folder: &Path, number: u32, client: &str) {
    let export = format!("{client}:{}", folder.display());
    command::run(&["exportfs", "-o", &nfs_options(number), &export]);
}

/// Makes the next start of the server export a directory before it answers any client.
///
/// # Panics
/// If the file cannot be written.
pub fn nfs_at_start(folder: &Path, number: u32, client: &str) {
    let line = format!("{} {client}({})\n", folder.display(), nfs_options(number));
    fs::create_dir_all("/etc/exports.d").expect("a folder of the system");
    fs::write("/etc/exports.d/lab.exports", line).expect("a file of the system");
}

fn nfs_options(number: u32) -> String {
    format!("rw,no_root_squash,no_subtree_check,fsid={number}")
}

/// Takes an export back.
pub fn no_nfs(folder: &Path, client: &str) {
    command::run(&["exportfs", "-u", &format!("{client}:{}", folder.display())]);
}

/// Lets nfsd forget what it exported, which keeps a filesystem busy. The kernel lets each change of an export
/// take a second of its own for that, also before that second has come, and forgets nothing until then.
///
/// # Panics
/// If the state of nfsd cannot be read.
pub fn nfsd_lets_go() {
    until_blocking("the second in which nfsd forgets", |_| {
        let clock = fs::read_to_string("/proc/net/rpc/nfsd.export/flush").expect("nfsd runs");
        let taken = clock.trim().parse().map(Duration::from_secs);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        (now.expect("a clock") >= taken.expect("a time") + Duration::from_secs(1)).then_some(())
    });
    command::run(&["exportfs", "-f"]);
}

/// Shares a directory by SMB, with guests or without.
///
/// # Panics
/// If its mode cannot be changed.
pub fn smb(folder: &Path, name: &str, guests: bool) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("a folder of ours");
    let path = folder.display().to_string();
    let guests = if guests { "guest_ok=y" } else { "guest_ok=n" };
    command::run(&[
        "net",
        "usershare",
        "add",
        name,
        &path,
        "",
        // Everyone, by the number: a name is asked for, and a busy machine may answer too late.
        "S-1-1-0:F",
        guests,
    ]);
}

/// Takes a share back, from those who have it mounted too.
pub fn no_smb(name: &str) {
    command::run(&["net", "usershare", "delete", name]);
    command::run(&["smbcontrol", "smbd", "close-share", name]);
}
