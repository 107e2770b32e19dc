//! The flags as clap sees them, and what `--help` teaches.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::serve::seconds;
use crate::csi::spec_version::CsiVersion;
use crate::routing::plugin_name::PluginName;
use crate::telemetry::log::{LogFormat, Verbosity};

pub(super) const ABOUT: &str = "\
One CSI driver process for many storage backends.

Without a subcommand it serves CSI, with the command line of democratic-csi: what starts that one \
starts this one, with the same flags, configuration and volumes.";

pub(super) const HINT: &str = "`--help` tells more, with examples, exit codes and signals.";

pub(super) const AFTER: &str = "\
Examples:
  Watch a volume live its whole life, with nothing to set up:
    omnibus-csi try
  Serve both halves of a driver on a unix socket:
    omnibus-csi --driver-config-file=driver.yaml --csi-name=org.example.nas \\
      --csi-version=1.5.0 --server-socket=/csi-data/csi.sock
  See how all connections of a folder are:
    omnibus-csi connections --driver-config-file=proxy.yaml
  Put back exports that a storage host has lost:
    omnibus-csi exports --driver-config-file=driver.yaml --repair
  Look for mistakes first, without touching the storage:
    omnibus-csi check --driver-config-file=driver.yaml --offline

Environment:
  Each flag of democratic-csi is also read from DEMOCRATIC_CSI_<FLAG>, each of
  ours from OMNIBUS_CSI_<FLAG>; the command line wins, but CSI_VERSION
  overrides --csi-version. CSI_NODE_ID is the node's id (default: the host's
  name). CSI_ENDPOINT is the listener if no flag names one. `omnibus-csi
  version --environment` lists every variable.

Signals:
  TERM, INT    finish the calls in progress and exit; a second one: exit at once
  USR1, USR2   one step more, one step less in the log
  HUP          ignored

Exit codes:
  0   asked to stop, or all is well
  1   something failed: no socket, a check with errors, a server not ready
  64  the command line or the configuration is wrong; nothing was started";

pub(super) const AFTER_CHECK: &str = "\
Examples:
  The file and the storage:
    omnibus-csi check --driver-config-file=driver.yaml
  Only the file, for a program:
    omnibus-csi check --driver-config-file=driver.yaml --offline --json

Exit codes:
  0   no errors; there may be warnings
  1   something has to be corrected
  64  a server would not start with this file";

pub(super) const AFTER_CONNECTIONS: &str = "\
Examples:
  All connections of a proxy:
    omnibus-csi connections --driver-config-file=proxy.yaml
  Only their files:
    omnibus-csi connections --driver-config-file=proxy.yaml --offline

Exit codes:
  0   all can be used
  1   a connection cannot be used
  64  the command line or the main file is wrong";

pub(super) const AFTER_MIGRATE_VALUES: &str = "\
A file holds values of democratic-csi's chart, or a HelmRelease (Flux), a HelmChart (k3s), an Application (Argo CD) or a \
chart above it that does. The new values go to standard output, and hold the secrets of the old ones. Notes say what was \
left out, problems what has to be done by hand.

Examples:
  One release, under its old name:
    omnibus-csi migrate-values nas=old-values.yaml > values.yaml
  Several; one keeps its name:
    omnibus-csi migrate-values --take-over fast fast=fast.yaml nas=nas.yaml > values.yaml

Exit codes:
  0   the values are complete
  1   there are problems; the values are written all the same
  64  a file cannot be used; nothing is written";

pub(super) const AFTER_ATTACHER_FINALIZERS: &str = "\
Nothing is changed: look at the commands, then give them to a shell. Run them once the driver that attaches nothing \
serves. Each fails, and changes nothing, if its object has changed since.

Examples:
  kubectl get volumeattachments,persistentvolumes -o json \\
    | omnibus-csi attacher-finalizers --csi-name=org.example.csi

Exit codes:
  0   the commands are complete; there may be none
  64  this is not what kubectl prints, or no name of a driver";

