//! `exports`: whether the volumes of a backend are still exported, and what puts them back.
//!
//! A storage host that started anew without a saved configuration exports nothing. Each volume is
//! looked at by itself, a few at a time; one that fails stops no other. Without `--repair` nothing is
//! changed.

use std::fmt::Write;
use std::process::ExitCode;

use driver_core::{Error, Kind, PageRequest, Volume};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use serde::Serialize;

use crate::cli::args::ExportsFlags;
use crate::cli::selection::{self, CHANGE, Chosen, Patience, Problem, QUESTION, name_of, within};
use crate::message::{self, printable};
use crate::process;
use crate::routing::connection::Connection;

/// So many on a page.
const PAGE: usize = 500;
/// So many volumes of a connection are looked at, or repaired, at a time. The calls that the process serves beside it
/// have 16 threads of the connection.
const AT_ONCE: usize = 8;

/// Everything that was found.
#[derive(Debug, Default, Serialize)]
struct Tour {
    /// The number of volumes that were looked at.
    volumes: usize,
    /// Those that were not found exported as they should be, or not looked at.
    exports: Vec<Row>,
    /// Connections whose drivers export nothing, or cannot tell.
    unsupported: Vec<String>,
    /// What is not known.
    problems: Vec<Problem>,
    /// Whether there was no connection to ask.
    #[serde(skip)]
    asked_none: bool,
}

/// One volume that was not found exported, or not looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    connection: Option<String>,
    /// As the orchestrator has it.
    volume: String,
    state: State,
    error: Option<String>,
}

/// The observation of one volume.
#[derive(Debug)]
enum Seen {
    /// It is exported.
    Well,
    /// It was deleted in the meantime, or another connection exports it.
    Gone,
    /// It was not looked at, because the host no longer answers.
    Skipped(Row),
    /// It was not found exported.
    Lost(Row),
}

/// How an export is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// It is not there, or not as it should be.
    Missing,
    /// It was missing, and is there.
    Repaired,
    /// It could not be looked at, or repaired.
    Unknown,
    /// It was not looked at.
    Skipped,
}

/// Lists on standard output, repairs if that is wanted, and returns the exit code.
pub fn run(flags: &ExportsFlags) -> ExitCode {
    let chosen = selection::choose(&flags.driver_config_file, flags.connection.as_deref());
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(code) => return code,
    };
    let tour = match process::carry_out(visit(chosen, flags.repair)) {
        Ok(tour) => tour,
        Err(code) => return code,
    };
    if flags.json {
        process::say(&format!("{}\n", serde_json::json!(tour)));
    } else {
        process::say(&tour.table());
    }
    tour.exit_code()
}

async fn visit(mut chosen: Chosen, repair: bool) -> Tour {
    let (asked, unsupported) = chosen.able(|can| can.exports && can.list_volumes);
    let mut tour = Tour {
        problems: chosen.problems,
        unsupported,
        asked_none: asked.is_empty(),
        ..Tour::default()
    };
    let all = join_all(asked.iter().map(|connection| of_one(connection, repair))).await;
    for part in all {
        tour.volumes += part.volumes;
        tour.exports.extend(part.exports);
        tour.problems.extend(part.problems);
    }
    tour
}

/// All volumes of one connection, page by page.
async fn of_one(connection: &Connection, repair: bool) -> Tour {
    let mut tour = Tour::default();
    let mut page = PageRequest {
        max: Some(PAGE),
        after: None,
    };
    let patience = Patience::default();
    loop {
        let driver = connection.driver();
        let ask = within(QUESTION, "list volumes", async |call| {
            driver.list_volumes(call, &page).await
        });
        let listed = match ask.await {
            Ok(listed) => listed,
            Err(error) => {
                tour.tell_silence(connection, &patience);
                tour.problems.push(Problem::of(connection, &error));
                return tour;
            }
        };
        let looks = listed.entries.iter();
        let looks = looks.map(|volume| of_volume(connection, &patience, volume, repair));
        let all: Vec<Seen> = stream::iter(looks).buffered(AT_ONCE).collect().await;
        for seen in all {
            tour.volumes += usize::from(matches!(seen, Seen::Well | Seen::Lost(_)));
            if let Seen::Lost(row) | Seen::Skipped(row) = seen {
                tour.exports.push(row);
            }
        }
        // What is left out is named as well, as far as its list can be had.
        if listed.next.is_none() {
            tour.tell_silence(connection, &patience);
            return tour;
        }
        page.after = listed.next;
    }
}

