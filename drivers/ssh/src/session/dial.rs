//! Opens the TCP connection: tries the addresses of the host name in order.
//!
//! Each address gets its share of the remaining time, so that an address without an answer, such as IPv6 without a
//! route, does not prevent trying the next.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::Reason;
use crate::settings::Settings;

/// Connects to the first address of the host that answers.
pub(super) async fn dial(settings: &Settings, until: Instant) -> Result<TcpStream, Reason> {
    let host = settings.host.trim_start_matches('[').trim_end_matches(']');
    let addresses = tokio::net::lookup_host((host, settings.port))
        .await
        .map_err(Reason::Name)?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    first(&addresses, until, connect).await
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // Scripts are small and waited for.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What the first address that answers gives, or why the last one gave nothing.
async fn first<T, F>(
    addresses: &[SocketAddr],
    until: Instant,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, Reason>
where
    F: Future<Output = io::Result<T>>,
{
    let mut failed = Reason::NoAddress;
    for (tried, &address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let share = until.saturating_duration_since(Instant::now()) / left;
        match timeout(share, connect(address)).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => failed = Reason::Network(address, error),
            Err(_) => failed = Reason::Silent(address, share),
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(20);

    fn addresses<const N: usize>(texts: [&str; N]) -> [SocketAddr; N] {
        texts.map(|text| text.parse().expect("an address"))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_swallows_everything_leaves_time_to_the_next() {
        let [dead, refuses, answers] =
            addresses(["[2001:db8::1]:22", "192.0.2.1:22", "192.0.2.2:22"]);
        let began = Instant::now();
        let connect = async |address| {
            if address == dead {
                std::future::pending::<()>().await;
            }
            if address == refuses {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Ok(address)
        };
        let reached = first(&[dead, refuses, answers], began + WITHIN, connect).await;
        assert_eq!(reached.expect("the last one answers"), answers);
        assert!(began.elapsed() <= WITHIN / 3 + Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn all_addresses_together_have_the_whole_time_and_the_last_one_is_named() {
        let all = addresses(["[2001:db8::1]:22", "[2001:db8::2]:22", "192.0.2.1:22"]);
        let began = Instant::now();
        let silent = |_| std::future::pending::<io::Result<()>>();
        let failed = first(&all, began + WITHIN, silent).await;
        let failed = failed.expect_err("no address answers").to_string();
        assert!(
            failed.starts_with("no answer from 192.0.2.1:22"),
            "{failed}"
        );
        let took = began.elapsed();
        assert!(
            took.abs_diff(WITHIN) <= Duration::from_millis(4),
            "{took:?}"
        );
        let refuses = |_| {
            std::future::ready(io::Result::<()>::Err(
                io::ErrorKind::ConnectionRefused.into(),
            ))
        };
        let failed = first(&all[..2], began + WITHIN, refuses).await;
        let failed = failed.expect_err("no address answers").to_string();
        assert_eq!(failed, "no connection to [2001:db8::2]:22");
    }
}
