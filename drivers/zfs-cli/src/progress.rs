//! Logs the progress of copies.
//!
//! A copy may take hours without an answer of its call. So the dataset that it fills is queried
//! from time to time, concurrently and without its lock. A failed query changes nothing.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use exec::Runner;

use super::COMMAND;
use super::tools::ZfsTools;
use driver_zfs::name::{DatasetName, SnapshotRef};
use driver_zfs::step::{Plan, Step};

/// How often a copy is queried. The question takes a turn at the host, and a copy takes minutes.
pub(super) const EVERY: Duration = Duration::from_mins(1);

/// The copy of a plan; there is never more than one.
fn copy_of(plan: &Plan) -> Option<(&SnapshotRef, &DatasetName)> {
    plan.steps.iter().find_map(|node| match &node.step {
        Step::Copy { from, to, .. } | Step::GoOn { from, to } => Some((from, to)),
        _ => None,
    })
}

/// Waits for `work`, which applies this plan, and logs the progress of its copy.
pub(super) async fn logged<T>(
    work: impl Future<Output = T>,
    runner: &impl Runner,
    tools: &ZfsTools,
    plan: &Plan,
    every: Duration,
) -> T {
    let Some((from, to)) = copy_of(plan) else {
        return work.await;
    };
    tokio::select! {
        biased;
        done = work => done,
        never = tell_every(every, runner, tools, from, to) => match never {},
    }
}

async fn tell_every(
    every: Duration,
    runner: &impl Runner,
    tools: &ZfsTools,
    from: &SnapshotRef,
    to: &DatasetName,
) -> Infallible {
    loop {
        tokio::time::sleep(every).await;
        tell(runner, tools, from, to).await;
    }
}

async fn tell(runner: &impl Runner, tools: &ZfsTools, from: &SnapshotRef, to: &DatasetName) {
    let number = async |property: &str, of: &str| {
        let command = tools.zfs(["get", "-Hp", "-o", "value", property, of]);
        let output = runner.run_checked(&command.within(COMMAND)).await.ok()?;
        output.text().trim().parse::<u64>().ok()
    };
    let whole = number("referenced", &from.to_string()).await;
    if let Some(bytes) = number("used", to.as_str()).await {
        tracing::info!(source = %from, %to, bytes, of = whole, "copying");
    } else {
        tracing::info!(source = %from, %to, "copying: the progress is not visible yet");
    }
}
