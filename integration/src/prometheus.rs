//! A real Prometheus that scrapes the programs of a test, and what it answers.
#![expect(
    clippy::disallowed_methods,
    reason = "starts Prometheus, which is no part of the program"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::SystemTime;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::observe::free_port;
use crate::wait;

/// Seconds between two scrapes, and between two evaluations of the rules.
pub const SCRAPE_SECONDS: u32 = 1;

/// A running Prometheus. It is killed when it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    port: u16,
    folder: TempDir,
    _child: Child,
}

/// The times of a graph, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// The first.
    pub start: f64,
    /// The last.
    pub end: f64,
    /// Between two points.
    pub step: f64,
}

/// One series of an answer.
#[derive(Debug, Clone, Deserialize)]
pub struct Series {
    /// Its labels.
    #[serde(rename = "metric")]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
    value: Option<(f64, String)>,
}

/// A rule of a loaded file.
#[derive(Debug, Clone, Deserialize)]
pub struct Rule {
    /// The name of the alert.
    pub name: String,
    /// Its expression.
    pub query: String,
    /// Whether the last evaluation succeeded: `ok`.
    pub health: String,
    /// `inactive`, `pending` or `firing`.
    pub state: String,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: Option<T>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Matrix {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

// === impl Prometheus ===

impl Prometheus {
    /// Starts it over the metrics of `jobs`, each a name with a port of the loopback.
    pub async fn start(program: &Path, jobs: &[(&str, u16)], rules: &Path) -> Self {
        let folder = TempDir::with_prefix("omnibus-prometheus-").expect("a temporary folder");
        let mut config = format!(
            "global: {{scrape_interval: {SCRAPE_SECONDS}s, evaluation_interval: {SCRAPE_SECONDS}s}}\n\
             rule_files: ['{}']\nscrape_configs:\n",
            rules.display()
        );
        for (job, port) in jobs {
            let _ = writeln!(
                config,
                "- {{job_name: {job}, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}"
            );
        }
        let file = folder.path().join("prometheus.yaml");
        fs::write(&file, config).expect("a file in a new folder");
        let port = free_port();
        let log = fs::File::create(folder.path().join("log")).expect("a file in a new folder");
        let child = Command::new(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("Prometheus can be started");
        let it = Self {
            port,
            folder,
            _child: child,
        };
        wait::until_answered("Prometheus to be ready", async || {
            let reply = it.get("/-/ready").await.ok()?;
            reply.starts_with("HTTP/1.0 200").then_some(())
        })
        .await;
        it
    }

    /// The answer to a query now.
    pub async fn now(&self, query: &str) -> Vec<Series> {
        let path = format!("/api/v1/query?query={}", escaped(query));
        self.ask::<Matrix>(&path, query).await.result
    }

    /// The answer to a query over some time.
    pub async fn over(&self, query: &str, range: Range) -> Vec<Series> {
        let Range { start, end, step } = range;
        let path = format!(
            "/api/v1/query_range?query={}&start={start}&end={end}&step={step}",
            escaped(query)
        );
        self.ask::<Matrix>(&path, query).await.result
    }

    /// The values of a label of a metric.
    pub async fn values_of(&self, label: &str, metric: &str) -> Vec<String> {
        let path = format!("/api/v1/label/{label}/values?match[]={}", escaped(metric));
        self.ask(&path, metric).await
    }

    /// The rules of the file that it was given.
    pub async fn rules(&self) -> Vec<Rule> {
        let groups: Groups = self.ask("/api/v1/rules", "the rules").await;
        groups.groups.into_iter().flat_map(|it| it.rules).collect()
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, what: &str) -> T {
        let reply = self.get(path).await.expect("an answer");
        let body = reply.split_once("\r\n\r\n").expect("a body").1;
        let answer: Answer<T> = serde_json::from_str(body)
            .unwrap_or_else(|error| panic!("{what}: {error}: {body}\n{}", self.log()));
        answer
            .data
            .unwrap_or_else(|| panic!("{what}: {:?}", answer.error))
    }

    /// HTTP 1.0, so that the body is as it is.
    async fn get(&self, path: &str) -> std::io::Result<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut reply = String::new();
        connection.read_to_string(&mut reply).await?;
        Ok(reply)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

// === impl Range ===

impl Range {
    /// From a moment until now.
    pub fn since(start: f64, step: f64) -> Self {
        let end = seconds_now();
        Self { start, end, step }
    }
}

// === impl Series ===

impl Series {
    /// Its points that are numbers: time and value.
    pub fn points(&self) -> Vec<(f64, f64)> {
        let points = self.values.iter().chain(&self.value);
        let read = |(at, value): &(f64, String)| Some((*at, value.parse::<f64>().ok()?));
        points
            .filter_map(read)
            .filter(|(_, value)| value.is_finite())
            .collect()
    }

    /// Its last value that is a number.
    pub fn last(&self) -> Option<f64> {
        self.points().last().map(|(_, value)| *value)
    }
}

/// The seconds since 1970.
pub fn seconds_now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("a clock after 1970").as_secs_f64()
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
