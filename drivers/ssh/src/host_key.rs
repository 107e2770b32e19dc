//! Verifies the host key of the server.
//!
//! The key is either configured (fingerprint, public key or `known_hosts` text), or the first key seen by this
//! process is trusted, with a warning that says how to pin it. Host certificates are not supported and refused.
//! democratic-csi checks nothing.

use std::fmt;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError};

use russh::keys::ssh_key::Fingerprint;
use russh::keys::{Algorithm, HashAlg, PublicKey, check_known_hosts_path, known_hosts};
use rustix::fs::{MemfdFlags, memfd_create};

/// The way the host key of the server is verified.
#[derive(Clone)]
pub struct HostKeys(Rule);

#[derive(Clone)]
enum Rule {
    /// One of these.
    Pinned(Vec<Pin>),
    /// The keys of this `known_hosts` text.
    Known(String),
    /// The first key seen; from then on only that one.
    FirstUse(Arc<Mutex<Option<PublicKey>>>),
}

#[derive(Clone)]
enum Pin {
    Fingerprint(Fingerprint),
    Key(Box<PublicKey>),
}

/// A text is no host key.
#[derive(Debug, thiserror::Error)]
pub enum InvalidHostKey {
    /// Neither of the two forms.
    #[error("it is neither a fingerprint (`SHA256:…`) nor a public key (`ssh-ed25519 AAAA…`)")]
    Form,
    /// Nothing is pinned at all.
    #[error("no host key is given")]
    Empty,
    /// No line of it can be used.
    #[error("it holds no line of the form `host type key`")]
    KnownHosts,
}

/// Why the key of a server is not accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "it shows the host key {0}, which is not the configured one: either the machine was installed anew, or this is another machine"
    )]
    Other(String),
    #[error("it shows the host key {0}, and the known hosts do not list it under `{1}`")]
    Unlisted(String, String),
    #[error("it shows the host key {0}, which the known hosts say is revoked or has changed")]
    Changed(String),
    #[error("it shows the host key {0}, but showed {1} before")]
    NotTheFirst(String, String),
    #[error("it proves itself with a host certificate, which is not supported")]
    Certificate,
    #[error("the known hosts cannot be read")]
    Unreadable,
}

// === impl HostKeys ===

impl HostKeys {
    /// One of these keys, each a fingerprint `SHA256:…` or a public key `ssh-ed25519 AAAA…`.
    pub fn pinned<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidHostKey> {
        let pins: Vec<Pin> = keys.into_iter().map(Pin::parse).collect::<Result<_, _>>()?;
        if pins.is_empty() {
            return Err(InvalidHostKey::Empty);
        }
        Ok(Self(Rule::Pinned(pins)))
    }

