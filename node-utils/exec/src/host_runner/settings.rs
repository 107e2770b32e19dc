//! Selects the tools that run on the host, from the environment variables of democratic-csi's image.
//!
//! The caller passes a lookup function; nothing here reads the process's own environment.
//! compat: "Programs of the host".

use super::HostAccess;
use crate::command::{InvalidProgram, Program};

const STRATEGY: &str = "ISCSIADM_HOST_STRATEGY";
const ISCSIADM: &str = "ISCSIADM_HOST_PATH";
const MOUNT_TOOLS: &str = "USE_HOST_MOUNT_TOOLS";

/// The filesystems whose mount helper only the host has.
const MOUNTED_BY_THE_HOST: [&str; 2] = ["lustre", "onedata"];

/// The tools that are the host's, and how the host is entered for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSettings {
    iscsiadm: Program,
    /// The access that a variable selects.
    iscsi_access: Option<HostAccess>,
    mount_tools: MountTools,
    /// Whether there is a container around this process, and so a host to be entered.
    contained: bool,
}

/// The machine whose `mount` and `umount` are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountTools {
    /// The host's for filesystems that need it, otherwise the container's.
    ByFilesystem,
    /// Always the host's.
    Host,
    /// Never the host's.
    Container,
}

/// A variable does not say what it should.
#[derive(Debug, thiserror::Error)]
pub enum InvalidHostSettings {
    /// There are two strategies.
    #[error("environment variable {STRATEGY}: {value:?} is neither `chroot` nor `nsenter`")]
    Strategy {
        /// Its value.
        value: String,
    },
    /// The path cannot be a program.
    #[error("environment variable {ISCSIADM}")]
    Iscsiadm {
        /// Why not.
        #[source]
        source: InvalidProgram,
    },
}

// === impl HostSettings ===

impl HostSettings {
    /// Reads the variables through `lookup`; an empty one counts as unset.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidHostSettings> {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let iscsi_access = match set(STRATEGY).as_deref() {
            None => None,
            Some("chroot") => Some(HostAccess::chroot()),
            // iscsid, not process 1: on Talos the daemon and iscsiadm live in a container.
            Some("nsenter") => Some(HostAccess::daemon("iscsid")),
            Some(other) => {
                return Err(InvalidHostSettings::Strategy {
                    value: other.to_owned(),
                });
            }
        };
        let iscsiadm = match set(ISCSIADM) {
            None => Program::constant("iscsiadm"),
            Some(path) => {
                Program::parse(path).map_err(|source| InvalidHostSettings::Iscsiadm { source })?
            }
        };
        let mount_tools = match set(MOUNT_TOOLS).as_deref() {
            None => MountTools::ByFilesystem,
            Some("1") => MountTools::Host,
            Some(_) => MountTools::Container,
        };
        Ok(Self {
            iscsiadm,
            iscsi_access,
            mount_tools,
            contained: true,
        })
    }

    /// Sets whether this process runs in a container. Without a container only what a variable selects runs on the
    /// host.
    #[must_use]
    pub fn contained(mut self, contained: bool) -> Self {
        self.contained = contained;
        self
    }

    /// The program that is `iscsiadm`.
    pub fn iscsiadm(&self) -> &Program {
        &self.iscsiadm
    }

    /// The way `iscsiadm` is reached; `None` is here.
    pub fn iscsi_access(&self) -> Option<HostAccess> {
        self.iscsi_access.clone().or_else(|| self.host_access())
    }

    /// The way the host's own programs are reached; `None` is here.
    pub fn host_access(&self) -> Option<HostAccess> {
        self.contained.then(HostAccess::chroot)
    }

    /// The way `mount` and `umount` are reached for a filesystem; `None` is the container's own.
    ///
    /// Unmounting names no filesystem there, so it uses the container's tool unless the host's
    /// is asked for.
    pub fn mount_access(&self, filesystem: Option<&str>) -> Option<HostAccess> {
        let host = match self.mount_tools {
            MountTools::Host => true,
            MountTools::Container => false,
            MountTools::ByFilesystem => {
                self.contained && filesystem.is_some_and(|name| MOUNTED_BY_THE_HOST.contains(&name))
            }
        };
        host.then(HostAccess::chroot)
    }
}

#[cfg(test)]
mod tests {
    use super::{HostSettings, InvalidHostSettings};
    use crate::HostAccess;

    fn read(variables: &[(&str, &str)]) -> Result<HostSettings, InvalidHostSettings> {
        HostSettings::read(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_variables_iscsiadm_is_the_hosts_and_mount_the_containers() {
        for settings in [
            read(&[]).unwrap(),
            read(&[("USE_HOST_MOUNT_TOOLS", "")]).unwrap(),
        ] {
            assert_eq!(settings.iscsiadm().as_str(), "iscsiadm");
            assert_eq!(settings.iscsi_access(), Some(HostAccess::chroot()));
            assert_eq!(settings.mount_access(Some("ext4")), None);
            assert_eq!(settings.mount_access(None), None);
        }
    }

    #[test]
    fn some_filesystems_are_mounted_by_the_host_unless_forbidden() {
        for filesystem in ["lustre", "onedata"] {
            let unset = read(&[]).unwrap();
            assert_eq!(
                unset.mount_access(Some(filesystem)),
                Some(HostAccess::chroot())
            );
            let never = read(&[("USE_HOST_MOUNT_TOOLS", "0")]).unwrap();
            assert_eq!(never.mount_access(Some(filesystem)), None);
        }
    }

    #[test]
    fn the_hosts_mount_tools_can_be_asked_for() {
        let always = read(&[("USE_HOST_MOUNT_TOOLS", "1")]).unwrap();
        assert_eq!(
            always.mount_access(Some("ext4")),
            Some(HostAccess::chroot())
        );
        assert_eq!(always.mount_access(None), Some(HostAccess::chroot()));
    }

    #[test]
    fn the_variables_of_talos_enter_the_namespaces_of_iscsid() {
        let talos = read(&[
            ("ISCSIADM_HOST_STRATEGY", "nsenter"),
            ("ISCSIADM_HOST_PATH", "/usr/local/sbin/iscsiadm"),
        ])
        .unwrap();
        assert_eq!(talos.iscsi_access(), Some(HostAccess::daemon("iscsid")));
        assert_eq!(talos.iscsiadm().as_str(), "/usr/local/sbin/iscsiadm");
    }

    #[test]
    fn without_a_container_only_what_is_asked_for_enters_a_host() {
        let here = read(&[]).unwrap().contained(false);
        assert_eq!(here.iscsi_access(), None);
        assert_eq!(here.host_access(), None);
        assert_eq!(here.mount_access(Some("lustre")), None);
        let asked = read(&[
            ("ISCSIADM_HOST_STRATEGY", "chroot"),
            ("USE_HOST_MOUNT_TOOLS", "1"),
        ]);
        let asked = asked.unwrap().contained(false);
        assert_eq!(asked.iscsi_access(), Some(HostAccess::chroot()));
        assert_eq!(asked.mount_access(None), Some(HostAccess::chroot()));
        assert_eq!(asked.host_access(), None);
    }

    #[test]
    fn a_variable_with_another_value_is_an_error_that_names_it() {
        let strategy = read(&[("ISCSIADM_HOST_STRATEGY", "docker")]).unwrap_err();
        assert!(strategy.to_string().contains("ISCSIADM_HOST_STRATEGY"));
        let path = read(&[("ISCSIADM_HOST_PATH", "sbin/iscsiadm")]).unwrap_err();
        assert!(path.to_string().contains("ISCSIADM_HOST_PATH"));
    }
}
