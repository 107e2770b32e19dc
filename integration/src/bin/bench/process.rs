//! The process itself: its start, its memory, its children.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use integration::place::Place;
use integration::process::Process;
use integration::server::Launch;

use crate::empty::EmptyServer;
use crate::report::{Figures, Report, median, row, title};

/// The longest time from start to first answer, in milliseconds.
const START_AIM: f64 = 10.0;
/// The largest anonymous memory of an idle process, in MiB.
const MEMORY_AIM: f64 = 2.0;

/// Starts the program and its baseline in turn.
pub(crate) async fn starts(
    launch: &Launch,
    place: &Place,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    title("from start to first answer, as a client sees it");
    let (mut ours, mut floor, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut server = launch.start(place).await;
        let socket = place.path().join(format!("start-{round}.sock"));
        let empty = EmptyServer::start(&socket).await?;
        ratios.push(server.started_in().as_secs_f64() / empty.started_in().as_secs_f64());
        ours.push(server.started_in());
        floor.push(empty.started_in());
        server.terminate().await;
    }
    let figures = Figures::of(&mut ours);
    row("empty service", &Figures::of(&mut floor).to_string());
    let ratio = median(&mut ratios);
    let text = format!("{figures}   ratio {ratio:.2}");
    report.aimed(
        "omnibus-csi (aim in ms)",
        &text,
        millis(figures.p50),
        START_AIM,
    );
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Resident memory now, and its anonymous part. The rest are pages of files, which processes share.
pub(crate) fn memory(when: &str, ours: Process, floor: Process, report: &mut Report) {
    #[expect(clippy::cast_precision_loss, reason = "a few thousand KiB")]
    let mib = |kib: u64| kib as f64 / 1024.0;
    title(&format!("resident memory, {when}"));
    row("empty service", &format!("{:.1} MiB", mib(floor.rss_kib())));
    let (resident, own) = (mib(ours.rss_kib()), mib(ours.anonymous_kib()));
    let ratio = resident / mib(floor.rss_kib());
    row(
        "omnibus-csi",
        &format!("{resident:.1} MiB   ratio {ratio:.2}"),
    );
    let text = format!("{own:.1} MiB");
    if when == "idle" {
        report.aimed("anonymous (aim in MiB)", &text, own, MEMORY_AIM);
    } else {
        row("anonymous", &text);
    }
}

/// Whether it ever had a child process: page faults of children that were waited for, and living
/// ones.
pub(crate) fn children(ours: Process, report: &mut Report) {
    let stat = fs::read_to_string(format!("/proc/{}/stat", ours.0)).unwrap_or_default();
    // proc_pid_stat(5): after the name in brackets, cminflt is the ninth field.
    let reaped = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(8));
    let none = reaped == Some("0") && ours.children().is_empty();
    title("child processes of all that work");
    report.aimed(
        "omnibus-csi",
        if none { "none" } else { "some" },
        f64::from(u8::from(!none)),
        0.0,
    );
}
