//! Many calls, by one client or by many at once.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::Result;

/// The results of many clients.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Each call's time.
    pub(crate) times: Vec<Duration>,
    /// The total time.
    pub(crate) took: Duration,
}

/// Has `clients` clients make `calls` calls each, all at once. A call gets its client's number and
/// its own.
pub(crate) async fn many<F, W>(clients: usize, calls: usize, work: F) -> Result<Load>
where
    F: Fn(usize, usize) -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    let began = Instant::now();
    let mut tasks = Vec::with_capacity(clients);
    for client in 0..clients {
        let work = work.clone();
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::with_capacity(calls);
            for call in 0..calls {
                let began = Instant::now();
                work(client, call).await?;
                times.push(began.elapsed());
            }
            anyhow::Ok(times)
        }));
    }
    let mut times = Vec::with_capacity(clients * calls);
    for task in tasks {
        times.extend(task.await??);
    }
    Ok(Load {
        times,
        took: began.elapsed(),
    })
}
