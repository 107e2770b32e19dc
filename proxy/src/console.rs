//! The console: a page that shows what a controller knows, and the JSON behind it. Nothing is changed by it.
//!
//! It is on the loopback, off unless an address is given, and answers `GET` and `HEAD` alone. A web page of someone
//! else in the same browser must get nothing of it: the name of the host is checked, because a foreign name may
//! resolve to the loopback; no answer may be read by, or shown in, another page; and no script runs but that of
//! this program. All that the storage is asked for is asked by the caller of this page, within seconds; nothing of
//! it is kept. What the API answers is in `docs/console.md`.

mod details;
mod lists;
mod overview;
mod query;
mod walk;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::net::TcpListener;

use crate::csi::plugin::Plugin;
use crate::telemetry::history::History;
use crate::telemetry::http::{self, Answer, Request};
use lists::{Orphans, Snapshots, Volumes};
use query::Query;

/// A whole exchange. Longer than the storage is waited for.
const EXCHANGE: Duration = Duration::from_secs(20);

/// The rules for the browser. There is no inline script or style; `default-src 'none'` forbids all else, other hosts
/// and forms among it. Trusted types forbid the page to make HTML of text.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                       img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                       frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'\r\n\
                       X-Content-Type-Options: nosniff\r\n\
                       X-Frame-Options: DENY\r\n\
                       Referrer-Policy: no-referrer\r\n\
                       Cross-Origin-Opener-Policy: same-origin\r\n\
                       Cross-Origin-Resource-Policy: same-origin\r\n\
                       Cache-Control: no-store\r\n";

const PAGE: &str = include_str!("console/page/console.html");
const STYLE: &str = include_str!("console/page/console.css");
const SCRIPT: &str = include_str!("console/page/console.js");
const ICON: &str = include_str!("../../docs/pictures/icon.svg");

/// The page and its API. Clones share everything.
#[derive(Debug, Clone)]
pub struct Console {
    plugin: Arc<Plugin>,
    history: Arc<History>,
}

/// Why a request gets no answer.
#[derive(Debug, Serialize)]
struct Refusal {
    #[serde(skip)]
    status: &'static str,
    error: String,
}

// === impl Console ===

impl Console {
    /// The console of a process that remembers its recent past.
    pub fn new(plugin: &Arc<Plugin>) -> Self {
        let history = plugin.runner.metrics.history();
        Self {
            plugin: Arc::clone(plugin),
            history: history.unwrap_or_else(|| Arc::new(History::new())),
        }
    }

    /// Answers for ever.
    pub async fn serve(self, listener: TcpListener) {
        let answer = move |request: Request| {
            let console = self.clone();
            async move { console.answer(&request).await.with(HEADERS) }
        };
        http::serve(listener, EXCHANGE, answer).await;
    }

    async fn answer(&self, request: &Request) -> Answer {
        if let Some(refused) = refusal(request) {
            return refused;
        }
        match request.path() {
            "/" => Answer::new("200 OK", "text/html; charset=utf-8", PAGE.as_bytes()),
            "/console.css" => Answer::new("200 OK", "text/css; charset=utf-8", STYLE.as_bytes()),
            "/console.js" => Answer::new(
                "200 OK",
                "text/javascript; charset=utf-8",
                SCRIPT.as_bytes(),
            ),
            "/icon.svg" => Answer::new("200 OK", "image/svg+xml", ICON.as_bytes()),
            path => self.api(path, &Query::read(request.query())).await,
        }
    }

    async fn api(&self, path: &str, query: &Query<'_>) -> Answer {
        let answered = match path {
            "/api/status" => Ok(json(&self.status())),
            "/api/connections" => Ok(json(&self.connections(query))),
            "/api/calls" => Ok(json(&self.calls(query))),
            "/api/volumes" => self
                .walk(&Volumes(&self.history), query)
                .await
                .map(|all| json(&all)),
            "/api/snapshots" => self.walk(&Snapshots, query).await.map(|all| json(&all)),
            "/api/orphans" => self
                .walk(&Orphans::new(), query)
                .await
                .map(|all| json(&all)),
            "/api/details" => self.details(query).await.map(|all| json(&all)),
            "/api/family" => self.family(query).await.map(|all| json(&all)),
            _ => return Answer::text("404 Not Found", "there is nothing of that name\n"),
        };
        answered.unwrap_or_else(|refused| {
            let body = serde_json::json!(refused).to_string().into_bytes();
            Answer::new(refused.status, JSON, body)
        })
    }
}

const JSON: &str = "application/json; charset=utf-8";

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => Answer::new("200 OK", JSON, body),
        Err(_) => Answer::text(
            "500 Internal Server Error",
            "the answer cannot be written\n",
        ),
    }
}

/// The answer to a request that gets nothing else.
fn refusal(request: &Request) -> Option<Answer> {
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        let text = "the console changes nothing: there is GET and HEAD\n";
        return Some(Answer::text("405 Method Not Allowed", text));
    }
    if !request.header("host").is_some_and(is_this_machine) {
        let text = "open the console as localhost, 127.0.0.1 or [::1]\n";
        return Some(Answer::text("421 Misdirected Request", text));
    }
    // A browser says whose page asks. What others ask could not be read by them, but would be asked of the storage.
    let site = request.header("sec-fetch-site").unwrap_or("none");
    if !matches!(site, "same-origin" | "none") && request.path() != "/" {
        return Some(Answer::text(
            "403 Forbidden",
            "only the console's own page may ask\n",
        ));
    }
    None
}

/// Whether the client knows this server by a name that no one else can give to it.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let v6 = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .and_then(|name| name.parse::<IpAddr>().ok());
    let v4 = || name.parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    match v6.or_else(v4) {
        Some(address) => address.is_loopback(),
        None => name.eq_ignore_ascii_case("localhost"),
    }
}

// === impl Refusal ===

impl Refusal {
    fn bad(error: impl Into<String>) -> Self {
        Self {
            status: "400 Bad Request",
            error: error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_are_this_machine() {
        for host in [
            "localhost",
            "LocalHost:9810",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:9810",
            "127.9.9.9:80",
        ] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9810",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:localhost",
            "10.0.0.1:9810",
            "[::ffff:10.0.0.1]",
            "::1",
            "localhost:9810@evil.example",
            "2130706433",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn the_page_names_no_other_host_and_has_no_inline_script_or_style() {
        for text in [PAGE, STYLE, SCRIPT] {
            let elsewhere = text.matches("http").filter(|_| true).count();
            let of_svg = text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(elsewhere, of_svg, "another host is named");
        }
        for inline in ["<style", " style=", " onclick", " onload", "javascript:"] {
            assert!(!PAGE.contains(inline), "{inline}");
        }
        assert_eq!(PAGE.matches("<script").count(), 1);
        for maker in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!SCRIPT.contains(maker), "{maker}");
        }
    }

    #[test]
    fn all_of_the_page_is_small() {
        let bytes = PAGE.len() + STYLE.len() + SCRIPT.len() + ICON.len();
        assert!(bytes < 100_000, "{bytes}");
    }
}