pub(super) const AFTER_ORPHANS: &str = "\
Lists only what provably belongs to this connection and was never handed out: incomplete volumes and \
detached snapshots, helper snapshots without a clone, empty containers of detached snapshots. A retry of \
the same call completes or removes them, too; this command is for calls that are not retried. Complete \
volumes and snapshots are never listed, nor are running copies, nor what bears the driver or the \
instance_id of another connection. Clusters that share a parent, the driver and the instance_id cannot be \
distinguished: do not use --remove there.

--remove shows everything first, and looks at each once more before it goes.

Examples:
  See what a week has left behind:
    omnibus-csi orphans --driver-config-file=driver.yaml --min-age=7d
  Remove it:
    omnibus-csi orphans --driver-config-file=driver.yaml --min-age=7d --remove
  One connection of a folder, for a program:
    omnibus-csi orphans --driver-config-file=proxy.yaml --connection=nas --json

Exit codes:
  0   nothing is left, as far as the drivers can list it
  1   something is left, or may be
  64  the command line or the configuration is wrong";

pub(super) const AFTER_SETUP_USER: &str = "\
The administrator's login comes from the environment: OMNIBUS_CSI_TRUENAS_ADMIN_PASSWORD or \
OMNIBUS_CSI_TRUENAS_ADMIN_API_KEY, and OMNIBUS_CSI_TRUENAS_ADMIN_USER (else truenas_admin). \
Variables of the configuration that are not set count as empty. What is there already is kept; \
nothing is taken away.

Examples:
  Make it:
    omnibus-csi truenas setup-user --driver-config-file=driver.yaml --key-file=key.txt
  See the calls, without any login:
    omnibus-csi truenas setup-user --driver-config-file=driver.yaml --print --release=25.10

Exit codes:
  0   all is there
  1   something is missing, or is not known
  64  the command line or the configuration is wrong";

pub(super) const AFTER_EXPORTS: &str = "\
A storage host that started anew without its saved configuration exports nothing. Each volume is put back \
when it is next asked for; this does it for all. Access lists stay as they were. Volumes that bear the driver \
or the instance_id of another connection are left out.

Examples:
  See what is missing:
    omnibus-csi exports --driver-config-file=driver.yaml
  Put it back:
    omnibus-csi exports --driver-config-file=driver.yaml --repair

Exit codes:
  0   all are exported, or there are none to export
  1   something is missing, or is not known
  64  the command line or the configuration is wrong";

pub(super) const AFTER_EXPLAIN: &str = "\
The handle is `spec.csi.volumeHandle` of the PersistentVolume. Nothing is changed, and each question is answered \
within 10 seconds or called silent. On a machine with a kubelet its mounts of the volume are looked at, too.

Examples:
  Why does this volume not work?
    omnibus-csi explain --driver-config-file=driver.yaml pvc-0a1b
  Behind a proxy, for a program:
    omnibus-csi explain --driver-config-file=proxy.yaml v:nas/pvc-0a1b --json
  In the node's pod, which may not have the files of the connections:
    omnibus-csi explain --node-only v:nas/pvc-0a1b

Exit codes:
  0   all links hold
  1   a link is broken
  2   no broken link is known, but one could not be looked at
  64  the command line or the configuration is wrong";

/// The flags of `bin/democratic-csi`.
pub(super) const DEMOCRATIC: [&str; 9] = [
    "driver-config-file",
    "csi-version",
    "csi-name",
    "csi-mode",
    "server-address",
    "server-port",
    "server-socket",
    "server-socket-permissions-mode",
    "log-level",
];

/// The flags that democratic-csi does not have.
pub(super) const OURS: [&str; 9] = [
    "console-address",
    "csi-addons-address",
    "kubelet-dir",
    "kubelet-registration-path",
    "legacy-sockets",
    "log-format",
    "metrics-address",
    "plugin-registration-path",
    "shutdown-grace",
];

/// The flags of `bin/liveness-probe`, and one of ours.
pub(super) const LIVENESS: [&str; 3] = ["csi-version", "csi-address", "timeout"];

