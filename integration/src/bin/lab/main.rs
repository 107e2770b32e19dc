//! Runs the cells of the lab: `lab run` on the host, `lab node CELL` inside the machine.
//!
//! `lab list [--all]` names them; `lab run [--results FILE] [CELL ...]` runs those named, or all
//! that `make test` runs, and writes a line of "state, name, seconds, detail" for each. What does not
//! fit into `OMNIBUS_LAB_MINUTES` is a failure: a cell is never left out in silence.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the results are what it is for"
)]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use integration::lab::cell::{self, Cell};
use integration::lab::evidence;
use integration::lab::faults::writer;
use integration::lab::host::{Lab, Outcome};

/// The lab could not be built or started.
const NO_LAB: u8 = 3;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    match &words[..] {
        ["list", rest @ ..] => {
            let every = rest.contains(&"--all");
            let cells = if every {
                cell::all()
            } else {
                cell::due(today())
            };
            for cell in cells {
                println!("{}", cell.name);
            }
            Ok(ExitCode::SUCCESS)
        }
        ["node", name] => {
            let cell = cell::find(name).with_context(|| format!("no cell is called {name}"))?;
            evidence::at_any_panic();
            runtime.block_on(cell.work());
            Ok(ExitCode::SUCCESS)
        }
        [writer::COMMAND, folder, seed] => {
            writer::main(Path::new(folder), seed.parse()?)?;
            Ok(ExitCode::SUCCESS)
        }
        ["run", "--results", file, names @ ..] => {
            runtime.block_on(run(Some(PathBuf::from(file)), names))
        }
        ["run", names @ ..] => runtime.block_on(run(None, names)),
        _ => bail!("usage: lab list [--all] | run [--results FILE] [CELL ...] | node CELL"),
    }
}

async fn run(results: Option<PathBuf>, names: &[&str]) -> Result<ExitCode> {
    let mut cells = Vec::new();
    for name in names {
        cells.push(cell::find(name).with_context(|| format!("no cell is called {name}"))?);
    }
    if names.is_empty() {
        cells = cell::due(today());
    }
    let ready = async {
        let lab = Lab::up().await?;
        lab.arm().await?;
        anyhow::Ok(lab)
    };
    let mut lab = match ready.await {
        Ok(lab) => lab,
        Err(error) => {
            eprintln!("no lab: {error:#}");
            return Ok(ExitCode::from(NO_LAB));
        }
    };
    let seed = std::env::var("OMNIBUS_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let minutes = std::env::var("OMNIBUS_LAB_MINUTES").ok();
    let minutes = minutes.and_then(|minutes| minutes.parse().ok());
    let budget = minutes.map_or(Duration::MAX, Duration::from_mins);
    let start = Instant::now();
    let mut failed = 0;
    let total = cells.len();
    for (number, cell) in cells.iter().enumerate() {
        eprintln!("== cell {} ({} of {total})", cell.name, number + 1);
        let began = Instant::now();
        let outcome = if start.elapsed() < budget {
            lab.run(cell, seed).await
        } else {
            Outcome::Failed(format!("due, and no time is left of {budget:?}"))
        };
        failed += usize::from(outcome != Outcome::Passed);
        report(results.as_ref(), cell, &outcome, began.elapsed().as_secs())?;
    }
    let look = std::env::var_os("OMNIBUS_REQUIRE_ALL").is_none_or(|value| value != "1");
    if let Err(error) = lab.down(look).await {
        eprintln!("the lab's machine may still run: {error:#}");
    }
    println!("{} cells passed, {failed} failed", total - failed);
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Days since 1970.
fn today() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs() / 86_400
}

fn report(results: Option<&PathBuf>, cell: &Cell, outcome: &Outcome, seconds: u64) -> Result<()> {
    let (state, detail) = match outcome {
        Outcome::Passed => ("passed", String::new()),
        Outcome::Failed(why) => ("FAILED", why.replace(['\n', '\t'], " ")),
    };
    println!("cell {}: {state} in {seconds} s {detail}", cell.name);
    if let Some(file) = results {
        let mut file = OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(file, "{state}\t{}\t{seconds}\t{detail}", cell.name)?;
    }
    Ok(())
}
