//! Killed after every change: the same call completes the work, and the opposite call removes it.
//!
//! A kill unwinds the whole call, and no code treats it as an error. The node is then dropped, and
//! another one continues from the state of the kernel. A process that is killed in the middle of a
//! system call is tested on the whole program.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

use super::*;
use crate::testing::Killed;

const MIB: u64 = 1 << 20;

/// The place where a node is killed, and what it had changed until then.
#[derive(Debug, Default)]
pub(in crate::node) struct Stops(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    after: Option<usize>,
    passed: Vec<&'static str>,
}

/// The way a volume is used.
#[derive(Debug, Clone, Copy)]
enum Use {
    Filesystem,
    Raw,
    RawReadOnly,
}

/// The killed operation.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Stage,
    Publish,
    Unpublish,
    Unstage,
}

impl Stops {
    pub(in crate::node) fn pass(&self, what: &'static str) {
        let mut state = self.0.lock().expect("lock");
        state.passed.push(what);
        let killed = state.after == Some(state.passed.len());
        drop(state);
        if killed {
            resume_unwind(Box::new(Killed));
        }
    }
}

impl Bench {
    fn stage_as(&self, node: &Node, usage: Use) -> Result<(), Error> {
        let access = match usage {
            Use::Filesystem => Access::Mount(MountAccess::default()),
            Use::Raw | Use::RawReadOnly => Access::Block,
        };
        let request = self.stage_request("one", "s", access);
        self.run(node.stage(soon(), request))
    }

    fn publish_as(&self, node: &Node, usage: Use) -> Result<(), Error> {
        let mut request = self.device_request("one", "t");
        if !matches!(usage, Use::Filesystem) {
            request.capability.access = Access::Block;
        }
        request.readonly = matches!(usage, Use::RawReadOnly);
        self.run(node.publish(soon(), request))
    }

    fn act(&self, node: &Node, usage: Use, operation: Operation) -> Result<(), Error> {
        match operation {
            Operation::Stage => self.stage_as(node, usage),
            Operation::Publish => self.publish_as(node, usage),
            Operation::Unpublish => self.run(node.unpublish(soon(), self.target("t"))),
            Operation::Unstage => self.run(node.unstage(soon(), self.staging("s"))),
        }
    }

    /// Does the operation with a node that is killed after `after` changes; what it had changed, or
    /// `None` if it came to its end before.
    fn kill(&self, usage: Use, operation: Operation, after: usize) -> Option<Vec<&'static str>> {
        let doomed = node(NodeConfig::default(), &self.storage, &self.children);
        kill(&doomed, after, |doomed| self.act(doomed, usage, operation))
    }

    /// Takes everything away as an orchestrator does, and looks whether it is gone.
    #[track_caller]
    fn take_away(&self, before: usize, when: &str) {
        for operation in [Operation::Unpublish, Operation::Unstage] {
            let done = self.act(&self.node, Use::Raw, operation);
            done.unwrap_or_else(|error| panic!("{operation:?} {when}: {}", error.chain()));
        }
        self.nothing_is_left(before);
    }
}

/// Kills the node after so many changes of `act`; what was changed, or `None` if it came to its end before.
pub(super) fn kill(
    doomed: &Node,
    after: usize,
    act: impl FnOnce(&Node) -> Result<(), Error>,
) -> Option<Vec<&'static str>> {
    let stops = &doomed.context.stops.0;
    stops.lock().expect("lock").after = Some(after);
    match catch_unwind(AssertUnwindSafe(|| act(doomed))) {
        Ok(done) => {
            done.expect("it was not killed");
            None
        }
        Err(panic) if panic.is::<Killed>() => Some(stops.lock().expect("lock").passed.clone()),
        Err(panic) => resume_unwind(panic),
    }
}

/// Kills an operation after each of its changes and then does it again, or its opposite; at least
/// `expected` changes are known.
fn at_every_change(usage: Use, operation: Operation, expected: usize) {
    bench(move |bench| {
        let before = bench.mounts();
        bench.storage.put("one", 64 * MIB);
        let mut after = 1;
        loop {
            let mut reached = false;
            for again in [true, false] {
                let earlier: &[Operation] = match operation {
                    Operation::Stage => &[],
                    Operation::Publish => &[Operation::Stage],
                    Operation::Unpublish | Operation::Unstage => {
                        &[Operation::Stage, Operation::Publish]
                    }
                };
                for earlier in earlier {
                    bench.act(&bench.node, usage, *earlier).expect("before");
                }
                if matches!(operation, Operation::Unstage) {
                    bench
                        .act(&bench.node, usage, Operation::Unpublish)
                        .expect("before");
                }
                let passed = bench.kill(usage, operation, after);
                reached |= passed.is_some();
                let when = format!("{usage:?} {operation:?} killed after {passed:?}");
                if again {
                    let done = bench.act(&bench.node, usage, operation);
                    done.unwrap_or_else(|error| panic!("again, {when}: {}", error.chain()));
                    if matches!(operation, Operation::Stage) {
                        bench
                            .act(&bench.node, usage, Operation::Publish)
                            .expect("publish");
                    }
                }
                bench.take_away(before, &when);
            }
            if !reached {
                break;
            }
            after += 1;
        }
        assert!(after > expected, "only {} changes", after - 1);
    });
}

#[test]
fn a_stage_killed_after_any_change_is_completed_or_removed() {
    at_every_change(Use::Filesystem, Operation::Stage, 6);
    at_every_change(Use::Raw, Operation::Stage, 5);
}

#[test]
fn a_publication_killed_after_any_change_is_completed_or_removed() {
    at_every_change(Use::Raw, Operation::Publish, 1);
    at_every_change(Use::RawReadOnly, Operation::Publish, 2);
}

#[test]
fn an_unpublication_killed_after_any_change_is_completed() {
    at_every_change(Use::Raw, Operation::Unpublish, 2);
    at_every_change(Use::RawReadOnly, Operation::Unpublish, 2);
}

#[test]
fn an_unstage_killed_after_any_change_is_completed() {
    at_every_change(Use::Filesystem, Operation::Unstage, 3);
    at_every_change(Use::Raw, Operation::Unstage, 4);
}
