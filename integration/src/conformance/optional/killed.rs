//! The program killed in the middle of a deed: at its system calls where the target knows them, else at moments of it.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::deed::Deed;
use super::{Optional, with};
use crate::conformance::Target;
use crate::conformance::trace::{StopPoint, Tracer};
use crate::conformance::world::{Outcome, World, asks_again};
use crate::requirement;
use crate::server::was_killed;

/// The number of moments of a call, where its steps are not known.
const MOMENTS: u32 = 3;
/// The most steps of a call: those of one snapshot are tried by [`crate::conformance::crash`], each of them.
const STEPS: usize = 8;
/// The number of times that each is tried: another thread may have done the work, or the call was faster than before.
const ATTEMPTS: u32 = 20;

/// The moment of a kill.
#[derive(Debug, Clone)]
enum Cut {
    At(StopPoint),
    After(Duration),
}

impl Cut {
    /// The same for another attempt: half as late, so that one of them comes before the end of any call.
    fn earlier(self) -> Self {
        match self {
            Self::At(point) => Self::At(point),
            Self::After(time) => Self::After(time / 2),
        }
    }
}

pub(super) async fn in_the_middle(target: &dyn Target, what: Optional) {
    let Some(mut world) = with(target, what).await else {
        return;
    };
    let deed = Deed::set(&world, what).await;
    let name = format!("killing {} at each step of {what:?}", target.name());
    let has_steps = !target.steps().is_empty();
    let strace = (has_steps && requirement::root(&name))
        .then(|| requirement::tool(&name, "strace"))
        .flatten();
    if has_steps == strace.is_some() {
        for is_forward in [true, false] {
            each_way(&mut world, &deed, is_forward, strace.as_deref()).await;
        }
    }
    deed.until_done(&world, false).await;
    deed.clear(&world).await;
    world.end().await;
}

async fn each_way(world: &mut World<'_>, deed: &Deed, is_forward: bool, strace: Option<&Path>) {
    let name = deed.request(is_forward).method.name().to_owned();
    let cuts = cuts(world, deed, is_forward, strace).await;
    let mut missed = Vec::new();
    for cut in &cuts {
        for again in [true, false] {
            let (mut tried, mut is_cut) = (cut.clone(), false);
            for _ in 0..ATTEMPTS {
                is_cut = killed_at(world, deed, (is_forward, again), (&tried, strace)).await;
                if is_cut {
                    break;
                }
                tried = tried.earlier();
            }
            if !is_cut {
                missed.push((cut, again));
            }
        }
    }
    // What changes nothing that is seen may have no steps, and no time in which it could be cut.
    let is_cut = !cuts.is_empty() && missed.is_empty();
    assert!(
        is_cut || !deed.is_seen(),
        "{name} was not cut at {} of {} points: {missed:?}",
        missed.len(),
        2 * cuts.len()
    );
}

/// The moments of a call, from one that is not disturbed.
async fn cuts(
    world: &mut World<'_>,
    deed: &Deed,
    is_forward: bool,
    strace: Option<&Path>,
) -> Vec<Cut> {
    deed.until_done(world, !is_forward).await;
    let Some(strace) = strace else {
        let began = Instant::now();
        deed.until_done(world, is_forward).await;
        let took = began.elapsed();
        let moment = |n: u32| Cut::After(took * n / (MOMENTS + 1));
        return (1..=MOMENTS).map(moment).collect();
    };
    // A fresh server, as in the runs that follow.
    world.crash().await;
    let (process, calls) = (world.server.process(), world.target.steps());
    let tracer = Tracer::watch(strace, process, calls, &output(world)).await;
    deed.until_done(world, is_forward).await;
    let points = tracer.detach().await;
    let apart = points.len().div_ceil(STEPS).max(1);
    points.into_iter().step_by(apart).map(Cut::At).collect()
}

fn output(world: &World<'_>) -> PathBuf {
    world.place.path().join("trace")
}

/// Whether a call ended with its connection, and not with an answer.
fn has_no_answer<T>(outcome: &Outcome<T>) -> bool {
    outcome
        .as_ref()
        .is_err_and(|status| status.source().is_some())
}

/// Whether the program was killed before it answered. Afterwards the same call completes it, or the opposite undoes it.
async fn killed_at(
    world: &mut World<'_>,
    deed: &Deed,
    (is_forward, again): (bool, bool),
    (cut, strace): (&Cut, Option<&Path>),
) -> bool {
    let name = deed.request(is_forward).method.name();
    let what = format!("{name} killed at {cut:?}, then again: {again}");
    deed.until_done(world, !is_forward).await;
    let outcome = match (cut, strace) {
        (Cut::At(point), Some(strace)) => {
            world.crash().await;
            let process = world.server.process();
            let tracer = Tracer::kill_at(strace, process, point, &output(world)).await;
            let client = deed.client(world).await;
            let outcome = deed.call(&client, is_forward).await;
            if has_no_answer(&outcome) {
                let status = world.server.gone().await;
                assert!(
                    was_killed(status),
                    "{what}: it ended with {status}: {outcome:?}"
                );
                drop(tracer.detach().await);
            } else {
                drop(tracer.detach().await);
                // It may be killed only now, by what it does after the answer.
                world.server.kill().await;
            }
            outcome
        }
        (Cut::After(time), _) => {
            let client = deed.client(world).await;
            let server = &mut world.server;
            let kill = async {
                sleep(*time).await;
                server.kill().await;
            };
            let (outcome, ()) = tokio::join!(deed.call(&client, is_forward), kill);
            outcome
        }
        (Cut::At(_), None) => return false,
    };
    world.start_again().await;
    match &outcome {
        Ok(_) => {
            deed.is(world, is_forward, &what).await;
            return false;
        }
        Err(status) if !has_no_answer(&outcome) => {
            assert!(asks_again(status.code()), "{what}: {status:?}");
            return false;
        }
        Err(_) => {}
    }
    if is_forward || again {
        deed.until_done(world, is_forward == again).await;
    } else {
        deed.until_redone(world).await;
    }
    deed.is(world, is_forward == again, &what).await;
    true
}
