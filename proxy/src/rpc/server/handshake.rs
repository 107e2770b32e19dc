//! A deadline for the first bytes of a connection.
//!
//! The HTTP/2 library waits for the client's preface without limit, and asks only then whether a
//! silent client still lives. Clients that never finish it would keep their descriptors for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tonic::transport::server::Connected;
use tracing::warn;

use crate::telemetry::sampled::Sampled;

/// The length of `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`.
const PREFACE: usize = 24;
/// The time that a client may take to send it. On a local socket it comes with the connection.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

static LATE: Sampled = Sampled::new();

/// A connection that ends if its client does not send the HTTP/2 preface in time.
#[derive(Debug)]
pub(super) struct WithDeadline<IO> {
    io: IO,
    /// `None` once the preface has arrived.
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
}

// === impl WithDeadline ===

impl<IO> WithDeadline<IO> {
    /// Starts the clock on a connection that was just accepted.
    pub(super) fn new(io: IO) -> Self {
        let pending = Pending {
            missing: PREFACE,
            deadline: Box::pin(tokio::time::sleep(DEADLINE)),
        };
        Self {
            io,
            pending: Some(pending),
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for WithDeadline<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        if let Some(pending) = &mut this.pending {
            let count = buf.filled().len() - before;
            pending.missing = pending.missing.saturating_sub(count);
            if pending.missing == 0 {
                this.pending = None;
            } else if pending.deadline.as_mut().poll(cx).is_ready() {
                if let Some(suppressed) = LATE.take() {
                    warn!(
                        suppressed,
                        "closed a connection: its client sent no HTTP/2 preface within {DEADLINE:?}"
                    );
                }
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for WithDeadline<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl<IO: Connected> Connected for WithDeadline<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_finish_the_preface_loses_its_connection() {
        for sent in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(sent).await.unwrap();
            let started = Instant::now();
            let mut bytes = Vec::new();
            let read = WithDeadline::new(server).read_to_end(&mut bytes).await;
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(started.elapsed(), DEADLINE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_sent_the_preface_may_be_silent() {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(&[b'x'; PREFACE]).await.unwrap();
        let mut server = WithDeadline::new(server);
        server.read_exact(&mut [0; PREFACE]).await.unwrap();
        let silent = server.read_u8();
        tokio::time::timeout(100 * DEADLINE, silent)
            .await
            .expect_err("still open");
    }
}
