//! The state of a host in memory, and how plans change it: in parts, with possible interruptions in
//! between.
//!
//! A step is one part if ZFS does it atomically. Properties are set one by one, and the dataset of
//! a copy exists, with its name and its properties, long before its content.

use std::collections::BTreeMap;

use driver_core::{Error, Kind};

use super::export::Targets;
use super::pool::MemoryPool;
use crate::backend::Tried;
use crate::export::Opaque;
use crate::name::{DatasetName, Object, SnapshotRef};
use crate::observed::{Observed, PoolState, Query, Request, State};
use crate::property::{Property, PropertyName};
use crate::step::{Expected, Failed, FirstTry, Next, Node, Of, Plan, Step, Test};

/// The state of a host, and its planned faults.
#[derive(Debug, Clone, Default)]
pub struct HostState {
    /// Its pool.
    pub pool: MemoryPool,
    /// Its exports.
    pub targets: Targets,
    /// After this many parts of steps the connection is cut: what was done stays, but the caller
    /// does not see it.
    pub cut_after: Option<usize>,
    /// Whether interrupted work continues, unseen, until it is done: for the next plan it happens
    /// between its observation and its first step, which waits for the lock.
    pub goes_on: bool,
    /// Whether it does the first try of a verb, as a command line does.
    pub tries_first: bool,
    /// Whether the tool of the exports is missing.
    pub without_tool: bool,
    /// The number of changes of an export that do not get the lock of their target stack, each after half a
    /// minute.
    pub queued: usize,
    /// The ways in which attempts to destroy a dataset are refused: the last entry is used first.
    pub kept: Vec<Next>,
    /// The number of parts of steps that were done.
    pub steps: usize,
    /// The number of exchanges.
    pub exchanges: usize,
    /// The number of times that the whole pool was scanned for a name.
    pub scans: usize,
    /// Work that continues.
    running: Vec<Part>,
    /// The answers to the requests of the plan.
    made: BTreeMap<Of, u64>,
}

/// A part of a step.
#[derive(Debug, Clone)]
enum Part {
    Whole(Step),
    /// A request of an export, and the name of its answer.
    Request(Opaque, Option<Of>),
    /// A copy starts: its dataset exists.
    Begin {
        from: SnapshotRef,
        to: DatasetName,
        properties: Vec<Property>,
    },
    /// It ends: its content and its snapshot exist.
    End {
        from: SnapshotRef,
        to: DatasetName,
    },
}

fn parts(node: &Node) -> Vec<Part> {
    match &node.step {
        Step::Export(request) => vec![Part::Request(request.clone(), node.name.clone())],
        Step::Set { object, properties } => {
            let one = |property: &Property| {
                Part::Whole(Step::Set {
                    object: object.clone(),
                    properties: vec![property.clone()],
                })
            };
            properties.iter().map(one).collect()
        }
        Step::Copy {
            from,
            to,
            properties,
        } => {
            let (from, to) = (from.clone(), to.clone());
            let begin = Part::Begin {
                from: from.clone(),
                to: to.clone(),
                properties: properties.clone(),
            };
            vec![begin, Part::End { from, to }]
        }
        other => vec![Part::Whole(other.clone())],
    }
}

/// Whether this is as a first try expects it.
fn is_expected(seen: &State, expected: &Expected) -> bool {
    let (kind, properties) = match &expected.object {
        Object::Dataset(name) => match seen.dataset(name) {
            Some(dataset) => (dataset.kind.word(), &dataset.properties),
            None => return false,
        },
        Object::Snapshot(name) => match seen.snapshot(name) {
            Some(snapshot) => ("snapshot", &snapshot.properties),
            None => return false,
        },
    };
    let name = &expected.property;
    let number = properties.number(name).filter(|number| *number > 0);
    match &expected.test {
        Test::Is(text) if *name == PropertyName::TYPE => text == kind,
        Test::Is(text) => properties.get(name).unwrap_or("-") == text,
        Test::Own => properties.own(name).is_some(),
        Test::Below(most) => number.is_some_and(|number| number < *most),
        Test::Divides(whole) => number.is_some_and(|number| whole % number == 0),
    }
}

/// The error of a question.
pub(super) fn cut() -> Error {
    Error::new(Kind::Unreachable, "reach the pool in memory").because("the connection was cut")
}

// === impl HostState ===

impl HostState {
    /// Whether the connection is cut before the next part.
    pub(super) fn is_cut(&self) -> bool {
        self.cut_after.is_some_and(|after| self.steps >= after)
    }

    /// Rejects queries of a pool that does not exist.
    pub(super) fn find_pools(&self, queries: &[Query]) -> Result<(), Error> {
        match self.pool.missing(queries) {
            None => Ok(()),
            Some(pool) => Err(Error::new(Kind::Unreachable, format!("find pool `{pool}`"))
                .because("it is not imported")),
        }
    }

    /// Fails as a host does whose pool is suspended, unless only that is asked.
    fn find_answers(&self, request: &Request) -> Result<(), Error> {
        let is_alone = matches!(&*request.queries, [Query::Pool(_)]) && request.export.is_empty();
        if self.pool.state == PoolState::Unusable("SUSPENDED".to_owned()) && !is_alone {
            return Err(Error::new(Kind::Unreachable, "look at datasets")
                .because("pool I/O is currently suspended"));
        }
        Ok(())
    }

