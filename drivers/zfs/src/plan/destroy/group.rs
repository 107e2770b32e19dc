//! Deleting a group of snapshots: one after the other. A retry deletes those that are left. Each leaves a bookmark
//! where one that is deleted alone does.

use driver_core::Error;

use super::snapshot::mark;
use super::{have_parents, parent_again, with_parent};
use crate::id::{GroupPlace, Layout};
use crate::observed::{Observed, Query, Request, State};
use crate::plan::{Outcome, Verb};
use crate::step::{Plan, Step};

/// Removes a group of snapshots.
#[derive(Debug)]
pub struct DestroyGroup<'a> {
    /// The layout of the connection.
    pub layout: &'a Layout,
    /// The group.
    pub group: GroupPlace,
    /// Whether each snapshot leaves a bookmark, so that what differs from it can still be said.
    pub leaves_marks: bool,
}

impl Verb for DestroyGroup<'_> {
    type Done = ();

    fn doing(&self) -> String {
        format!("delete group snapshot `{}`", self.group.id)
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        let snapshots = self.group.snapshots().cloned().map(Query::Snapshot);
        let marked = self.group.snapshots().filter(|_| self.leaves_marks);
        let marks = marked.map(|snapshot| Query::Marks(snapshot.dataset.clone()));
        let parents = self.group.parents(self.layout).into_iter();
        let parents = parents.filter_map(|parent| parent_again(parent, pool));
        Ok(Request::of(snapshots.chain(marks).chain(parents)))
    }

    fn request_after(&self, pool: &State) -> Result<Request, Error> {
        let request = self.request(pool)?;
        let parents = self.group.parents(self.layout).into_iter();
        Ok(parents.fold(request, |request, parent| with_parent(parent, request)))
    }

    fn plan(&self, _asked: &State, seen: &Observed, done: usize) -> Result<Outcome<()>, Error> {
        let mut plan = Plan::about(self.group.lock());
        for snapshot in self.group.left(&seen.pool) {
            plan.guard(snapshot.name.clone(), snapshot.guid);
            if self.leaves_marks {
                mark(&mut plan, snapshot, &seen.pool);
            }
            plan.step(Step::DestroySnapshot(snapshot.name.clone()));
        }
        if !plan.is_empty() {
            return Ok(Outcome::End(plan, ()));
        }
        // Looked for under the lock: the leftover command of a cut connection may still make it.
        if done == 0 {
            return Ok(Outcome::Do(plan));
        }
        have_parents(&self.doing(), &self.group.parents(self.layout), &seen.pool)?;
        Ok(Outcome::Done(()))
    }
}
