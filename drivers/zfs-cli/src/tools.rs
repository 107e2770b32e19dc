//! The programs of a host with ZFS, and how they are run there.

#[cfg(test)]
mod tests;

use driver_core::config::ConfigError;
use driver_zfs::ZfsConfig;
use exec::{Command, InvalidProgram, Program};

use super::COMMAND;

/// `$1` is sudo, the rest is the command. A login that is root, the owner of the root folder, needs
/// no sudo.
const AS_ROOT: &str = include_str!("script/as_root.sh");

/// The last word is a dataset to destroy. On Linux nfsd keeps a filesystem busy that a client has
/// just used, until its cache expires, at the resolution of one second. Each change of any export
/// takes such a second of its own, later than the last one: more than one change per second runs
/// ahead of the clock, and nothing expires before the last of these seconds has passed. A failed
/// `zfs destroy` is two more changes, so repeated attempts would move that second further away; the
/// script waits for it first. [`failure`](super::failure) knows these messages. Only root can see
/// that second; other logins try, and wait. An export of a folder inside the filesystem is not
/// detected.
macro_rules! unless_nfsd_keeps_it {
    () => {
        include_str!("script/unless_nfsd_keeps_it.sh")
    };
}

/// `$1` and `$2` are parts of messages that count as success, the rest is the command.
macro_rules! tolerant {
    () => {
        include_str!("script/tolerant.sh")
    };
}

/// The same, but `$3` is sudo: it is tried if the login may not mount, unmount or unshare. On Linux
/// only root may, whatever `zfs allow` says. ZFS before 2.1 does not say why it could not unmount,
/// and 0.8 not why it could not make a folder; a login that is not root is taken as the cause,
/// unless the message gives another. The output of mount(8) and umount(8) comes before that of 0.8.
/// Every other refusal is final: it may be intended.
macro_rules! raised {
    () => {
        include_str!("script/raised.sh")
    };
}

/// The last word is a dataset to destroy. `$1` counts the words before those of `zfs`, and `$2` counts these. The
/// dataset is kept unless it is known to be empty: one that is never mounted is empty, and any other if its folder
/// is. What is not mounted is kept by no nfsd.
macro_rules! only_if_empty {
    () => {
        include_str!("script/only_if_empty.sh")
    };
}

const TOLERANT: &str = tolerant!();

/// The scripts to mount and to destroy: for a login that always uses sudo, and for one that uses it
/// only if needed.
const MOUNT: [&str; 2] = [TOLERANT, raised!()];
const DESTROY: [&str; 2] = [
    concat!(unless_nfsd_keeps_it!(), tolerant!()),
    concat!(unless_nfsd_keeps_it!(), raised!()),
];
const DESTROY_EMPTY: [&str; 2] = [
    concat!(only_if_empty!(), unless_nfsd_keeps_it!(), tolerant!()),
    concat!(only_if_empty!(), unless_nfsd_keeps_it!(), raised!()),
];

/// The message of a script about a pool that was not found; `$said` is the error output of that
/// query. [`failure`](super::failure) knows these messages.
macro_rules! of_the_pool {
    () => {
        include_str!("script/of_the_pool.sh")
    };
}
pub(super) use of_the_pool;

/// The programs of a host with ZFS.
#[derive(Debug, Clone)]
pub struct ZfsTools {
    /// `zfs` itself.
    pub zfs: Program,
    /// `zpool`, which tells how a pool is.
    pub zpool: Program,
    /// The program that raises privileges.
    pub sudo: Program,
    /// Whether `zfs` is run by it. If not, the login is root, or has permission by `zfs allow`.
    pub raise: bool,
    /// The program that sets access control lists.
    pub acl: Program,
}

// === impl ZfsTools ===

