//! Every environment variable that this program reads or is known to ignore, in one list.

use std::ffi::OsString;

use super::Lookup;

/// One environment variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The effect.
    pub effect: Effect,
}

/// The effect of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It stands for this flag.
    Flag(&'static str),
    /// It acts by itself, as explained.
    Acts(&'static str),
    /// Nothing in this build, and why; democratic-csi reads it.
    None(&'static str),
}

const NODE_JS: &str = "there is no Node.js runtime here";
const METRICS: &str = "use --metrics-address and the process_ figures there";

/// All of them.
pub const VARIABLES: &[Variable] = &[
    flag("DEMOCRATIC_CSI_DRIVER_CONFIG_FILE", "driver-config-file"),
    flag("DEMOCRATIC_CSI_CSI_VERSION", "csi-version"),
    flag("DEMOCRATIC_CSI_CSI_NAME", "csi-name"),
    flag("DEMOCRATIC_CSI_CSI_MODE", "csi-mode"),
    flag("DEMOCRATIC_CSI_SERVER_ADDRESS", "server-address"),
    flag("DEMOCRATIC_CSI_SERVER_PORT", "server-port"),
    flag("DEMOCRATIC_CSI_SERVER_SOCKET", "server-socket"),
    flag(
        "DEMOCRATIC_CSI_SERVER_SOCKET_PERMISSIONS_MODE",
        "server-socket-permissions-mode",
    ),
    flag("DEMOCRATIC_CSI_LOG_LEVEL", "log-level"),
    flag("DEMOCRATIC_CSI_LOG_FORMAT", "log-format"),
    flag("DEMOCRATIC_CSI_METRICS_ADDRESS", "metrics-address"),
    flag("DEMOCRATIC_CSI_CONSOLE_ADDRESS", "console-address"),
    flag("DEMOCRATIC_CSI_SHUTDOWN_GRACE", "shutdown-grace"),
    flag(
        "DEMOCRATIC_CSI_KUBELET_REGISTRATION_PATH",
        "kubelet-registration-path",
    ),
    flag(
        "DEMOCRATIC_CSI_PLUGIN_REGISTRATION_PATH",
        "plugin-registration-path",
    ),
    flag(
        "OMNIBUS_CSI_KUBELET_REGISTRATION_PATH",
        "kubelet-registration-path",
    ),
    flag(
        "OMNIBUS_CSI_PLUGIN_REGISTRATION_PATH",
        "plugin-registration-path",
    ),
    flag("OMNIBUS_CSI_LOG_FORMAT", "log-format"),
    flag("OMNIBUS_CSI_METRICS_ADDRESS", "metrics-address"),
    flag("OMNIBUS_CSI_CONSOLE_ADDRESS", "console-address"),
    flag("OMNIBUS_CSI_SHUTDOWN_GRACE", "shutdown-grace"),
    flag("DEMOCRATIC_CSI_LEGACY_SOCKETS", "legacy-sockets"),
    flag("OMNIBUS_CSI_LEGACY_SOCKETS", "legacy-sockets"),
    flag("DEMOCRATIC_CSI_CSI_ADDONS_ADDRESS", "csi-addons-address"),
    flag("OMNIBUS_CSI_CSI_ADDONS_ADDRESS", "csi-addons-address"),
    flag("DEMOCRATIC_CSI_KUBELET_DIR", "kubelet-dir"),
    flag("OMNIBUS_CSI_KUBELET_DIR", "kubelet-dir"),
    flag("DEMOCRATIC_CSI_LIVENESS_PROBE_CSI_VERSION", "csi-version"),
    flag("DEMOCRATIC_CSI_LIVENESS_PROBE_CSI_ADDRESS", "csi-address"),
    flag("DEMOCRATIC_CSI_LIVENESS_PROBE_TIMEOUT", "timeout"),
    acts("CSI_VERSION", "overrides --csi-version"),
    acts(
        "CSI_NODE_ID",
        "the id of this node; without it, the name of the host",
    ),
    acts(
        "CSI_ENDPOINT",
        "where to listen if no flag says so: `unix:///path`, a path, `tcp://host:port`",
    ),
    acts(
        "NODE_ENV",
        "`production`: JSON logs and level info; else text on a terminal",
    ),
    acts(
        "MOUNT_DEFAULT_TIMEOUT",
        "how long one mount or unmount may take, in milliseconds; 30000 without it",
    ),
    acts(
        "ISCSI_DEFAULT_TIMEOUT",
        "how long one `iscsiadm` may take, in milliseconds; 30000 without it",
    ),
    acts(
        "NVMEOF_DEFAULT_TIMEOUT",
        "how long one `nvme` may take, in milliseconds; 30000 without it",
    ),
    acts(
        "OMNIBUS_CSI_NVME_KEY_FILE",
        "the file with the key by which this node proves to NVMe targets who it is (DH-CHAP)",
    ),
    acts(
        "FILESYSTEM_DEFAULT_TIMEOUT",
        "how long one `mkfs`, `fsck` or the like may take, in milliseconds; 1800000 without it",
    ),
    acts(
        "ISCSIADM_HOST_STRATEGY",
        "how `iscsiadm` of the host is reached: `chroot` (else) or `nsenter`",
    ),
    acts(
        "ISCSIADM_HOST_PATH",
        "the `iscsiadm` of the host: a name or an absolute path",
    ),
    acts(
        "USE_HOST_MOUNT_TOOLS",
        "`1`: `mount` is the host's; another value: never; else the filesystem decides",
    ),
    acts(
        "TMPDIR",
        "where `try` makes its temporary folder (else /var/tmp, /tmp)",
    ),
    acts(
        "NODE_EXTRA_CA_CERTS",
        "a file of certificate authorities in PEM, beside those of the system, for appliances",
    ),
    acts(
        "OMNIBUS_CSI_TRUENAS_ADMIN_USER",
        "`truenas setup-user`: the administrator (else `truenas_admin`)",
    ),
    acts(
        "OMNIBUS_CSI_TRUENAS_ADMIN_PASSWORD",
        "`truenas setup-user`: the administrator's password",
    ),
    acts(
        "OMNIBUS_CSI_TRUENAS_ADMIN_API_KEY",
        "`truenas setup-user`: the administrator's API key, instead",
    ),
    acts("NO_COLOR", "`try` does not use colours on a terminal"),
    none(
        "SSH_REUSE_CONNECTION",
        "one connection is always kept, and shared",
    ),
    none(
        "RESTIC_DEFAULT_TIMEOUT",
        "a backup has the deadline of its call",
    ),
    none(
        "KOPIA_DEFAULT_TIMEOUT",
        "a backup has the deadline of its call",
    ),
    none(
        "FILESYSTEM_TYPE_DETECTION_STRATEGY",
        "the device itself is always read, as its value `blkid` asks for",
    ),
    none("DEMOCRATIC_CSI_IS_CONTAINER", "nothing here depends on it"),
    none("CONTAINER_SANDBOX_MOUNT_POINT", "only Windows has it"),
    none("CSI_SANITY", "nothing has to be remembered for csi-sanity"),
    none("LOG_MEMORY_USAGE", METRICS),
    none("LOG_MEMORY_USAGE_INTERVAL", METRICS),
    none("MANUAL_GC", NODE_JS),
    none("MANUAL_GC_INTERVAL", NODE_JS),
    none("LOG_GRPC_SESSIONS", "use --log-level=silly"),
    none("GRPC_IMPLEMENTATION", "there is one implementation"),
    none("NODE_OPTIONS", NODE_JS),
    none("NODE_OPTIONS_CSI_1", NODE_JS),
    none("NODE_OPTIONS_CSI_2", NODE_JS),
    none("NODE_OPTIONS_CSI_3", NODE_JS),
    none("NODE_OPTIONS_CSI_4", NODE_JS),
];

const fn flag(name: &'static str, flag: &'static str) -> Variable {
    Variable {
        name,
        effect: Effect::Flag(flag),
    }
}

const fn acts(name: &'static str, what: &'static str) -> Variable {
    Variable {
        name,
        effect: Effect::Acts(what),
    }
}

const fn none(name: &'static str, why: &'static str) -> Variable {
    Variable {
        name,
        effect: Effect::None(why),
    }
}

/// The variables that are set and do nothing, with the reason.
pub fn without_effect(env: Lookup<'_>) -> Vec<(&'static str, &'static str)> {
    let set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    VARIABLES
        .iter()
        .filter_map(|variable| match variable.effect {
            Effect::None(why) if set(variable.name) => Some((variable.name, why)),
            _ => None,
        })
        .collect()
}

/// Appends the flags that the environment gives and `args` do not. An empty value counts as unset.
pub(super) fn add_flags(args: &mut Vec<OsString>, prefix: &str, flags: &[&str], env: Lookup<'_>) {
    for flag in flags {
        let name = format!("{prefix}{}", flag.replace('-', "_").to_uppercase());
        debug_assert!(
            VARIABLES.iter().any(|variable| variable.name == name),
            "{name} is declared"
        );
        let given = args.iter().any(|arg| {
            let arg = arg.to_string_lossy();
            arg.strip_prefix("--").and_then(|arg| arg.split('=').next()) == Some(flag)
        });
        let value = env(&name).filter(|value| !value.is_empty());
        if let (false, Some(value)) = (given, value) {
            args.push(format!("--{flag}={value}").into());
        }
    }
}
