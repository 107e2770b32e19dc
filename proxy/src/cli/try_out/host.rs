//! The server that is tried: the one of this program, on a real socket, in this process.

use std::sync::Arc;
use std::time::Duration;

use csi_try::Server;
use csi_types::AbsolutePath;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::cli::args::UnixSocket;
use crate::csi::identity::PluginName;
use crate::csi::plugin::{Modes, Plugin};
use crate::process;
use crate::rpc::Runner;
use crate::rpc::server;
use crate::rpc::server::socket::{Bound, Listeners, Remains};

/// The name under which it serves.
const NAME: &str = "org.omnibus-csi.try";

/// How long it may finish what it was asked, once nobody waits for it any more.
const GRACE: Duration = Duration::from_secs(15);

/// A server in this process.
#[derive(Debug)]
pub(super) struct Host {
    stop: watch::Sender<bool>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    remains: Remains,
    runner: Runner,
}

// === impl Host ===

impl Host {
    /// Serves `app` at `socket`.
    pub(super) fn start(app: App, runner: Runner, socket: &AbsolutePath) -> Result<Self, String> {
        let socket = UnixSocket {
            path: socket.as_path().to_owned(),
            mode: 0o600,
        };
        let seen = |error: &(dyn std::error::Error + 'static)| process::chain(error);
        let bound = Bound::listen(&socket).map_err(|error| seen(&error))?;
        let remains = bound.remains();
        let name = PluginName::parse(NAME).map_err(|error| seen(&error))?;
        let modes = Modes {
            controller: true,
            node: true,
        };
        let plugin = Arc::new(Plugin::new(name, modes, app, runner.clone()));
        let (stop, stopping) = watch::channel(false);
        let listeners = Listeners {
            unix: Some(bound),
            tcp: None,
        };
        let server = tokio::spawn(server::serve(listeners, plugin.routes(), move || {
            let mut stopping = stopping.clone();
            async move { drop(stopping.wait_for(|stop| *stop).await) }
        }));
        Ok(Self {
            stop,
            server,
            remains,
            runner,
        })
    }
}

impl Server for Host {
    async fn stop(self) -> Result<(), String> {
        // It may have ended by itself already.
        let _ = self.stop.send(true);
        self.runner.tracker().close();
        let tracker = self.runner.tracker();
        let ended = async {
            let ended = self.server.await;
            tracker.wait().await;
            ended
        };
        let Ok(ended) = tokio::time::timeout(GRACE, ended).await else {
            let calls = tracker.len();
            return Err(format!("the server is still at work on {calls} calls"));
        };
        let removed = self.remains.remove();
        match ended {
            Ok(ended) => ended.map_err(|error| process::chain(&error))?,
            Err(error) => return Err(process::chain(&error)),
        }
        removed.map_err(|error| format!("its socket cannot be removed: {error}"))
    }
}
