//! Listening: sockets, limits, and the services that belong to any gRPC server.
//!
//! The caller passes the services; signals and configuration are not known here. A socket is removed
//! last, after all calls have ended.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::{Stream, StreamExt};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tower::layer::layer_fn;
use tracing::warn;

mod handshake;
mod in_time;
pub mod reflection;
pub mod socket;

use h2_authority::Repaired;
use handshake::WithDeadline;
use in_time::InTime;
use socket::Listeners;

use crate::telemetry::sampled::Sampled;

/// A request list of headers larger than this is refused with 431.
const MAX_HEADER_LIST: u32 = 16 * 1024;
/// Calls at once on one connection. A sidecar uses ten; what exceeds it waits at the client.
const MAX_STREAMS: u32 = 256;
/// Streams that a client opened and reset before we took them; more is an attack.
const MAX_PENDING_RESETS: usize = 64;
/// The time that a connection may be idle before a keepalive ping. A client whose host is gone sends nothing any more.
const KEEPALIVE: Duration = Duration::from_mins(1);
/// As long as clients of gRPC wait by default.
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(20);
/// How long to wait after a connection that could not be accepted: while descriptors are short, each
/// try fails at once.
const PAUSE: Duration = Duration::from_millis(100);

static FAILED: Sampled = Sampled::new();

/// Serves until `stop` resolves, then refuses new connections and ends when the old ones do.
///
/// `stop` is awaited once for each listener.
pub async fn serve<F>(
    listeners: Listeners,
    routes: Routes,
    stop: impl Fn() -> F,
) -> Result<(), tonic::transport::Error>
where
    F: Future<Output = ()>,
{
    let routes = routes.prepare();
    let Listeners { unix, tcp } = listeners;
    let unix = async {
        match unix {
            Some(unix) => on(unix.incoming(), routes.clone(), stop()).await,
            None => Ok(()),
        }
    };
    let tcp = async {
        match tcp {
            Some(tcp) => {
                let incoming = tokio_stream::wrappers::TcpListenerStream::new(tcp);
                on(incoming.map(without_delay), routes.clone(), stop()).await
            }
            None => Ok(()),
        }
    };
    // Both, to the end: one that fails to accept must not cut the calls of the other.
    let (unix, tcp) = tokio::join!(unix, tcp);
    unix.and(tcp)
}

fn without_delay(accepted: io::Result<tokio::net::TcpStream>) -> io::Result<tokio::net::TcpStream> {
    if let Ok(stream) = &accepted {
        // Only slower without it.
        let _ = stream.set_nodelay(true);
    }
    accepted
}

async fn on<IO>(
    incoming: impl Stream<Item = io::Result<IO>>,
    routes: Routes,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    Server::builder()
        .http2_max_header_list_size(MAX_HEADER_LIST)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWER))
        .layer(layer_fn(InTime::new))
        .add_routes(routes)
        .serve_with_incoming_shutdown(
            accepted(incoming).map(|io| io.map(|io| Repaired::new(WithDeadline::new(io)))),
            stop,
        )
        .await
}

/// The same connections, with a pause after each that could not be accepted: tonic tries again at once.
fn accepted<IO>(
    incoming: impl Stream<Item = io::Result<IO>>,
) -> impl Stream<Item = io::Result<IO>> {
    incoming.then(async |accepted| {
        if let Err(error) = &accepted {
            if let Some(suppressed) = FAILED.take() {
                warn!(suppressed, error = %error, "could not accept a connection");
            }
            tokio::time::sleep(PAUSE).await;
        }
        accepted
    })
}

#[cfg(test)]
mod tests;
