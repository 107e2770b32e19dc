//! What is asked of the connections beside the tested one.
//!
//! Nothing is made there: what is listed stays as it is.

use std::error::Error as _;

use csi_proto::v1 as csi;
use tonic::{Code, Status};

use crate::again::Again;
use crate::client::Client;

/// Goes on until it is ended.
#[derive(Debug)]
pub struct Load(Again);

// === impl Load ===

impl Load {
    /// Of these connections.
    pub fn begin(client: &Client, connections: &[&'static str]) -> Self {
        let mut again = Again::new();
        for &connection in connections {
            let client = client.clone();
            again.also(connection, move || round(client.clone(), connection));
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

/// Its room, and a volume that it has to look for; `false` if there is nobody any more to ask.
async fn round(client: Client, connection: &str) -> bool {
    let mut controller = client.controller;
    let room = csi::GetCapacityRequest {
        parameters: [("connection".to_owned(), connection.to_owned())].into(),
        ..csi::GetCapacityRequest::default()
    };
    if let Err(status) = controller.get_capacity(room).await {
        return is_said(connection, &status, None);
    }
    let look = csi::ControllerGetVolumeRequest {
        volume_id: format!("v:{connection}/nobody-made-it"),
    };
    match controller.controller_get_volume(look).await {
        Err(status) => is_said(connection, &status, Some(Code::NotFound)),
        Ok(reply) => panic!("{connection} has {reply:?}"),
    }
}

/// Whether the program itself has said so. What it did not say has a source on this side.
fn is_said(connection: &str, status: &Status, expected: Option<Code>) -> bool {
    let is_said = status.source().is_none();
    assert!(
        !is_said || Some(status.code()) == expected,
        "{connection}: {status:?}"
    );
    is_said
}
