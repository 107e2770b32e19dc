//! Limits on what a NAS sends: little before the login, and a large answer only while the process has room for it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use driver_core::byte_budget::{ByteBudget, ReservedBytes, SMALL_ANSWER};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::session::Socket;

/// The largest answer that is read. A listing of ten thousand volumes has 30 MiB.
pub(crate) const LARGEST_ANSWER: usize = 40 << 20;
/// The most bytes that a NAS may send before the login, in all.
const BEFORE_LOGIN: usize = 256 << 10;
/// The time that a large answer may take from its first MiB on: others wait for its place.
const LARGE: Duration = Duration::from_secs(30);

/// The number of bytes that a socket has read. Clones are one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<Reading>>);

#[derive(Debug, Default)]
struct Reading {
    logged_in: bool,
    /// Since the last whole message.
    bytes: usize,
    /// The bytes reserved for the message that is being read, and since when.
    reserved: Option<(ReservedBytes, Instant)>,
}

/// A socket that is read as its meter allows.
pub(crate) struct Metered<S> {
    inner: S,
    meter: Meter,
    budget: ByteBudget,
    reserving: Option<Pin<Box<dyn Future<Output = ReservedBytes> + Send>>>,
}

// === impl Meter ===

impl Meter {
    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on answers may be larger.
    pub(crate) fn logged_in(&self) {
        let mut reading = self.reading();
        reading.logged_in = true;
        reading.bytes = 0;
    }

    /// Whether they may.
    pub(crate) fn is_logged_in(&self) -> bool {
        self.reading().logged_in
    }

    /// A message is whole. What it has reserved is kept until it was read.
    pub(crate) fn is_whole(&self) -> Option<ReservedBytes> {
        let mut reading = self.reading();
        if reading.logged_in {
            reading.bytes = 0;
        }
        reading.reserved.take().map(|(reserved, _)| reserved)
    }

    /// When a large message that is being read has to be whole.
    pub(crate) fn due(&self) -> Option<Instant> {
        let reading = self.reading();
        reading.reserved.as_ref().map(|(_, since)| *since + LARGE)
    }

    /// Whether more may be read only with a reservation.
    fn needs_room(&self) -> io::Result<bool> {
        let reading = self.reading();
        if !reading.logged_in && reading.bytes > BEFORE_LOGIN {
            let message = format!("it sent more than {BEFORE_LOGIN} bytes before the login");
            return Err(io::Error::other(message));
        }
        Ok(reading.bytes > SMALL_ANSWER && reading.reserved.is_none())
    }
}

// === impl Metered ===

impl<S: Socket> Metered<S> {
    pub(crate) fn new(inner: S, meter: Meter) -> Self {
        Self {
            inner,
            meter,
            budget: ByteBudget::of_connection(LARGEST_ANSWER),
            reserving: None,
        }
    }
}

impl<S> fmt::Debug for Metered<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Metered").field(&self.meter).finish()
    }
}

impl<S: Socket> AsyncRead for Metered<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.reserving.is_none() && this.meter.needs_room()? {
            let room = this.budget.clone().reserve(LARGEST_ANSWER);
            this.reserving = Some(Box::pin(room));
        }
        if let Some(reserving) = &mut this.reserving {
            let reserved = ready!(reserving.as_mut().poll(cx));
            this.reserving = None;
            this.meter.reading().reserved = Some((reserved, Instant::now()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        this.meter.reading().bytes += buf.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl<S: Socket> AsyncWrite for Metered<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_nas_that_sends_much_before_the_login_is_cut_off() {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let mut ours = Metered::new(ours, Meter::default());
        let flood = tokio::spawn(async move { theirs.write_all(&vec![b'x'; 4 << 20]).await });
        let mut read = 0;
        let mut buffer = vec![0; 64 << 10];
        let error = loop {
            match ours.read(&mut buffer).await {
                Ok(bytes) => read += bytes,
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("before the login"), "{error}");
        assert!(read <= BEFORE_LOGIN + buffer.len(), "{read}");
        drop(ours);
        assert!(flood.await.expect("joins").is_err());
    }

    #[tokio::test]
    async fn only_a_large_message_reserves_memory_and_its_end_gives_it_back() {
        let (ours, mut theirs) = tokio::io::duplex(8 << 20);
        let meter = Meter::default();
        meter.logged_in();
        let mut ours = Metered::new(ours, meter.clone());
        let mut buffer = vec![0; 1 << 20];
        for _ in 0..4 {
            theirs.write_all(&buffer).await.expect("sent");
            ours.read_exact(&mut buffer).await.expect("read");
            assert!(meter.is_whole().is_none(), "small messages cost nothing");
        }
        theirs.write_all(&vec![0; 3 << 20]).await.expect("sent");
        for _ in 0..3 {
            ours.read_exact(&mut buffer).await.expect("read");
        }
        assert!(meter.due().is_some());
        assert!(meter.is_whole().is_some());
        assert!(meter.due().is_none());
    }
}
