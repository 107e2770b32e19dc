//! The life of a server: configuration, sockets, signals, the end.
//!
//! What is wrong with the configuration is found before anything is bound. After a signal no call
//! is taken any more, those in progress end within a grace period, and the socket goes last.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1::identity_server::SERVICE_NAME;
use driver_core::byte_budget;
use futures_util::future::join_all;
use node_utils::{memory, shares};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::server::{HealthReporter, health_reporter};
use tracing::{error, info, warn};

use crate::app::App;
use crate::cli::args::{self, EX_USAGE, Serve};
#[cfg(feature = "console")]
use crate::console::Console;
use crate::csi::addons;
use crate::csi::controller::lost_exports;
use crate::csi::environment::Environment;
use crate::csi::node::{inline, staged};
use crate::csi::plugin::Plugin;
use crate::csi::registration::{KubeletRegistration, Registered};
use crate::process::{self, Signals};
use crate::routing::folder::{self, Duties, Watch};
use crate::routing::plugin_name::PluginName;
use crate::routing::topology::label::is_topology;
use crate::rpc::server::socket::{Bound, ListenError, Listeners, Remains, is_exposed, listen_tcp};
use crate::rpc::server::{self, reflection};
use crate::rpc::{Deadlines, Runner};
use crate::telemetry::admin::{Admin, Readiness};
use crate::telemetry::log::{self, LogControl};
use crate::telemetry::metrics::Metrics;

/// How long answers may take to their clients, once no work is in progress any more. A connection
/// on which nothing is said would otherwise be waited for as long as a call.
const LINGER: Duration = Duration::from_secs(3);
/// How much later the process ends without its own doing. All three together are less than the 30 seconds of a kubelet.
const LAST_RESORT: Duration = Duration::from_secs(1);

const NO_TOPOLOGY: &str = "the volumes of this driver belong to a node, and the id of this one \
                           cannot name a place: give it 1 to 63 letters, digits, `-`, `_` and `.`, \
                           with a letter or digit at both ends";

const OWN_NAME: &str = "this is the name of the driver itself: `proxy.legacyConnection` says whose handles \
                        without a connection are";
const NOWHERE_BESIDE: &str = "--kubelet-registration-path has no folder for this name: it has to end in \
                              `/<name of the driver>/<socket>`";
const NOT_AT_THE_PLUGINS: &str = "the kubelet looks for its socket beside the folder that --kubelet-registration-path names, \
                                  on the node: give the same folder, as it is called here, with --legacy-sockets";

/// The served app, and the folder that it comes from.
type Opened = (App, Option<Watch>);

/// A server that takes calls.
struct Running {
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    stop: watch::Sender<bool>,
    runner: Runner,
    ready: Readiness,
    health: HealthReporter,
    _watch: AbortOnDropHandle<()>,
    _reaper: Option<AbortOnDropHandle<()>>,
    _exports: Option<AbortOnDropHandle<()>>,
    _staged: Option<AbortOnDropHandle<()>>,
}

/// Everything bound.
struct Bindings {
    listeners: Listeners,
    /// The sockets of the legacy names.
    legacy: Vec<Bound>,
    /// The socket of csi-addons.
    addons: Option<Bound>,
    remains: Vec<Remains>,
    admin: Option<TcpListener>,
    #[cfg_attr(not(feature = "console"), expect(dead_code, reason = "there is none"))]
    console: Option<TcpListener>,
}

/// Serves until a signal stops it, and returns the exit code.
pub fn run(serve: &Serve) -> ExitCode {
    byte_budget::trim_by(memory::trim);
    let log = log::start(serve.verbosity, serve.log_format);
    process::log_panics();
    process::raise_open_files();
    say_what_is_ignored(serve);
    let metrics = match serve.console {
        Some(_) => Metrics::with_history(),
        None => Metrics::new(),
    };
    let Some(opened) = open(serve, &metrics) else {
        return ExitCode::from(EX_USAGE);
    };
    let runtime = match process::runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(error = %error, "the runtime cannot be started");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(serve_until_stopped(serve, opened, metrics, log));
    // Work that outlived its grace period must not hold up the exit as well.
    runtime.shutdown_background();
    code
}

fn say_what_is_ignored(serve: &Serve) {
    for warning in &serve.warnings {
        warn!("{warning}");
    }
    for (variable, why) in args::without_effect(&process::variable) {
        info!(variable, "this environment variable has no effect: {why}");
    }
}

