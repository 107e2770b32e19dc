//! Pools.

use serde::Deserialize;

use super::rows;

rows! {
    /// Finds pools.
    QueryPools, "pool.query", Pool, |_| Ok(())
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pool {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Where it is mounted.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub path: String,
    /// `ONLINE`, `DEGRADED`, `FAULTED`, `OFFLINE`, …
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub status: String,
    /// Whether ZFS finds nothing to complain about.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub healthy: bool,
}
