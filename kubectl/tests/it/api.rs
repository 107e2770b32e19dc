//! A small HTTP server that answers as the API server of Kubernetes does, commands in pods included.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

/// The protocol of commands in pods that every API server of today speaks.
const PROTOCOL: &str = "v4.channel.k8s.io";

/// The output of a command in a pod, and its exit code.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: u8,
}

/// The knowledge of the server. A kind that is named in `forbidden` is answered with 403, one in `silent` not at all.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) objects: Value,
    pub(crate) forbidden: Vec<&'static str>,
    pub(crate) silent: bool,
    /// Instead of what `explain` says in `objects`.
    pub(crate) said: Option<Said>,
    /// Whether the driver has a single storage, and so no list of connections.
    pub(crate) single: bool,
    /// The pod whose commands end without their exit code.
    pub(crate) cut: Option<&'static str>,
}

/// The server, and a kubeconfig that names it.
pub(crate) struct ApiServer {
    folder: TempDir,
    /// The targets of all requests, commands decoded.
    asked: Arc<Mutex<Vec<String>>>,
}

// === impl World ===

impl World {
    pub(crate) fn new() -> Self {
        let objects = include_str!("../world.json");
        Self {
            objects: serde_json::from_str(objects).unwrap(),
            forbidden: Vec::new(),
            silent: false,
            said: None,
            single: false,
            cut: None,
        }
    }

    /// The answer to a path and its query: a code and an object.
    fn answer(&self, path: &str, query: &str) -> (u16, Value) {
        let words: Vec<_> = path.trim_matches('/').split('/').collect();
        let (kind, name) = match words.as_slice() {
            ["api", "v1", "namespaces", _, kind] | ["api", "v1", kind] | ["apis", _, _, kind] => {
                (*kind, None)
            }
            ["api", "v1", "namespaces", _, kind, name, ..]
            | ["api", "v1", kind, name]
            | ["apis", _, _, kind, name] => (*kind, Some(*name)),
            _ => panic!("no such path: {path}"),
        };
        if self.forbidden.contains(&kind) {
            return (403, failure(403, "Forbidden"));
        }
        let objects = &self.objects;
        match (kind, name) {
            ("persistentvolumeclaims", None) => {
                let namespace = words.get(3).filter(|_| words[2] == "namespaces");
                let is_there = |claim: &&Value| {
                    namespace.is_none_or(|name| claim["metadata"]["namespace"] == *name)
                };
                let claims = objects["claims"].as_array().into_iter().flatten();
                all(&json!(claims.filter(is_there).collect::<Vec<_>>()))
            }
            ("persistentvolumeclaims", Some(name)) => one(&objects["claim"], name),
            ("storageclasses", Some(name)) => {
                let mut classes = objects["classes"].as_array().into_iter().flatten();
                let class = classes.find(|class| class["metadata"]["name"] == name);
                one(class.unwrap_or(&objects["class"]), name)
            }
            ("persistentvolumes", Some(name)) => one(&objects["volume"], name),
            ("csinodes", Some(name)) => one(&objects["csiNodes"][name], name),
            ("events", None) if query.contains("kind%3DPod") => all(&objects["warnings"]),
            ("events", None) if query.contains("kind%3DDaemonSet") => all(&objects["refusals"]),
            ("events", None) => all(&objects["events"]),
            ("pods", None) if query.contains("part-of%3Domnibus-csi") => all(&objects["ours"]),
            ("pods", None) => all(&objects["pods"]),
            ("nodes", None) => all(&objects["machines"]),
            ("nodes", Some(name)) => {
                let mut nodes = objects["machines"].as_array().into_iter().flatten();
                let node = nodes.find(|node| node["metadata"]["name"] == name);
                one(node.unwrap_or(&Value::Null), name)
            }
            ("daemonsets", None) => all(&objects["daemonSets"]),
            ("deployments", None) => all(&objects["deployments"]),
            ("csidrivers", None) => all(&objects["drivers"]),
            ("volumeattachments", None) => all(&objects["attachments"]),
            _ => panic!("no such question: {path}"),
        }
    }

    /// The output of a command in a pod.
    fn run(&self, pod: &str, command: &str) -> Said {
        if let Some(said) = &self.said {
            return said.clone();
        }
        if self.single && command.starts_with("omnibus-csi connections ") {
            return Said {
                stdout: String::new(),
                stderr: "omnibus-csi: the driver `a` is one connection without a name; `check` looks at it\n".to_owned(),
                code: 64,
            };
        }
        if self.single && command.starts_with("omnibus-csi check ") {
            return Said {
                stdout: format!("{pod} has no errors\n"),
                stderr: String::new(),
                code: 0,
            };
        }
        assert!(command.starts_with("omnibus-csi explain "), "{command}");
        let explained = match pod {
            "csi-controller" => &self.objects["storage"],
            "csi-node-1" => &self.objects["nodes"]["one"],
            pod => panic!("no such pod: {pod}"),
        };
        Said {
            stdout: explained.to_string(),
            stderr: String::new(),
            code: 0,
        }
    }
}

