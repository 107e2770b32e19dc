//! The place where the mounts of a trial are made: if possible, where nothing else sees them.

use node_utils::mount_namespace::{leave_mounts, leave_user_and_mounts};

use crate::screen::chain;

/// The place where mounts are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seclusion {
    /// In the mounts of the machine.
    None,
    /// In a mount namespace of this process.
    Mounts,
    /// In a mount namespace of a user namespace, in which only bind mounts are possible.
    UserAndMounts,
}

// === impl Seclusion ===

impl Seclusion {
    /// Leaves the mounts of the machine. `keep`: what is mounted shall be seen.
    pub(crate) fn enter(keep: bool) -> Result<Self, String> {
        let root = rustix::process::geteuid().is_root();
        if root && keep {
            return Ok(Self::None);
        }
        if root && leave_mounts().is_ok() {
            return Ok(Self::Mounts);
        }
        let Err(error) = leave_user_and_mounts() else {
            return Ok(Self::UserAndMounts);
        };
        let help = if root {
            "this root may not mount: a container needs CAP_SYS_ADMIN, `--privileged` with Docker"
        } else {
            "only root may mount here: try `sudo omnibus-csi try`, or allow unprivileged user \
             namespaces"
        };
        Err(format!(
            "volumes have to be mounted, and {help} ({})",
            chain(&error)
        ))
    }

    /// For machines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mounts => "mounts",
            Self::UserAndMounts => "user-and-mounts",
        }
    }

    /// For people.
    pub(crate) fn explained(self) -> &'static str {
        match self {
            Self::None => "in the mounts of this machine, so that they can be looked at (--keep)",
            Self::Mounts => "seen by this process only, and gone when it ends, however it ends",
            Self::UserAndMounts => {
                "in a user namespace, because you are not root: enough for local directories; \
                 other storage has to be mounted by root"
            }
        }
    }
}
