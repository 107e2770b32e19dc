//! The way the certificate of an appliance is checked: by the authorities of the system or by one's own, by
//! its fingerprint, or not at all. The drivers that speak HTTP to an appliance share it.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fmt};

use aws_lc_rs::digest::{SHA256, digest};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error as RustlsError, RootCertStore, SignatureScheme,
};
use serde::{Deserialize, Deserializer};

/// Names a file of more authorities in PEM, beside those of the system. compat: "Environment".
const MORE_AUTHORITIES: &str = "NODE_EXTRA_CA_CERTS";

/// The way the certificate of an appliance is checked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsOptions {
    /// Certificate authorities in PEM, instead of those of the system.
    #[serde(default)]
    pub ca: Option<String>,
    /// The one certificate that is accepted, whatever its issuer and its name.
    #[serde(default)]
    pub certificate_sha256: Option<Fingerprint>,
    /// The name that the certificate must carry, if it is not the host's.
    #[serde(default)]
    pub server_name: Option<String>,
}

/// The SHA-256 digest of a certificate in DER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

/// Options that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

// === impl TlsOptions ===

impl TlsOptions {
    /// Whether any certificate is accepted.
    pub fn accepts_any(&self, allow_insecure: bool) -> bool {
        allow_insecure && self.certificate_sha256.is_none()
    }

    /// What a client needs. A pinned certificate wins over `allow_insecure`, which accepts any.
    pub fn client_config(&self, allow_insecure: bool) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(provider::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError(format!("TLS: {error}")))?;
        let exception = match (self.certificate_sha256, allow_insecure) {
            (Some(fingerprint), _) => Some(Accept::Only(fingerprint)),
            (None, true) => Some(Accept::Any),
            (None, false) => None,
        };
        if let Some(accept) = exception {
            return Ok(builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Verifier { accept, provider }))
                .with_no_client_auth());
        }
        let roots = match &self.ca {
            Some(pem) => own(pem)?,
            None => system(more(env::var_os(MORE_AUTHORITIES)).as_deref()),
        };
        let roots = Arc::new(roots);
        let inner = WebPkiServerVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| TlsError(format!("httpConnection.tls.ca: {error}")))?;
        let name = self.server_name.as_deref().map(named).transpose()?;
        Ok(builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Named { inner, name }))
            .with_no_client_auth())
    }
}

// === impl Fingerprint ===

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom("a SHA-256 fingerprint is 64 hexadecimal digits")
        })
    }
}

impl Fingerprint {
    /// Reads 64 hexadecimal digits, with or without colons between the bytes; also behind
    /// `sha256 Fingerprint=`, as `openssl x509` prints it.
    pub fn parse(text: &str) -> Option<Self> {
        let text = match text.split_once('=') {
            Some((label, digits)) if label.to_ascii_lowercase().ends_with("fingerprint") => digits,
            _ => text,
        };
        let text = text.trim();
        let digits: Vec<u8> = text
            .chars()
            .filter(|c| *c != ':')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |sum, d| sum * 16 + d))
            .collect();
        (digits.len() == 64).then(|| bytes.try_into().ok().map(Self))?
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn named(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        TlsError(format!(
            "{name:?} is not a name that a certificate can carry"
        ))
    })
}

fn own(pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let config = |why: String| TlsError(format!("httpConnection.tls.ca {why}"));
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| config(format!("is not PEM: {error}")))?;
        let added = roots.add(certificate);
        added.map_err(|error| config(format!("has an unusable certificate: {error}")))?;
    }
    if roots.is_empty() {
        return Err(config("holds no certificate".to_owned()));
    }
    Ok(roots)
}

/// The file that the variable names; an empty one counts as unset.
fn more(variable: Option<OsString>) -> Option<PathBuf> {
    variable.filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// The authorities of the system, and those of the file `more`. A file that cannot be used is a
/// warning: it is not part of the connection's configuration.
fn system(more: Option<&Path>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (_, _) = roots.add_parsable_certificates(found.certs);
    if let Some(path) = more {
        let read =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(certificates) => {
                let (_, _) = roots.add_parsable_certificates(certificates);
            }
            Err(error) => tracing::warn!(
                error = %error,
                path = %path.display(),
                variable = MORE_AUTHORITIES,
                "could not read certificate authorities"
            ),
        }
    }
    if roots.is_empty() {
        tracing::warn!("the system has no certificate authorities: set httpConnection.tls.ca");
    }
    roots
}

/// Asks the authorities, about another name than that of the host if one is given.
#[derive(Debug)]
struct Named {
    inner: Arc<WebPkiServerVerifier>,
    name: Option<ServerName<'static>>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        let name = self.name.as_ref().unwrap_or(host);
        self.inner
            .verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        self.inner
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        self.inner
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
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
    ) -> Result<ServerCertVerified, RustlsError> {
        let seen = digest(&SHA256, certificate);
        match &self.accept {
            Accept::Only(expected) if seen.as_ref() != expected.0 => Err(RustlsError::General(
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
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_with_and_without_colons() {
        let plain = "ab".repeat(32);
        let colons = vec!["AB"; 32].join(":");
        assert_eq!(Fingerprint::parse(&plain), Fingerprint::parse(&colons));
        assert_eq!(Fingerprint::parse(&plain).expect("read").to_string(), plain);
        let printed = format!("sha256 Fingerprint={colons}\n");
        assert_eq!(Fingerprint::parse(&printed), Fingerprint::parse(&plain));
        assert_eq!(Fingerprint::parse("ab"), None);
        assert_eq!(Fingerprint::parse(&"zz".repeat(32)), None);
    }

    #[test]
    fn more_authorities_come_from_a_file_and_a_bad_file_takes_none_away() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, include_str!("authority.pem")).expect("written");
        let without = system(None).len();
        assert_eq!(system(Some(&path)).len(), without + 1);
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nA").expect("written");
        assert_eq!(system(Some(&path)).len(), without);
        assert_eq!(system(Some(&dir.path().join("absent"))).len(), without);
    }

    #[test]
    fn an_empty_variable_names_no_file() {
        assert_eq!(more(Some(OsString::new())), None);
        assert_eq!(more(None), None);
        assert_eq!(more(Some("ca.pem".into())), Some("ca.pem".into()));
    }

    #[test]
    fn an_authority_that_is_none_is_refused() {
        for pem in [
            "",
            "x",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
        ] {
            let options = TlsOptions {
                ca: Some(pem.to_owned()),
                ..TlsOptions::default()
            };
            let error = options.client_config(false).expect_err("refused");
            assert!(
                error.to_string().contains("httpConnection.tls.ca"),
                "{error}"
            );
        }
    }
}
