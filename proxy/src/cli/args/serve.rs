//! What to serve and where, checked as a whole: every problem is reported, not only the first.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_types::AbsolutePath;
use csi_types::attachment::PathError;
use driver_core::NodeId;
use node_utils::node::OrchestratorDirs;

use super::{Lookup, ServeFlags};
use crate::csi::node::programs::Programs;
use crate::csi::plugin::Modes;
use crate::csi::registration::{self, KubeletRegistration};
use crate::csi::spec_version::CsiVersion;
use crate::routing::plugin_name::PluginName;
use crate::rpc::server::socket::{Tcp, UnixSocket};
use crate::telemetry::log::{LogFormat, Verbosity};

/// The services to serve, and where.
#[derive(Debug, Clone)]
pub struct Serve {
    /// The file with the storage's configuration.
    pub driver_config_file: PathBuf,
    /// The name in the cluster.
    pub name: PluginName,
    /// The version to pretend to.
    pub version: CsiVersion,
    /// The services.
    pub modes: Modes,
    /// The id of this node.
    pub node_id: NodeId,
    /// The unix socket, if any.
    pub socket: Option<UnixSocket>,
    /// The place of the sockets of legacy names.
    pub legacy_sockets: LegacySockets,
    /// The unix socket of csi-addons, if any.
    pub addons: Option<UnixSocket>,
    /// The TCP listener, if any. There is at least one of both.
    pub tcp: Option<Tcp>,
    /// The way to register with the kubelet, if at all.
    pub registration: Option<KubeletRegistration>,
    /// The verbosity of the log.
    pub verbosity: Option<Verbosity>,
    /// The way to log.
    pub log_format: LogFormat,
    /// The place to serve metrics, if at all.
    pub metrics: Option<SocketAddr>,
    /// The place to serve the console, if at all: on the loopback.
    pub console: Option<SocketAddr>,
    /// The time that calls may go on after a signal.
    pub shutdown_grace: Duration,
    /// The folders in which the orchestrator asks for volumes.
    pub dirs: OrchestratorDirs,
    /// The programs that the node runs.
    pub programs: Programs,
    /// The ignored parts of the command line, for the log.
    pub warnings: Vec<String>,
}

/// The place of the sockets of legacy names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LegacySockets {
    /// Their folder; none where there can be no such sockets.
    pub folder: Option<PathBuf>,
    /// Whether that folder was given.
    pub is_given: bool,
    /// Their permission bits.
    pub mode: u32,
}

/// Problems found so far.
struct Problems(Vec<String>);

// === impl Serve ===

fn absolute(dirs: &[String]) -> Result<Vec<AbsolutePath>, PathError> {
    dirs.iter().map(|dir| AbsolutePath::parse(dir)).collect()
}

impl LegacySockets {
    /// The folder that is given, or else that of the own socket.
    fn read(
        given: Option<PathBuf>,
        own: Option<&PathBuf>,
        mode: Option<u32>,
    ) -> Result<Self, String> {
        let is_given = given.is_some();
        let folder = match given {
            Some(path) if !path.is_absolute() => {
                let path = path.to_string_lossy();
                return Err(format!("`{}` is no absolute path", path.escape_debug()));
            }
            Some(path) => Some(path),
            None => own.and_then(|own| own.parent()).map(Path::to_owned),
        };
        Ok(Self {
            folder,
            is_given,
            mode: mode.unwrap_or_default(),
        })
    }

    /// The socket of a legacy name.
    pub(crate) fn of(&self, name: &PluginName) -> Result<UnixSocket, String> {
        let folder = self.folder.as_ref().ok_or(NO_SOCKET)?;
        let path = folder.join(name.as_str()).join("csi.sock");
        Ok(UnixSocket {
            path: socket_path(&path.to_string_lossy())?,
            mode: self.mode,
        })
    }
}

