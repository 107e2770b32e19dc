//! Private keys in every format that the `ssh2` client of democratic-csi accepts.
//!
//! The text may be indented, as in most YAML files, have any line ends, and be encrypted.

mod legacy_pem;

use std::fmt;
use std::sync::Arc;

use russh::keys::{Error as KeyError, PrivateKey, decode_secret_key};
use secrecy::{ExposeSecret, SecretString};

/// A private key that was read.
#[derive(Clone)]
pub struct Key(pub(crate) Arc<PrivateKey>);

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKey {
    /// Not a private key in PEM, OpenSSH or `PuTTY` format.
    #[error("this is no private key in a form that can be read (PEM, OpenSSH, PuTTY)")]
    Unreadable,
    /// The name of a file instead of what is in it.
    #[error("this is the path of a file: give the text of the private key itself")]
    Path,
    /// The public half instead of the private one.
    #[error(
        "this is a public key: give the private one, which has `BEGIN` and `END` lines (the file without `.pub`)"
    )]
    Public,
    /// The lines between the first and the last were left out.
    #[error(
        "this is a placeholder for a private key: give the whole text of the file, with all its lines"
    )]
    Placeholder,
    /// The passphrase is missing.
    #[error("the private key is encrypted and no passphrase is given")]
    Encrypted,
    /// The passphrase is wrong.
    #[error("the private key cannot be decrypted with the passphrase that is given")]
    WrongPassphrase,
}

// === impl Key ===

impl Key {
    /// Reads a key. No error contains any of the text.
    pub fn parse(
        text: &SecretString,
        passphrase: Option<&SecretString>,
    ) -> Result<Self, InvalidKey> {
        // Some formats are refused if they are indented.
        let lines: Vec<&str> = text.expose_secret().lines().map(str::trim).collect();
        let plain = SecretString::from(lines.join("\n"));
        let passphrase = passphrase
            .map(ExposeSecret::expose_secret)
            .filter(|passphrase| !passphrase.is_empty());
        if plain.expose_secret().starts_with(['/', '~']) {
            return Err(InvalidKey::Path);
        }
        if is_public(plain.expose_secret()) {
            return Err(InvalidKey::Public);
        }
        if lines.iter().any(|line| matches!(*line, "..." | "…")) {
            return Err(InvalidKey::Placeholder);
        }
        // The library takes every encrypted key of this old form for one of RSA.
        let decrypted = match passphrase {
            Some(phrase) => legacy_pem::decrypt(plain.expose_secret(), phrase)?,
            None => None,
        };
        let (plain, passphrase) = match decrypted {
            Some(plain) => (plain, None),
            None => (plain, passphrase),
        };
        match decode_secret_key(plain.expose_secret(), passphrase) {
            Ok(key) => Ok(Self(Arc::new(key))),
            Err(KeyError::KeyIsEncrypted) if passphrase.is_none() => Err(InvalidKey::Encrypted),
            Err(_) if passphrase.is_none() && looks_encrypted(plain.expose_secret()) => {
                Err(InvalidKey::Encrypted)
            }
            Err(KeyError::KeyIsEncrypted) => Err(InvalidKey::WrongPassphrase),
            Err(_) if passphrase.is_some() => Err(InvalidKey::WrongPassphrase),
            Err(_) => Err(InvalidKey::Unreadable),
        }
    }

    /// Its public half, as a line of `authorized_keys`.
    pub fn public_line(&self) -> Option<String> {
        self.0.public_key().to_openssh().ok()
    }
}

fn is_public(text: &str) -> bool {
    let openssh = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"];
    openssh.iter().any(|start| text.starts_with(start)) || text.contains("PUBLIC KEY-----")
}

fn looks_encrypted(text: &str) -> bool {
    text.contains("ENCRYPTED")
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The public key is not secret and identifies the key.
        f.write_str(
            &self
                .0
                .public_key()
                .fingerprint(russh::keys::HashAlg::Sha256)
                .to_string(),
        )
    }
}
