//! The meaning of names in handles, and the owner of handles without a name.

use std::collections::BTreeMap;

use super::name::ConnectionName;
use crate::routing::plugin_name::PluginName;

/// The value of `proxy.legacyConnection` if such handles belong to no connection.
pub(crate) const NO_OWNER: &str = "none";

/// The meaning of the names in handles.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Other names, from handles that were given out under them.
    pub aliases: BTreeMap<ConnectionName, ConnectionName>,
    /// The owner of the handles that name none.
    pub bare: Bare,
    /// Other names of this driver. Handles that name no connection, on the socket of such a name, are of this one.
    pub legacy: BTreeMap<PluginName, ConnectionName>,
}

/// The owner of the handles that name no connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Bare {
    /// Not configured: an object with such a handle may exist anywhere.
    #[default]
    Unsaid,
    /// Only volumes made by hand have them, and no storage with access per node ever had one.
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
    /// The connection behind a name or alias.
    pub(super) fn meant<'a>(&'a self, name: &'a ConnectionName) -> &'a ConnectionName {
        self.aliases.get(name).unwrap_or(name)
    }

    /// Names without a connection, each with its key.
    pub(crate) fn missing(
        &self,
        is_there: impl Fn(&ConnectionName) -> bool,
    ) -> Vec<(String, ConnectionName)> {
        let aliases = self.aliases.iter();
        let aliases = aliases.map(|(old, new)| (format!("proxy.aliases.{old}"), new));
        let bare = self.bare.owner().map(|name| self.meant(name));
        let bare = bare.map(|name| ("proxy.legacyConnection".to_owned(), name));
        let legacy = self.legacy.iter();
        let legacy =
            legacy.map(|(old, name)| (format!("proxy.legacyNames.{old}"), self.meant(name)));
        let missing = bare.into_iter().chain(legacy).chain(aliases);
        missing
            .filter(|(_, name)| !is_there(name))
            .map(|(key, name)| (key, name.clone()))
            .collect()
    }
}