fn open(serve: &Serve, metrics: &Metrics) -> Option<Opened> {
    if let Some(socket) = &serve.socket {
        process::keep_state_beside(&socket.path);
    }
    let at = Environment {
        node: serve.node_id.clone(),
        version: serve.version,
        tools: serve.programs.tools(metrics),
        modes: Some(serve.modes),
    };
    let (document, mut app) = match App::of_file(&serve.driver_config_file, &at) {
        Ok(opened) => opened,
        Err(error) => {
            let key = error.config().and_then(|error| error.path());
            let text = process::chain(&error);
            error!(key, error = text, "the configuration cannot be used");
            return None;
        }
    };
    app.node.use_dirs(serve.dirs.clone());
    for legacy in app.legacy.values_mut() {
        legacy.node.use_dirs(serve.dirs.clone());
    }
    if serve.legacy_sockets.is_given && app.legacy.is_empty() {
        info!("--legacy-sockets has no effect: `proxy.legacyNames` has no name");
    }
    if let Err((name, problem)) = check_legacy(serve, app.legacy.keys()) {
        error!(key = format!("proxy.legacyNames.{name}"), "{problem}");
        return None;
    }
    folder::report(&document, None);
    if let Some(place) = app.info.place()
        && !is_topology(&place)
    {
        // compat: "Topology": no orchestrator could store it.
        error!(variable = "CSI_NODE_ID", "{NO_TOPOLOGY}");
        return None;
    }
    let folder = app.folder.take();
    let watch = folder.map(|folder| Watch::new(folder, &app.states, metrics, duties(serve)));
    Some((app, watch))
}

/// Refuses legacy names that cannot be served.
fn check_legacy<'a>(
    serve: &Serve,
    names: impl Iterator<Item = &'a PluginName>,
) -> Result<(), (PluginName, String)> {
    for name in names {
        let problem = if *name == serve.name {
            Some(OWN_NAME.to_owned())
        } else if let Err(problem) = serve.legacy_sockets.of(name) {
            Some(problem)
        } else if let Some(registration) = &serve.registration {
            let found = registration.beside(name).is_some();
            match (found, serve.legacy_sockets.is_given) {
                (false, _) => Some(NOWHERE_BESIDE.to_owned()),
                (true, false) => Some(NOT_AT_THE_PLUGINS.to_owned()),
                (true, true) => None,
            }
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err((name.clone(), problem));
        }
    }
    Ok(())
}

/// The duties of a controller: what lies on the storage is measured once, and only if that can be read.
fn duties(serve: &Serve) -> Duties {
    let restores = serve.modes.controller;
    Duties {
        measures: restores && (serve.metrics.is_some() || serve.console.is_some()),
        restores,
    }
}

async fn serve_until_stopped(
    serve: &Serve,
    (app, mut watch): Opened,
    metrics: Metrics,
    log: LogControl,
) -> ExitCode {
    // Signals before sockets: one that comes early must find them removed.
    let bound = match Signals::listen() {
        Ok(signals) => bind(serve, &app).await.map(|bindings| (signals, bindings)),
        Err(error) => Err(error.into()),
    };
    let (mut signals, bindings) = match bound {
        Ok(bound) => bound,
        Err(error) => {
            error!(error = process::chain(&*error), "nothing is served");
            return ExitCode::FAILURE;
        }
    };
    // After the signals, so that one of them ends the program in order.
    process::end_for_certain(serve.shutdown_grace.saturating_add(LINGER + LAST_RESORT));
    let remains = bindings.remains.clone();
    // Connections that exist already are served from the first call on. A signal stops the program even if
    // reading them hangs.
    if let Some(watch) = &mut watch {
        let stopped = tokio::select! {
            () = watch.first() => None,
            signal = signals.stop(&log) => Some(signal),
        };
        if let Some(signal) = stopped {
            info!(signal, "stopped by a signal before anything was served");
            remove(&remains);
            return ExitCode::SUCCESS;
        }
    }
    let driver = app.kind.clone();
    let names = std::iter::once(&serve.name).chain(app.legacy.keys());
    let names: Vec<_> = names.cloned().collect();
    let mut running = Running::start(serve, (app, watch), bindings, metrics, &log);
    running.announce(ServingStatus::Serving).await;
    let version = env!("CARGO_PKG_VERSION");
    info!(driver, version, pid = std::process::id(), "serving");
    let registered = match serve.registration.as_ref().map(|to| register(to, &names)) {
        Some(Err(error)) => {
            error!(
                error = process::chain(&error),
                "no kubelet finds this driver"
            );
            remove(&remains);
            return ExitCode::FAILURE;
        }
        Some(Ok(registered)) => registered,
        None => Vec::new(),
    };
    let code = tokio::select! {
        signal = signals.stop(&log) => {
            running.drain(signal, serve.shutdown_grace, &mut signals, &log).await;
            ExitCode::SUCCESS
        }
        ended = &mut running.server => {
            let error = match &ended {
                Ok(Ok(())) => "it ended by itself".to_owned(),
                Ok(Err(error)) => process::chain(error),
                Err(error) => process::chain(error),
            };
            error!(error, "the server has stopped");
            ExitCode::FAILURE
        }
    };
    for registered in &registered {
        warn_of(registered.remove());
    }
    remove(&remains);
    shares::unmount_all(LINGER);
    code
}