fn one(object: &Value, name: &str) -> (u16, Value) {
    if object["metadata"]["name"] == name {
        (200, object.clone())
    } else {
        (404, failure(404, "NotFound"))
    }
}

fn all(items: &Value) -> (u16, Value) {
    (200, json!({"metadata": {}, "items": items}))
}

fn failure(code: u16, reason: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code
    })
}

// === impl ApiServer ===

impl ApiServer {
    pub(crate) fn new(world: World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "shop"}}]
        });
        std::fs::write(folder.path().join("config"), config.to_string()).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let world = Arc::new(world);
        // It ends with the test program.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (world, heard) = (Arc::clone(&world), Arc::clone(&heard));
                thread::spawn(move || serve(&world, stream.unwrap(), &heard));
            }
        });
        Self { folder, asked }
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// The program with these arguments: exit code, standard output, standard error.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> (i32, String, String) {
        run(Command::new(env!("CARGO_BIN_EXE_kubectl-omnibus"))
            .env_clear()
            .env("KUBECONFIG", self.kubeconfig())
            .args(arguments))
    }
}

pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Answers the requests of one connection.
fn serve(world: &World, stream: TcpStream, asked: &Mutex<Vec<String>>) {
    while let Some(line) = next_line(&stream) {
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        asked.lock().unwrap().push(target.clone());
        if world.silent {
            // The other side gives up.
            let _ = (&stream).read_to_end(&mut Vec::new());
            return;
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let (code, body) = match path.rsplit_once('/') {
            Some((pod, "exec")) if !world.forbidden.contains(&"exec") => {
                return in_pod(world, stream, pod, query);
            }
            Some((_, "portforward")) if !world.forbidden.contains(&"portforward") => {
                return forwarded(stream, query);
            }
            Some((_, "exec" | "portforward")) => (403, failure(403, "Forbidden")),
            _ => world.answer(path, query),
        };
        read_head(&stream);
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {code} OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = head + &body;
        if (&stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The first line of the next request, which stays to be read: a websocket reads its whole head itself.
fn next_line(stream: &TcpStream) -> Option<String> {
    let mut head = vec![0; 16 << 10];
    loop {
        let length = stream.peek(&mut head).ok().filter(|length| *length > 0)?;
        let text = String::from_utf8_lossy(&head[..length]);
        if text.contains("\r\n\r\n") {
            return Some(text.lines().next()?.to_owned());
        }
    }
}

/// Reads the head of a request that has no body, and not a byte more.
fn read_head(stream: &TcpStream) {
    let mut reader = BufReader::with_capacity(1, stream);
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() > 2 {
        line.clear();
    }
}

/// The websocket of a request, with its protocol.
fn websocket(stream: TcpStream) -> WebSocket<TcpStream> {
    #[expect(
        clippy::result_large_err,
        reason = "the type of the error is that of the library"
    )]
    let agree = |_: &Request, mut response: Response| {
        let protocol = PROTOCOL.parse().unwrap();
        response
            .headers_mut()
            .insert("Sec-WebSocket-Protocol", protocol);
        Ok(response)
    };
    tungstenite::accept_hdr(stream, agree).unwrap()
}

fn frame(channel: u8, bytes: &[u8]) -> Message {
    let bytes: Vec<u8> = std::iter::once(channel)
        .chain(bytes.iter().copied())
        .collect();
    Message::Binary(bytes.into())
}

/// A command in a pod: what it prints, then its status.
fn in_pod(world: &World, stream: TcpStream, pod: &str, query: &str) {
    let parts = query.split('&').filter_map(|part| part.split_once('='));
    let words = parts.filter(|(key, _)| *key == "command");
    let command: Vec<_> = words.map(|(_, word)| decoded(word)).collect();
    let pod = pod.rsplit('/').next().unwrap_or_default();
    let said = world.run(pod, &command.join(" "));
    let status = match said.code {
        0 => json!({"metadata": {}, "status": "Success"}),
        code => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}
        }),
    };
    let mut socket = websocket(stream);
    let printed = [(1, said.stdout), (2, said.stderr)];
    let status = (world.cut != Some(pod)).then(|| (3, status.to_string()));
    for (channel, text) in printed.into_iter().chain(status) {
        socket.send(frame(channel, text.as_bytes())).unwrap();
    }
    let _ = socket.close(None);
    while socket.read().is_ok() {}
}

/// A port of a pod: a web server that knows one page.
fn forwarded(stream: TcpStream, query: &str) {
    let port = query.rsplit('=').next().unwrap();
    let port = port.parse::<u16>().unwrap().to_le_bytes();
    let mut socket = websocket(stream);
    for channel in [0, 1] {
        socket.send(frame(channel, &port)).unwrap();
    }
    while let Ok(message) = socket.read() {
        if message.is_binary() && message.into_data().starts_with(b"\0GET /") {
            let page = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nthe page";
            socket.send(frame(0, page)).unwrap();
            let _ = socket.close(None);
        }
    }
}

/// A word of a query without its escapes.
fn decoded(word: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                let digits = String::from_utf8(digits.to_vec()).unwrap();
                u8::from_str_radix(&digits, 16).unwrap()
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}
