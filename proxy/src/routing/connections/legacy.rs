//! The connections as callers of a legacy name see them: one of them, as if it were alone.
//!
//! The connection, its driver, its threads and its locks are those of all other callers. Only its handles
//! differ: they name no connection, as those of the driver that had the name before. Handles with a name are
//! understood, too. compat: "The proxy".

use std::sync::Arc;

use driver_core::Error;

use super::lazy::LazyConnection;
use super::name::ConnectionName;
use super::{Connections, Naming};
use crate::routing::connection::Connection;

/// The view of the callers of a legacy name.
#[derive(Debug, Clone)]
pub(super) struct Legacy {
    /// The connection that the name stands for.
    pub(super) connection: ConnectionName,
    /// Whether this process reads the files of connections.
    reads_files: bool,
}

// === impl Connections ===

impl Connections {
    /// The same connections for callers of a name that stands for `connection`. `reads_files`: whether this
    /// process reads the files of connections; nodes do not.
    pub(crate) fn under_legacy_name(&self, connection: ConnectionName, reads_files: bool) -> Self {
        let connection = match &self.inner.naming {
            Naming::Named(names) => names.meant(&connection).clone(),
            Naming::Unnamed => connection,
        };
        Self {
            inner: Arc::clone(&self.inner),
            legacy: Some(Legacy {
                connection,
                reads_files,
            }),
        }
    }

    /// Whether callers choose among several connections.
    pub(crate) fn is_routed(&self) -> bool {
        matches!(self.inner.naming, Naming::Named(_)) && self.legacy.is_none()
    }

    /// The only connection, if callers do not choose among several. That of a legacy name may be missing.
    pub(crate) async fn sole(&self) -> Result<Option<Arc<Connection>>, Error> {
        match (&self.inner.naming, &self.legacy) {
            (_, Some(legacy)) => self.open(&legacy.connection).await.map(Some),
            (Naming::Unnamed, None) => Ok(self.only()),
            (Naming::Named(_), None) => Ok(None),
        }
    }

    /// The same for calls of a node: none where the files of connections are not read.
    pub(crate) async fn sole_on_node(&self) -> Result<Option<Arc<Connection>>, Error> {
        match &self.legacy {
            Some(legacy) if !legacy.reads_files => Ok(None),
            _ => self.sole().await,
        }
    }

    /// The connection of the legacy name of these callers, whether or not its driver is built; an error if it
    /// is not served.
    pub(crate) fn of_legacy_name(&self) -> Result<Option<Arc<LazyConnection>>, Error> {
        let Some(legacy) = &self.legacy else {
            return Ok(None);
        };
        let unknown = self.unknown();
        let lazy = self.find(&legacy.connection);
        let lazy = lazy.ok_or_else(|| super::missing_one(&legacy.connection, unknown))?;
        lazy.usable()?;
        Ok(Some(lazy))
    }

    /// The connection of that name, as these callers see it.
    pub(crate) fn find(&self, name: &ConnectionName) -> Option<Arc<LazyConnection>> {
        let lazy = self.table().get(name).cloned()?;
        let is_alone = self
            .legacy
            .as_ref()
            .is_some_and(|legacy| legacy.connection == *name);
        Some(if is_alone {
            Arc::new(LazyConnection::alone(lazy))
        } else {
            lazy
        })
    }
}