/// Registers each name with the kubelet, the first as it is configured.
fn register(
    to: &KubeletRegistration,
    names: &[PluginName],
) -> Result<Vec<Registered>, ListenError> {
    let mut registered: Vec<Registered> = Vec::with_capacity(names.len());
    for name in names {
        let beside = to.beside(name).filter(|_| !registered.is_empty());
        match beside.as_ref().unwrap_or(to).begin(name) {
            Ok(one) => registered.push(one),
            Err(error) => {
                for one in &registered {
                    warn_of(one.remove());
                }
                return Err(error);
            }
        }
    }
    Ok(registered)
}

/// Removes the sockets.
fn remove(remains: &[Remains]) {
    for one in remains {
        warn_of(one.remove());
    }
}

fn warn_of(removed: io::Result<()>) {
    if let Err(error) = removed {
        warn!(error = %error, "the socket cannot be removed");
    }
}

// === impl Running ===

impl Running {
    fn start(
        serve: &Serve,
        (mut app, watch): Opened,
        bindings: Bindings,
        metrics: Metrics,
        log: &LogControl,
    ) -> Self {
        let ready = Readiness::default();
        if let Some(listener) = bindings.admin {
            let (metrics, log, ready) = (metrics.clone(), log.clone(), ready.clone());
            tokio::spawn(
                Admin {
                    metrics,
                    log,
                    ready,
                }
                .serve(listener),
            );
        }
        let (health, health_service) = health_reporter();
        let watch = watch.map_or_else(
            || folder::watch_one(&app.connections, &app.states, &metrics, duties(serve)),
            Watch::begin,
        );
        let legacy = std::mem::take(&mut app.legacy);
        let plugin = plugin(serve, app, metrics.clone());
        #[cfg(feature = "console")]
        if let Some(listener) = bindings.console {
            tokio::spawn(Console::new(&plugin).serve(listener));
        }
        let runner = plugin.runner.clone();
        let reaper = plugin.modes.node.then(|| inline::reap(&plugin));
        let exports = plugin
            .modes
            .controller
            .then(|| lost_exports::watch(&plugin));
        let staged = plugin.modes.node.then(|| {
            let names = std::iter::once(&plugin.name).chain(legacy.keys());
            let names = names.map(ToString::to_string).collect();
            staged::watch(&plugin, names, metrics)
        });
        let mut services = plugin.services();
        services.push(health_server::SERVICE_NAME);
        let routes = |plugin: Arc<Plugin>| {
            let routes = plugin.routes().add_service(health_service.clone());
            reflection::add_to(routes, &services)
        };
        let addons = bindings.addons.map(|bound| {
            let routes = addons::routes(Arc::clone(&plugin));
            let routes = reflection::add_to(routes, &addons::services(serve.modes));
            (only(bound), routes)
        });
        let (stop, stopping) = watch::channel(false);
        let until_stopped = move || {
            let mut stopping = stopping.clone();
            async move { drop(stopping.wait_for(|stop| *stop).await) }
        };
        let mut served = vec![(bindings.listeners, routes(plugin))];
        for ((name, app), bound) in legacy.into_iter().zip(bindings.legacy) {
            let plugin = app.plugin(name, serve.modes, runner.clone());
            served.push((only(bound), routes(Arc::new(plugin))));
        }
        served.extend(addons);
        let served = served
            .into_iter()
            .map(|(listeners, routes)| server::serve(listeners, routes, until_stopped.clone()));
        let served = join_all(served);
        let server = tokio::spawn(async move { served.await.into_iter().collect() });
        Self {
            server,
            stop,
            runner,
            ready,
            health,
            _watch: watch,
            _reaper: reaper,
            _exports: exports,
            _staged: staged,
        }
    }

    /// Says whether calls are taken.
    async fn announce(&self, status: ServingStatus) {
        self.ready.set(matches!(status, ServingStatus::Serving));
        for service in ["", SERVICE_NAME] {
            self.health.set_service_status(service, status).await;
        }
    }