    pub(super) fn observe(&mut self, request: &Request) -> Result<Observed, Error> {
        self.find_pools(&request.queries)?;
        self.find_answers(request)?;
        let scans = |query: &&Query| matches!(query, Query::Named { .. });
        self.scans += request.queries.iter().filter(scans).count();
        let answers = request.export.iter();
        let answers = answers.map(|request| Ok(Opaque::new(self.targets.answer(request.get()?))));
        Ok(Observed {
            pool: self.pool.show(&request.queries, &request.properties),
            export: answers.collect::<Result<_, Error>>()?,
            kept: None,
        })
    }

    /// Observes, and does a first try if the state is as that expects. Where the connection is cut before its answer,
    /// the try has reached the host all the same.
    pub(super) fn try_first(
        &mut self,
        request: &Request,
        first: &FirstTry,
    ) -> Result<Tried, Failed> {
        // Running work still holds the lock.
        self.finish();
        let seen = self.observe(request).map_err(Failed::terminal)?;
        let mut expected = first.expected.iter();
        if !expected.all(|expected| is_expected(&seen.pool, expected)) {
            return if self.is_cut() {
                Err(Failed::terminal(cut()))
            } else {
                Ok(Tried::Seen(seen))
            };
        }
        let (mut plan, mut is_begun) = (Plan::about(first.lock.clone()), false);
        plan.step(first.step.clone());
        match self.apply(&plan, &mut is_begun) {
            Ok(()) => Ok(Tried::Done(Some(seen))),
            Err(failed) => Err(failed.after_change(is_begun)),
        }
    }

    /// Applies a plan, up to its failure or interruption; `is_begun` says whether a part of it may be done.
    pub(super) fn apply(&mut self, plan: &Plan, is_begun: &mut bool) -> Result<(), Failed> {
        for guard in &plan.guards {
            if !self.pool.passes(guard) {
                return Err(Failed {
                    next: Next::Observe,
                    error: Error::new(Kind::Busy, format!("find that {guard}")),
                });
            }
        }
        let parts: Vec<Part> = plan.steps.iter().flat_map(parts).collect();
        self.made.clear();
        for (done, part) in parts.iter().enumerate() {
            if self.is_cut() {
                *is_begun = true;
                if self.goes_on {
                    self.running = parts[done..].to_vec();
                } else if let Part::End { to, .. } = part {
                    self.pool.end_copy(to, None)?;
                }
                return Err(Failed::terminal(cut()));
            }
            self.part(part)?;
            *is_begun = true;
            self.steps += 1;
        }
        *is_begun = true;
        if self.is_cut() {
            return Err(Failed::terminal(cut()));
        }
        Ok(())
    }

    /// Completes interrupted work that continues.
    pub fn finish(&mut self) {
        for part in std::mem::take(&mut self.running) {
            if self.part(&part).is_err() {
                if let Part::End { to, .. } = &part {
                    // Its leftover can resume, whatever the error says.
                    let _ = self.pool.end_copy(to, None);
                }
                break;
            }
        }
    }

    fn part(&mut self, part: &Part) -> Result<(), Failed> {
        let step = match part {
            Part::Whole(step) => step,
            Part::Begin {
                from,
                to,
                properties,
            } => {
                self.pool.begin_copy(from, to, properties)?;
                self.pool.keep_part(to, from);
                return Ok(());
            }
            Part::End { from, to } => return self.pool.end_copy(to, Some(from)),
            Part::Request(request, name) => return self.request(request, name.as_ref()),
        };
        match step {
            Step::Record {
                object,
                property,
                of,
            } => {
                let number = self.made.get(of).copied().unwrap_or_default();
                self.pool.apply(&Step::Set {
                    object: object.clone(),
                    properties: vec![Property::new(property.clone(), number.into())],
                })
            }
            Step::DestroyDataset(name) if self.targets.holds(name) => Err(Failed {
                next: Next::Wait,
                error: Error::new(Kind::Busy, format!("destroy {name}")),
            }),
            Step::DestroyDataset(name) => match self.kept.pop() {
                Some(next) => Err(Failed {
                    next,
                    error: Error::new(Kind::Busy, format!("destroy {name}")),
                }),
                None => self.pool.apply(step),
            },
            other => self.pool.apply(other),
        }
    }

    fn request(&mut self, request: &Opaque, name: Option<&Of>) -> Result<(), Failed> {
        if self.without_tool {
            return Err(Failed::terminal(
                Error::new(Kind::Internal, "change a target").because("the tool is not installed"),
            ));
        }
        if self.queued > 0 {
            self.queued -= 1;
            return Err(Failed {
                next: Next::Queue,
                error: Error::new(Kind::Pending, "change a target").because("no turn"),
            });
        }
        let request = request.get().map_err(Failed::terminal)?;
        let answer = self.targets.change(request, &self.made);
        self.made.extend(name.cloned().zip(answer));
        Ok(())
    }
}
