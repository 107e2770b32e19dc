//! Listening, TLS, and the way of an HTTP request to its protocol.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::nas::Nas;
use crate::route::OldRoute;
use crate::session::{Protocol, Session};
use crate::{control, random, rest, websocket};

type Body = Full<Bytes>;

/// Serves the protocols of the NAS on a listener until the task is aborted.
pub(crate) async fn serve(nas: Arc<Nas>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    while let Ok((stream, peer)) = listener.accept().await {
        drop(stream.set_nodelay(true));
        let (nas, tls) = (Arc::clone(&nas), tls.clone());
        tokio::spawn(async move {
            // A client that goes away in the middle is no event.
            drop(match tls {
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => connection(nas, stream, peer, true).await,
                    Err(_) => Ok(()),
                },
                None => connection(nas, stream, peer, false).await,
            });
        });
    }
}

async fn connection<S>(
    nas: Arc<Nas>,
    stream: S,
    peer: SocketAddr,
    encrypted: bool,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut cuts = nas.cuts();
    let service = service_fn(move |request| {
        let nas = Arc::clone(&nas);
        async move { handle(nas, request, peer.ip(), encrypted).await }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        result = connection => result,
        _ = cuts.changed() => Ok(()),
    }
}

/// Serves the control endpoint on a listener until the task is aborted.
pub(crate) async fn serve_control(simulator: control::Control, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let simulator = simulator.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let simulator = simulator.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await?.to_bytes();
                    let (status, body) = simulator
                        .answer(&parts.method, parts.uri.path(), &body)
                        .await;
                    Ok::<_, hyper::Error>(json_response(status, &body))
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
        });
    }
}

async fn handle(
    nas: Arc<Nas>,
    request: Request<Incoming>,
    peer: IpAddr,
    encrypted: bool,
) -> Result<Response<Body>, io::Error> {
    let settings = nas.faults.settings();
    if settings.bad_gateway {
        return Ok(text_response(
            502,
            "text/html",
            "<html><head><title>502 Bad Gateway</title></head></html>",
        ));
    }
    if settings.redirect_to_tls && !encrypted {
        let host = request
            .headers()
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or("localhost");
        let target = format!(
            "https://{}{}",
            host.split(':').next().unwrap_or_default(),
            request.uri().path()
        );
        let mut response = text_response(302, "text/html", "");
        if let Ok(target) = target.parse() {
            response.headers_mut().insert(header::LOCATION, target);
        }
        return Ok(response);
    }
    tokio::time::sleep(settings.round_trip()).await;
    let generation = nas.generation();
    let path = request.uri().path().to_owned();
    let version = path.strip_prefix("/api/").unwrap_or_default();
    let route = OldRoute::find(generation, version);
    if route.is_some() || generation.is_current_version(version) {
        let protocol = Protocol::JsonRpc;
        return Ok(upgrade(&nas, request, protocol, route, peer, encrypted));
    }
    match path.as_str() {
        "/websocket" => {
            let protocol = Protocol::Legacy;
            Ok(upgrade(&nas, request, protocol, None, peer, encrypted))
        }
        "/api/boot_id" if generation.has_boot_id_page() => {
            Ok(json_response(200, &Value::from(nas.boot_id())))
        }
        "/api/versions" => Ok(match generation.api_versions() {
            Some(versions) => json_response(200, &versions.iter().copied().collect()),
            None => not_found(),
        }),
        path => match path
            .strip_prefix("/api/v2.0/")
            .filter(|_| generation.has_rest())
        {
            Some(path) => rest(&nas, path.to_owned(), request, peer, encrypted).await,
            None => Ok(not_found()),
        },
    }
}

async fn rest(
    nas: &Arc<Nas>,
    path: String,
    request: Request<Incoming>,
    peer: IpAddr,
    encrypted: bool,
) -> Result<Response<Body>, io::Error> {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map_err(io::Error::other)?
        .to_bytes()
        .to_vec();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let request = rest::Request {
        verb: parts.method,
        path,
        query,
        headers: parts.headers,
        body,
        peer,
        encrypted,
    };
    match rest::answer(nas, request).await {
        // Where JSON is not expected the middleware answers text, and nginx HTML.
        Some((status, Value::String(text))) if status >= 400 => {
            let kind = if text.starts_with('<') {
                "text/html"
            } else {
                "text/plain; charset=utf-8"
            };
            Ok(text_response(status, kind, &text))
        }
        Some((status, body)) => Ok(json_response(status, &body)),
        None => Err(io::Error::other("cut by a fault")),
    }
}

fn upgrade(
    nas: &Arc<Nas>,
    mut request: Request<Incoming>,
    protocol: Protocol,
    route: Option<OldRoute>,
    peer: IpAddr,
    encrypted: bool,
) -> Response<Body> {
    let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY).cloned() else {
        return text_response(
            400,
            "text/plain; charset=utf-8",
            "No WebSocket UPGRADE hdr: None\n Can \"Upgrade\" only to \"WebSocket\".",
        );
    };
    let upgraded = hyper::upgrade::on(&mut request);
    let id = format!("{}-{}", random::uuid(), nas.next_connection());
    let (mut session, outbox) = Session::new(id, protocol, peer, encrypted);
    session.route = route;
    let nas = Arc::clone(nas);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgraded.await {
            let socket =
                WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            websocket::serve(nas, Arc::new(session), outbox, socket).await;
        }
    });
    let mut response = Response::new(Body::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(
        header::UPGRADE,
        header::HeaderValue::from_static("websocket"),
    );
    headers.insert(
        header::CONNECTION,
        header::HeaderValue::from_static("Upgrade"),
    );
    if let Ok(accept) = derive_accept_key(key.as_bytes()).parse() {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

fn not_found() -> Response<Body> {
    text_response(
        404,
        "text/html",
        "<html><head><title>404 Not Found</title></head></html>",
    )
}

fn json_response(status: u16, body: &Value) -> Response<Body> {
    text_response(status, "application/json; charset=utf-8", &body.to_string())
}

fn text_response(status: u16, kind: &'static str, body: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_owned()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