    /// Takes no call any more and lets those in progress end, within limits.
    async fn drain(
        &mut self,
        signal: &str,
        grace: Duration,
        signals: &mut Signals,
        log: &LogControl,
    ) {
        self.announce(ServingStatus::NotServing).await;
        let tracker = self.runner.tracker().clone();
        let in_flight = tracker.len();
        info!(
            signal,
            in_flight, "shutting down: no new calls; waiting for those in progress"
        );
        // The server may have ended by itself in this very moment.
        let _ = self.stop.send(true);
        tracker.close();
        let ended = async {
            loop {
                tracker.wait().await;
                let answered = tokio::time::timeout(LINGER, &mut self.server).await;
                if answered.is_ok() || tracker.is_empty() {
                    break;
                }
            }
        };
        tokio::select! {
            () = ended => info!("nothing is in progress any more"),
            () = tokio::time::sleep(grace) => {
                warn!(in_flight = tracker.len(), ?grace, "the grace period is over");
            }
            signal = signals.stop(log) => {
                warn!(signal, in_flight = tracker.len(), "second signal: exiting at once");
            }
        }
    }
}

/// A unix socket alone.
fn only(bound: Bound) -> Listeners {
    Listeners {
        unix: Some(bound),
        tcp: None,
    }
}

fn plugin(serve: &Serve, app: App, metrics: Metrics) -> Arc<Plugin> {
    let deadlines = Deadlines::for_programs(serve.programs.timeouts());
    let runner = Runner::new(deadlines, metrics);
    Arc::new(app.plugin(serve.name.clone(), serve.modes, runner))
}

type BindError = Box<dyn std::error::Error + Send + Sync>;

async fn bind(serve: &Serve, app: &App) -> Result<Bindings, BindError> {
    let admin = match serve.metrics {
        Some(address) => {
            let (listener, address) = listen(address, "--metrics-address").await?;
            info!(address = %address, "metrics and the log level are served");
            if is_exposed(address) {
                warn!(address = %address, "any client that reaches this address may read the metrics and set the log level");
            }
            Some(listener)
        }
        None => None,
    };
    let console = match serve.console {
        Some(address) => {
            let (listener, address) = listen(address, "--console-address").await?;
            info!(address = %address, "the console is served");
            Some(listener)
        }
        None => None,
    };
    let tcp = match &serve.tcp {
        Some(tcp) => {
            let listener = listen_tcp(tcp).await?;
            let address = listener.local_addr()?;
            info!(address = %address, "listening on TCP");
            if is_exposed(address) {
                warn!(address = %address, "any client that reaches this address controls the storage: there is no authentication");
            }
            Some(listener)
        }
        None => None,
    };
    let unix = serve.socket.as_ref().map(Bound::listen).transpose()?;
    if let Some(socket) = &serve.socket {
        info!(socket = %socket.path.display(), "listening on a unix socket");
    }
    let mut remains: Vec<_> = unix.iter().map(Bound::remains).collect();
    let mut legacy = Vec::with_capacity(app.legacy.len());
    for name in app.legacy.keys() {
        match bind_legacy(serve, name) {
            Ok(bound) => {
                remains.push(bound.remains());
                legacy.push(bound);
            }
            Err(error) => {
                remove(&remains);
                return Err(error);
            }
        }
    }
    let addons = match serve.addons.as_ref().map(Bound::listen).transpose() {
        Ok(bound) => bound,
        Err(error) => {
            remove(&remains);
            return Err(error.into());
        }
    };
    if let Some(socket) = &serve.addons {
        info!(socket = %socket.path.display(), "listening for csi-addons");
    }
    remains.extend(addons.as_ref().map(Bound::remains));
    Ok(Bindings {
        listeners: Listeners { unix, tcp },
        legacy,
        addons,
        remains,
        admin,
        console,
    })
}

/// The socket of a legacy name, in a folder of its own.
fn bind_legacy(serve: &Serve, name: &PluginName) -> Result<Bound, BindError> {
    let socket = serve.legacy_sockets.of(name)?;
    if let Some(folder) = socket.path.parent()
        && let Err(error) = fs::create_dir(folder)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        let place = folder.display();
        return Err(format!("legacy name {name}: make the folder {place}: {error}").into());
    }
    let bound = Bound::listen(&socket);
    let bound = bound.map_err(|error| format!("legacy name {name}: {}", process::chain(&error)))?;
    info!(name = %name, socket = %socket.path.display(), "listening for a legacy name");
    Ok(bound)
}

/// A listener for operators, and its address.
async fn listen(address: SocketAddr, flag: &str) -> Result<(TcpListener, SocketAddr), BindError> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| ListenError::on(address, error))
        .map_err(|error| format!("{flag}: {}", process::chain(&error)))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
