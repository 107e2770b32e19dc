//! Settings of one machine: address, login, host key and limits.

use std::fmt;
use std::time::Duration;

use secrecy::SecretString;

use crate::host_key::HostKeys;
use crate::key::Key;

/// The settings to reach one machine.
pub struct Settings {
    /// Its name or address.
    pub host: String,
    /// The port of its SSH server.
    pub port: u16,
    /// The user to log in as.
    pub user: String,
    /// The key to log in with; tried before the password.
    pub key: Option<Key>,
    /// The password, also used for keyboard-interactive.
    pub password: Option<SecretString>,
    /// The way the host key is verified.
    pub host_keys: HostKeys,
    /// The time limit for connecting and logging in.
    pub connect_within: Duration,
    /// The keepalive interval; after three unanswered ones the connection counts as lost.
    pub keepalive: Duration,
    /// Concurrent sessions per connection. A server that allows fewer is detected.
    pub sessions: usize,
    /// Concurrent connections; another one is opened when the sessions of the others are all in use for a while.
    pub connections: usize,
}

// === impl Settings ===

impl Settings {
    /// The default port.
    pub const PORT: u16 = 22;

    /// Default settings: the limits of OpenSSH and the timeouts of democratic-csi.
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

    /// The address of the machine, for messages.
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
