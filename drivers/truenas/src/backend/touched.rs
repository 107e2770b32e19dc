//! The objects that a plan touches: the rest can be looked at while it runs.

use driver_zfs::name::{Object, SnapshotRef};
use driver_zfs::observed::Query;
use driver_zfs::step::{Plan, Step};

/// Whether the answer to a query may be another one after a plan.
pub(super) fn is_touched(plan: &Plan, query: &Query) -> bool {
    let is_of = |snapshot: &SnapshotRef| match query {
        Query::Family(name) => *name == snapshot.dataset,
        Query::Snapshot(name) => name.dataset == snapshot.dataset,
        Query::Named { .. } => true,
        Query::Dataset(_)
        | Query::Nearest(_)
        | Query::Marks(_)
        | Query::Pool(_)
        | Query::System => false,
    };
    let changes = |step: &Step| match step {
        Step::Mount(_)
        | Step::Permit { .. }
        | Step::Settle(_)
        | Step::Export(_)
        | Step::Mark(..)
        | Step::DestroyMark(_) => false,
        Step::Promote(_) => true,
        Step::Snapshot { snapshots, .. } => snapshots.iter().any(is_of),
        Step::Rename { snapshot, .. } | Step::DestroySnapshot(snapshot) => is_of(snapshot),
        Step::Create { dataset, .. }
        | Step::Clone { dataset, .. }
        | Step::Copy { to: dataset, .. }
        | Step::GoOn { to: dataset, .. }
        | Step::Abandon(dataset)
        | Step::DestroyDataset(dataset)
        | Step::DestroyEmpty(dataset)
        | Step::Set {
            object: Object::Dataset(dataset),
            ..
        }
        | Step::Inherit {
            object: Object::Dataset(dataset),
            ..
        }
        | Step::Record {
            object: Object::Dataset(dataset),
            ..
        } => match query {
            // What is below a dataset changes nothing of it that counts.
            Query::Dataset(name) => name == dataset || name.below(dataset).is_some(),
            Query::Family(name) => {
                let is_of_it = dataset.below(name).is_some() || name.below(dataset).is_some();
                name == dataset || is_of_it
            }
            Query::Snapshot(name) => name.dataset == *dataset,
            Query::Named { .. } | Query::Nearest(_) => true,
            Query::Marks(_) | Query::Pool(_) | Query::System => false,
        },
        Step::Set { object, .. } | Step::Inherit { object, .. } | Step::Record { object, .. } => {
            match (object, query) {
                (Object::Snapshot(set), Query::Snapshot(name)) => set == name,
                (Object::Snapshot(set), Query::Family(name)) => set.dataset == *name,
                _ => false,
            }
        }
    };
    plan.steps.iter().any(|node| changes(&node.step))
}

/// Whether a plan changes exports.
pub(super) fn exports(plan: &Plan) -> bool {
    let mut steps = plan.steps.iter();
    steps.any(|node| matches!(node.step, Step::Export(_)))
}
