//! The objects that an earlier call left in progress: they must not be forgotten, nor created a second time
//! elsewhere.

use driver_core::{Call, Effect, Error, VolumeId};

use super::ZfsDriver;
use crate::id::{At, SnapshotPlace};
use crate::observed::{Dataset, Query, Request};
use crate::step::Plan;

impl ZfsDriver {
    /// The dataset with the name of a volume, if it is of the kind of volumes. It is observed under
    /// the lock: if it is missing, a cut connection or a killed process may still be creating it.
    pub(super) async fn dataset_in_turn(
        &self,
        call: &Call,
        id: &VolumeId,
    ) -> Result<Option<Dataset>, Error> {
        let dataset = self.layout().volume(id)?;
        let request = Request::of([Query::Dataset(dataset.clone())]);
        // This changes nothing, so the effect of the call itself stays untouched.
        let call = &call.part(call.remaining());
        let plan = Plan::about(dataset.clone());
        let seen = self.backend.apply(call, &plan, &request).await;
        let seen = seen.map_err(|failed| failed.error.with_effect(Effect::None))?;
        self.heard();
        let found = seen.pool.dataset(&dataset).cloned();
        Ok(found.filter(|found| found.kind == self.kind()))
    }

    /// Returns `why`, the reason to reject a snapshot, with the effect of earlier calls added: if
    /// the configuration has changed since, a snapshot that an earlier call started must not be
    /// forgotten. Volumes are queried by [`find_volume`](driver_core::Driver::find_volume).
    pub(super) async fn unless_partial(
        &self,
        call: &Call,
        place: &SnapshotPlace,
        why: Error,
    ) -> Error {
        let query = match &place.at {
            At::Attached(snapshot) => Query::Snapshot(snapshot.clone()),
            At::Detached(dataset) => Query::Dataset(dataset.clone()),
        };
        let may_be_started = match self.observe(call, vec![query]).await {
            Ok(seen) => match &place.at {
                At::Attached(name) => seen.snapshot(name).is_some_and(|s| !s.is_doomed()),
                At::Detached(name) => {
                    let owner = self.settings.policy.owner();
                    let ours = |dataset: &&Dataset| !owner.is_another(dataset);
                    seen.dataset(name).as_ref().is_some_and(ours)
                }
            },
            Err(unknown) => {
                let error = unknown.chain();
                tracing::warn!(
                    error,
                    "cannot determine whether an earlier call started the snapshot"
                );
                true
            }
        };
        why.after_change(may_be_started)
    }
}