/// Looks at one volume, and repairs it if that is wanted.
async fn of_volume(
    connection: &Connection,
    patience: &Patience,
    volume: &Volume,
    repair: bool,
) -> Seen {
    let (driver, id) = (connection.driver(), &volume.id);
    let row = |state, error: Option<&Error>| Row {
        connection: name_of(connection),
        volume: connection.volume_handle(id),
        state,
        error: error.map(message::of),
    };
    if patience.is_over() {
        return Seen::Skipped(row(State::Skipped, None));
    }
    let row = |state, error: Option<&Error>| Seen::Lost(row(state, error));
    let look = within(QUESTION, "look at an export", async |call| {
        driver.is_exported(call, id).await
    });
    let look = look.await;
    patience.heard(&look);
    match look {
        Ok(true) => return Seen::Well,
        Ok(false) if !repair => return row(State::Missing, None),
        Ok(false) => {}
        Err(error) if error.kind() == Kind::NotFound => return Seen::Gone,
        Err(error) => return row(State::Unknown, Some(&error)),
    }
    let put_back = within(CHANGE, "repair an export", async |call| {
        driver.repair_export(call, id).await
    });
    let put_back = put_back.await;
    patience.heard(&put_back);
    match put_back {
        Ok(()) => row(State::Repaired, None),
        Err(error) if error.kind() == Kind::NotFound => Seen::Gone,
        Err(error) => row(State::Unknown, Some(&error)),
    }
}

// === impl Tour ===

impl Tour {
    /// Says that a connection was asked nothing more, if so.
    fn tell_silence(&mut self, connection: &Connection, patience: &Patience) {
        if patience.is_over() {
            let left = "the volumes marked `skipped`, and those not listed, were not looked at";
            self.problems.push(Problem::silence(connection, left));
        }
    }

    /// 0: all volumes are exported now; 1: something is missing, or not known.
    fn exit_code(&self) -> ExitCode {
        let bad = |row: &Row| row.state != State::Repaired;
        if self.exports.iter().any(bad) || !self.problems.is_empty() {
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }

    fn count(&self, state: State) -> usize {
        self.exports.iter().filter(|row| row.state == state).count()
    }

    fn table(&self) -> String {
        if self.asked_none && self.problems.is_empty() && !self.unsupported.is_empty() {
            let names = self.unsupported.join(", ");
            return format!(
                "no exports to look at: {names}: the driver exports nothing by itself\n"
            );
        }
        let mut text = String::new();
        let widest = self.exports.iter().map(|row| row.volume.len()).max();
        let widest = widest.unwrap_or_default().max(6);
        if !self.exports.is_empty() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:<widest$}  {:<8}  ERROR", "VOLUME", "EXPORT");
        }
        for row in &self.exports {
            let state = match row.state {
                State::Missing => "missing",
                State::Repaired => "repaired",
                State::Unknown => "unknown",
                State::Skipped => "skipped",
            };
            let error = row.error.as_deref().unwrap_or("-");
            let volume = printable(&row.volume);
            let _ = writeln!(text, "{volume:<widest$}  {state:<8}  {error}");
        }
        for problem in &self.problems {
            text.push_str(&problem.line());
        }
        for name in &self.unsupported {
            let _ = writeln!(
                text,
                "not asked: {name}: its driver exports nothing by itself"
            );
        }
        if self.asked_none {
            text.push_str("nothing was looked at: there is no connection that can be asked\n");
            return text;
        }
        let skipped = self.count(State::Skipped);
        let well = (self.volumes + skipped).saturating_sub(self.exports.len());
        let _ = write!(text, "{} volumes: {well} exported", self.volumes);
        for (state, word) in [
            (State::Missing, "missing"),
            (State::Repaired, "repaired"),
            (State::Unknown, "unknown"),
            (State::Skipped, "skipped"),
        ] {
            if self.count(state) > 0 {
                let _ = write!(text, ", {} {word}", self.count(state));
            }
        }
        if self.count(State::Missing) > 0 {
            text.push_str("; `--repair` puts them back");
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests;