/// What to serve, and where. Which of them are required is found out later, with the environment.
#[derive(Debug, Args)]
pub struct ServeFlags {
    /// The configuration of the storage, YAML
    #[arg(long, value_name = "PATH", help_heading = "What to serve (required)")]
    pub driver_config_file: Option<PathBuf>,
    /// The version of the CSI specification to pretend to, 1.0.0 to 1.13.0
    #[arg(
        long,
        value_name = "VERSION",
        help_heading = "What to serve (required)"
    )]
    pub csi_version: Option<String>,
    /// The name of the driver in the cluster
    #[arg(long, value_name = "NAME", help_heading = "What to serve (required)")]
    pub csi_name: Option<String>,
    /// `controller` or `node`; repeat it for both (default: both)
    #[arg(
        long,
        value_name = "MODE",
        value_delimiter = ',',
        help_heading = "What to serve (required)"
    )]
    pub csi_mode: Vec<String>,

    /// A unix socket: a path, with or without `unix://`
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "Where to listen (at least one)"
    )]
    pub server_socket: Option<String>,
    /// The permissions of the socket, octal
    #[arg(
        long,
        value_name = "MODE",
        default_value = "0600",
        help_heading = "Where to listen (at least one)"
    )]
    pub server_socket_permissions_mode: String,
    /// The folder for the sockets of `proxy.legacyNames`: each is `<name>/csi.sock` there (default: the folder of
    /// --server-socket)
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "Where to listen (at least one)"
    )]
    pub legacy_sockets: Option<PathBuf>,
    /// A unix socket for csi-addons, beside the other (default: off)
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "Where to listen (at least one)"
    )]
    pub csi_addons_address: Option<String>,
    /// A TCP address; anyone who reaches it controls the storage. Needs --server-port
    #[arg(
        long,
        value_name = "ADDRESS",
        help_heading = "Where to listen (at least one)"
    )]
    pub server_address: Option<String>,
    /// The TCP port. Needs --server-address
    #[arg(
        long,
        value_name = "PORT",
        help_heading = "Where to listen (at least one)"
    )]
    pub server_port: Option<String>,

    /// The socket as the kubelet sees it; with this the driver registers itself with the kubelet
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "Registration with the kubelet"
    )]
    pub kubelet_registration_path: Option<String>,
    /// The kubelet's folder `plugins_registry` as this process sees it (default: /registration)
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "Registration with the kubelet"
    )]
    pub plugin_registration_path: Option<PathBuf>,

    #[command(flatten)]
    #[expect(missing_docs, reason = "explained by its own type")]
    pub log: LogFlags,

    /// Serve metrics, health and the log level over HTTP there; `:9090` is loopback (default: off)
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Running")]
    pub metrics_address: Option<String>,
    /// Serve the console, a page to look at, over HTTP there: a loopback address; `:9810` is one (default: off)
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Running")]
    pub console_address: Option<String>,
    /// How long calls in progress may take after a signal, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "25",
        help_heading = "Running"
    )]
    pub shutdown_grace: String,
    /// The folder of the kubelet, or where else the orchestrator asks for volumes; repeat it for several. Needed
    /// only for another orchestrator than Kubernetes and Nomad
    #[arg(
        long,
        value_name = "PATH",
        value_delimiter = ',',
        help_heading = "Running"
    )]
    pub kubelet_dir: Vec<String>,
}

/// What to log, and how.
#[derive(Debug, Args)]
pub struct LogFlags {
    /// How much to log (default: info, or verbose on a terminal)
    #[arg(
        long,
        value_name = "LEVEL",
        ignore_case = true,
        help_heading = "Running"
    )]
    pub log_level: Option<Verbosity>,
    /// How to log; `auto` is text on a terminal and JSON otherwise
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "auto",
        help_heading = "Running"
    )]
    pub log_format: LogFormat,
}

