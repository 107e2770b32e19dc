//! The results of a look, as far as a plan leaves them: these are not looked at again within the same verb.
//!
//! The answers of a plan say the rest. What neither says is looked at after it.

use std::collections::BTreeSet;
use std::time::Instant;

use driver_zfs::export::Opaque;
use driver_zfs::name::{DatasetName, Object, SnapshotLeaf};
use driver_zfs::observed::{Query, Request};
use driver_zfs::property::PropertyName;
use driver_zfs::step::{Plan, Step};

use super::pool_rows::PoolRows;
use super::steps::Run;
use crate::command::{Answer, Command, Look};

/// The known rows, and the queries to which they are the answer.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// When the first look of it began.
    began: Instant,
    pub(super) rows: PoolRows,
    queries: Vec<Query>,
    properties: Vec<PropertyName>,
    /// The objects that were changed since, and not seen again.
    unknown: BTreeSet<Object>,
    exports: Vec<(Look, Answer)>,
}

// === impl Known ===

impl Known {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            rows: PoolRows::default(),
            queries: Vec::new(),
            properties: Vec::new(),
            unknown: BTreeSet::new(),
            exports: Vec::new(),
        }
    }

    fn kept(request: &Request) -> Option<&Self> {
        let kept = request.known.as_ref();
        kept.and_then(|kept| kept.get().ok())
    }

    /// When the verb of this request began to look at what its plan is made from.
    pub(super) fn began(request: &Request) -> Option<Instant> {
        Self::kept(request).map(|kept| kept.began)
    }

    /// The state that the last observation of the same verb has left for this one.
    pub(super) fn of(request: &Request) -> Self {
        let has_all = |kept: &&Self| {
            let mut names = request.properties.iter();
            names.all(|name| name.is_user() || kept.properties.contains(name))
        };
        let kept = Self::kept(request).filter(has_all);
        let mut known = kept.cloned().unwrap_or_else(Self::new);
        known.properties.clone_from(&request.properties);
        known
    }

    /// The queries among these that have to be looked at.
    pub(super) fn missing(&self, queries: &[Query]) -> Vec<Query> {
        let missing = queries.iter().flat_map(|query| self.missing_of(query));
        missing.collect()
    }

    fn missing_of(&self, query: &Query) -> Vec<Query> {
        let (family, is_asked) = match query {
            Query::Family(name) => (name, self.queries.contains(query)),
            Query::Dataset(name) => {
                let family = Query::Family(name.clone());
                let asked = self.queries.contains(query) || self.queries.contains(&family);
                let stays = asked && !self.unknown.contains(&name.clone().into());
                return Vec::from_iter((!stays).then(|| query.clone()));
            }
            Query::Snapshot(name) => {
                let family = Query::Family(name.dataset.clone());
                let asked = self.queries.contains(query) || self.queries.contains(&family);
                let stays = asked && !self.unknown.contains(&name.clone().into());
                return Vec::from_iter((!stays).then(|| query.clone()));
            }
            Query::System | Query::Marks(_) | Query::Pool(_) => return Vec::new(),
            Query::Named { .. } | Query::Nearest(_) => {
                let asked = self.queries.contains(query);
                return Vec::from_iter((!asked).then(|| query.clone()));
            }
        };
        if !is_asked {
            return vec![query.clone()];
        }
        let of_it = |object: &&Object| match object {
            Object::Dataset(name) => name == family,
            Object::Snapshot(name) => name.dataset == *family,
        };
        let query_of = |object: &Object| match object {
            Object::Dataset(name) => Query::Dataset(name.clone()),
            Object::Snapshot(name) => Query::Snapshot(name.clone()),
        };
        self.unknown.iter().filter(of_it).map(query_of).collect()
    }

    /// The answers to these looks at exports, as far as they are known.
    pub(super) fn exports(&self, commands: &[Opaque]) -> Vec<Option<Opaque>> {
        let one = |command: &Opaque| {
            let Ok(Command::Look(look)) = command.get() else {
                return None;
            };
            let found = self.exports.iter().find(|(known, _)| known == look);
            found.map(|(_, answer)| Opaque::new(answer.clone()))
        };
        commands.iter().map(one).collect()
    }

    /// Adds what was looked at now.
    pub(super) fn lay(&mut self, queries: &[Query], rows: PoolRows) {
        for query in queries {
            match query {
                Query::Dataset(name) => {
                    self.unknown.remove(&name.clone().into());
                }
                Query::Snapshot(name) => {
                    self.unknown.remove(&name.clone().into());
                }
                Query::Family(name) => self.unknown.retain(|object| match object {
                    Object::Dataset(other) => other != name,
                    Object::Snapshot(snapshot) => snapshot.dataset != *name,
                }),
                Query::Named { .. }
                | Query::Nearest(_)
                | Query::Marks(_)
                | Query::Pool(_)
                | Query::System => {}
            }
        }
        self.queries.extend_from_slice(queries);
        self.rows.lay(rows);
    }

    /// Adds the answers to looks at exports, and leaves out older ones.
    pub(super) fn lay_exports(&mut self, commands: &[Opaque], answers: &[Opaque]) {
        self.exports.clear();
        for (command, answer) in commands.iter().zip(answers) {
            if let (Ok(Command::Look(look)), Ok(answer)) = (command.get(), answer.get::<Answer>()) {
                self.exports.push((look.clone(), answer.clone()));
            }
        }
    }

    /// Follows a plan that was done: what it changed is what it was answered, or not known.
    pub(super) fn follow(&mut self, plan: &Plan, run: &Run<'_>) {
        for node in &plan.steps {
            self.follow_one(&node.step, run);
        }
        for row in run.datasets() {
            if let Ok(name) = DatasetName::parse(&row.id) {
                self.unknown.remove(&name.into());
            }
            self.rows.add(row);
        }
    }

    fn follow_one(&mut self, step: &Step, run: &Run<'_>) {
        match step {
            Step::Create { dataset, .. } => self.made(dataset),
            Step::Clone {
                origin, dataset, ..
            } => {
                self.made(dataset);
                self.rows.stands_on(origin, dataset);
            }
            Step::Copy { from, to, .. } => {
                self.made(to);
                self.came_with(to, &from.leaf);
            }
            Step::Set { object, .. }
            | Step::Inherit { object, .. }
            | Step::Record { object, .. } => self.changed(object.clone()),
            Step::Snapshot { snapshots, .. } => {
                for snapshot in snapshots {
                    self.changed(snapshot.clone().into());
                    if let Some(row) = run.snapshot_row(snapshot) {
                        self.unknown.remove(&snapshot.clone().into());
                        self.rows.add_snapshot(row);
                    }
                }
            }
            Step::DestroySnapshot(snapshot) => {
                self.unknown.remove(&snapshot.clone().into());
                self.rows.doom(snapshot);
            }
            Step::Rename { snapshot, to } => {
                self.changed(snapshot.clone().into());
                self.came_with(&snapshot.dataset, to);
            }
            Step::DestroyDataset(name) | Step::DestroyEmpty(name) => {
                self.changed(name.clone().into());
                if run.has_ended(name) {
                    self.made(name);
                    self.unknown.remove(&name.clone().into());
                }
            }
            // It may be about any of them.
            Step::GoOn { .. } | Step::Abandon(_) | Step::Promote(_) => {
                *self = Self {
                    properties: std::mem::take(&mut self.properties),
                    ..Self::new()
                };
            }
            Step::Mount(_)
            | Step::Permit { .. }
            | Step::Settle(_)
            | Step::Export(_)
            | Step::Mark(..)
            | Step::DestroyMark(_) => {}
        }
    }

    /// A dataset is made: what was on and below it is not of it, and nothing is on and below it yet.
    fn made(&mut self, name: &DatasetName) {
        self.rows.forget(name);
        self.unknown.retain(|object| match object {
            Object::Dataset(other) => other != name,
            Object::Snapshot(snapshot) => snapshot.dataset != *name,
        });
        self.unknown.insert(name.clone().into());
        self.queries.push(Query::Family(name.clone()));
    }

    /// There is a snapshot of which only the name is known.
    fn came_with(&mut self, dataset: &DatasetName, leaf: &SnapshotLeaf) {
        if let Ok(snapshot) = dataset.at(leaf) {
            self.changed(snapshot.into());
        }
    }

    fn changed(&mut self, object: Object) {
        match &object {
            Object::Dataset(name) => self.rows.forget_row(name),
            Object::Snapshot(name) => self.rows.forget_snapshot(name),
        }
        self.unknown.insert(object);
    }
}
