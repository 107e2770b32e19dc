//! Finds the host of a portal in sysfs, which shows addresses, and names if it got names.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::facts::is_same;
use super::session::Session;
use crate::blocking;
use csi_types::attachment::{Host, Portal};

/// The time that a name may take. A resolver that hangs must not block a volume, which may not need it.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// A portal and the addresses of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) portal: Portal,
    addresses: Vec<IpAddr>,
}

// === impl Place ===

impl Place {
    /// A portal whose name was not resolved yet.
    pub(super) fn unresolved(portal: Portal) -> Self {
        let addresses = Vec::new();
        Self { portal, addresses }
    }

    /// Resolves the name if that can help: the portal has a name, and sessions at its port may belong to
    /// it under another spelling.
    ///
    /// An unknown name is not an error: the host may know it.
    pub(super) async fn among(portal: &Portal, sessions: &[Session], deadline: Instant) -> Self {
        let mut place = Self::unresolved(portal.clone());
        let known = sessions.iter().any(|session| session.is_through(&place));
        let near = sessions.iter().any(|session| session.has_port(portal.port));
        if let Host::Name(name) = &portal.host
            && near
            && !known
        {
            place.addresses = resolve(name, portal.port, deadline).await;
        }
        place
    }

    /// Whether sysfs means this place.
    pub(super) fn is(&self, shown: &Portal) -> bool {
        let by_address = match &shown.host {
            Host::Ip(address) => self.addresses.contains(address),
            Host::Scoped(..) | Host::Name(_) => false,
        };
        is_same(&self.portal, shown) || (by_address && shown.port == self.portal.port)
    }
}

async fn resolve(name: &str, port: u16, deadline: Instant) -> Vec<IpAddr> {
    let host = (name.to_owned(), port);
    let lookup = blocking::spawn(move || host.to_socket_addrs());
    let soon = deadline.min(Instant::now() + LOOKUP_TIMEOUT);
    match tokio::time::timeout_at(soon, lookup).await {
        Ok(Ok(Ok(found))) => found.map(|address| address.ip()).collect(),
        Ok(Ok(Err(error))) => {
            debug!(name, %error, "the name of a portal is not known here");
            Vec::new()
        }
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}
