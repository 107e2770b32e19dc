//! The server that is tried: the one of this program, on a real socket, in this process.

use std::sync::Arc;
use std::time::Duration;

use csi_try::Program;
use csi_types::AbsolutePath;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::csi::plugin::Modes;
use crate::process;
use crate::routing::plugin_name::PluginName;
use crate::rpc::Runner;
use crate::rpc::server;
use crate::rpc::server::socket::{Bound, Listeners, Remains, UnixSocket};

/// The name under which it serves.
const NAME: &str = "org.omnibus-csi.try";

/// The time in which it may finish what it was asked, once its clients have gone.
const GRACE: Duration = Duration::from_secs(15);

/// A server in this process.
#[derive(Debug)]
pub(super) struct Host {
    app: Option<App>,
    runner: Runner,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: watch::Sender<bool>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    remains: Remains,
}

// === impl Host ===

impl Host {
    pub(super) fn new(app: App, runner: Runner) -> Self {
        let (app, running) = (Some(app), None);
        Self {
            app,
            runner,
            running,
        }
    }
}

impl Program for Host {
    fn start(&mut self, socket: &AbsolutePath) -> Result<(), String> {
        let app = self.app.take().ok_or("it was started before")?;
        let socket = UnixSocket {
            path: socket.as_path().to_owned(),
            mode: 0o600,
        };
        let bound = Bound::listen(&socket).map_err(|error| process::chain(&error))?;
        let remains = bound.remains();
        let name = PluginName::parse(NAME).map_err(|error| process::chain(&error))?;
        let modes = Modes {
            controller: true,
            node: true,
        };
        let plugin = Arc::new(app.plugin(name, modes, self.runner.clone()));
        let (stop, stopping) = watch::channel(false);
        let listeners = Listeners {
            unix: Some(bound),
            tcp: None,
        };
        let server = tokio::spawn(server::serve(listeners, plugin.routes(), move || {
            let mut stopping = stopping.clone();
            async move { drop(stopping.wait_for(|stop| *stop).await) }
        }));
        self.running = Some(Running {
            stop,
            server,
            remains,
        });
        Ok(())
    }

    async fn stop(&mut self) -> Result<(), String> {
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        // It may have ended by itself already.
        let _ = running.stop.send(true);
        let tracker = self.runner.tracker();
        tracker.close();
        let ended = async {
            let ended = running.server.await;
            tracker.wait().await;
            ended
        };
        let Ok(ended) = tokio::time::timeout(GRACE, ended).await else {
            let calls = tracker.len();
            return Err(format!("the server is still at work on {calls} calls"));
        };
        let removed = running.remains.remove();
        let ended = ended.map_err(|error| process::chain(&error))?;
        ended.map_err(|error| process::chain(&error))?;
        removed.map_err(|error| format!("its socket cannot be removed: {error}"))
    }
}
