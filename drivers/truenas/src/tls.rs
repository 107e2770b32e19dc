//! How the certificate of the NAS is checked.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
    crypto::{verify_tls12_signature, verify_tls13_signature},
};

use crate::{Error, Fingerprint, Kind, Settings};

/// Makes the connector of a connection.
pub(crate) fn connector(settings: &Settings) -> Result<TlsConnector, Error> {
    let provider = Arc::new(provider::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Config, format!("TLS: {error}")))?;
    let exception = match (settings.tls.certificate_sha256, settings.allow_insecure) {
        (Some(fingerprint), _) => Some(Accept::Only(fingerprint)),
        (None, true) => Some(Accept::Any),
        (None, false) => None,
    };
    let mut config = match exception {
        Some(accept) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { accept, provider }))
            .with_no_client_auth(),
        None => builder
            .with_root_certificates(roots(settings.tls.ca.as_deref())?)
            .with_no_client_auth(),
    };
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

fn roots(own: Option<&str>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = own {
        let config = |why: String| Error::new(Kind::Config, format!("httpConnection.tls.ca {why}"));
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate =
                certificate.map_err(|error| config(format!("is not PEM: {error}")))?;
            let added = roots.add(certificate);
            added.map_err(|error| config(format!("has an unusable certificate: {error}")))?;
        }
        if roots.is_empty() {
            return Err(config("holds no certificate".to_owned()));
        }
        return Ok(roots);
    }
    let found = rustls_native_certs::load_native_certs();
    let (_, _) = roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!("the system has no certificate authorities: set httpConnection.tls.ca");
    }
    Ok(roots)
}

/// Accepts a certificate without asking an authority.
#[derive(Debug)]
struct Verifier {
    accept: Accept,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Accept {
    Any,
    Only(Fingerprint),
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let seen = digest(&SHA256, certificate);
        match &self.accept {
            Accept::Only(expected) if seen.as_ref() != expected.0 => Err(TlsError::General(
                "the certificate is not the pinned one (tls.certificateSha256)".to_owned(),
            )),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
