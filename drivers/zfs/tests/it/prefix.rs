//! A retry after any prefix of any plan leads to the same end.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_types::NodeIdentity;
use driver_core::{Call, Effect, Error, Kind};
use driver_zfs::name::{DatasetName, SnapshotRef};
use driver_zfs::observed::{Query, VolumeKind};
use driver_zfs::property::PropertyName;
use driver_zfs::published::PublishedNodes;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryHost, Thing};
use proptest::prelude::*;

use crate::kept::{assert_exported, assert_kept};
use crate::world::*;

/// A new volume has the content that its source had at the request.
fn check_content(begin: &HostState, end: &HostState, verb: &Verb) {
    let Verb::Create { id, source, .. } = verb else {
        return;
    };
    if begin.pool.guid(&dataset(*id).into()).is_some() {
        return;
    }
    let expected = match source {
        From::Nothing => return,
        From::Volume(of) => begin.pool.content(&dataset(*of)),
        From::Snapshot(of, name) => {
            let name = format!("{}@s{name}", dataset(*of));
            begin.pool.content_of(&SnapshotRef::parse(&name).unwrap())
        }
        From::Detached(of, name) => {
            let name = format!("tank/csi/s/v{of}/s{name}");
            begin.pool.content(&DatasetName::parse(&name).unwrap())
        }
    };
    assert_eq!(end.pool.content(&dataset(*id)), expected, "{verb:?}");
}

/// A group is there whole or not at all; one whose deletion has started is not made again.
fn check_group(begin: &HostState, now: &HostState, verb: &Verb, what: &str) {
    let Verb::Group { ids, name } = verb else {
        return;
    };
    let group = group(*ids, *name);
    let of_it = |state: &HostState| {
        let has = |thing: &Thing| {
            let own = thing.own.get(&PropertyName::GROUP);
            own.is_some_and(|id| id == group.id.as_str()) && !thing.doomed
        };
        state
            .pool
            .things()
            .values()
            .filter(|thing| has(thing))
            .count()
    };
    let (before, after) = (of_it(begin), of_it(now));
    let whole = before == 0 && after == group.members.len();
    assert!(
        after == before || whole,
        "{what}: {before} before, {after} now"
    );
}

/// The nodes that a volume is published to.
fn recorded(state: &HostState, id: u8) -> PublishedNodes {
    let seen = state.pool.show(&[Query::Dataset(dataset(id))], &[]);
    let recorded = seen.dataset(&dataset(id)).map(PublishedNodes::of);
    recorded.unwrap_or_default()
}

/// Published nodes are recorded, and unpublished ones are not; if access is per node, they have it or not, and none got a
/// volume of one node beside another one.
fn check_access(begin: &HostState, end: &HostState, verb: &Verb, per_node: bool) {
    let (id, of, wanted) = match verb {
        Verb::Publish(id, of) => (id, Some(of), true),
        Verb::Unpublish(id, of) => (id, of.as_ref(), false),
        _ => return,
    };
    let (before, recorded) = (recorded(begin, *id), recorded(end, *id));
    let is_recorded = match of {
        Some(of) => recorded.iter().any(|(name, _)| *name == node(*of)),
        None => !recorded.is_empty(),
    };
    assert_eq!(is_recorded, wanted, "{verb:?}: {recorded:?}");
    if !per_node {
        return;
    }
    if let Verb::Publish(_, of @ 1..) = verb {
        let had_it = before.has(&NodeIdentity::of(node(*of)));
        let is_alone = recorded.iter().count() == 1;
        assert!(had_it || is_alone, "{verb:?}: {before:?}, {recorded:?}");
    }
    let inside = end.targets.inside.get(volume(*id).as_str());
    let is_inside = match of {
        Some(of) => inside.is_some_and(|nodes| nodes.contains(node(*of).as_str())),
        None => inside.is_some_and(|nodes| !nodes.is_empty()),
    };
    assert_eq!(is_inside, wanted, "{verb:?}: {inside:?}");
}

/// Retries like a caller that got no answer; commands that still run end eventually.
async fn retry(driver: &MemoryDriver, verb: &Verb) -> Result<(), Error> {
    let result = run(driver, verb).await;
    driver.backend().state().finish();
    if outcome(&result) == Some(Kind::Pending) {
        return run(driver, verb).await;
    }
    result
}

/// A verb and its interruptions.
struct CutVerb {
    /// The final state, if it was successful.
    end: Option<HostState>,
    /// The number of parts of its steps.
    parts: usize,
    /// The number of times that its first try was interrupted, and changed something.
    first_tries: usize,
}

/// Runs the verb within one call that does not see its end. Fails if something was changed, or will be by what goes
/// on, and the error says that nothing was; returns whether something was.
async fn lose(cut: &MemoryDriver, begin: &HostState, verb: &Verb, what: &str) -> bool {
    let call = Call::within(Duration::from_mins(10));
    let lost = call.outcome(run_within(&call, cut, verb).await);
    assert_eq!(outcome(&lost), Some(Kind::Unreachable), "{what}: {lost:?}");
    let mut later = cut.backend().state().clone();
    later.finish();
    let is_changed = shape(&later) != shape(begin);
    let is_possible = lost.is_err_and(|error| error.effect() == Effect::Possible);
    assert!(is_possible || !is_changed, "{what}: nothing was done");
    is_changed
}

