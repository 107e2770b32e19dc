//! The states of pools, for the health of volumes.

use std::sync::atomic::Ordering;

use driver_core::config::Finding;
use driver_core::{Call, Error};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::{PoolState, Query};

use super::Nas;
use crate::api::Filter;
use crate::api::pool::QueryPools;
use crate::check::POOLS;
use crate::error::Kind as ApiKind;
use crate::failure::understood;

/// The advice where the login may not look at pools.
const REPAIR: &str = "Run `omnibus-csi truenas setup-user` again";

impl Nas {
    /// The states of the pools that are asked for, in one call. A pool that is not there has none, nor has one whose
    /// state has a name that is not known. A login that may not look at pools is noted once, not at each volume.
    pub(super) async fn pool_states(
        &self,
        call: &Call,
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
        let state = |name: &DatasetName| {
            let pool = found.iter().find(|pool| pool.name == name.pool())?;
            Some((name.clone(), PoolState::parse(&pool.status)?))
        };
        Ok(asked.into_iter().filter_map(state).collect())
    }

    /// What an operator should know if the login may not look at pools. Volumes work without that.
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
                nas = self.address(),
                role = POOLS,
                "the login may not look at pools: the health of volumes leaves out their states. {REPAIR}"
            );
        }
    }
}
