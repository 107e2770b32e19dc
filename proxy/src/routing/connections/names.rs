//! What the names in handles mean, and those that name none.

use std::collections::BTreeMap;

use super::name::ConnectionName;

/// What `proxy.legacyConnection` says if such handles are nobody's.
pub(crate) const NOBODY: &str = "none";

/// What the names in handles mean.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Other names, from handles that were given out under them.
    pub aliases: BTreeMap<ConnectionName, ConnectionName>,
    /// Whose the handles are that name none.
    pub bare: Bare,
}

/// Whose the handles are that name no connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Bare {
    /// Nobody has said: whatever has one may still be somewhere.
    #[default]
    Unsaid,
    /// Volumes made by hand have them, and no storage that lets nodes in one by one ever had one.
    Nobodys,
    /// That connection's.
    Of(ConnectionName),
}

// === impl Bare ===

impl Bare {
    /// The connection that they belong to.
    pub(super) fn owner(&self) -> Option<&ConnectionName> {
        match self {
            Self::Of(name) => Some(name),
            Self::Unsaid | Self::Nobodys => None,
        }
    }
}

// === impl Names ===

impl Names {
    /// The connection that is meant by a name.
    pub(super) fn meant<'a>(&'a self, name: &'a ConnectionName) -> &'a ConnectionName {
        self.aliases.get(name).unwrap_or(name)
    }

    /// What is named, and is not there: each with its key.
    pub(crate) fn missing(
        &self,
        is_there: impl Fn(&ConnectionName) -> bool,
    ) -> Vec<(String, ConnectionName)> {
        let aliases = self.aliases.iter();
        let aliases = aliases.map(|(old, new)| (format!("proxy.aliases.{old}"), new));
        let bare = self.bare.owner().map(|name| self.meant(name));
        let bare = bare.map(|name| ("proxy.legacyConnection".to_owned(), name));
        let missing = bare.into_iter().chain(aliases);
        missing
            .filter(|(_, name)| !is_there(name))
            .map(|(key, name)| (key, name.clone()))
            .collect()
    }
}
