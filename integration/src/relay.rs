//! A relay to a port of this machine with a configurable delay: each piece of bytes arrives after
//! that time, however many are in flight, as on a network with latency and unlimited bandwidth.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// A port of this machine that forwards to another one.
#[derive(Debug)]
pub struct Relay {
    /// The port.
    pub port: u16,
    one_way: Arc<AtomicU64>,
}

// === impl Relay ===

impl Relay {
    /// Forwards to a port of this machine, without delay.
    ///
    /// # Panics
    /// If there is no port to listen at.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a port");
        let near = listener.local_addr().expect("an address").port();
        let one_way = Arc::new(AtomicU64::new(0));
        let relay = Self {
            port: near,
            one_way: Arc::clone(&one_way),
        };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let Ok(far) = TcpStream::connect(far).await else {
                    continue;
                };
                near.set_nodelay(true).expect("an option of each socket");
                far.set_nodelay(true).expect("an option of each socket");
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(carry(near_in, far_out, Arc::clone(&one_way)));
                tokio::spawn(carry(far_in, near_out, Arc::clone(&one_way)));
            }
        });
        relay
    }

    /// Sets the delay of a round trip.
    pub fn there_and_back(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros() / 2).unwrap_or(u64::MAX);
        self.one_way.store(micros, Ordering::SeqCst);
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Arc<AtomicU64>) {
    let (send, mut pieces) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    let mut piece = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        let due = Instant::now() + Duration::from_micros(one_way.load(Ordering::SeqCst));
        if send.send((due, piece[..count].to_vec())).is_err() {
            return;
        }
    }
}
