//! The registration with the kubelet, which replaces node-driver-registrar: one service with two
//! calls, on a socket in the kubelet's folder `plugins_registry`. The kubelet finds the socket,
//! calls `GetInfo`, then `NodeGetInfo` on the CSI socket, and reports the result.

use std::path::{Path, PathBuf};

use csi_proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use csi_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tracing::{error, info};

use crate::cli::args::UnixSocket;
use crate::csi::identity::PluginName;
use crate::rpc::server;
use crate::rpc::server::socket::{Bound, ListenError, Listeners, Remains};

/// The plugin type of a CSI driver.
const TYPE: &str = "CSIPlugin";
/// The version of CSI that every kubelet takes; it is not the one that is advertised.
const VERSION: &str = "1.0.0";

/// The settings of the registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletRegistration {
    /// The kubelet's folder `plugins_registry`, as this process sees it.
    pub folder: PathBuf,
    /// The CSI socket, as the kubelet sees it.
    pub endpoint: String,
}

/// The service on the socket.
#[derive(Debug)]
struct Handler {
    name: PluginName,
    endpoint: String,
}

// === impl KubeletRegistration ===

impl KubeletRegistration {
    /// The socket that the kubelet finds, of the same name as node-driver-registrar's, so that
    /// either takes the other's place.
    pub fn socket(&self, name: &PluginName) -> PathBuf {
        socket(&self.folder, name)
    }

    /// Binds the socket and serves until the returned value is removed or the process ends. Call it
    /// when the CSI socket is served: the kubelet calls that one at once.
    pub fn begin(&self, name: &PluginName) -> Result<Remains, ListenError> {
        let path = self.socket(name);
        let bound = Bound::listen(&UnixSocket {
            path: path.clone(),
            mode: 0o600,
        })?;
        let remains = bound.remains();
        let handler = Handler {
            name: name.clone(),
            endpoint: self.endpoint.clone(),
        };
        let listeners = Listeners {
            unix: Some(bound),
            tcp: None,
        };
        let routes = Routes::new(RegistrationServer::new(handler));
        tokio::spawn(async move {
            if let Err(error) = server::serve(listeners, routes, std::future::pending::<()>).await {
                error!(error = %error, "the registration with the kubelet is no longer served");
            }
        });
        info!(socket = %path.display(), "the kubelet finds this driver here");
        Ok(remains)
    }
}

/// The name of the socket in `folder`.
pub fn socket(folder: &Path, name: &PluginName) -> PathBuf {
    folder.join(format!("{}-reg.sock", name.as_str()))
}

// === impl Handler ===

#[tonic::async_trait]
impl Registration for Handler {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: TYPE.to_owned(),
            name: self.name.as_str().to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        if plugin_registered {
            info!("the kubelet has registered this driver");
        } else {
            // It tries again by itself.
            error!(error, "the kubelet does not register this driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
