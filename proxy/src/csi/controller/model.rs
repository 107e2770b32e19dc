//! Random sequences of changes of files, calls, faults and restarts, against a reference.
//!
//! Four parts, which know little of each other:
//!
//! - **Steps** (`steps`): what may happen. A seed makes a setup (which names mean what, the class
//!   and source of each volume) and a list of steps: files come, change, break and go; drivers are
//!   dropped; storages fill up and become unreachable; calls are made, of which one verb may meet a
//!   fault (an error, an unreported effect, a panic, a storage that hangs) or be left by its
//!   client; the process ends.
//! - **The real thing** (`actor`, with `requests` and `workshop`): the loader and the Controller service as
//!   they are, over storages in memory (`storage`) that outlive the process and fail as a step says.
//! - **The reference** (`reference`): plain maps and rules, written from the pages in docs/. Before each
//!   step it says what may be answered; where the pages leave a choice, all of it.
//! - **The judge** (here): each answer is one of those allowed, the orchestrator is never led to
//!   forget a volume of which a storage has something, and in the end the storages contain what the
//!   reference says, no volume twice.
//!
//! The clock is paused, so that a deadline of ten minutes costs nothing. A sequence that diverges
//! is shortened as far as possible, and printed with its seed, setup and steps: that and
//! `OMNIBUS_SEED` are enough to reproduce it. `flaws` plants defects, to show that they are found.
//!
//! When an answer changes on purpose: change its page first, then `reference`, and let this tell where
//! they still differ.

mod actor;
mod flaws;
mod reference;
mod requests;
mod steps;
mod storage;
mod workshop;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};

use actor::Actor;
use flaws::Flaw;
use reference::Reference;
use steps::{Dice, Setup, Step};

const SEQUENCES: u64 = 10_000;
const STEPS: usize = 30;
/// Bytes that are free in a storage in the beginning.
const ROOM: u64 = 5 << 30;

/// The calls, and how that ended.
type Seen = BTreeSet<(&'static str, &'static str)>;

/// A sequence that diverges.
struct Story {
    /// Its description.
    text: String,
    /// The number of steps it takes.
    steps: usize,
}

/// The seed of this run.
fn seed() -> u64 {
    let given = ["PROPTEST_RNG_SEED", "OMNIBUS_SEED"];
    let given = given.into_iter().find_map(|name| std::env::var(name).ok());
    given.map_or_else(
        || RandomState::new().hash_one("a seed"),
        |text| text.parse().expect("a seed is a number"),
    )
}

/// Runs a sequence; tells where it diverges.
fn run(setup: &Setup, steps: &[Step], flaw: Option<Flaw>, seen: &mut Seen) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut actor = Actor::new(setup, ROOM, flaw);
        let mut reference = Reference::new(setup, ROOM);
        for (at, step) in steps.iter().enumerate() {
            if !reference.allows(step) {
                continue;
            }
            let expected = reference.step(step);
            let answer = actor.step(step).await;
            if let (Some(expected), Some(answer), Step::Call { call, .. }) =
                (expected, answer, step)
            {
                if !expected.allows(&answer) {
                    return Err(format!("step {at}: {answer:?}, not {expected:?}"));
                }
                if let Some(leak) = reference.leaked(call, &answer) {
                    return Err(format!("step {at}: {leak}"));
                }
                seen.insert((call.name(), answer.name()));
            }
        }
        if reference.has_copied {
            seen.insert(("copy", "done"));
        }
        actor.end().await;
        reference.release();
        let (held, expected) = (actor.held().await, reference.held());
        if held != expected {
            return Err(format!(
                "in the end: the storages have {held:#?}, not {expected:#?}"
            ));
        }
        reference.doubled().map_or(Ok(()), Err)
    })
}

/// The same sequence without what it does not need to diverge.
fn shortened(setup: &Setup, mut steps: Vec<Step>, flaw: Option<Flaw>) -> (Vec<Step>, String) {
    let again = |steps: &[Step]| run(setup, steps, flaw, &mut Seen::new());
    let mut why = again(&steps).err().unwrap_or_default();
    let mut part = steps.len() / 2;
    while part > 0 {
        let (mut at, before) = (0, steps.len());
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + part).min(steps.len()));
            match again(&fewer) {
                Err(problem) => (steps, why) = (fewer, problem),
                Ok(()) => at += part,
            }
        }
        // What was needed by what is gone now is needed no more.
        if part > 1 || steps.len() == before {
            part /= 2;
        }
    }
    (steps, why)
}

/// The sequence of that number, if it diverges.
fn story(seed: u64, number: u64, flaw: Option<Flaw>, seen: &mut Seen) -> Option<Story> {
    let mut dice = Dice::new(seed.wrapping_add(number.wrapping_mul(0x1_0000_0001)));
    let setup = dice.setup();
    let steps = dice.steps(STEPS);
    run(&setup, &steps, flaw, seen).err()?;
    let (steps, why) = shortened(&setup, steps, flaw);
    let mut text = format!("OMNIBUS_SEED={seed}, sequence {number}:\n{setup:?}\n");
    for (at, step) in steps.iter().enumerate() {
        let _ = writeln!(text, "  {at}: {step:?}");
    }
    Some(Story {
        text: text + &why,
        steps: steps.len(),
    })
}

#[test]
fn ten_thousand_sequences_go_as_the_documentation_says() {
    let seed = seed();
    let (next, diverged) = (AtomicU64::new(0), AtomicBool::new(false));
    let all_seen = Mutex::new(Seen::new());
    let work = || {
        let mut seen = Seen::new();
        while !diverged.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= SEQUENCES {
                break;
            }
            if let Some(story) = story(seed, number, None, &mut seen) {
                diverged.store(true, Ordering::Relaxed);
                return Some(story.text);
            }
        }
        all_seen.lock().expect("no panic").append(&mut seen);
        None
    };
    let many = thread::available_parallelism().map_or(1, NonZero::get);
    let stories: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..many).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(ScopedJoinHandle::join);
        ended.filter_map(|story| story.expect("no panic")).collect()
    });
    assert!(stories.is_empty(), "{}", stories.join("\n\n"));
    // Or else nothing would have been compared.
    let seen = all_seen.into_inner().expect("no panic");
    let missing = steps::KINDS
        .iter()
        .flat_map(|(call, ends)| ends.iter().map(move |end| (*call, *end)));
    let missing: Vec<_> = missing.filter(|one| !seen.contains(one)).collect();
    assert!(
        missing.is_empty(),
        "OMNIBUS_SEED={seed}: never seen: {missing:?}"
    );
}
