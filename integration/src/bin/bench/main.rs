//! Latencies, throughput, memory and start of the real program, each beside its floor.
//!
//! The floor is measured in the same run, in turn with what it is compared to: an empty tonic
//! service in a process of its own, and the bare system calls without which the work cannot be
//! done. What counts is the ratio: the machine's own speed drops out of it.
#![expect(
    clippy::print_stdout,
    reason = "a bench prints its figures; that is all it is for"
)]

mod calls;
mod empty;
mod floor;
mod lists;
mod load;
mod process;
mod report;

use std::time::Duration;

use anyhow::{Result, bail};
use integration::place::Place;
use integration::server::Launch;

use crate::empty::EmptyServer;
use crate::report::Report;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some(empty::MODE) {
        let socket = arguments.next().unwrap_or_default();
        return empty::serve(socket.as_ref());
    }
    let quick = match first.as_deref() {
        None => false,
        Some("--quick") => true,
        Some(other) => bail!("unknown argument {other}; there is only --quick"),
    };
    if !rustix::process::geteuid().is_root() {
        bail!("the bench mounts for real: it needs root");
    }
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(run(quick))
}

async fn run(quick: bool) -> Result<()> {
    let place = Place::new();
    let launch = Launch::local_hostpath(&place).set("--log-level", "info");
    let mut report = Report::begin();

    process::starts(&launch, &place, if quick { 5 } else { 20 }, &mut report).await?;
    let empty = EmptyServer::start(&place.path().join("empty.sock")).await?;
    let server = launch.start(&place).await;
    // Idle means: after the first answer, with nothing to do.
    tokio::time::sleep(Duration::from_secs(1)).await;
    process::memory("idle", server.process(), empty.process(), &mut report);

    let rounds = if quick { 3 } else { 9 };
    let bench = calls::Bench {
        ours: server.client(),
        empty: empty.client(),
        place: &place,
        rounds,
        calls: if quick { 100 } else { 300 },
    };
    bench.alone(&mut report).await?;
    bench.together().await?;
    process::memory(
        "after that load",
        server.process(),
        empty.process(),
        &mut report,
    );
    lists::pages(
        &server.client(),
        if quick { 2_000 } else { 10_000 },
        &mut report,
    )
    .await?;
    process::memory(
        "after the lists",
        server.process(),
        empty.process(),
        &mut report,
    );
    process::children(server.process(), &mut report);
    report.end();
    Ok(())
}
