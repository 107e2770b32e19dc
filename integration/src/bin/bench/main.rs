//! Latencies, throughput, memory and start of the real program, each compared to a baseline.
//!
//! The baseline is measured in the same run, in turn with the program: an empty tonic service in a
//! separate process, and the system calls that the work needs. The result is the ratio, which does
//! not depend on the speed of the machine.
#![expect(
    clippy::print_stdout,
    reason = "a bench prints its figures; that is all it is for"
)]

mod calls;
mod copies;
mod disk;
mod empty;
mod floor;
mod lists;
mod load;
mod process;
mod proxy;
mod report;
mod truenas;

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
    let (mut quick, mut only_proxy, mut only_truenas) = (false, false, false);
    let mut only_copies = false;
    for argument in first.into_iter().chain(arguments) {
        match argument.as_str() {
            "--quick" => quick = true,
            "--proxy" => only_proxy = true,
            "--truenas" => only_truenas = true,
            "--copies" => only_copies = true,
            other => bail!(
                "unknown argument {other}; there are --quick, --proxy, --truenas and --copies"
            ),
        }
    }
    if !only_truenas && !rustix::process::geteuid().is_root() {
        bail!("the bench mounts for real: it needs root");
    }
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(async {
            if only_copies {
                return copies::all(quick).await;
            }
            run(quick, only_proxy, only_truenas).await
        })
}

async fn run(quick: bool, only_proxy: bool, only_truenas: bool) -> Result<()> {
    let mut report = Report::begin();
    if !only_truenas {
        if !only_proxy {
            alone(quick, &mut report).await?;
        }
        proxy::all(quick, &mut report).await?;
    }
    if !only_proxy {
        truenas::exchanges(&mut report).await?;
        truenas::times().await?;
    }
    report.end();
    Ok(())
}

/// A process with a single driver.
async fn alone(quick: bool, report: &mut Report) -> Result<()> {
    let place = Place::new();
    let launch = Launch::local_hostpath(&place).set("--log-level", "info");

    process::starts(&launch, &place, if quick { 5 } else { 20 }, report).await?;
    let empty = EmptyServer::start(&place.path().join("empty.sock")).await?;
    let server = launch.start(&place).await;
    // Idle means: after the first answer, with nothing to do.
    tokio::time::sleep(Duration::from_secs(1)).await;
    process::memory("idle", server.process(), empty.process(), report);

    let rounds = if quick { 3 } else { 9 };
    let bench = calls::Bench {
        ours: server.client(),
        empty: empty.client(),
        place: &place,
        rounds,
        calls: if quick { 100 } else { 300 },
    };
    bench.alone(report).await?;
    if let Some(times) = disk::staged_again(bench.calls).await? {
        let name = "a disk staged again (in ms)";
        calls::in_millis(name, times, calls::AGAIN_AIM, report);
    }
    bench.together().await?;
    process::memory("after that load", server.process(), empty.process(), report);
    lists::pages(&server.client(), if quick { 2_000 } else { 10_000 }, report).await?;
    process::memory("after the lists", server.process(), empty.process(), report);
    process::children(server.process(), report);
    Ok(())
}
