//! Deletion of objects with the mark of another node.
//!
//! A volume with the mark of another node is found after its pool was moved or its node renamed, or
//! if an id of democratic-csi looks as if it had a mark. Once it is deleted, it looks the same as a
//! volume that is elsewhere. So the parent dataset of the volumes remembers its id from before the
//! deletion, until the deletion has failed: a retry of that deletion then succeeds. This does not
//! apply to other volumes with the same mark: one volume may have been moved alone. compat: "ZFS of
//! the node".

use std::time::Duration;

use csi_types::hex;
use driver_core::{Call, Error, Kind};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::{Dataset, Query, Request, State};
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::{Next, Plan, Step};
use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::NodeZfs;

/// The property with the remembered ids, separated by commas.
const PROPERTY: &str = "omnibus-csi:deleted_of_others";
/// The bytes of a hash that represent an id.
const BYTES: usize = 6;
/// The most ids in a property; the oldest ones are dropped. A property holds 8 KiB.
const MOST: usize = 512;
/// The time limit to forget a failed deletion, even after the deadline of its call.
const FORGETTING: Duration = Duration::from_mins(1);
/// The number of concurrent changes of the list that are tolerated. Each is another process of the node that adds an id
/// at that moment.
const ROUNDS: usize = 8;

/// The change of the record of a deletion.
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

/// The recorded hash of an object. It includes the dataset with the list, because a list that was
/// sent to another pool describes deletions that did not happen there.
fn entry(parent: &Dataset, object: &str) -> String {
    hex(&Sha256::digest(format!("{} {object}", parent.guid.0).as_bytes())[..BYTES])
}

impl NodeZfs {
    /// Which of these exist here, and the records of deletions.
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
        Ok(self.storage().observe(call, &question).await?.pool)
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

    /// Deletes an object of another node, and records it before the deletion, whose end may not be
    /// seen. Without the record only the retry of an unanswered deletion fails; so the first one
    /// continues. A deletion that is known to have failed is removed from the record.
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
                error, "the deletion of an object of another node is not recorded"
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
                warn!(
                    object,
                    error, "the record of a failed deletion was not removed"
                );
            }
        }
        deleted
    }

    /// Adds an object to the record, or removes it.
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
            match self.storage().apply(call, &plan, &Request::of([])).await {
                Ok(_) => return Ok(()),
                Err(failed) if failed.next == Next::Observe => {}
                Err(failed) => return Err(failed.error),
            }
            seen = self.look_at_home(call, &[]).await?;
        }
        Err(refused(Kind::Pending).because("others keep changing the list of deletions"))
    }
}
