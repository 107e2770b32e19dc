//! The cost of a stage beside the bare commands that do the same: login, wait, mkfs, mount.
//!
//! Both are measured in turn, in the same run, each time on a volume that is new, so that the speed
//! of the machine drops out of the ratio. Processes are counted from the program's own log, in a
//! run apart, because a log costs time.
#![expect(
    clippy::print_stderr,
    reason = "a bench prints its figures; that is all it is for"
)]

use std::time::{Duration, Instant};

use super::by_hand;
use super::calls::Node;
use super::fixture::{Access, ExportKind};
use crate::server::{Launch, log_of};

/// The number of times that each is measured; the median counts.
const ROUNDS: usize = 7;
/// The ratio that should not be passed.
const RATIO: f64 = 1.2;
/// What a stage of what is staged already should not pass.
const AGAIN: Duration = Duration::from_millis(5);

/// Measures every kind of volume and prints the figures.
///
/// # Panics
/// If a volume is not staged, or a second stage starts a process.
pub async fn stages(kinds: impl IntoIterator<Item = (&'static str, ExportKind, Access)>) {
    for (name, export_kind, access) in kinds {
        processes(name, export_kind, access).await;
        times(name, export_kind, access).await;
    }
}

async fn times(name: &str, export_kind: ExportKind, access: Access) {
    let launch = Launch::new("driver: node-manual\n")
        .set("--csi-mode", "node")
        .set("--log-level", "info");
    let node = Node::start_with(launch).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let (mut again, mut empty) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let fixture = export_kind.fixture(&format!("bare-{name}-{round}"), access);
        let began = Instant::now();
        let pod = by_hand::attach(&fixture, folder.path());
        bare.push(began.elapsed());
        by_hand::detach(&fixture, &pod);
        fixture.remove();

        let fixture = export_kind.fixture(&format!("ours-{name}-{round}"), access);
        node.staging(&fixture);
        let began = Instant::now();
        node.stage(&fixture).await.expect("staged");
        ours.push(began.elapsed());
        for _ in 0..ROUNDS {
            let began = Instant::now();
            node.stage(&fixture).await.expect("staged already");
            again.push(began.elapsed());
            let began = Instant::now();
            node.probe().await.expect("an answer");
            empty.push(began.elapsed());
        }
        node.take_away(&fixture, &[]).await;
        fixture.remove();
    }
    node.end().await;
    let (ours, bare) = (median(ours), median(bare));
    let (again, empty) = (median(again), median(empty));
    let ratio = ours.as_secs_f64() / bare.as_secs_f64();
    eprintln!(
        "{name}: stage {ours:.0?}, bare commands {bare:.0?}, ratio {ratio:.2} (aim {RATIO}: {})",
        verdict(ratio <= RATIO)
    );
    eprintln!(
        "{name}: staged already {again:.1?} (aim {AGAIN:?}: {}), {:.1} times a Probe ({empty:.1?})",
        verdict(again <= AGAIN),
        again.as_secs_f64() / empty.as_secs_f64()
    );
}

async fn processes(name: &str, export_kind: ExportKind, access: Access) {
    let node = Node::start().await;
    let fixture = export_kind.fixture(&format!("counted-{name}"), access);
    node.stage(&fixture).await.expect("staged");
    let first = commands(&node);
    node.stage(&fixture).await.expect("staged already");
    let second = commands(&node).len() - first.len();
    assert_eq!(second, 0, "a stage of what is staged started processes");
    eprintln!("{name}: {} processes of a stage", first.len());
    for command in first {
        eprintln!("    {command}");
    }
    node.take_away(&fixture, &[]).await;
    node.end().await;
    fixture.remove();
}

/// Every command that the program ran so far, and how long it took.
fn commands(node: &Node) -> Vec<String> {
    let field = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        (line["message"] == "ran").then_some(())?;
        Some(format!("{}  {}", text("elapsed")?, text("command")?))
    };
    log_of(&node.place).lines().filter_map(field).collect()
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}