impl ZfsTools {
    /// Programs by name or path; `None` means that the host finds it.
    pub fn new(zfs: Option<&str>, sudo: Option<&str>, raise: bool) -> Result<Self, InvalidProgram> {
        let program = |given: Option<&str>, name: &'static str| match given {
            Some(text) => Program::parse(text),
            None => Program::parse(name),
        };
        Ok(Self {
            zpool: match zfs.and_then(|zfs| zfs.strip_suffix("/zfs")) {
                Some(folder) => Program::parse(format!("{folder}/zpool"))?,
                None => Program::constant("zpool"),
            },
            zfs: program(zfs, "zfs")?,
            sudo: program(sudo, "sudo")?,
            raise,
            acl: Program::constant("setfacl"),
        })
    }

    /// The programs that a configuration names.
    pub fn from_config(zfs: &ZfsConfig) -> Result<Self, ConfigError> {
        let paths = &zfs.cli.paths;
        Self::new(
            paths.zfs.as_deref(),
            paths.sudo.as_deref(),
            zfs.cli.sudo_enabled,
        )
        .map_err(|error| ConfigError::at("zfs.cli.paths", error.to_string()))?
        .with_pool_tool(zfs)?
        .with_acl_tool(zfs)
    }

    /// The programs that the host finds by itself, whatever `zfs.cli.paths` says.
    pub fn found_by_host(zfs: &ZfsConfig) -> Result<Self, ConfigError> {
        Self::new(None, None, zfs.cli.sudo_enabled)
            .map_err(|error| ConfigError::at("zfs.cli", error.to_string()))?
            .with_acl_tool(zfs)
    }

    fn with_pool_tool(mut self, zfs: &ZfsConfig) -> Result<Self, ConfigError> {
        if let Some(tool) = &zfs.cli.paths.zpool {
            self.zpool = Program::parse(tool)
                .map_err(|error| ConfigError::at("zfs.cli.paths.zpool", error.to_string()))?;
        }
        Ok(self)
    }

    fn with_acl_tool(mut self, zfs: &ZfsConfig) -> Result<Self, ConfigError> {
        if let Some(tool) = &zfs.dataset_permissions_acls_binary {
            self.acl = Program::parse(tool.as_str()).map_err(|error| {
                ConfigError::at("zfs.datasetPermissionsAclsBinary", error.to_string())
            })?;
        }
        Ok(self)
    }

    /// A command of `zfs`.
    pub fn zfs<A: Into<String>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let command = if self.raise {
            let zfs = ["-n", "--", self.zfs.as_str()];
            Command::new(self.sudo.clone()).args(zfs)
        } else {
            Command::new(self.zfs.clone())
        };
        command.args(arguments).within(COMMAND)
    }

    /// The first words of a `zfs` command, for scripts that run one.
    pub fn words(&self) -> Vec<String> {
        let zfs = self.zfs.as_str().to_owned();
        if self.raise {
            vec![self.sudo.as_str().to_owned(), "-n".into(), "--".into(), zfs]
        } else {
            vec![zfs]
        }
    }

    /// A command that only root may run, whatever `raise` says: democratic-csi does the same for
    /// the root of a filesystem. compat: "ZFS".
    pub fn as_root<A: Into<String>>(
        &self,
        program: &Program,
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        Command::function(AS_ROOT)
            .args([self.sudo.as_str(), program.as_str()])
            .args(arguments)
            .within(COMMAND)
    }

    /// A command of `zfs` that mounts, and that counts as success if it fails with one of these
    /// messages.
    pub(super) fn mounting(&self, fine: [&str; 2], arguments: &[&str]) -> Command {
        let (text, words) = self.raised_if_needed(MOUNT);
        Self::checked(text, &fine, &words, arguments)
    }

    /// A command of `zfs` whose last argument is a dataset that it destroys, and that counts as
    /// success if it fails with one of these messages.
    pub(super) fn destroying(&self, fine: [&str; 2], arguments: &[&str]) -> Command {
        let (text, words) = self.raised_if_needed(DESTROY);
        Self::checked(text, &fine, &words, arguments)
    }

    /// The same for a dataset that is kept, as a success, unless it is known to be empty.
    pub(super) fn destroying_empty(&self, fine: [&str; 2], arguments: &[&str]) -> Command {
        let words = self.words().len().to_string();
        let before = if self.raise { "2" } else { "3" };
        let (text, command) = self.raised_if_needed(DESTROY_EMPTY);
        let fine = [[before, &words], fine].concat();
        Self::checked(text, &fine, &command, arguments)
    }

    /// A command of `zfs` that counts as success if it fails with one of these messages.
    pub(super) fn tolerant(&self, fine: [&str; 2], arguments: &[&str]) -> Command {
        Self::checked(TOLERANT, &fine, &self.words(), arguments)
    }

    /// The script and the first words of its command: for a login that always uses sudo, or for one that uses it only
    /// if needed.
    fn raised_if_needed(&self, [anyhow, raised]: [&'static str; 2]) -> (&'static str, Vec<String>) {
        if self.raise {
            return (anyhow, self.words());
        }
        let words = [&self.sudo, &self.zfs].map(|program| program.as_str().to_owned());
        (raised, words.to_vec())
    }

    fn checked(text: &'static str, fine: &[&str], words: &[String], arguments: &[&str]) -> Command {
        Command::function(text)
            .args(fine.iter().copied())
            .args(words)
            .args(arguments.iter().copied())
            .within(COMMAND)
    }
}

/// A constant script of ours with these arguments.
pub(super) fn script<A: Into<String>>(
    text: &'static str,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    Command::script(text).args(arguments)
}
