//! The users of the storage host, and what such a user is allowed there.
//!
//! What is allowed is what `docs/zfs-reference.md` tells people to allow, word for word, and nothing
//! else: what the page forgets, a cell finds.

use std::fs;
use std::path::{Path, PathBuf};

use crate::lab::command::run;

/// The time that a login may take, in milliseconds: an emulated processor is slow at agreeing on keys, and
/// slower when the machine below it is busy.
const READY: u32 = 120_000;

/// The login to the storage host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Login {
    /// root.
    Root,
    /// Another user, whose commands run by sudo.
    Sudo,
    /// Another user, with `zfs allow` for zvols; sudo is for the target stack.
    AllowedZvols,
    /// Another user, with `zfs allow` for filesystems; sudo is for operations that need root on Linux.
    AllowedFilesystems,
}

/// How the storage host is come to.
#[derive(Debug)]
pub struct Road {
    /// The port at which it, or a way to it, listens.
    pub port: u16,
    /// A program that it runs in place of what is asked for.
    pub program: Option<PathBuf>,
}

impl Default for Road {
    fn default() -> Self {
        Self {
            port: 22,
            program: None,
        }
    }
}

const USER: &str = "csi";

/// For `sudoEnabled`.
const SUDO: &str = "\
csi ALL=(root) NOPASSWD: /usr/sbin/zfs, /usr/bin/chmod, /usr/bin/chown, /usr/bin/setfacl, /usr/bin/sh
Defaults:csi !requiretty
";
/// For a target stack.
const SUDO_OF_STACKS: &str = "\
csi ALL=(root) NOPASSWD: /usr/bin/sh
";
/// For filesystems.
const SUDO_OF_FILESYSTEMS: &str = "\
csi ALL=(root) NOPASSWD: /usr/sbin/zfs, /usr/bin/chmod, /usr/bin/chown, /usr/bin/setfacl
";

const ALLOW_ZVOLS: &str = "create,destroy,mount,snapshot,bookmark,clone,promote,rename,userprop,canmount,volsize,\
volblocksize,refreservation,send,receive";
const ALLOW_FILESYSTEMS: &str = "create,destroy,mount,snapshot,clone,promote,rename,userprop,\
canmount,mountpoint,refquota,refreservation,sharenfs,sharesmb,send,receive";

// === impl Login ===

impl Login {
    /// Lets the user in with a key of its own, allows what it needs below `root`, and gives the section
    /// of the configuration.
    ///
    /// # Panics
    /// If the machine is no storage host.
    pub fn section(self, folder: &Path, root: &str, road: &Road) -> String {
        let rules = match self {
            Self::Root => None,
            Self::Sudo => Some(SUDO),
            Self::AllowedZvols => Some(SUDO_OF_STACKS),
            Self::AllowedFilesystems => Some(SUDO_OF_FILESYSTEMS),
        };
        if let Some(rules) = rules {
            fs::write("/etc/sudoers.d/csi", rules).expect("a file of the lab");
            run(&["visudo", "-c"]);
        }
        let allowed = match self {
            Self::Root | Self::Sudo => None,
            Self::AllowedZvols => Some(ALLOW_ZVOLS),
            Self::AllowedFilesystems => Some(ALLOW_FILESYSTEMS),
        };
        if let Some(allowed) = allowed {
            run(&["zfs", "allow", USER, allowed, root]);
        }
        let (user, home) = match self {
            Self::Root => ("root", "/root"),
            _ => (USER, "/home/csi"),
        };
        key_of(user, home, folder, road)
    }
}

/// The section of a login with a key that is made for it.
fn key_of(user: &str, home: &str, folder: &Path, road: &Road) -> String {
    let key = folder.join("key").display().to_string();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    // What is started again in its place logs in with the key that it has.
    if !Path::new(&key).exists() {
        run(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &key]);
        fs::create_dir_all(format!("{home}/.ssh")).expect("a folder of the lab");
        let known = format!("{home}/.ssh/authorized_keys");
        let program = road.program.as_ref();
        let program = program.map(|program| format!("command=\"{}\" ", program.display()));
        let program = program.unwrap_or_default();
        let all = format!("{}\n{program}{}", read(&known), read(&format!("{key}.pub")));
        fs::write(&known, all).expect("a file of the lab");
    }
    let host = run(&["ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub"]);
    let host = host.split(' ').nth(1).expect("a fingerprint").to_owned();
    let private = read(&key).replace('\n', "\n    ");
    format!(
        "sshConnection:\n  host: 127.0.0.1\n  port: {}\n  username: {user}\n  hostKey: {host}\n  \
         readyTimeout: {READY}\n  privateKey: |\n    {}\n",
        road.port,
        private.trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_in_the_lab_is_what_the_page_tells_to_allow() {
        let page = include_str!("../../../../docs/zfs-reference.md");
        for rules in [SUDO, SUDO_OF_STACKS, SUDO_OF_FILESYSTEMS] {
            assert!(page.contains(&format!("```\n{rules}```")), "{rules}");
        }
        for allowed in [ALLOW_ZVOLS, ALLOW_FILESYSTEMS] {
            let line = format!("\nzfs allow csi {allowed} tank/csi\n");
            assert!(page.contains(&line), "{line}");
        }
    }
}
