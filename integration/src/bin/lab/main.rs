//! Runs the cells of the lab: `lab run` on the host, `lab node CELL` inside the machine.
//!
//! `lab list [--all]` names them; `lab run [--results FILE] [CELL ...]` runs those named, or all
//! that `make test-real` runs, and writes a line of "state, name, seconds, detail" for each. What does not
//! fit into `OMNIBUS_LAB_MINUTES` is a failure, and what would begin after `OMNIBUS_UNTIL` (seconds since 1970)
//! is reported as left out: a cell is never left out in silence.
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
use integration::lab::cell::{self, Cell, Machines};
use integration::lab::evidence;
use integration::lab::faults::writer;
use integration::lab::given;
use integration::lab::host::{Lab, Outcome};
use integration::lab::node_loss::late;

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
        [late::COMMAND, file, notes] => {
            late::main(Path::new(file), Path::new(notes))?;
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
    let minutes = std::env::var("OMNIBUS_LAB_MINUTES").ok();
    let minutes = minutes.and_then(|minutes| minutes.parse().ok());
    let until = std::env::var("OMNIBUS_UNTIL").ok();
    let until = until.and_then(|until| until.parse().ok());
    let runs = Runs {
        results,
        seed: given::seed(),
        until: until.map(|until| SystemTime::UNIX_EPOCH + Duration::from_secs(until)),
        budget: minutes.map_or(Duration::MAX, Duration::from_mins),
        start: Instant::now(),
    };
    let mut account = Account::default();
    // One machine first: most cells need no more, and a pair takes memory and time of its own.
    for machines in [Machines::One, Machines::Pair] {
        let theirs = cells.iter().filter(|cell| cell.machines == machines);
        let theirs: Vec<_> = theirs.collect();
        if theirs.is_empty() {
            continue;
        }
        match runs.all(machines, &theirs, &mut account).await {
            Ok(()) => {}
            Err(error) => {
                eprintln!("no lab: {error:#}");
                return Ok(ExitCode::from(NO_LAB));
            }
        }
    }
    let Account {
        passed,
        failed,
        left_out,
    } = account;
    println!("{passed} cells passed, {failed} failed, {left_out} left out");
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// The number of cells with each outcome.
#[derive(Debug, Default)]
struct Account {
    passed: usize,
    failed: usize,
    left_out: usize,
}

/// The common settings of all cells of a run.
struct Runs {
    results: Option<PathBuf>,
    seed: u64,
    budget: Duration,
    start: Instant,
    until: Option<SystemTime>,
}

// === impl Runs ===

impl Runs {
    /// Whether nothing more may begin.
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| SystemTime::now() > until)
    }

    /// Runs cells that need the same machines, and counts them.
    async fn all(&self, machines: Machines, cells: &[&Cell], account: &mut Account) -> Result<()> {
        if self.is_over() {
            for cell in cells {
                account.left_out += 1;
                report(self.results.as_ref(), cell, &Outcome::LeftOut, 0)?;
            }
            return Ok(());
        }
        let mut lab = Lab::up(machines).await?;
        lab.arm().await?;
        for (number, cell) in cells.iter().enumerate() {
            eprintln!("== cell {} ({} of {})", cell.name, number + 1, cells.len());
            let began = Instant::now();
            let outcome = if self.is_over() {
                Outcome::LeftOut
            } else if self.start.elapsed() < self.budget {
                lab.run(cell, self.seed).await
            } else {
                Outcome::Failed(format!("due, and no time is left of {:?}", self.budget))
            };
            match outcome {
                Outcome::Passed(_) => account.passed += 1,
                Outcome::Failed(_) => account.failed += 1,
                Outcome::LeftOut => account.left_out += 1,
            }
            let seconds = began.elapsed().as_secs();
            report(self.results.as_ref(), cell, &outcome, seconds)?;
        }
        let look = std::env::var_os("OMNIBUS_REQUIRE_ALL").is_none_or(|value| value != "1");
        if let Err(error) = lab.down(look).await {
            eprintln!("the lab's machine may still run: {error:#}");
        }
        Ok(())
    }
}

/// Days since 1970.
fn today() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs() / 86_400
}

fn report(results: Option<&PathBuf>, cell: &Cell, outcome: &Outcome, seconds: u64) -> Result<()> {
    let (state, detail) = match outcome {
        Outcome::Passed(remark) => ("passed", remark.as_str()),
        Outcome::Failed(why) => ("FAILED", why.as_str()),
        Outcome::LeftOut => ("left out", "no time was left"),
    };
    let detail = detail.replace(['\n', '\t'], " ");
    println!("cell {}: {state} in {seconds} s {detail}", cell.name);
    if let Some(file) = results {
        let mut file = OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(file, "{state}\t{}\t{seconds}\t{detail}", cell.name)?;
    }
    Ok(())
}
