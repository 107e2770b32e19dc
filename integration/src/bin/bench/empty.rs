//! The baseline of a call: a tonic service that does nothing, in a separate process.
#![expect(
    clippy::disallowed_methods,
    reason = "starts itself a second time, to be measured"
)]

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use csi_proto::v1::identity_server::{Identity, IdentityServer};
use csi_proto::v1::{ProbeRequest, ProbeResponse};
use integration::client::Client;
use integration::process::Process;
use integration::wait;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport};

/// The argument that makes this program an empty server.
pub(crate) const MODE: &str = "--empty-server";

/// An empty server in its own process.
#[derive(Debug)]
pub(crate) struct EmptyServer {
    child: Child,
    client: Client,
    started_in: Duration,
}

#[derive(Debug)]
struct Nothing;

#[tonic::async_trait]
impl Identity for Nothing {
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

/// Serves nothing at `socket` until killed.
pub(crate) fn serve(socket: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::bind(socket)?;
        transport::Server::builder()
            .add_service(IdentityServer::new(Nothing))
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await?;
        Ok(())
    })
}

// === impl EmptyServer ===

impl EmptyServer {
    /// Starts one and waits for its first answer.
    pub(crate) async fn start(socket: &Path) -> Result<Self> {
        let began = Instant::now();
        let child = Command::new(std::env::current_exe()?)
            .arg(MODE)
            .arg(socket)
            .stdin(Stdio::null())
            .spawn()?;
        wait::until("the empty server", || UnixStream::connect(socket).ok()).await;
        let mut client = Client::connect(socket).await?;
        client.identity.probe(ProbeRequest {}).await?;
        Ok(Self {
            child,
            client,
            started_in: began.elapsed(),
        })
    }

    /// The time from its start to its first answer.
    pub(crate) fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Clients of it.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The process.
    pub(crate) fn process(&self) -> Process {
        Process(self.child.id())
    }
}

impl Drop for EmptyServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
