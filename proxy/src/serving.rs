//! The life of a server: configuration, sockets, signals, the end.
//!
//! What is wrong with the configuration is found before anything is bound. After a signal no call
//! is taken any more, those in progress end within a grace period, and the socket goes last.

use std::process::ExitCode;
use std::sync::Arc;

use csi_proto::v1::identity_server::SERVICE_NAME;
use driver_core::config::Severity;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tracing::{error, info, warn};

use crate::admin::{Admin, Readiness};
use crate::args::{self, EX_USAGE, Serve};
use crate::config_file;
use crate::connection::Connection;
use crate::dispatch::Connections;
use crate::metrics::Metrics;
use crate::process::{self, Signals};
use crate::rpc::{Deadlines, Runner};
use crate::server::socket::{Bound, Listeners, Remains, is_exposed, listen_tcp};
use crate::server::{self, reflection};
use crate::service::Plugin;
use crate::telemetry::{self, LogControl};

/// What changes when the server begins or ceases to take calls.
struct Announcement {
    ready: Readiness,
    health: HealthReporter,
}

/// Everything bound.
struct Bindings {
    listeners: Listeners,
    remains: Option<Remains>,
    admin: Option<TcpListener>,
}

/// Serves until it is told to stop, and returns the exit code.
pub fn run(serve: &Serve) -> ExitCode {
    let log = telemetry::start(serve.verbosity, serve.log_format);
    process::log_panics();
    say_what_is_ignored(serve);
    let Some(connection) = open(serve) else {
        return ExitCode::from(EX_USAGE);
    };
    let runtime = match process::runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(error = %error, "the runtime cannot be started");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(serve_until_told(serve, connection, log));
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

fn open(serve: &Serve) -> Option<Connection> {
    let opened = config_file::open(&serve.driver_config_file, &serve.node_id, serve.version);
    let (document, connection) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let key = error.config().and_then(|error| error.path());
            let text = process::chain(&error);
            error!(key, error = text, "the configuration cannot be used");
            return None;
        }
    };
    for finding in document.findings() {
        let key = finding.path.as_str();
        match finding.severity {
            Severity::NoEffect => info!(key, "configuration: {finding}"),
            Severity::UnknownKey | Severity::Doubtful => warn!(key, "configuration: {finding}"),
        }
    }
    Some(connection)
}

async fn serve_until_told(serve: &Serve, connection: Connection, log: LogControl) -> ExitCode {
    // Before the sockets: a signal that comes early must find them removed.
    let bound = match Signals::listen() {
        Ok(signals) => bind(serve).await.map(|bindings| (signals, bindings)),
        Err(error) => Err(error.into()),
    };
    let (mut signals, bindings) = match bound {
        Ok(bound) => bound,
        Err(error) => {
            error!(error = process::chain(&*error), "nothing is served");
            return ExitCode::FAILURE;
        }
    };
    let Bindings {
        listeners,
        remains,
        admin,
    } = bindings;
    let metrics = Metrics::new();
    let (health, health_service) = health_reporter();
    let announcement = Announcement {
        ready: Readiness::default(),
        health,
    };
    if let Some(listener) = admin {
        let admin = Admin {
            metrics: metrics.clone(),
            log: log.clone(),
            ready: announcement.ready.clone(),
        };
        tokio::spawn(admin.serve(listener));
    }
    let kind = connection.driver().kind().to_owned();
    let plugin = plugin(serve, connection, metrics);
    let runner = plugin.runner.clone();
    let routes = reflection::add_to(plugin.routes().add_service(health_service));

    let (stop, stopping) = watch::channel(false);
    let mut server = tokio::spawn(server::serve(listeners, routes, move || {
        let mut stopping = stopping.clone();
        async move { drop(stopping.wait_for(|stop| *stop).await) }
    }));
    announcement.make(ServingStatus::Serving).await;
    info!(
        driver = kind,
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        "serving"
    );

    tokio::select! {
        signal = signals.stop(&log) => {
            announcement.make(ServingStatus::NotServing).await;
            let in_flight = runner.tracker().len();
            info!(signal, in_flight, "no call is taken any more; those in progress go on");
            // The server may have ended by itself in this very moment.
            let _ = stop.send(true);
            runner.tracker().close();
            let ended = async {
                let _ = (&mut server).await;
                runner.tracker().wait().await;
            };
            tokio::select! {
                () = ended => info!("nothing is in progress any more"),
                () = tokio::time::sleep(serve.shutdown_grace) => {
                    let in_flight = runner.tracker().len();
                    warn!(in_flight, grace = ?serve.shutdown_grace, "the grace period is over");
                }
                signal = signals.stop(&log) => {
                    let in_flight = runner.tracker().len();
                    warn!(signal, in_flight, "told twice: leaving at once");
                }
            }
            remove(remains.as_ref());
            ExitCode::SUCCESS
        }
        ended = &mut server => {
            let error = match &ended {
                Ok(Ok(())) => "it ended by itself".to_owned(),
                Ok(Err(error)) => process::chain(error),
                Err(error) => process::chain(error),
            };
            error!(error, "the server has stopped");
            remove(remains.as_ref());
            ExitCode::FAILURE
        }
    }
}

fn plugin(serve: &Serve, connection: Connection, metrics: Metrics) -> Arc<Plugin> {
    let by_default = Deadlines::default();
    let node = serve.mount_timeout.unwrap_or(by_default.node);
    let deadlines = Deadlines { node, ..by_default };
    Arc::new(Plugin {
        name: serve.name.clone(),
        modes: serve.modes,
        node_id: serve.node_id.clone(),
        connections: Connections::single(connection),
        runner: Runner::new(deadlines, metrics),
    })
}

async fn bind(serve: &Serve) -> Result<Bindings, Box<dyn std::error::Error + Send + Sync>> {
    let admin = match serve.metrics {
        Some(address) => {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            info!(address = %address, "metrics and the log level are served");
            if is_exposed(address) {
                warn!(address = %address, "whoever reaches this address may read the metrics and set the log level");
            }
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
                warn!(address = %address, "whoever reaches this address owns the storage: there is no authentication");
            }
            Some(listener)
        }
        None => None,
    };
    let unix = serve.socket.as_ref().map(Bound::listen).transpose()?;
    if let Some(socket) = &serve.socket {
        info!(socket = %socket.path.display(), "listening on a unix socket");
    }
    let remains = unix.as_ref().map(Bound::remains);
    Ok(Bindings {
        listeners: Listeners { unix, tcp },
        remains,
        admin,
    })
}

fn remove(remains: Option<&Remains>) {
    if let Some(Err(error)) = remains.map(Remains::remove) {
        warn!(error = %error, "the socket cannot be removed");
    }
}

// === impl Announcement ===

impl Announcement {
    async fn make(&self, status: ServingStatus) {
        self.ready.set(matches!(status, ServingStatus::Serving));
        for service in ["", SERVICE_NAME] {
            self.health.set_service_status(service, status).await;
        }
    }
}
