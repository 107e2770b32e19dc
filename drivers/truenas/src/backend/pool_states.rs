//! The states of pools, for the health of volumes.

use std::sync::atomic::Ordering;

use driver_core::config::Finding;
use driver_core::{Call, Error};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::{PoolState, Query};

use super::Nas;
use crate::api::Filter;
use crate::api::pool::{Pool, QueryPools};
use crate::check::POOLS;
use crate::error::Kind as ApiKind;
use crate::failure::understood;
use crate::{Dialect, Generation};

/// The advice where the login may not look at pools.
const REPAIR: &str = "Run `omnibus-csi truenas setup-user` again";

/// The beginning of the codes that ZFS gives to a pool that is suspended.
const SUSPENDED: &str = "IO_FAILURE_";

/// The state of a pool. Before 24.10 its status is that of its disks, which has no word for a pool that is suspended:
/// then the code of ZFS says so, or at least that it is not healthy.
fn state(pool: &Pool, generation: Generation) -> Option<PoolState> {
    let state = PoolState::parse(&pool.status)?;
    if state != PoolState::Online || generation >= Generation::V24_10 {
        return Some(state);
    }
    Some(if pool.status_code.starts_with(SUSPENDED) {
        PoolState::Unusable("SUSPENDED".to_owned())
    } else if pool.healthy == Some(false) {
        PoolState::Degraded
    } else {
        state
    })
}

impl Nas {
    /// The states of the pools that are asked for, in one call. A pool that is not there has none, nor has one whose
    /// state has a name that is not known. A login that may not look at pools is noted once, not at each volume.
    pub(super) async fn pool_states(
        &self,
        call: &Call,
        dialect: &Dialect,
        queries: &[Query],
    ) -> Result<Vec<(DatasetName, PoolState)>, Error> {
        let asked = queries.iter().filter_map(|query| match query {
            Query::Pool(name) => Some(name),
            _ => None,
        });
        let asked: Vec<&DatasetName> = asked.collect();
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let names = asked.iter().map(|name| name.pool());
        let query = QueryPools(vec![Filter::any_of("name", names)]);
        let found = match self.read(call, &query).await {
            Ok(found) => found,
            Err(error) if error.kind() == ApiKind::Denied => {
                self.note_hidden_pools();
                let unknown = |name: &DatasetName| (name.clone(), PoolState::Unknown);
                return Ok(asked.into_iter().map(unknown).collect());
            }
            Err(error) => return Err(understood("look at the states of pools", &error)),
        };
        let known = |name: &DatasetName| {
            let pool = found.iter().find(|pool| pool.name == name.pool())?;
            Some((name.clone(), state(pool, dialect.generation())?))
        };
        Ok(asked.into_iter().filter_map(known).collect())
    }

    /// A remark for the operator if the login may not look at pools. Volumes work without that.
    pub(super) async fn remark_on_pools(&self, call: &Call) -> Option<Finding> {
        let query = QueryPools(vec![Filter::eq("name", "omnibus-csi-check")]);
        let error = self.read(call, &query).await.err()?;
        (error.kind() == ApiKind::Denied).then(|| {
            Finding::remark(format!(
                "the login lacks the role {POOLS}: the health of volumes leaves out the states of pools. {REPAIR}"
            ))
        })
    }

    fn note_hidden_pools(&self) {
        if !self.hides_pools.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                host = self.address(),
                name = POOLS,
                "the login may not look at pools: the health of volumes leaves out their states. {REPAIR}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_24_10_a_pool_that_is_not_healthy_is_not_online() {
        let suspended = || Some(PoolState::Unusable("SUSPENDED".to_owned()));
        for (row, expected) in [
            (r#""status": "ONLINE""#, Some(PoolState::Online)),
            (
                r#""status": "ONLINE", "healthy": true, "status_code": "FEAT_DISABLED""#,
                Some(PoolState::Online),
            ),
            (
                r#""status": "ONLINE", "healthy": null, "status_code": null"#,
                Some(PoolState::Online),
            ),
            (
                r#""status": "ONLINE", "healthy": false, "status_code": "CORRUPT_DATA""#,
                Some(PoolState::Degraded),
            ),
            (
                r#""status": "ONLINE", "healthy": false, "status_code": "IO_FAILURE_WAIT""#,
                suspended(),
            ),
            (r#""status": "SUSPENDED", "healthy": false"#, suspended()),
            (r#""status": "LOCKED", "healthy": false"#, None),
        ] {
            let text = format!(r#"{{"id": 1, "name": "tank", {row}}}"#);
            let pool: Pool = serde_json::from_str(&text).expect("a pool");
            assert_eq!(state(&pool, Generation::V24_04), expected, "{row}");
            let by_status = PoolState::parse(&pool.status);
            assert_eq!(state(&pool, Generation::V24_10), by_status, "{row}");
        }
    }
}
