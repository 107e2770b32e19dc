//! The program killed in the middle of a deed: at each of its system calls where the target knows them, else ever later.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::Code;

use super::deed::Deed;
use super::{Optional, with};
use crate::conformance::Target;
use crate::conformance::trace::{StopPoint, Tracer};
use crate::conformance::world::{World, code};
use crate::requirement;
use crate::server::was_killed;

/// The number of moments of a call, where its steps are not known.
const MOMENTS: u32 = 6;
/// The number of times that a stop point is tried: another thread may have done the work.
const ATTEMPTS: usize = 20;

/// The moment of a kill.
#[derive(Debug, Clone)]
enum Cut {
    At(StopPoint),
    After(Duration),
}

pub(super) async fn in_the_middle(target: &dyn Target, what: Optional) {
    let Some(mut world) = with(target, what).await else {
        return;
    };
    let deed = Deed::set(&world, what).await;
    let name = format!("killing {} at each step of {what:?}", target.name());
    let steps = !target.steps().is_empty();
    let strace = (steps && requirement::root(&name))
        .then(|| requirement::tool(&name, "strace"))
        .flatten();
    if steps == strace.is_some() {
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
    let mut killed = 0;
    for cut in &cuts {
        for again in [true, false] {
            let attempts = match cut {
                Cut::At(_) => ATTEMPTS,
                Cut::After(_) => 1,
            };
            for _ in 0..attempts {
                if killed_at(world, deed, (is_forward, again), (cut, strace)).await {
                    killed += 1;
                    break;
                }
            }
        }
    }
    let all = 2 * cuts.len();
    // A call that is over before its last moments is not cut there, nor one that does nothing.
    let due = match strace {
        Some(_) => all,
        None => 2,
    };
    let is_cut = killed > 0 && killed >= due;
    assert!(
        is_cut || !deed.is_seen(),
        "{name} was cut {killed} times of {all}"
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
        return (1..=MOMENTS)
            .map(|n| Cut::After(took * n / (MOMENTS + 1)))
            .collect();
    };
    world.crash().await;
    let (process, calls) = (world.server.process(), world.target.steps());
    let tracer = Tracer::watch(strace, process, calls, &output(world)).await;
    deed.until_done(world, is_forward).await;
    tracer.detach().await.into_iter().map(Cut::At).collect()
}

fn output(world: &World<'_>) -> PathBuf {
    world.place.path().join("trace")
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
            if outcome.is_err() {
                let status = world.server.gone().await;
                assert!(was_killed(status), "{what}: {status}: {outcome:?}");
            }
            drop(tracer.detach().await);
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
            world.start_again().await;
            outcome
        }
        (Cut::At(_), None) => return false,
    };
    if outcome.is_ok() {
        deed.is(world, is_forward, &what).await;
        return false;
    }
    if matches!(cut, Cut::At(_)) {
        world.start_again().await;
    }
    if !again && !is_forward && deed.what == Optional::Groups {
        // What is left of a group that was being deleted has to go first.
        let client = deed.client(world).await;
        if code(&deed.call(&client, true).await) == Code::AlreadyExists {
            deed.until_done(world, false).await;
        }
    }
    deed.until_done(world, is_forward == again).await;
    deed.is(world, is_forward == again, &what).await;
    true
}
