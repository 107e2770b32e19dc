//! From settings to an open socket: TCP, TLS, and the endpoint that this generation has.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self};

use crate::metered::{LARGEST_ANSWER, Meter, Metered};
use crate::session::Socket;
use crate::settings::Protocol;
use crate::{Error, Kind, Settings, Transport, tls};

pub(crate) type WebSocket = WebSocketStream<Box<dyn Socket>>;

enum Refused {
    /// The NAS answers HTTP and has no such endpoint.
    NoEndpoint,
    Error(Error),
}

/// Opens the newest endpoint that the NAS has. Nothing secret is sent.
pub(crate) async fn open(
    settings: &Settings,
    tls: &TlsConnector,
    limit: Duration,
) -> Result<(Transport, WebSocket, Meter), Error> {
    for transport in [Transport::JsonRpc, Transport::Legacy] {
        let attempt = tokio::time::timeout(limit, shake_hands(settings, tls, transport)).await;
        let timeout = || Error::new(Kind::Unreachable, "the NAS does not answer");
        match attempt.unwrap_or_else(|_| Err(Refused::Error(timeout()))) {
            Ok((socket, meter)) => return Ok((transport, socket, meter)),
            Err(Refused::NoEndpoint) => {}
            Err(Refused::Error(error)) => return Err(error.context(settings.address())),
        }
    }
    let message = "neither /api/current nor /websocket answers: is this a TrueNAS?";
    Err(Error::new(Kind::Unreachable, message).context(settings.address()))
}

async fn shake_hands(
    settings: &Settings,
    tls: &TlsConnector,
    transport: Transport,
) -> Result<(WebSocket, Meter), Refused> {
    let endpoint = &settings.endpoint;
    let scheme = match endpoint.protocol {
        Protocol::Http => "ws",
        Protocol::Https => "wss",
    };
    let url = format!("{scheme}://{}{}", endpoint.authority(), transport.path());
    let request = url.into_client_request().map_err(|error| {
        Refused::Error(Error::new(Kind::Config, format!("httpConnection: {error}")))
    })?;
    let socket = reach(settings, tls).await.map_err(Refused::Error)?;
    let meter = Meter::default();
    let socket: Box<dyn Socket> = Box::new(Metered::new(socket, meter.clone()));
    let config = WebSocketConfig::default()
        .max_message_size(Some(LARGEST_ANSWER))
        .max_frame_size(Some(LARGEST_ANSWER));
    match tokio_tungstenite::client_async_with_config(request, socket, Some(config)).await {
        Ok((socket, _)) => Ok((socket, meter)),
        Err(tungstenite::Error::Http(answer)) => Err(refusal(&answer)),
        Err(error) => Err(Refused::Error(Error::new(
            Kind::Unreachable,
            format!("the websocket handshake failed: {error}"),
        ))),
    }
}

/// The meaning of an HTTP answer to the handshake.
fn refusal(answer: &http::Response<Option<Vec<u8>>>) -> Refused {
    let status = answer.status();
    let location = answer.headers().get(http::header::LOCATION);
    let location = location.and_then(|location| location.to_str().ok());
    let message = if status.is_server_error() {
        format!("the NAS answers {status}: its middleware is not running")
    } else if status.is_redirection() && location.is_some_and(|to| to.starts_with("https:")) {
        "the NAS redirects to HTTPS: set httpConnection.protocol to https".to_owned()
    } else {
        return Refused::NoEndpoint;
    };
    Refused::Error(Error::new(Kind::Unreachable, message))
}

async fn reach(settings: &Settings, tls: &TlsConnector) -> Result<Box<dyn Socket>, Error> {
    let endpoint = &settings.endpoint;
    let address = (endpoint.host.as_str(), endpoint.port);
    let unreachable = |error: io::Error| {
        let advice = "check httpConnection: protocol, host and port; the network and a firewall";
        Error::new(Kind::Unreachable, format!("{error} ({advice})"))
    };
    let tcp = TcpStream::connect(address).await.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    if endpoint.protocol == Protocol::Http {
        return Ok(Box::new(tcp));
    }
    let name = tls::server_name(settings)?;
    let stream = tls
        .connect(name, tcp)
        .await
        .map_err(|error| tls_failure(&error))?;
    Ok(Box::new(stream))
}

fn tls_failure(error: &io::Error) -> Error {
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(why)) => Error::new(
            Kind::Certificate,
            format!(
                "the certificate is not accepted: {why}. Set httpConnection.tls.ca, \
                 tls.certificateSha256 or tls.serverName; allowInsecure accepts any certificate"
            ),
        ),
        Some(rustls::Error::General(why)) => Error::new(Kind::Certificate, why.clone()),
        _ => Error::new(Kind::Unreachable, format!("TLS: {error}")),
    }
}
