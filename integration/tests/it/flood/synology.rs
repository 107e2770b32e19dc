//! A Synology that answers without end.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use integration::place::Place;
use integration::server::Launch;
use serde_json::json;

use super::{AT_ONCE, MOST_KIB, use_both};

const LUN: &str = "SYNO.Core.ISCSI.LUN";
const TARGET: &str = "SYNO.Core.ISCSI.Target";
const VOLUME: &str = "SYNO.Core.Storage.Volume";

/// A web server that answers with an endless list of small objects: everything, or what comes after a login. It ends
/// with the process.
struct Endless {
    port: u16,
    /// Answers without end so far.
    floods: Arc<AtomicUsize>,
}

impl Endless {
    fn start(logs_in: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let floods = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&floods);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let counted = Arc::clone(&counted);
                thread::spawn(move || serve(stream, logs_in, &counted));
            }
        });
        Self { port, floods }
    }

    fn config(&self) -> String {
        json!({
            "driver": "synology-iscsi",
            "httpConnection": {
                "protocol": "http",
                "host": "127.0.0.1",
                "port": self.port,
                "username": "csi",
                "password": "sesame",
            },
            "iscsi": {"targetPortal": "10.0.0.5:3260", "baseiqn": "iqn.2000-01.com.synology:csi."},
        })
        .to_string()
    }
}

/// The answers before a login and to one.
fn short(request: &str) -> Option<String> {
    let api = json!({"path": "entry.cgi", "maxVersion": 6});
    let data = if request.contains("query.cgi") {
        json!({"SYNO.API.Auth": api, LUN: api, TARGET: api, VOLUME: api})
    } else if request.contains("method=login") {
        json!({"sid": "a"})
    } else {
        return None;
    };
    Some(json!({"success": true, "data": data}).to_string())
}

fn serve(mut stream: TcpStream, logs_in: bool, floods: &AtomicUsize) {
    let request = request(&mut stream);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
    if stream.write_all(head.as_bytes()).is_err() {
        return;
    }
    if let Some(answer) = short(&request).filter(|_| logs_in) {
        let _ = stream.write_all(answer.as_bytes());
        return;
    }
    floods.fetch_add(1, Ordering::SeqCst);
    let _ = stream.write_all(b"{\"success\":true,\"data\":{\"x\":[");
    let part = "{\"a\":0},".repeat(1 << 13);
    while stream.write_all(part.as_bytes()).is_ok() {}
}

/// The request with its body.
fn request(stream: &mut TcpStream) -> String {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut part).unwrap_or(0);
        text.extend_from_slice(&part[..length]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = whole.split_once("\r\n\r\n") else {
            if length == 0 {
                return whole;
            }
            continue;
        };
        let head = head.to_ascii_lowercase();
        let due = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"));
        let due = due.map_or(0, |due| due.trim().parse().unwrap_or(0));
        if length == 0 || body.len() >= due {
            return whole;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synology_that_answers_without_end_takes_little_memory_and_the_others_are_served() {
    for (logs_in, longest) in [(false, "262144 bytes"), (true, "524288 bytes")] {
        let nas = Endless::start(logs_in);
        let (place, storage) = (Place::new(), Place::new());
        let good = Launch::local_hostpath(&storage).config;
        let files = [("bad", &*nas.config()), ("good", &*good)];
        let connections = place.path().join("connections");
        let launch = Launch::proxy(&connections, "good", files).set("--log-level", "info");
        let server = launch.start(&place).await;
        for refused in use_both(&server, "synology").await {
            assert!(refused.what.contains(longest), "{refused}");
        }
        assert!(nas.floods.load(Ordering::SeqCst) >= AT_ONCE, "{logs_in}");
        let peak = server.process().peak_rss_kib();
        println!("after the login {logs_in}: {peak} KiB");
        assert!(peak < MOST_KIB, "after the login {logs_in}: {peak} KiB");
    }
}
