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
    /// The path where it is mounted.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub path: String,
    /// `ONLINE`, `DEGRADED`, `FAULTED`, `OFFLINE`, …
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub status: String,
    /// Whether ZFS finds nothing to complain about, if the NAS says so.
    #[serde(default)]
    pub healthy: Option<bool>,
    /// The status of ZFS without its prefix `ZPOOL_STATUS_`: `OK`, `IO_FAILURE_WAIT`, …
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub status_code: String,
}
