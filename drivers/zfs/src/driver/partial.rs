//! What an earlier call has begun: nobody may forget it, or make it a second time elsewhere.

use driver_core::{Call, Effect, Error, VolumeId};

use super::ZfsDriver;
use crate::backend::Backend;
use crate::export::Export;
use crate::id::{At, SnapshotPlace};
use crate::observed::{Dataset, Query, Request};
use crate::step::Plan;

impl<B, E> ZfsDriver<B, E>
where
    B: Backend,
    E: Export<Command = B::Command, Output = B::Output>,
{
    /// What has the name of a volume, and is of the kind that volumes are, seen when its turn has come:
    /// what is not there may be in the making, by what a cut connection, or a process that was killed,
    /// has left running.
    pub(super) async fn dataset_in_turn(
        &self,
        call: &Call,
        id: &VolumeId,
    ) -> Result<Option<Dataset>, Error> {
        let dataset = self.layout().volume(id)?;
        let request = Request::of([Query::Dataset(dataset.clone())]);
        // Nothing is changed, and the call has not begun to.
        let call = &call.part(call.remaining());
        let plan = Plan::about(dataset.clone());
        let seen = self.backend.apply(call, &plan, &request).await;
        let seen = seen.map_err(|failed| failed.error.with_effect(Effect::None))?;
        self.heard();
        let found = seen.pool.dataset(&dataset).cloned();
        Ok(found.filter(|found| found.kind == self.kind()))
    }

    /// Why a snapshot is not taken, where that is no news of this call: one that an earlier call has begun
    /// must not be forgotten because the configuration is another one by now. Volumes are asked for by
    /// [`find_volume`](driver_core::Driver::find_volume).
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
        match self.observe(call, vec![query]).await {
            Ok(seen) => {
                let begun = match &place.at {
                    At::Attached(name) => seen.snapshot(name).is_some_and(|s| !s.is_doomed()),
                    At::Detached(name) => {
                        let owner = self.settings.policy.owner();
                        let ours = |begun: &&Dataset| !owner.is_another(begun);
                        seen.dataset(name).as_ref().is_some_and(ours)
                    }
                };
                let effect = if begun {
                    Effect::Possible
                } else {
                    Effect::None
                };
                why.with_effect(effect)
            }
            Err(unknown) => {
                let error = unknown.chain();
                tracing::warn!(
                    error,
                    "it is not known whether the snapshot was begun before"
                );
                why.with_effect(Effect::Possible)
            }
        }
    }
}
