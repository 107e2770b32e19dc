//! TLS to the NAS, and the name that its certificate must carry.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::{Error, Kind, Settings};

/// Makes the connector of a connection.
pub(crate) fn connector(settings: &Settings) -> Result<TlsConnector, Error> {
    let mut config = settings
        .tls
        .client_config(settings.allow_insecure)
        .map_err(|error| Error::new(Kind::Config, error.to_string()))?;
    // The web server of the NAS offers HTTP/2, which cannot carry a websocket there.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that the certificate must carry.
pub(crate) fn server_name(settings: &Settings) -> Result<ServerName<'static>, Error> {
    let given = settings.tls.server_name.as_deref();
    let name = given.unwrap_or(&settings.endpoint.host);
    ServerName::try_from(name.to_owned()).map_err(|_| {
        let message = format!("{name:?} is not a name that a certificate can carry");
        Error::new(Kind::Config, message)
    })
}