/// Runs the verb without interruption, then interrupted before each part of its steps and after the last, and retried.
async fn cut_everywhere(kind: VolumeKind, coy: bool, begin: &HostState, verb: &Verb) -> CutVerb {
    let whole = driver(kind, coy, begin.clone());
    let expected = run(&whole, verb).await;
    let end = whole.backend().state().clone();
    let again = run(&whole, verb).await;
    assert_eq!(
        outcome(&again),
        outcome(&expected),
        "{verb:?} again: {again:?}"
    );
    assert_eq!(
        shape(&whole.backend().state()),
        shape(&end),
        "{verb:?} again"
    );
    check_group(begin, &end, verb, "uncut");
    if expected.is_ok() {
        check_content(begin, &end, verb);
        check_access(begin, &end, verb, has_nodes(kind, coy));
    }
    assert_kept(begin, &end, verb);
    if expected.is_err() {
        assert_exported(begin, &end, None, &format!("refused: {verb:?}"));
    }
    let mut first_tries = 0;
    // What is refused without an exchange cannot be cut.
    let is_asked = end.exchanges > begin.exchanges;
    for at in (begin.steps..=end.steps).filter(|_| is_asked) {
        for goes_on in [false, true] {
            let what = format!("{verb:?} cut after step {at}, goes on: {goes_on}");
            let cut = driver(kind, coy, begin.clone());
            cut.backend().state().cut_after = Some(at);
            cut.backend().state().goes_on = goes_on;
            let is_changed = lose(&cut, begin, verb, &what).await;
            let mut state = cut.backend().state().clone();
            let is_first = state.exchanges == begin.exchanges + 1;
            first_tries += usize::from(is_first && is_changed);
            assert_kept(begin, &state, verb);
            check_group(begin, &state, verb, &what);
            state.cut_after = None;
            let retried = driver(kind, coy, state);
            let result = retry(&retried, verb).await;
            let why = result.as_ref().err().map(Error::chain);
            assert_eq!(outcome(&result), outcome(&expected), "{what}: {why:?}");
            let state = retried.backend().state();
            assert_eq!(shape(&state), shape(&end), "{what}");
            assert_kept(begin, &state, verb);
            if expected.is_ok() {
                check_content(begin, &state, verb);
                check_access(begin, &state, verb, has_nodes(kind, coy));
            }
        }
    }
    CutVerb {
        parts: end.steps - begin.steps,
        end: expected.is_ok().then_some(end),
        first_tries,
    }
}

/// The tried verbs, so that a test that tries nothing fails.
#[derive(Debug, Default)]
struct Tried {
    /// Successful verbs, and the parts of their steps, by their names.
    verbs: BTreeMap<&'static str, (usize, usize)>,
    promotions: usize,
    /// First tries that were interrupted.
    first_tries: usize,
}

fn name_of(verb: &Verb) -> &'static str {
    match verb {
        Verb::Create {
            source: From::Nothing,
            ..
        } => "create",
        Verb::Create { copy: false, .. } => "clone",
        Verb::Create { copy: true, .. } => "copy",
        Verb::Delete(_) => "delete",
        Verb::Expand(..) => "expand",
        Verb::Snapshot {
            detached: false, ..
        } => "snapshot",
        Verb::Snapshot { detached: true, .. } => "detached snapshot",
        Verb::DeleteSnapshot {
            detached: false, ..
        } => "delete snapshot",
        Verb::DeleteSnapshot { detached: true, .. } => "delete detached snapshot",
        Verb::Group { .. } => "group",
        Verb::DeleteGroup { .. } => "delete group",
        Verb::Publish(..) => "publish",
        Verb::Unpublish(..) => "unpublish",
    }
}

/// Volumes that others depend on.
fn stands_on(state: &HostState) -> usize {
    let shape = state.pool.shape();
    shape
        .values()
        .filter(|shape| shape.contains("Some(\""))
        .count()
}

#[test]
fn every_prefix_of_every_plan_leads_to_the_same_end() {
    let tried = std::cell::RefCell::new(Tried::default());
    let config = ProptestConfig {
        cases: 600,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let cases = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop::collection::vec(event(), 0..20),
        prop::collection::vec(verb(), 6),
    );
    let outcome = runner.run(&cases, |(zvol, coy, tries, events, verbs)| {
        let kind = if zvol {
            VolumeKind::Zvol
        } else {
            VolumeKind::Filesystem
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let state = MemoryHost::new().state().clone();
            let history = driver(kind, coy, state);
            for event in beginning().iter().chain(&events) {
                happen(&history, kind, event).await;
            }
            let mut begin = history.backend().state().clone();
            begin.tries_first = tries;
            for verb in &verbs {
                let cut = cut_everywhere(kind, coy, &begin, verb).await;
                let mut tried = tried.borrow_mut();
                tried.first_tries += cut.first_tries;
                let count = tried.verbs.entry(name_of(verb)).or_default();
                if let Some(end) = cut.end {
                    *count = (count.0 + 1, count.1 + cut.parts);
                    let freed = matches!(verb, Verb::Delete(_)) && stands_on(&end) > 0;
                    tried.promotions += usize::from(freed);
                }
            }
        });
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    let tried = tried.into_inner();
    assert_eq!(tried.verbs.len(), 13, "{tried:?}");
    for (verb, (ended, parts)) in &tried.verbs {
        assert!(*ended >= 5 && *parts >= 5, "{verb} hardly ever: {tried:?}");
    }
    assert!(tried.promotions >= 5, "{tried:?}");
    assert!(tried.first_tries >= 5, "{tried:?}");
}
