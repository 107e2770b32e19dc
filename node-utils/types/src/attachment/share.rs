//! The share of a server over NFS, SMB or Lustre.

use super::field::{check, plain, word};
use super::{ContextError, FieldError, Keys};

/// A share of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkShare {
    /// The server of the share.
    pub server: Server,
    /// The share.
    pub share: Share,
}

/// A server by name or address; for Lustre a list of them, as `mount` takes it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Server(String);

/// A path or the name of a share on a server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Share(String);

word!(Server);
word!(Share);

// === impl NetworkShare ===

impl NetworkShare {
    pub(super) fn read(keys: Keys<'_>) -> Result<Self, ContextError> {
        Ok(Self {
            server: keys.word("server", Server::parse)?,
            share: keys.word("share", Share::parse)?,
        })
    }

    /// The share of an SMB server: slashes at its beginning mean nothing.
    pub(super) fn below_root(mut self) -> Result<Self, ContextError> {
        let name = self.share.0.trim_start_matches('/');
        self.share = Share::parse(name).map_err(|reason| ContextError::Word {
            key: "share",
            reason,
        })?;
        Ok(self)
    }

    pub(super) fn write(&self, put: &mut impl FnMut(&str, String)) {
        put("server", self.server.0.clone());
        put("share", self.share.0.clone());
    }

    /// The source of a mount over NFS and Lustre: `server:share`.
    pub fn colon_form(&self) -> String {
        format!("{}:{}", self.server, self.share)
    }

    /// The source of a mount over SMB: `//server/share`.
    pub fn unc_form(&self) -> String {
        format!("//{}/{}", self.server, self.share)
    }
}

// === impl Server ===

impl Server {
    /// Checks a server. A bare IPv6 address gets its brackets.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        check(text, 1024, |c| (plain(c) || c == ',') && c != '/')?;
        if text.parse::<std::net::Ipv6Addr>().is_ok() {
            return Ok(Self(format!("[{text}]")));
        }
        Ok(Self(text.to_owned()))
    }
}

// === impl Share ===

impl Share {
    /// Checks a share. Blanks and letters of any alphabet are right in one.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        check(text, 4096, |c| {
            !c.is_control() && c != '\u{2028}' && c != '\u{2029}'
        })?;
        Ok(Self(text.to_owned()))
    }
}
