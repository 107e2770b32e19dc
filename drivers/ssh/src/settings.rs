//! Which machine, as whom, and within which bounds.

use std::fmt;
use std::time::Duration;

use secrecy::SecretString;

use crate::host_key::HostKeys;
use crate::key::Key;

/// How one machine is reached.
pub struct Settings {
    /// Its name or address.
    pub host: String,
    /// The port of its SSH server.
    pub port: u16,
    /// Whom to log in as.
    pub user: String,
    /// The key to log in with; tried before the password.
    pub key: Option<Key>,
    /// The password to log in with, also where the server asks for it in a dialogue.
    pub password: Option<SecretString>,
    /// What the server has to prove about itself.
    pub host_keys: HostKeys,
    /// How long reaching the machine and logging in may take.
    pub connect_within: Duration,
    /// How often a quiet server is asked for a sign of life; after three without one the connection
    /// counts as lost.
    pub keepalive: Duration,
    /// Sessions at once on one connection. A server that allows fewer is noticed.
    pub sessions: usize,
    /// Connections at once, opened when the sessions of the others are all in use for a while.
    pub connections: usize,
}

// === impl Settings ===

impl Settings {
    /// The customary port.
    pub const PORT: u16 = 22;

    /// Settings with customary bounds: those of OpenSSH, and the times of democratic-csi.
    pub fn new(host: impl Into<String>, user: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            port: Self::PORT,
            user: user.into(),
            key: None,
            password: None,
            host_keys: HostKeys::first_use(),
            connect_within: Duration::from_secs(20),
            keepalive: Duration::from_secs(10),
            sessions: 10,
            connections: 4,
        }
    }

    /// The machine, for messages.
    pub(crate) fn place(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("place", &self.place())
            .field("user", &self.user)
            .field("key", &self.key.is_some())
            .field("password", &self.password.is_some())
            .field("host_keys", &self.host_keys)
            .finish_non_exhaustive()
    }
}
