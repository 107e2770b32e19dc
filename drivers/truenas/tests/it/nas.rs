//! A NAS of a few lines, for what a strict simulator does not do: it says what a test tells it to.

use std::sync::{Arc, Mutex};

use driver_truenas::{Client, HttpConnection};
use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};

/// The reaction of the NAS to a call.
pub(crate) enum Act {
    /// Answers.
    Answer(Value),
    /// Answers with an error object of the older protocol, wrapped as the protocol wants it.
    Fail(Value),
    /// Reports a job.
    Job(Value),
    /// Ends the connection.
    Close,
}

/// A call as the NAS sees it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) id: Value,
    pub(crate) method: String,
    pub(crate) params: Value,
}

type Script = Box<dyn FnMut(&Seen) -> Option<Vec<Act>> + Send>;

struct Inner {
    version: String,
    /// Refuses the handshake.
    status: Option<(StatusCode, Option<String>)>,
    script: Script,
    seen: Vec<Seen>,
    sockets: usize,
}

/// A NAS that listens on this machine.
#[derive(Clone)]
pub(crate) struct Nas {
    inner: Arc<Mutex<Inner>>,
    port: u16,
}

impl Nas {
    /// Starts a NAS of a version. The script answers what is not login or version.
    pub(crate) async fn start(
        version: &str,
        script: impl FnMut(&Seen) -> Option<Vec<Act>> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let inner = Inner {
            version: version.to_owned(),
            status: None,
            script: Box::new(script),
            seen: Vec::new(),
            sockets: 0,
        };
        let nas = Self {
            inner: Arc::new(Mutex::new(inner)),
            port,
        };
        let served = nas.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(served.clone().serve(tcp));
            }
        });
        nas
    }

    /// A client with an API key and its user.
    pub(crate) fn client(&self) -> Client {
        self.client_with(json!({"apiKey": "1-canary", "username": "csi"}))
    }

    /// A client with other settings.
    pub(crate) fn client_with(&self, block: Value) -> Client {
        Client::new(self.block(block).check().expect("settings")).expect("a client")
    }

    /// A block of settings that points at this NAS unless it says otherwise.
    pub(crate) fn block(&self, mut block: Value) -> HttpConnection {
        let defaults = json!({"host": "127.0.0.1", "port": self.port, "protocol": "http"});
        for (key, value) in defaults.as_object().expect("an object") {
            if block.get(key).is_none() {
                block[key] = value.clone();
            }
        }
        serde_json::from_value(block).expect("a block")
    }

    /// From the next connection on, the NAS has another version.
    pub(crate) fn upgrade(&self, version: &str) {
        version.clone_into(&mut self.lock().version);
    }

    /// From the next connection on, the NAS refuses the handshake.
    pub(crate) fn refuse(&self, status: StatusCode, location: Option<&str>) {
        self.lock().status = Some((status, location.map(str::to_owned)));
    }

    /// The calls of a method.
    pub(crate) fn seen(&self, method: &str) -> Vec<Seen> {
        let all = &self.lock().seen;
        all.iter()
            .filter(|call| call.method == method)
            .cloned()
            .collect()
    }

    /// The number of logins that were tried.
    pub(crate) fn logins(&self) -> usize {
        let all = &self.lock().seen;
        all.iter()
            .filter(|call| call.method.starts_with("auth.login"))
            .count()
    }

    /// The number of connections that were opened.
    pub(crate) fn sockets(&self) -> usize {
        self.lock().sockets
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics with it")
    }

    #[expect(
        clippy::result_large_err,
        reason = "the signature of the websocket library"
    )]
    async fn serve(self, stream: TcpStream) {
        let mut current = false;
        let accept =
            |request: &Request, response: Response| self.accept(request, response, &mut current);
        let Ok(mut socket) = tokio_tungstenite::accept_hdr_async(stream, accept).await else {
            return;
        };
        self.lock().sockets += 1;
        while let Some(Ok(message)) = socket.next().await {
            let Message::Text(text) = message else {
                continue;
            };
            let message: Value = serde_json::from_str(&text).expect("JSON");
            for reply in self.reply(current, &message) {
                let Some(reply) = reply else {
                    return;
                };
                if socket.send(Message::text(reply.to_string())).await.is_err() {
                    return;
                }
            }
        }
    }

    #[expect(
        clippy::result_large_err,
        reason = "the signature of the websocket library"
    )]
    fn accept(
        &self,
        request: &Request,
        response: Response,
        current: &mut bool,
    ) -> Result<Response, ErrorResponse> {
        let inner = self.lock();
        let new = !inner.version.contains("13.") && inner.version.as_str() >= "TrueNAS-25";
        let new = new && !inner.version.contains("SCALE");
        *current = request.uri().path() == "/api/current";
        let refused = match &inner.status {
            Some((status, location)) => Some((*status, location.clone())),
            None if *current && !new => Some((StatusCode::NOT_FOUND, None)),
            None => None,
        };
        match refused {
            None => Ok(response),
            Some((status, location)) => {
                let mut refusal = ErrorResponse::new(None);
                *refusal.status_mut() = status;
                if let Some(location) = location {
                    let location = location.parse().expect("a header");
                    refusal
                        .headers_mut()
                        .insert(http::header::LOCATION, location);
                }
                Err(refusal)
            }
        }
    }

    /// The messages to send; `None` ends the connection.
    fn reply(&self, current: bool, message: &Value) -> Vec<Option<Value>> {
        match message["msg"].as_str() {
            Some("connect") => return vec![Some(json!({"msg": "connected", "session": "s"}))],
            Some("sub") => return vec![Some(json!({"msg": "ready", "subs": [message["id"]]}))],
            _ => {}
        }
        let seen = Seen {
            id: message["id"].clone(),
            method: message["method"].as_str().expect("a method").to_owned(),
            params: message["params"].clone(),
        };
        let mut inner = self.lock();
        inner.seen.push(seen.clone());
        let scripted = (inner.script)(&seen);
        let acts = scripted.unwrap_or_else(|| vec![Act::Answer(standard(&seen, &inner.version))]);
        let id = &seen.id;
        let write = |act| match act {
            Act::Answer(result) if current => {
                Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
            }
            Act::Answer(result) => Some(json!({"msg": "result", "id": id, "result": result})),
            Act::Fail(data) if current => Some(json!({
                "jsonrpc": "2.0",
                "id": id,
                "error": {"code": -32001, "message": "Method call error", "data": data},
            })),
            Act::Fail(data) => Some(json!({"msg": "result", "id": id, "error": data})),
            Act::Job(fields) => {
                let update = json!({
                    "msg": "changed",
                    "collection": "core.get_jobs",
                    "id": fields["id"],
                    "fields": fields,
                });
                Some(if current {
                    json!({"jsonrpc": "2.0", "method": "collection_update", "params": update})
                } else {
                    update
                })
            }
            Act::Close => None,
        };
        acts.into_iter().map(write).collect()
    }
}

fn standard(seen: &Seen, version: &str) -> Value {
    match seen.method.as_str() {
        "system.version" => json!(version),
        "auth.login" | "auth.login_with_api_key" => json!(true),
        "auth.login_ex" => json!({"response_type": "SUCCESS"}),
        "auth.mechanism_choices" => json!(["API_KEY_PLAIN", "PASSWORD_PLAIN"]),
        "core.get_jobs" => json!([]),
        _ => Value::Null,
    }
}

/// An error object of the NAS.
pub(crate) fn failure(errno: i64, name: &str, reason: &str) -> Act {
    Act::Fail(json!({"error": errno, "errname": name, "reason": reason, "extra": null}))
}
