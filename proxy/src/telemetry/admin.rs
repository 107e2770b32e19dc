//! The endpoint for operators: plain HTTP/1.1, off unless an address is given.
//!
//! `GET /metrics`, `GET /live`, `GET /ready`, `GET /log-level` and `PUT /log-level`. It knows no
//! volume and no secret.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tracing::info;

use crate::telemetry::http::{self, Answer, Request};
use crate::telemetry::log::{LogControl, Verbosity};
use crate::telemetry::metrics::Metrics;

/// A whole exchange. Prometheus gives up after 10 s.
const EXCHANGE: Duration = Duration::from_secs(5);

/// The parts that operators may see and change.
#[derive(Debug, Clone)]
pub struct Admin {
    /// The content of `/metrics`.
    pub metrics: Metrics,
    /// The control that `/log-level` changes.
    pub log: LogControl,
    /// The content of `/ready`.
    pub ready: Readiness,
}

/// Whether calls are taken. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

// === impl Readiness ===

impl Readiness {
    /// From now on calls are taken, or not any more.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Admin ===

impl Admin {
    /// Answers for ever.
    pub async fn serve(self, listener: TcpListener) {
        let answer = move |request: Request| {
            let admin = self.clone();
            async move { admin.answer(&request) }
        };
        http::serve(listener, EXCHANGE, answer).await;
    }

    fn answer(&self, request: &Request) -> Answer {
        match (request.method.as_str(), request.path()) {
            ("GET" | "HEAD", "/metrics") => self.page(wants_open_metrics(request)),
            ("GET" | "HEAD", "/live") => Answer::text("200 OK", "live\n"),
            ("GET" | "HEAD", "/ready") if self.ready.get() => Answer::text("200 OK", "ready\n"),
            ("GET" | "HEAD", "/ready") => Answer::text("503 Service Unavailable", "not ready\n"),
            ("GET" | "HEAD", "/log-level") => {
                Answer::text("200 OK", &format!("{}\n", self.log.verbosity()))
            }
            ("PUT", "/log-level") => self.set_level(request.body.trim()),
            (_, "/metrics" | "/live" | "/ready" | "/log-level") => {
                Answer::text("405 Method Not Allowed", "not that way\n")
            }
            _ => Answer::text(
                "404 Not Found",
                "there are /metrics, /live, /ready and /log-level\n",
            ),
        }
    }

    fn page(&self, open_metrics: bool) -> Answer {
        let (kind, page) = if open_metrics {
            (OPEN_METRICS, self.metrics.encode())
        } else {
            (TEXT_FORMAT, self.metrics.encode_text())
        };
        match page {
            Ok(body) => Answer::new("200 OK", kind, body.into_bytes()),
            Err(_) => Answer::text("500 Internal Server Error", "the page cannot be written\n"),
        }
    }

    fn set_level(&self, text: &str) -> Answer {
        match text.parse::<Verbosity>() {
            Ok(verbosity) => {
                self.log.set(verbosity);
                info!(verbosity = verbosity.as_str(), "the log level has changed");
                Answer::text("200 OK", &format!("{verbosity}\n"))
            }
            Err(error) => Answer::text("400 Bad Request", &format!("{error}\n")),
        }
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the client asks for the format `OpenMetrics`.
fn wants_open_metrics(request: &Request) -> bool {
    let mut wanted = request.headers("accept");
    wanted.any(|header| accepts(header, "application/openmetrics-text"))
}

/// Whether a header `Accept` names a type, and does not refuse it.
fn accepts(header: &str, kind: &str) -> bool {
    header.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case(kind));
        let refused = |part: &str| {
            let weight = part.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok());
            weight == Some(0.0)
        };
        named && !parts.any(refused)
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;
    use crate::telemetry::http::CONNECTIONS;

    fn admin() -> Admin {
        Admin {
            metrics: Metrics::new(),
            log: LogControl::new(Verbosity::Info),
            ready: Readiness::default(),
        }
    }

    async fn ask(admin: &Admin, request: &str) -> String {
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let answered = http::exchange(server, async |request| admin.answer(&request));
        answered.await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(admin: &Admin, path: &str) -> String {
        ask(admin, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }

    #[tokio::test]
    async fn metrics_are_a_page_that_prometheus_reads() {
        let admin = admin();
        drop(admin.metrics.rpc(crate::calls::Rpc::Probe));
        let page = async |accept: &str| {
            let request = format!("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n{accept}\r\n");
            ask(&admin, &request).await
        };
        // What Prometheus sends, and what others do.
        let open = "Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5\r\n";
        let refused = "Accept: application/openmetrics-text; q=0, */*\r\n";
        for (accept, kind, end) in [
            (open, "application/openmetrics-text; version=1.0.0", true),
            ("", "text/plain; version=0.0.4", false),
            ("Accept: */*\r\n", "text/plain; version=0.0.4", false),
            (refused, "text/plain; version=0.0.4", false),
        ] {
            let page = page(accept).await;
            let start = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}");
            assert!(page.starts_with(&start), "{accept}: {page:.200}");
            assert!(page.contains("omnibus_csi_rpc_total{rpc=\"Probe\""));
            assert_eq!(page.ends_with("# EOF\n"), end, "{accept}");
            let (head, body) = page.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())));
        }
    }

    #[tokio::test]
    async fn connections_that_say_nothing_shut_no_other_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(admin().serve(listener));
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"GET /live HTTP/1.1\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        let read = timeout(EXCHANGE / 2, client.read_to_string(&mut answer));
        read.await
            .expect("it is answered before a silent one is given up")
            .unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        server.abort();
    }

    #[tokio::test]
    async fn a_head_request_gets_the_head_and_nothing_else() {
        let admin = admin();
        let head = ask(&admin, "HEAD /live HTTP/1.1\r\n\r\n").await;
        assert!(head.contains("Content-Length: 5\r\n"), "{head}");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
    }

    #[tokio::test]
    async fn readiness_follows_the_server_and_life_does_not() {
        let admin = admin();
        assert!(get(&admin, "/ready").await.starts_with("HTTP/1.1 503"));
        assert!(get(&admin, "/live").await.starts_with("HTTP/1.1 200"));
        admin.ready.set(true);
        assert!(get(&admin, "/ready").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn the_log_level_is_shown_and_changed() {
        let admin = admin();
        assert!(get(&admin, "/log-level").await.ends_with("info\n"));
        let put = |body: &str| {
            format!(
                "PUT /log-level HTTP/1.1\r\nContent-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        assert!(
            ask(&admin, &put("silly\n"))
                .await
                .ends_with("\r\n\r\nsilly\n")
        );
        assert_eq!(admin.log.verbosity(), Verbosity::Silly);
        assert!(ask(&admin, &put("loud")).await.starts_with("HTTP/1.1 400"));
        assert_eq!(admin.log.verbosity(), Verbosity::Silly);
    }

    #[tokio::test]
    async fn what_is_no_request_is_refused() {
        let admin = admin();
        let huge = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
        let long = "PUT /log-level HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n";
        for request in [
            "",
            "GET\r\n\r\n",
            "GET / SPDY/3\r\n\r\n",
            &huge,
            long,
            "A B HTTP/1.1",
        ] {
            assert!(
                ask(&admin, request).await.starts_with("HTTP/1.1 400"),
                "{request:.30}"
            );
        }
        assert!(get(&admin, "/secrets").await.starts_with("HTTP/1.1 404"));
        assert!(
            ask(&admin, "POST /metrics HTTP/1.1\r\n\r\n")
                .await
                .starts_with("HTTP/1.1 405")
        );
    }
}
