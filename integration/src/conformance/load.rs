//! What is asked of the connections beside the tested one, again and again.
//!
//! Nothing is made there: what is listed stays as it is.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use csi_proto::v1 as csi;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::client::Client;

/// Between two rounds: at least so long, and so many times what one took.
const PAUSE: Duration = Duration::from_millis(100);
const REST: u32 = 10;

/// Goes on until it is dropped, or ended.
#[derive(Debug)]
pub struct Load {
    tasks: Vec<JoinHandle<()>>,
    rounds: Arc<AtomicU64>,
}

// === impl Load ===

impl Load {
    /// Of these connections.
    pub fn begin(client: &Client, connections: &[&'static str]) -> Self {
        let rounds = Arc::<AtomicU64>::default();
        let tasks = connections.iter().map(|&connection| {
            let (client, rounds) = (client.clone(), Arc::clone(&rounds));
            tokio::spawn(async move {
                let mut began = Instant::now();
                while round(&client, connection).await {
                    rounds.fetch_add(1, Ordering::Relaxed);
                    rest(began).await;
                    began = Instant::now();
                }
            })
        });
        Self {
            tasks: tasks.collect(),
            rounds,
        }
    }

    /// Ends it.
    ///
    /// # Panics
    /// If a connection answered wrongly.
    pub async fn end(mut self) -> u64 {
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            if let Err(error) = task.await {
                assert!(error.is_cancelled(), "beside the tested one: {error}");
            }
        }
        self.rounds.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// After a round that began then. Many connections share a processor, and the tested one needs it as well.
pub async fn rest(began: Instant) {
    tokio::time::sleep(PAUSE.max(began.elapsed() * REST)).await;
}

/// Its room, and a volume that it has to look for; `false` if there is nobody any more to ask.
async fn round(client: &Client, connection: &str) -> bool {
    let mut controller = client.controller.clone();
    let room = csi::GetCapacityRequest {
        parameters: [("connection".to_owned(), connection.to_owned())].into(),
        ..csi::GetCapacityRequest::default()
    };
    if let Err(status) = controller.get_capacity(room).await {
        return is_of(connection, &status, None);
    }
    let look = csi::ControllerGetVolumeRequest {
        volume_id: format!("v:{connection}/nobody-made-it"),
    };
    match controller.controller_get_volume(look).await {
        Err(status) => is_of(connection, &status, Some(Code::NotFound)),
        Ok(reply) => panic!("{connection} has {reply:?}"),
    }
}

/// What is not said by the program itself has this side as its source: the program was stopped.
fn is_of(connection: &str, status: &Status, expected: Option<Code>) -> bool {
    let is_gone = status.source().is_some();
    assert!(
        is_gone || Some(status.code()) == expected,
        "{connection}: {status:?}"
    );
    !is_gone
}
