//! Typed clients of one server, over its unix socket.

use std::path::Path;
use std::time::Duration;

use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use tonic::transport::{Channel, Endpoint, Error};

/// One connection with a client for each service. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    /// The Identity service.
    pub identity: IdentityClient<Channel>,
    /// The Controller service.
    pub controller: ControllerClient<Channel>,
    /// The Node service.
    pub node: NodeClient<Channel>,
    /// The connection itself, for calls without a type.
    pub channel: Channel,
}

// === impl Client ===

impl Client {
    /// Connects to a socket on which somebody listens already.
    pub async fn connect(socket: &Path) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?
            .connect_timeout(Duration::from_secs(10));
        Ok(Self::over(endpoint.connect().await?))
    }

    /// Clients over a connection.
    pub fn over(channel: Channel) -> Self {
        Self {
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel.clone()),
            channel,
        }
    }
}
