//! What has the mark of another node and was deleted here.
//!
//! A volume with the mark of another node is found where its pool was moved, or its node renamed, or
//! where an id of democratic-csi only looks as if it had one. Once it is deleted nothing would tell
//! it from a volume that is elsewhere. So the dataset that volumes lie in remembers its id before
//! that: who asks for that deletion again is told that it is done. Nothing follows from it for others
//! with the same mark: one volume may have come here alone. compat: "ZFS of the node".

use driver_core::{Call, Error, Kind};
use driver_zfs::backend::Backend;
use driver_zfs::name::DatasetName;
use driver_zfs::observed::{Dataset, Look, Picture, Question};
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
/// How often others may change the list meanwhile.
const ROUNDS: usize = 8;

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
    ) -> Result<Picture, Error> {
        let datasets = datasets.iter().cloned().chain(self.parents());
        let question = Question {
            properties: vec![property()?],
            ..Question::of(datasets.map(Look::Dataset))
        };
        Ok(self.backend().observe(call, &question).await?.pool)
    }

    fn parents(&self) -> impl Iterator<Item = DatasetName> {
        let parents = std::iter::once(&self.layout.volumes).chain(&self.layout.detached);
        parents.cloned()
    }

    /// Whether this object was here, and was to be deleted.
    pub(super) fn was_deleted(&self, seen: &Picture, object: &str) -> Result<bool, Error> {
        let name = property()?;
        let has = |parent| {
            let parent = seen.dataset(&parent);
            parent.is_some_and(|parent| {
                entries(parent, &name).contains(&entry(parent, object).as_str())
            })
        };
        Ok(self.parents().any(has))
    }

    /// Remembers that this object is to be deleted here. Without that only a second deletion, whose
    /// first one was not answered, does not end; so the first one goes on.
    pub(super) async fn remember_deletion(&self, call: &Call, seen: Picture, object: &str) {
        if let Err(error) = self.remember(call, seen, object).await {
            let error = error.chain();
            warn!(
                object,
                error, "the deletion of what another node made is not remembered"
            );
        }
    }

    async fn remember(&self, call: &Call, mut seen: Picture, object: &str) -> Result<(), Error> {
        let name = property()?;
        for _ in 0..ROUNDS {
            let parent = self.parents().find_map(|parent| seen.dataset(&parent));
            let Some(parent) = parent.filter(|_| !self.was_deleted(&seen, object).unwrap_or(false))
            else {
                return Ok(());
            };
            let new = entry(parent, object);
            let mut all = entries(parent, &name);
            all.push(&new);
            let all = all.split_off(all.len().saturating_sub(MOST));
            let value = PropertyValue::parse(all.join(",")).map_err(|error| {
                Error::new(Kind::Internal, "remember a deletion").because(error)
            })?;
            let mut plan = Plan::about(parent.name.clone());
            plan.guard(parent.name.clone(), parent.guid);
            plan.guard_property(parent, &name);
            plan.step(Step::Set {
                object: parent.name.clone().into(),
                properties: vec![Property::new(name.clone(), value)],
            });
            match self.backend().apply(call, &plan, &Question::of([])).await {
                Ok(_) => return Ok(()),
                Err(failed) if failed.next == Next::Observe => {}
                Err(failed) => return Err(failed.error),
            }
            seen = self.look_at_home(call, &[]).await?;
        }
        let why = "others change the list all the time";
        Err(Error::new(Kind::Pending, "remember a deletion").because(why))
    }
}
