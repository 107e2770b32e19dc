//! Accepts clients with an invalid `:authority`.
//!
//! Some older Go clients put the socket's path, percent-encoded or not, or nothing at all into the
//! pseudo header `:authority`; the HTTP/2 library resets such streams before any code of ours sees
//! them. [`Repaired`] inspects a connection until its first request. If that one's authority is
//! valid, the rest of the connection passes unchanged; if not, every header block of the connection
//! is decoded and rewritten with the authority `localhost`, and everything else passes unchanged.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

mod blocks;
mod rewriter;

pub use rewriter::{Rewriter, rewrite};

/// The read size while the rewriter inspects the stream.
const CHUNK: usize = 8 * 1024;

/// An accepted connection whose requests carry a valid authority.
#[derive(Debug)]
pub struct Repaired<IO> {
    io: IO,
    /// `None` once the connection is known to need no repair.
    repair: Option<Box<Repair>>,
}

#[derive(Debug)]
struct Repair {
    rewriter: Rewriter,
    /// Read from the client and not yet inspected, from `seen` on.
    input: Vec<u8>,
    seen: usize,
    /// For the HTTP/2 library, from `taken` on.
    output: Vec<u8>,
    taken: usize,
}

// === impl Repaired ===

impl<IO> Repaired<IO> {
    /// Inspects a connection that was just accepted.
    pub fn new(io: IO) -> Self {
        let repair = Repair {
            rewriter: Rewriter::new(),
            input: Vec::new(),
            seen: 0,
            output: Vec::new(),
            taken: 0,
        };
        Self {
            io,
            repair: Some(Box::new(repair)),
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Repaired<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while let Some(repair) = &mut this.repair {
            if repair.give(buf) {
                return Poll::Ready(Ok(()));
            }
            if repair.rewriter.is_transparent() && repair.seen == repair.input.len() {
                this.repair = None;
                break;
            }
            if repair.step() {
                continue;
            }
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            match Pin::new(&mut this.io).poll_read(cx, &mut chunk) {
                Poll::Ready(Ok(())) if chunk.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => repair.take_in(chunk.filled()),
                other => return other,
            }
        }
        Pin::new(&mut this.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Repaired<IO> {
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

impl<IO: Connected> Connected for Repaired<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

// === impl Repair ===

impl Repair {
    /// Returns the ready bytes; false if there are none.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let ready = &self.output[self.taken..];
        let count = ready.len().min(buf.remaining());
        buf.put_slice(&ready[..count]);
        self.taken += count;
        if self.taken == self.output.len() {
            self.output.clear();
            self.taken = 0;
        }
        count > 0
    }

    /// Inspects the next piece of input; false if more is needed.
    fn step(&mut self) -> bool {
        if self.seen == self.input.len() {
            return false;
        }
        self.seen += self
            .rewriter
            .step(&self.input[self.seen..], &mut self.output);
        true
    }

    fn take_in(&mut self, chunk: &[u8]) {
        self.input.clear();
        self.seen = 0;
        self.input.extend_from_slice(chunk);
    }
}

#[cfg(test)]
mod tests;
