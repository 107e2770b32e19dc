//! The steps of a plan that can be done at once.

use std::collections::{BTreeMap, BTreeSet};

use driver_core::Kind;
use driver_zfs::name::Object;
use driver_zfs::step::{Failed, Next, Of, Plan, Step};

type Done = Result<(), Failed>;

/// Steps that one call does.
pub(super) struct Job<'p> {
    pub(super) steps: Vec<&'p Step>,
    pub(super) places: BTreeSet<usize>,
    pub(super) name: Option<&'p Of>,
    pub(super) after: BTreeSet<usize>,
}

/// Says whether one call can do both: properties of one object, or permissions.
fn is_one_job(first: &Step, next: &Step) -> bool {
    let object = |step: &Step| match step {
        Step::Set { object, .. } | Step::Inherit { object, .. } | Step::Record { object, .. } => {
            Some(object.clone())
        }
        _ => None,
    };
    match (first, next) {
        (Step::Permit { .. }, Step::Permit { .. }) => true,
        _ => object(first).is_some() && object(first) == object(next),
    }
}

/// The copy with whose marks these properties are set: what is set on it once the snapshots that came with it are
/// gone. A call that is interrupted between the two leaves snapshots, which the next one looks for in any case.
fn copy_of<'j, 'p>(jobs: &'j mut [Job<'p>], step: &Step) -> Option<&'j mut Job<'p>> {
    let Step::Set { object, properties } = step else {
        return None;
    };
    let mut jobs = jobs.iter_mut().rev();
    let copy = jobs.find(|job| !matches!(job.steps[0], Step::DestroySnapshot(_)))?;
    let is_it =
        matches!(copy.steps[0], Step::Copy { to, .. } if *object == Object::from(to.clone()));
    let of_users = properties.iter().all(|property| property.name.is_user());
    (is_it && of_users).then_some(copy)
}

/// The jobs of a plan.
pub(super) fn jobs(plan: &Plan) -> Vec<Job<'_>> {
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for (place, node) in plan.steps.iter().enumerate() {
        if let Some(job) = jobs.last_mut()
            && is_one_job(job.steps[0], &node.step)
        {
            job.after.extend(node.after.difference(&job.places));
            job.steps.push(&node.step);
            job.places.insert(place);
        } else if let Some(copy) = copy_of(&mut jobs, &node.step) {
            copy.steps.push(&node.step);
            copy.places.insert(place);
        } else {
            jobs.push(Job {
                steps: vec![&node.step],
                places: BTreeSet::from([place]),
                name: node.name.as_ref(),
                after: node.after.clone(),
            });
        }
    }
    jobs
}

/// The items that can be done at once, in order. Of each, `order` has its places in the plan and those of the items
/// that it waits for, which come before it.
pub(crate) fn waves<T>(
    all: Vec<T>,
    order: impl Fn(&T) -> (&BTreeSet<usize>, &BTreeSet<usize>),
) -> Vec<Vec<T>> {
    let mut waves: Vec<Vec<T>> = Vec::new();
    let mut wave_of: BTreeMap<usize, usize> = BTreeMap::new();
    for one in all {
        let (places, after) = order(&one);
        let before = after.iter().filter_map(|place| wave_of.get(place));
        let wave = before.max().map_or(0, |last| last + 1);
        wave_of.extend(places.iter().map(|place| (*place, wave)));
        match waves.get_mut(wave) {
            Some(wave) => wave.push(one),
            None => waves.push(vec![one]),
        }
    }
    waves
}

/// The failure of several steps that leaves most unknown: what may still be under way is not undone.
pub(crate) fn worst(outcomes: impl IntoIterator<Item = Done>) -> Done {
    let failures = outcomes.into_iter().filter_map(Result::err);
    let is_known =
        |failed: &Failed| !matches!(failed.error.kind(), Kind::Unreachable | Kind::Timeout);
    let rank = |failed: &Failed| (is_known(failed), failed.next != Next::Tell);
    failures.min_by_key(rank).map_or(Ok(()), Err)
}

// === impl Job ===

impl Job<'_> {
    /// The object that it destroys, if it does.
    pub(super) fn destroys(&self) -> Option<Object> {
        match self.steps[0] {
            Step::DestroySnapshot(snapshot) => Some(snapshot.clone().into()),
            Step::DestroyDataset(name) | Step::DestroyEmpty(name) => Some(name.clone().into()),
            _ => None,
        }
    }
}