impl Serve {
    /// Checks flags and environment.
    pub(super) fn from_flags(
        flags: ServeFlags,
        env: Lookup<'_>,
        warnings: Vec<String>,
    ) -> Result<Self, Vec<String>> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let mut problems = Problems(Vec::new());
        // compat: "Command line": this variable wins over the flag.
        let version = set("CSI_VERSION").or(flags.csi_version);
        let version = problems.required("--csi-version", version.as_deref(), str::parse);
        let name = problems.required("--csi-name", flags.csi_name.as_deref(), PluginName::parse);
        let file = problems.required("--driver-config-file", flags.driver_config_file, |path| {
            Ok::<_, String>(path)
        });
        let modes = problems.check("--csi-mode", modes(&flags.csi_mode));
        let mode = problems.check(
            "--server-socket-permissions-mode",
            permissions(&flags.server_socket_permissions_mode),
        );
        let given = flags.server_socket.as_deref();
        let socket = problems.optional("--server-socket", given, socket_path);
        let addons = flags.csi_addons_address.as_deref();
        let addons = problems.optional("--csi-addons-address", addons, socket_path);
        let tcp = tcp(flags.server_address, flags.server_port.as_deref());
        let tcp = problems.check(ADDRESS, tcp).flatten();
        let (socket, tcp) = problems.listeners(socket, tcp, set("CSI_ENDPOINT").as_deref());
        let legacy = LegacySockets::read(flags.legacy_sockets, socket.as_ref(), mode);
        let legacy = problems.check("--legacy-sockets", legacy);
        let paths = (
            flags.kubelet_registration_path,
            flags.plugin_registration_path,
        );
        let registration = registration(paths, name.as_ref(), modes);
        let registration = problems.check(REGISTRATION, registration).flatten();
        let metrics = flags.metrics_address.as_deref();
        let metrics = problems.optional("--metrics-address", metrics, address);
        let console = problems.optional(
            "--console-address",
            flags.console_address.as_deref(),
            |address| console_address(address, modes),
        );
        let grace = problems.check("--shutdown-grace", seconds(&flags.shutdown_grace));
        let dirs = problems.check("--kubelet-dir", absolute(&flags.kubelet_dir));
        let programs = Programs::read(env);
        let programs = programs.map_err(|wrong| problems.0.extend(wrong)).ok();
        let node_id = node(set("CSI_NODE_ID"));
        let node_id = problems.check("CSI_NODE_ID", node_id);
        let production = set("NODE_ENV").as_deref() == Some("production");
        match (version, name, file, modes, mode, grace, node_id, programs) {
            (
                Some(version),
                Some(name),
                Some(driver_config_file),
                Some(modes),
                Some(mode),
                Some(shutdown_grace),
                Some(node_id),
                Some(programs),
            ) if problems.0.is_empty() => Ok(Self {
                driver_config_file,
                name,
                version,
                modes,
                node_id,
                legacy_sockets: legacy.unwrap_or_default(),
                socket: socket.map(|path| UnixSocket { path, mode }),
                addons: addons.map(|path| UnixSocket { path, mode }),
                tcp,
                registration,
                verbosity: flags
                    .log
                    .log_level
                    .or(production.then_some(Verbosity::Info)),
                log_format: flags.log.log_format.or_json(production),
                metrics,
                console,
                shutdown_grace,
                dirs: OrchestratorDirs::with(dirs.unwrap_or_default()),
                programs,
                warnings,
            }),
            _ => Err(problems.0),
        }
    }
}

const NO_LISTENER: &str = "nowhere to listen: give --server-socket, or --server-address with \
                           --server-port, or CSI_ENDPOINT";

const NO_SOCKET: &str = "each needs a unix socket: give --server-socket or --legacy-sockets";

const ADDRESS: &str = "--server-address, --server-port";

const REGISTRATION: &str = "--kubelet-registration-path, --plugin-registration-path";

// === impl Problems ===

impl Problems {
    fn check<T, E: ToString>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        result
            .map_err(|error| self.0.push(format!("{what}: {}", error.to_string())))
            .ok()
    }

    /// The listeners of the flags, or else that of the variable.
    fn listeners(
        &mut self,
        socket: Option<PathBuf>,
        tcp: Option<Tcp>,
        variable: Option<&str>,
    ) -> (Option<PathBuf>, Option<Tcp>) {
        if !self.0.is_empty() || socket.is_some() || tcp.is_some() {
            return (socket, tcp);
        }
        let Some(endpoint) = variable.map(endpoint) else {
            self.0.push(NO_LISTENER.into());
            return (None, None);
        };
        self.check("CSI_ENDPOINT", endpoint).unwrap_or_default()
    }

    fn optional<T, E: ToString>(
        &mut self,
        flag: &str,
        value: Option<&str>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.check(flag, parse(value?))
    }

    fn required<V, T, E: ToString>(
        &mut self,
        flag: &str,
        value: Option<V>,
        parse: impl FnOnce(V) -> Result<T, E>,
    ) -> Option<T> {
        let Some(value) = value else {
            self.0.push(format!("{flag} is required"));
            return None;
        };
        self.check(flag, parse(value))
    }
}

