//! What has the mark of another node and was deleted here.
//!
//! A volume with the mark of another node is found after its pool was moved or its node renamed, or
//! if an id of democratic-csi looks as if it had a mark. Once it is deleted, it looks the same as a
//! volume that is elsewhere. So the parent dataset of the volumes remembers its id from before the
//! deletion, until the deletion has failed: a retry of that deletion then succeeds. This does not
//! apply to other volumes with the same mark: one volume may have been moved alone. compat: "ZFS of
//! the node".

use std::time::Duration;

use driver_core::{Call, Error, Kind};
use driver_zfs::backend::Backend;
use driver_zfs::name::DatasetName;
use driver_zfs::observed::{Dataset, Query, Request, State};
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::{Next, Plan, Step};
use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::NodeZfs;

/// Where they are remembered, with commas between them.
const PROPERTY: &str = "omnibus-csi:deleted_of_others";
/// The bytes of a hash that stand for an id.
const BYTES: usize = 6;
/// The most that fit into a property; the oldest ones make room.
const MOST: usize = 512;
/// How long it may take to forget a deletion that failed, also when its call is over.
const FORGETTING: Duration = Duration::from_mins(1);
/// How many concurrent changes of the list are tolerated.
const ROUNDS: usize = 8;

/// What is to become of the memory of a deletion.
#[derive(Debug, Clone, Copy)]
enum Memory {
    Kept,
    Gone,
}

fn property() -> Result<PropertyName, Error> {
    PropertyName::parse(PROPERTY)
        .map_err(|error| Error::new(Kind::Internal, "remember a deletion").because(error))
}

fn entries<'p>(parent: &'p Dataset, name: &PropertyName) -> Vec<&'p str> {
    let text = parent.properties.own(name).unwrap_or_default();
    text.split(',').filter(|entry| !entry.is_empty()).collect()
}

/// What an object is remembered by. A list that was sent to another pool has come to another dataset,
/// where nothing of it was ever deleted.
fn entry(parent: &Dataset, object: &str) -> String {
    let digest = Sha256::digest(format!("{} {object}", parent.guid.0).as_bytes());
    let digits = digest[..BYTES].iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

impl<B: Backend> NodeZfs<B> {
    /// What of these is here, and what remembers deletions.
    pub(super) async fn look_at_home(
        &self,
        call: &Call,
        datasets: &[DatasetName],
    ) -> Result<State, Error> {
        let datasets = datasets.iter().cloned().chain(self.parents());
        let question = Request {
            properties: vec![property()?],
            ..Request::of(datasets.map(Query::Dataset))
        };
        Ok(self.backend().observe(call, &question).await?.pool)
    }

    fn parents(&self) -> impl Iterator<Item = DatasetName> {
        let parents = std::iter::once(&self.layout.volumes).chain(&self.layout.detached);
        parents.cloned()
    }

    /// Whether this object was here, and its deletion started and has not failed.
    pub(super) fn was_deleted(&self, seen: &State, object: &str) -> Result<bool, Error> {
        Ok(self
            .home_that_remembers(seen, object, &property()?)
            .is_some())
    }

    fn home_that_remembers<'p>(
        &self,
        seen: &'p State,
        object: &str,
        name: &PropertyName,
    ) -> Option<&'p Dataset> {
        let mut homes = self.parents().filter_map(|parent| seen.dataset(&parent));
        homes.find(|home| entries(home, name).contains(&entry(home, object).as_str()))
    }

    /// Deletes what another node made, and remembers it from before that on: the end of a deletion may
    /// not be seen. Without that memory only a second deletion, whose first one was not answered, does
    /// not end; so the first one goes on. One that is known to have failed is not remembered.
    pub(super) async fn delete_and_remember(
        &self,
        call: &Call,
        seen: State,
        object: &str,
        deletion: impl Future<Output = Result<(), Error>> + Send,
    ) -> Result<(), Error> {
        if let Err(error) = self.note(call, seen, object, Memory::Kept).await {
            let error = error.chain();
            warn!(
                object,
                error, "the deletion of what another node made is not remembered"
            );
        }
        let deleted = deletion.await;
        if let Err(error) = &deleted
            && !matches!(error.kind(), Kind::Unreachable | Kind::Timeout)
        {
            let call = &Call::within(FORGETTING);
            let forgotten = async {
                let seen = self.look_at_home(call, &[]).await?;
                self.note(call, seen, object, Memory::Gone).await
            };
            if let Err(error) = forgotten.await {
                let error = error.chain();
                warn!(object, error, "a deletion that failed is still remembered");
            }
        }
        deleted
    }

    /// Has an object among those that are remembered, or not.
    async fn note(
        &self,
        call: &Call,
        mut seen: State,
        object: &str,
        wanted: Memory,
    ) -> Result<(), Error> {
        let name = property()?;
        let refused = |kind| Error::new(kind, "remember a deletion");
        for _ in 0..ROUNDS {
            let known = self.home_that_remembers(&seen, object, &name);
            let home = match wanted {
                Memory::Kept if known.is_some() => None,
                Memory::Kept => self.parents().find_map(|parent| seen.dataset(&parent)),
                Memory::Gone => known,
            };
            let Some(home) = home else {
                return Ok(());
            };
            let own = entry(home, object);
            let mut all = entries(home, &name);
            match wanted {
                Memory::Kept => all.push(&own),
                Memory::Gone => all.retain(|entry| *entry != own),
            }
            let all = all.split_off(all.len().saturating_sub(MOST));
            let object = home.name.clone().into();
            let step = if all.is_empty() {
                let property = name.clone();
                Step::Inherit { object, property }
            } else {
                let value = PropertyValue::parse(all.join(","));
                let value = value.map_err(|error| refused(Kind::Internal).because(error))?;
                let properties = vec![Property::new(name.clone(), value)];
                Step::Set { object, properties }
            };
            let mut plan = Plan::about(home.name.clone());
            plan.guard(home.name.clone(), home.guid);
            plan.guard_property(home, &name);
            plan.step(step);
            match self.backend().apply(call, &plan, &Request::of([])).await {
                Ok(_) => return Ok(()),
                Err(failed) if failed.next == Next::Observe => {}
                Err(failed) => return Err(failed.error),
            }
            seen = self.look_at_home(call, &[]).await?;
        }
        Err(refused(Kind::Pending).because("others change the list all the time"))
    }
}