/// What to check.
#[derive(Debug, Args)]
pub struct CheckFlags {
    /// The configuration of the storage, YAML
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: PathBuf,
    /// Look at the file only, not at the storage
    #[arg(long)]
    pub offline: bool,
    /// Write the findings as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What to list.
#[derive(Debug, Args)]
pub struct ConnectionsFlags {
    /// The configuration with `driver: proxy`, YAML
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: PathBuf,
    /// Look at the files only, not at the storage
    #[arg(long)]
    pub offline: bool,
    /// Write the list as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Where to look for orphans.
#[derive(Debug, Args)]
pub struct OrphansFlags {
    /// The configuration of the storage, YAML
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: PathBuf,
    /// One connection of a folder (default: all of them)
    #[arg(long, value_name = "NAME")]
    pub connection: Option<String>,
    /// Only what is older, such as `30m`, `12h` or `7d`: what is younger may be in the making
    #[arg(long, value_name = "AGE", default_value = "1h", value_parser = age)]
    pub min_age: Duration,
    /// Remove what is found, after it was shown; with `--json` it is shown on standard error
    #[arg(long)]
    pub remove: bool,
    /// Write the list as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Which login is made, and where its key goes.
#[derive(Debug, Args)]
pub struct SetupUserFlags {
    /// The configuration of the connection, YAML. Its httpConnection.username is made
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: PathBuf,
    /// Change nothing: print the missing calls for the shell of the NAS
    #[arg(long)]
    pub print: bool,
    /// Print all calls for this release, such as 25.10, without asking the NAS
    #[arg(long, value_name = "VERSION", requires = "print")]
    pub release: Option<String>,
    /// Replace the API key if there is one; the old one ends
    #[arg(long)]
    pub new_key: bool,
    /// Write the API key into this new file, mode 0600 (default: to standard output)
    #[arg(long, value_name = "PATH", conflicts_with = "print")]
    pub key_file: Option<PathBuf>,
}

/// Which exports to look at.
#[derive(Debug, Args)]
pub struct ExportsFlags {
    /// The configuration of the storage, YAML
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: PathBuf,
    /// One connection of a folder (default: all of them)
    #[arg(long, value_name = "NAME")]
    pub connection: Option<String>,
    /// Put back what is missing
    #[arg(long)]
    pub repair: bool,
    /// Write what was found as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Which volume to follow.
#[derive(Debug, Args)]
pub struct ExplainFlags {
    /// The handle of the volume
    #[arg(value_name = "HANDLE")]
    pub handle: String,
    /// The configuration of the storage, YAML
    #[arg(long, value_name = "PATH", required_unless_present = "node_only")]
    pub driver_config_file: Option<PathBuf>,
    /// The name of its driver, `spec.csi.driver`, if it is one of `proxy.legacyNames`
    #[arg(long, value_name = "NAME", value_parser = PluginName::parse)]
    pub csi_name: Option<PluginName>,
    /// Look at this node only, not at the storage
    #[arg(long)]
    pub node_only: bool,
    /// The folder of the kubelet, if this machine has one
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Draw with plain letters, as where the output is no terminal
    #[arg(long)]
    pub ascii: bool,
    /// Write the links as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A time with a unit: `90s`, `30m`, `12h`, `7d`.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || "give a number and a unit, such as 90s, 30m, 12h or 7d".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number = text.strip_suffix(unit).unwrap_or_default();
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
    number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

/// Which server to ask.
#[derive(Debug, Args)]
pub struct LivenessFlags {
    /// The CSI version of the server; every version is asked in the same way
    #[arg(long, value_name = "VERSION")]
    pub csi_version: Option<String>,
    /// The server's socket: a path, with or without `unix://`, or `host:port`
    #[arg(long, value_name = "ADDRESS")]
    pub csi_address: String,
    /// How long to wait for the answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    pub timeout: String,
    /// What is odd about the command line
    #[arg(skip)]
    pub warnings: Vec<String>,
}

// === impl LivenessFlags ===

impl LivenessFlags {
    /// How long to wait.
    pub(crate) fn timeout(&self) -> Result<Duration, String> {
        seconds(&self.timeout).map_err(|problem| format!("--timeout: {problem}"))
    }

    /// An unsupported version is a mistake, although every version is asked in the same way.
    pub(crate) fn check_version(&self) -> Result<(), String> {
        match self.csi_version.as_deref().map(str::parse::<CsiVersion>) {
            Some(Err(error)) => Err(format!("--csi-version: {error}")),
            _ => Ok(()),
        }
    }
}