fn modes(names: &[String]) -> Result<Modes, String> {
    let mut modes = Modes {
        controller: names.is_empty(),
        node: names.is_empty(),
    };
    for name in names {
        match name.as_str() {
            "controller" => modes.controller = true,
            "node" => modes.node = true,
            other => {
                return Err(format!(
                    "`{}` is neither controller nor node",
                    other.escape_debug()
                ));
            }
        }
    }
    Ok(modes)
}

fn permissions(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    match u32::from_str_radix(digits, 8) {
        Ok(mode) if mode <= 0o777 && !digits.starts_with('+') => Ok(mode),
        _ => Err(format!(
            "`{}` is no octal mode such as 0600",
            text.escape_debug()
        )),
    }
}

/// A path with or without `unix://` (or `unix:`).
fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix:").unwrap_or(text);
    let path = path
        .strip_prefix("//")
        .filter(|_| path != text)
        .unwrap_or(path);
    // The kernel's limit for a socket's path, with its closing zero.
    match path.len() {
        0 => Err("the path is empty".into()),
        1..=107 => Ok(PathBuf::from(OsString::from(path))),
        length => Err(format!(
            "the path has {length} bytes; a socket's path has at most 107"
        )),
    }
}

fn tcp(address: Option<String>, port: Option<&str>) -> Result<Option<Tcp>, String> {
    match (address, port) {
        (None, None) => Ok(None),
        (Some(host), Some(port)) => Ok(Some(Tcp {
            host,
            port: port.parse().map_err(|_| "the port is no number to 65535")?,
        })),
        _ => Err("one needs the other".into()),
    }
}

/// Both paths, if the first is given; the second has the default of node-driver-registrar.
fn registration(
    (endpoint, folder): (Option<String>, Option<PathBuf>),
    name: Option<&PluginName>,
    modes: Option<Modes>,
) -> Result<Option<KubeletRegistration>, String> {
    let Some(endpoint) = endpoint else {
        return match folder {
            None => Ok(None),
            Some(_) => Err("the second needs the first".into()),
        };
    };
    if !endpoint.starts_with('/') {
        return Err(format!("`{}` is no absolute path", endpoint.escape_debug()));
    }
    if modes.is_some_and(|modes| !modes.node) {
        return Err("there is no node service here: the kubelet has nothing to register".into());
    }
    let folder = folder.unwrap_or_else(|| PathBuf::from("/registration"));
    if let Some(path) = name.map(|name| registration::socket(&folder, name)) {
        socket_path(&path.to_string_lossy())?;
    }
    Ok(Some(KubeletRegistration { folder, endpoint }))
}

/// An endpoint as the CSI specification defines it: a socket or a TCP address.
fn endpoint(text: &str) -> Result<(Option<PathBuf>, Option<Tcp>), String> {
    let Some(address) = text.strip_prefix("tcp://") else {
        return Ok((Some(socket_path(text)?), None));
    };
    let (host, port) = address.rsplit_once(':').ok_or("the port is missing")?;
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    Ok((None, tcp(Some(host), Some(port))?))
}

/// The address of the console. It shows the names of volumes and claims to all who reach it, so it is on the loopback:
/// who may forward a port of the pod may see them.
fn console_address(text: &str, modes: Option<Modes>) -> Result<SocketAddr, String> {
    if !cfg!(feature = "console") {
        return Err("this program was built without the console".into());
    }
    if modes.is_some_and(|modes| !modes.controller) {
        return Err(
            "there is no controller service here: the console shows what a controller knows".into(),
        );
    }
    let address = address(text)?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "`{address}` is no loopback address: give `:{}`, and reach it by `kubectl port-forward` or `ssh -L`",
            address.port()
        ));
    }
    Ok(address)
}

/// `:9090` is loopback: to be seen from elsewhere must be said.
fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    if let Ok(port) = port.parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    let named = text
        .strip_prefix("localhost:")
        .and_then(|port| port.parse().ok());
    match named {
        Some(port) => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => text.parse().map_err(|_| {
            format!(
                "`{}` is no address such as 127.0.0.1:9090",
                text.escape_debug()
            )
        }),
    }
}

/// A number of seconds, with or without `s`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
    let seconds = number.filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        format!(
            "`{}` is no number of seconds up to a day",
            text.escape_debug()
        )
    })
}

/// Stricter than the node id of a request: this one is meant to be the name of a machine.
/// The host's name without one.
fn node(given: Option<String>) -> Result<NodeId, String> {
    let text = given.or_else(host_name).unwrap_or_default();
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("holds a blank, a line break or a control character".into());
    }
    NodeId::parse(&text).map_err(|error| error.to_string())
}

fn host_name() -> Option<String> {
    rustix::system::uname()
        .nodename()
        .to_str()
        .ok()
        .map(str::to_owned)
}
