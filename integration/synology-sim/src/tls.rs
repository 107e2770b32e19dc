//! HTTPS, with a certificate that is signed by itself for `localhost`.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// The parts of a listener, and the certificate in DER.
pub(crate) fn acceptor() -> io::Result<(TlsAcceptor, Vec<u8>)> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
    let made = made.map_err(io::Error::other)?;
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            let builder = builder.with_no_client_auth();
            builder.with_single_cert(vec![certificate.clone()], key)
        })
        .map_err(io::Error::other)?;
    Ok((TlsAcceptor::from(Arc::new(config)), certificate.to_vec()))
}
