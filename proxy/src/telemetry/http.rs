//! A small server of HTTP/1.1 for operators: one request for each TCP connection.
//!
//! It is bounded in everything: connections, time, size of a request. What is answered is decided elsewhere.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::warn;

use crate::telemetry::sampled::Sampled;

/// More of a request is not read.
const MAX_REQUEST: usize = 8 * 1024;
/// Connections at once. One more ends the oldest: those that say nothing must not shut others out.
pub(super) const CONNECTIONS: usize = 64;

static FAILED: Sampled = Sampled::new();

/// One request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    /// `GET`.
    pub(crate) method: String,
    /// The path, with the query.
    pub(crate) target: String,
    headers: Vec<(String, String)>,
    /// The body, as far as it was announced.
    pub(crate) body: String,
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    status: &'static str,
    kind: &'static str,
    /// Further headers, each with its end of line.
    headers: &'static str,
    body: Cow<'static, [u8]>,
}

/// Answers on a listener for ever, each exchange within a time.
pub(crate) async fn serve<A, F>(listener: TcpListener, within: Duration, answer: A)
where
    A: Fn(Request) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send,
{
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|exchange| !exchange.is_finished());
                if open.len() >= CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                let answer = answer.clone();
                let exchange = tokio::spawn(async move {
                    // A client that is slow or gone gets no answer, and no error.
                    let _ = timeout(within, exchange(stream, answer)).await;
                });
                open.push_back(exchange.abort_handle());
            }
            Err(error) => {
                if let Some(suppressed) = FAILED.take() {
                    warn!(suppressed, error = %error, "could not accept a connection of HTTP");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Reads one request and answers it.
pub(super) async fn exchange<F: Future<Output = Answer>>(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl FnOnce(Request) -> F,
) -> io::Result<()> {
    let (answer, is_head) = match read_request(&mut stream).await? {
        Some(request) => {
            let is_head = request.method == "HEAD";
            (answer(request).await, is_head)
        }
        None => (
            Answer::text("400 Bad Request", "this is no HTTP/1.1 request\n"),
            false,
        ),
    };
    stream.write_all(answer.head().as_bytes()).await?;
    if !is_head {
        stream.write_all(&answer.body).await?;
    }
    stream.shutdown().await
}

// === impl Answer ===

impl Answer {
    /// An answer with a body of this type.
    pub(crate) fn new(
        status: &'static str,
        kind: &'static str,
        body: impl Into<Cow<'static, [u8]>>,
    ) -> Self {
        Self {
            status,
            kind,
            headers: "",
            body: body.into(),
        }
    }

    /// An answer for people.
    pub(crate) fn text(status: &'static str, body: &str) -> Self {
        let body = body.as_bytes().to_vec();
        Self::new(status, "text/plain; charset=utf-8", body)
    }

    /// The same with further headers, each with its end of line.
    pub(crate) fn with(self, headers: &'static str) -> Self {
        Self { headers, ..self }
    }

    /// All before the body.
    fn head(&self) -> String {
        let Self {
            status,
            kind,
            headers,
            body,
        } = self;
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{headers}\
             Connection: close\r\n\r\n",
            body.len()
        )
    }
}

// === impl Request ===

impl Request {
    /// The path without the query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The query.
    pub(crate) fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// The value of a header that must not stand there twice; `None` also if it does.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers(name);
        let first = found.next();
        first.filter(|_| found.next().is_none())
    }

    /// All values of a header.
    pub(crate) fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = move |(given, _): &&(String, String)| given.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .filter(named)
            .map(|(_, value)| value.as_str())
    }

    /// The request without its body, and the body's length.
    fn parse(head: &[u8]) -> Option<(Self, usize)> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !version.starts_with("HTTP/1.") {
            return None;
        }
        let mut request = Self {
            method: method.to_owned(),
            target: target.to_owned(),
            ..Self::default()
        };
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let header = (name.to_owned(), value.trim().to_owned());
            request.headers.push(header);
        }
        let mut length = 0;
        for given in request.headers("content-length") {
            length = given.parse().ok()?;
        }
        Some((request, length))
    }
}

/// Reads one request; `None` if it is not one, or too large.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Request>> {
    let mut bytes = Vec::with_capacity(512);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let Some((mut request, length)) = Request::parse(&bytes[..end]) else {
                return Ok(None);
            };
            let body = bytes.split_off(end + 4);
            if length > MAX_REQUEST {
                return Ok(None);
            }
            request.body = read_body(stream, body, length).await?;
            return Ok(Some(request));
        }
        if bytes.len() > MAX_REQUEST || stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}

async fn read_body(
    stream: &mut (impl AsyncRead + Unpin),
    mut body: Vec<u8>,
    length: usize,
) -> io::Result<String> {
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            break;
        }
    }
    body.truncate(length);
    Ok(String::from_utf8_lossy(&body).into_owned())
}