    /// The keys that a `known_hosts` text lists for the host. Hashed names and `@revoked` lines count,
    /// patterns with `*` and certificate authorities do not.
    pub fn known(text: &str) -> Result<Self, InvalidHostKey> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let usable = |line: &&str| {
            !line.is_empty() && !line.starts_with('#') && line.split_whitespace().count() >= 3
        };
        if !lines.iter().any(usable) {
            return Err(InvalidHostKey::KnownHosts);
        }
        Ok(Self(Rule::Known(lines.join("\n"))))
    }

    /// The first key that the host shows to this process, with a warning. Clones share it.
    pub fn first_use() -> Self {
        Self(Rule::FirstUse(Arc::default()))
    }

    /// The fingerprint of the key that is believed because it was the first one; `None` if keys are configured,
    /// or none was seen yet.
    pub fn believed(&self) -> Option<String> {
        let Rule::FirstUse(seen) = &self.0 else {
            return None;
        };
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let key = seen.as_ref()?;
        Some(key.fingerprint(HashAlg::Sha256).to_string())
    }

    /// The key types to request from the server; `None` is any.
    pub(crate) fn algorithms(&self, host: &str, port: u16) -> Option<Vec<Algorithm>> {
        let kinds: Vec<Algorithm> = match &self.0 {
            Rule::Pinned(pins) => {
                let key = |pin: &Pin| match pin {
                    Pin::Key(key) => Some(key.algorithm()),
                    Pin::Fingerprint(_) => None,
                };
                pins.iter().map(key).collect::<Option<_>>()?
            }
            Rule::Known(text) => {
                let keys = with_file(&plain_lines(text), |path| {
                    known_hosts::known_host_keys_path(host, port, path).ok()
                })?;
                keys.into_iter().map(|(_, key)| key.algorithm()).collect()
            }
            Rule::FirstUse(seen) => {
                let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                vec![seen.as_ref()?.algorithm()]
            }
        };
        (!kinds.is_empty()).then_some(kinds)
    }

    /// Checks the key that the host has proved to own.
    pub(crate) fn check(&self, host: &str, port: u16, key: &PublicKey) -> Result<(), Refusal> {
        let shown = key.fingerprint(HashAlg::Sha256).to_string();
        match &self.0 {
            Rule::Pinned(pins) if pins.iter().any(|pin| pin.is(key)) => Ok(()),
            Rule::Pinned(_) => Err(Refusal::Other(shown)),
            Rule::Known(text) => {
                if revoked(text).any(|other| other == *key) {
                    return Err(Refusal::Changed(shown));
                }
                let plain = plain_lines(text);
                let listed = with_file(&plain, |path| {
                    Some(check_known_hosts_path(host, port, key, path))
                });
                match listed {
                    Some(Ok(true)) => Ok(()),
                    Some(Ok(false)) => Err(Refusal::Unlisted(shown, host.to_owned())),
                    Some(Err(russh::keys::Error::KeyChanged { .. })) => {
                        Err(Refusal::Changed(shown))
                    }
                    Some(Err(_)) | None => Err(Refusal::Unreadable),
                }
            }
            Rule::FirstUse(seen) => {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match seen.as_ref() {
                    Some(first) if first == key => Ok(()),
                    Some(first) => {
                        let first = first.fingerprint(HashAlg::Sha256).to_string();
                        Err(Refusal::NotTheFirst(shown, first))
                    }
                    None => {
                        tracing::warn!(
                            host,
                            fingerprint = shown,
                            "the host key is believed because nothing is configured; pin it with \
                             `sshConnection.hostKey`"
                        );
                        *seen = Some(key.clone());
                        Ok(())
                    }
                }
            }
        }
    }
}

impl fmt::Debug for HostKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Rule::Pinned(_) => "pinned",
            Rule::Known(_) => "known hosts",
            Rule::FirstUse(_) => "first use",
        })
    }
}

// === impl Pin ===

impl Pin {
    fn parse(text: &str) -> Result<Self, InvalidHostKey> {
        let text = text.trim();
        if let Ok(fingerprint) = text.parse::<Fingerprint>() {
            return Ok(Self::Fingerprint(fingerprint));
        }
        let key = PublicKey::from_openssh(text).map_err(|_| InvalidHostKey::Form)?;
        Ok(Self::Key(Box::new(key)))
    }

    fn is(&self, key: &PublicKey) -> bool {
        match self {
            Self::Fingerprint(pin) => key.fingerprint(pin.algorithm()) == *pin,
            // The comment is no part of what is proved.
            Self::Key(pin) => pin.key_data() == key.key_data(),
        }
    }
}

/// The lines that name keys of hosts, with one blank between the fields.
fn plain_lines(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for line in text.lines().filter(|line| !line.starts_with(['@', '#'])) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        plain.push_str(&fields.join(" "));
        plain.push('\n');
    }
    plain
}

/// The keys of `@revoked` lines, for any host.
fn revoked(text: &str) -> impl Iterator<Item = PublicKey> {
    text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        if fields.next() != Some("@revoked") {
            return None;
        }
        let _hosts = fields.next();
        let key = format!("{} {}", fields.next()?, fields.next()?);
        PublicKey::from_openssh(&key).ok()
    })
}

/// Gives `text` a name for as long as `work` runs: the library reads known hosts from a path only.
fn with_file<T>(text: &str, work: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let file = memfd_create("known_hosts", MemfdFlags::CLOEXEC).ok()?;
    let mut file = std::fs::File::from(file);
    file.write_all(text.as_bytes()).ok()?;
    work(&format!("/proc/self/fd/{}", file.as_raw_fd()))
}
