//! The registration with the kubelet, which replaces node-driver-registrar: one service with two
//! calls, on a socket in the kubelet's folder `plugins_registry`. The kubelet finds the socket,
//! calls `GetInfo`, then `NodeGetInfo` on the CSI socket, and reports the result.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use csi_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::time::sleep;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tracing::{error, info, warn};

use crate::process;
use crate::routing::plugin_name::PluginName;
use crate::rpc::server;
use crate::rpc::server::socket::{Bound, ListenError, Listeners, Remains, UnixSocket};

/// The plugin type of a CSI driver.
const TYPE: &str = "CSIPlugin";
/// The version of CSI that every kubelet takes; it is not the one that is advertised.
const VERSION: &str = "1.0.0";
/// The interval at which it is looked whether the socket has its file. A kubelet that starts again removes the file,
/// and starts no pod with volumes before it is back.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

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

    /// The same for another name of this driver, whose CSI socket the kubelet sees in a folder of that name beside the
    /// folder of this one.
    pub fn beside(&self, name: &PluginName) -> Option<Self> {
        let plugins = Path::new(&self.endpoint).parent()?.parent()?;
        let endpoint = plugins.join(name.as_str()).join("csi.sock");
        Some(Self {
            folder: self.folder.clone(),
            endpoint: endpoint.to_str()?.to_owned(),
        })
    }

    /// Binds the socket and serves until the returned value is removed or the process ends. Call it
    /// when the CSI socket is served: the kubelet calls that one at once.
    pub fn begin(&self, name: &PluginName) -> Result<Registered, ListenError> {
        let bound = self.listen(name)?;
        let registered = Registered(Arc::new(Mutex::new(Some(bound.remains()))));
        let (own, registration, name) = (registered.clone(), self.clone(), name.clone());
        tokio::spawn(async move { registration.serve(bound, &name, &own).await });
        Ok(registered)
    }

    fn listen(&self, name: &PluginName) -> Result<Bound, ListenError> {
        let path = self.socket(name);
        let bound = Bound::listen(&UnixSocket {
            path: path.clone(),
            mode: 0o600,
        })?;
        info!(socket = %path.display(), "the kubelet finds this driver here");
        Ok(bound)
    }

    /// Serves, and makes the socket again if its file is removed: a kubelet that starts anew would not find
    /// this driver otherwise.
    async fn serve(&self, mut bound: Bound, name: &PluginName, registered: &Registered) {
        loop {
            let listeners = Listeners {
                unix: Some(bound),
                tcp: None,
            };
            let routes = Routes::new(RegistrationServer::new(Handler {
                name: name.clone(),
                endpoint: self.endpoint.clone(),
            }));
            let gone = registered.clone();
            let until_gone = move || {
                let gone = gone.clone();
                async move { gone.until_missing().await }
            };
            if let Err(error) = server::serve(listeners, routes, until_gone).await {
                error!(error = %error, "the registration with the kubelet is no longer served");
                return;
            }
            bound = loop {
                match registered.again(|| self.listen(name)) {
                    None => return,
                    Some(Ok(bound)) => break bound,
                    Some(Err(error)) => {
                        let error = process::chain(&error);
                        warn!(%error, "the socket for the kubelet was removed, and cannot be made again");
                    }
                }
                sleep(LOOKS_EVERY).await;
            };
        }
    }
}

/// The socket that the kubelet finds, until it is removed. Clones share it.
#[derive(Debug, Clone)]
pub struct Registered(Arc<Mutex<Option<Remains>>>);

// === impl Registered ===

impl Registered {
    /// Removes the socket, and makes it no more.
    pub fn remove(&self) -> io::Result<()> {
        self.lock()
            .take()
            .map_or(Ok(()), |remains| remains.remove())
    }

    /// Ends when the file of the socket is missing.
    async fn until_missing(&self) {
        while !self.lock().as_ref().is_some_and(Remains::is_missing) {
            sleep(LOOKS_EVERY).await;
        }
    }

    /// The socket that is made again; `None` if it is not wanted any more.
    fn again(
        &self,
        listen: impl FnOnce() -> Result<Bound, ListenError>,
    ) -> Option<Result<Bound, ListenError>> {
        let mut remains = self.lock();
        let remains = remains.as_mut()?;
        Some(listen().inspect(|bound| *remains = bound.remains()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Remains>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_is_removed_by_another_is_made_again_until_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let registration = KubeletRegistration {
            folder: folder.path().to_owned(),
            endpoint: "/csi/csi.sock".to_owned(),
        };
        let name = PluginName::parse("org.example.csi").expect("a name");
        let path = registration.socket(&name);
        let registered = registration.begin(&name).expect("bound");
        fs::remove_file(&path).expect("removed");
        while !path.exists() {
            sleep(LOOKS_EVERY).await;
        }
        registered.remove().expect("removed");
        assert!(!path.exists());
        sleep(3 * LOOKS_EVERY).await;
        assert!(!path.exists());
    }
}
