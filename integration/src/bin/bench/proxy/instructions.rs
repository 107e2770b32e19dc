//! What a call makes a process execute, behind the proxy and without it.
//!
//! In rounds of their own: a counter costs its process time. What a process executes while nobody calls
//! is told by itself and left out.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::sleep;

use super::cost::{CONNECTIONS, COST_AIM, Side, effort};
use crate::instructions::{Counters, Where};
use crate::report::{Report, median, row, title};

/// All that is done now and then is done once in it: each file is read, each connection asked.
const IDLE: Duration = Duration::from_secs(61);
const QUICK_IDLE: Duration = Duration::from_secs(2);

/// Measures the sides over the single driver.
pub(super) async fn measure(
    single: &Side<'_>,
    sides: &[Side<'_>],
    quick: bool,
    report: &mut Report,
) -> Result<()> {
    title("instructions of these calls, over those of the single driver");
    // One after the other: a processor may have room for one counter.
    for (place, name) in [
        (Where::Everywhere, "in the program and its kernel"),
        (Where::Program, "in the program alone"),
    ] {
        let Some(counted) = over(place, single, sides, quick).await? else {
            row(name, "this machine does not count them, or not for us");
            continue;
        };
        for ((idle, mut ratios), connections) in counted.into_iter().zip(CONNECTIONS) {
            let ratio = median(&mut ratios);
            let idle = idle / 1e6;
            let text = format!("ratio {ratio:.3}   idle {idle:.1} million a second");
            let name = format!("{name}, {connections}");
            report.aimed(&name, &text, ratio, COST_AIM);
        }
    }
    Ok(())
}

/// Of each side what it executes in a second while nobody calls, and the ratios of all rounds.
async fn over(
    place: Where,
    single: &Side<'_>,
    sides: &[Side<'_>],
    quick: bool,
) -> Result<Option<Vec<(f64, Vec<f64>)>>> {
    let (rounds, calls) = effort(quick);
    let idle = if quick { QUICK_IDLE } else { IDLE };
    let all: Vec<_> = [single].into_iter().chain(sides).collect();
    let counters: Vec<_> = all
        .iter()
        .map(|side| Counters::of(side.process, place))
        .collect();
    sleep(idle).await;
    let idle: Option<Vec<_>> = counters
        .iter()
        .map(|counters| Some(counters.as_ref()?.read()? / idle.as_secs_f64()))
        .collect();
    drop(counters);
    let Some(idle) = idle else {
        return Ok(None);
    };
    let mut sums: Vec<_> = idle[1..].iter().map(|idle| (*idle, Vec::new())).collect();
    for _ in 0..rounds {
        let mut round = Vec::new();
        for (side, idle) in all.iter().zip(&idle) {
            let Some(executed) = executed(side, place, calls, *idle).await? else {
                return Ok(None);
            };
            round.push(executed);
        }
        for ((_, ratios), ours) in sums.iter_mut().zip(&round[1..]) {
            ratios.push(ours / round[0]);
        }
    }
    Ok(Some(sums))
}

async fn executed(side: &Side<'_>, place: Where, calls: usize, idle: f64) -> Result<Option<f64>> {
    let (counters, began) = (Counters::of(side.process, place), Instant::now());
    side.called(calls).await?;
    let executed = counters.and_then(|counters| counters.read());
    // Calls take instructions: a counter that says none is none. At rest there may be none.
    let executed = executed.filter(|executed| *executed > 0.0);
    Ok(executed.map(|executed| executed - idle * began.elapsed().as_secs_f64()))
}
