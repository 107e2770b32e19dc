//! A client of both websocket protocols, without any cleverness.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};
use truenas_sim::{Generation, Options, Simulator};

/// A NAS that does not wait when a login fails.
pub(crate) async fn nas(generation: Generation) -> Simulator {
    let nas = Simulator::start(Options::new(generation))
        .await
        .expect("a simulator");
    nas.faults().set(|settings| {
        settings.failed_login_ms = 0;
        settings.rate_limit_ms = 0;
    });
    nas
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

pub(crate) struct Client {
    socket: WebSocketStream<Box<dyn Wire>>,
    legacy: bool,
    last: i64,
    /// Events that came while an answer was waited for.
    pub(crate) events: Vec<Value>,
}

/// The end of a connection.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    Closed(u16, String),
    Cut,
}

impl Client {
    /// Connects to the best protocol of the release, without a login.
    pub(crate) async fn connect(nas: &Simulator) -> Self {
        if nas.generation().has_jsonrpc() {
            Self::jsonrpc(nas.http()).await
        } else {
            Self::legacy(nas.http()).await
        }
    }

    pub(crate) async fn jsonrpc(address: SocketAddr) -> Self {
        Self::open(address, "/api/current", false).await
    }

    pub(crate) async fn legacy(address: SocketAddr) -> Self {
        let mut client = Self::open(address, "/websocket", true).await;
        client
            .send(&json!({"msg": "connect", "version": "1", "support": ["1"]}))
            .await;
        assert_eq!(
            client.receive().await.expect("an answer")["msg"],
            "connected"
        );
        client
    }

    /// JSON-RPC over TLS, where the certificate is the simulator's.
    pub(crate) async fn tls(nas: &Simulator) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        let certificate = CertificateDer::from(nas.certificate_der().to_vec());
        roots.add(certificate).expect("a certificate");
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let stream = TcpStream::connect(nas.https()).await.expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = connector.connect(name, stream).await.expect("TLS");
        Self::over(Box::new(stream), "/api/current", false).await
    }

    /// JSON-RPC in another version of the API, without a login.
    pub(crate) async fn version(nas: &Simulator, version: &str) -> Self {
        Self::open(nas.http(), &format!("/api/{version}"), false).await
    }

    async fn open(address: SocketAddr, path: &str, legacy: bool) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        Self::over(Box::new(stream), path, legacy).await
    }

    async fn over(stream: Box<dyn Wire>, path: &str, legacy: bool) -> Self {
        let (socket, _) = client_async(format!("ws://localhost{path}"), stream)
            .await
            .expect("a websocket");
        Self {
            socket,
            legacy,
            last: 0,
            events: Vec::new(),
        }
    }

    /// Connects and logs in with the key of `root`.
    pub(crate) async fn root(nas: &Simulator) -> Self {
        let mut client = Self::connect(nas).await;
        let good = client
            .call("auth.login_with_api_key", json!([nas.api_key()]))
            .await;
        assert_eq!(good, Ok(json!(true)));
        client
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    pub(crate) async fn send_text(&mut self, text: &str) {
        self.socket
            .send(Message::text(text.to_owned()))
            .await
            .expect("an open connection");
    }

    pub(crate) async fn ping(&mut self) {
        self.socket
            .send(Message::Ping(Vec::new().into()))
            .await
            .expect("an open connection");
    }

    /// Sends a request and returns its id.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> i64 {
        self.last += 1;
        let id = self.last;
        let message = if self.legacy {
            json!({"id": id, "msg": "method", "method": method, "params": params})
        } else {
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        };
        self.send(&message).await;
        id
    }

    /// The next message, or how the connection ended.
    pub(crate) async fn receive(&mut self) -> Result<Value, End> {
        let next = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Text(text))) => {
                        return Ok(serde_json::from_str(&text).expect("JSON"));
                    }
                    Some(Ok(Message::Close(Some(frame)))) => {
                        return Err(End::Closed(frame.code.into(), frame.reason.to_string()));
                    }
                    Some(Ok(Message::Close(None)) | Err(_)) | None => return Err(End::Cut),
                    Some(Ok(_)) => {}
                }
            }
        });
        next.await.expect("an answer within 20 seconds")
    }

    /// The whole answer to a request; events are kept.
    pub(crate) async fn answer(&mut self, id: i64) -> Result<Value, End> {
        loop {
            let message = self.receive().await?;
            if message.get("id") == Some(&json!(id)) && message.get("collection").is_none() {
                return Ok(message);
            }
            self.events.push(message);
        }
    }

    /// Result or error of a call.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.request(method, params).await;
        let answer = self.answer(id).await.expect("an open connection");
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].clone()),
        }
    }

    /// The list of attribute, text and number of a call that is refused.
    pub(crate) async fn refused(&mut self, method: &str, params: Value) -> Value {
        let error = self.call(method, params).await.expect_err("a refusal");
        if self.legacy {
            error["extra"].clone()
        } else {
            error["data"]["extra"].clone()
        }
    }

    /// The way a connection ends that has nothing more to say.
    pub(crate) async fn end(&mut self) -> End {
        loop {
            if let Err(end) = self.receive().await {
                return end;
            }
        }
    }

    /// Waits until a job is done and returns its entry.
    pub(crate) async fn finished(&mut self, job: &Value) -> Value {
        loop {
            let jobs = self
                .call("core.get_jobs", json!([[["id", "=", job]]]))
                .await
                .expect("jobs");
            let entry = jobs[0].clone();
            if ["SUCCESS", "FAILED", "ABORTED"]
                .contains(&entry["state"].as_str().unwrap_or_default())
            {
                return entry;
            }
            tokio::task::yield_now().await;
        }
    }
}
