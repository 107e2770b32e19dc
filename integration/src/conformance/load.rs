//! The load of the connections beside the tested one.
//!
//! Nothing is made there: what is listed stays as it is.

use std::error::Error as _;
use std::time::Instant;

use csi_proto::v1 as csi;
use tonic::{Code, Status};

use super::Target;
use crate::again::Again;
use crate::client::Client;

/// Goes on until it is ended.
#[derive(Debug)]
pub struct Load(Again);

// === impl Load ===

impl Load {
    /// Of the connections beside the tested one.
    pub fn begin(client: &Client, target: &dyn Target) -> Self {
        let mut again = Again::new();
        let opened = Instant::now() + target.patience();
        for connection in target.beside() {
            let client = client.clone();
            again.also(connection, move |rounds| {
                // All of them log in at once: until it has answered, it may take its time.
                let patience = (rounds == 0).then_some(opened);
                round(client.clone(), connection, patience)
            });
        }
        Self(again)
    }

    /// Ends it while the program lives.
    ///
    /// # Panics
    /// If a connection answered wrongly, or not at all.
    pub async fn end(self) {
        for (connection, ended) in self.0.end().await {
            let is_fine = ended.rounds > 0 && !ended.by_itself;
            assert!(is_fine, "{connection}, beside the tested one: {ended:?}");
        }
    }

    /// Ends it after the program has ended.
    ///
    /// # Panics
    /// If a connection answered wrongly before.
    pub async fn end_after_the_program(self) {
        self.0.end().await;
    }
}

/// A round of a connection; `false` if the program has ended. Until `patience` it may be late.
async fn round(client: Client, connection: &str, patience: Option<Instant>) -> bool {
    loop {
        let status = match asked(&client, connection).await {
            Ok(()) => return true,
            Err(status) => status,
        };
        if status.source().is_some() {
            // An error of the transport, not an answer of the program.
            return false;
        }
        let is_late = status.code() == Code::DeadlineExceeded;
        let may_be = patience.is_some_and(|patience| Instant::now() < patience);
        assert!(is_late && may_be, "{connection}: {status:?}");
    }
}

/// Its room, and a volume that it has to look for.
async fn asked(client: &Client, connection: &str) -> Result<(), Status> {
    let mut controller = client.controller.clone();
    let room = csi::GetCapacityRequest {
        parameters: [("connection".to_owned(), connection.to_owned())].into(),
        ..csi::GetCapacityRequest::default()
    };
    controller.get_capacity(room).await?;
    let look = csi::ControllerGetVolumeRequest {
        volume_id: format!("v:{connection}/never-created"),
    };
    match controller.controller_get_volume(look).await {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(status),
        Ok(reply) => panic!("{connection} has {reply:?}"),
    }
}
