//! The certificate of a NAS as it comes from the factory: signed by itself, for `localhost`.

use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

pub(crate) struct Identity {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) certificate: CertificateDer<'static>,
}

pub(crate) fn identity(names: Vec<String>) -> io::Result<Identity> {
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(vec![certificate.clone()], key)
        })
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Identity {
        acceptor: TlsAcceptor::from(Arc::new(config)),
        certificate,
    })
}

pub(crate) fn pem(certificate: &CertificateDer<'_>) -> String {
    let text = STANDARD.encode(certificate);
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}
