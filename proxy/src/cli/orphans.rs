//! `orphans`: lists what incomplete calls left on backends, and removes it on request.
//!
//! All connections are asked at once, and each removes one thing after the other. What is shown first is
//! what is removed, and nothing else: a driver looks once more, and leaves what has become something
//! else in the meantime.

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use driver_core::{Error, Orphan, PageRequest};
use futures_util::future::join_all;
use serde::Serialize;

use crate::cli::args::OrphansFlags;
use crate::cli::selection::{self, CHANGE, Chosen, Patience, Problem, QUESTION, name_of, within};
use crate::message::{self, printable};
use crate::process::{self, complain};
use crate::routing::connection::Connection;

/// So many on a page.
const PAGE: usize = 1_000;

/// Everything that was found.
#[derive(Debug, Default, Serialize)]
struct Ledger {
    orphans: Vec<Row>,
    /// Connections whose drivers leave nothing of the kind, or cannot tell.
    unsupported: Vec<String>,
    /// What is not known.
    problems: Vec<Problem>,
    /// Whether there was no connection to ask.
    #[serde(skip)]
    asked_none: bool,
}

/// One orphan.
#[derive(Debug, Serialize)]
struct Row {
    connection: Option<String>,
    kind: &'static str,
    object: String,
    identity: String,
    /// In seconds since 1970.
    created: u64,
    age_seconds: u64,
    state: State,
    error: Option<String>,
    #[serde(skip)]
    orphan: Orphan,
}

/// The state of an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// It is there.
    Found,
    /// It is gone.
    Removed,
    /// It may still be there.
    Failed,
}

/// The answer of one connection.
#[derive(Debug)]
struct Found {
    connection: Arc<Connection>,
    rows: Vec<Row>,
    problem: Option<Problem>,
}

/// Lists on standard output, removes if that is wanted, and returns the exit code.
pub fn run(flags: &OrphansFlags) -> ExitCode {
    let chosen = selection::choose(&flags.driver_config_file, flags.connection.as_deref());
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(code) => return code,
    };
    let ledger = match process::carry_out(tidy(chosen, flags)) {
        Ok(ledger) => ledger,
        Err(code) => return code,
    };
    if flags.json {
        process::say(&format!("{}\n", serde_json::json!(ledger)));
    }
    ledger.exit_code()
}

async fn tidy(mut chosen: Chosen, flags: &OrphansFlags) -> Ledger {
    let now = SystemTime::now();
    let before = now
        .checked_sub(flags.min_age)
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let (asked, unsupported) = chosen.able(|can| can.orphans);
    let mut ledger = Ledger {
        problems: chosen.problems,
        unsupported,
        asked_none: asked.is_empty(),
        ..Ledger::default()
    };
    // What will be removed is shown first; with `--json`, on standard error.
    let tell = |text: &str| {
        if flags.json {
            complain(text.trim_end());
        } else {
            process::say(text);
        }
    };
    let looks = asked.into_iter().map(|one| look(one, before, now));
    let mut found = join_all(looks).await;
    for found in &mut found {
        ledger.problems.extend(found.problem.take());
    }
    let rows: Vec<&Row> = found.iter().flat_map(|found| &found.rows).collect();
    if !flags.json || (flags.remove && !rows.is_empty()) {
        tell(&ledger.table(&rows));
    }
    if flags.remove {
        if !rows.is_empty() {
            tell(&format!("{} found, to be removed one by one\n", rows.len()));
        }
        join_all(found.iter_mut().map(|one| remove(one, before, &tell))).await;
    }
    for found in &mut found {
        let silence = found.problem.take();
        if let (Some(silence), false) = (&silence, flags.json) {
            tell(&silence.line());
        }
        ledger.problems.extend(silence);
    }
    ledger.orphans = found.into_iter().flat_map(|found| found.rows).collect();
    if !flags.json {
        process::say(&ledger.ending(flags.remove));
    }
    ledger
}

/// All pages of one connection. If a page fails, the pages before it are reported.
async fn look(connection: Arc<Connection>, before: SystemTime, now: SystemTime) -> Found {
    let mut found = Found {
        rows: Vec::new(),
        problem: None,
        connection,
    };
    let connection = &found.connection;
    let mut page = PageRequest {
        max: Some(PAGE),
        after: None,
    };
    loop {
        let driver = connection.driver();
        let ask = within(QUESTION, "list orphans", async |call| {
            driver.orphans(call, before, &page).await
        });
        match ask.await {
            Ok(listed) => {
                let rows = listed.entries.into_iter();
                found
                    .rows
                    .extend(rows.map(|orphan| Row::of(connection, orphan, now)));
                if listed.next.is_none() {
                    return found;
                }
                page.after = listed.next;
            }
            Err(error) => {
                found.problem = Some(Problem::of(connection, &error));
                return found;
            }
        }
    }
}

/// One after the other. A failure stops none of the others, unless the host no longer answers.
async fn remove(found: &mut Found, before: SystemTime, tell: &impl Fn(&str)) {
    let driver = found.connection.driver();
    let patience = Patience::default();
    for row in &mut found.rows {
        if patience.is_over() {
            let left = "the rest was left";
            found.problem = Some(Problem::silence(&found.connection, left));
            return;
        }
        let ask = within(CHANGE, "remove an orphan", async |call| {
            driver.remove_orphan(call, before, &row.orphan).await
        });
        let removed: Result<(), Error> = ask.await;
        patience.heard(&removed);
        row.ended(&removed);
        tell(&row.outcome());
    }
}

// === impl Row ===

impl Row {
    fn of(connection: &Connection, orphan: Orphan, now: SystemTime) -> Self {
        let since = orphan.created.duration_since(SystemTime::UNIX_EPOCH);
        let age = now.duration_since(orphan.created).unwrap_or_default();
        Self {
            connection: name_of(connection),
            kind: orphan.kind.as_str(),
            object: orphan.object.clone(),
            identity: orphan.identity.clone(),
            created: since.unwrap_or_default().as_secs(),
            age_seconds: age.as_secs(),
            state: State::Found,
            error: None,
            orphan,
        }
    }

    fn ended(&mut self, removed: &Result<(), Error>) {
        self.state = match removed {
            Ok(()) => State::Removed,
            Err(_) => State::Failed,
        };
        self.error = removed.as_ref().err().map(message::of);
    }

    /// The outcome, for people.
    fn outcome(&self) -> String {
        let object = printable(&self.object);
        match &self.error {
            None => format!("removed {object}\n"),
            Some(error) => format!("not removed {object}: {error}\n"),
        }
    }
}

// === impl Ledger ===

impl Ledger {
    /// 0: no orphan is left, as far as drivers can tell; 1: one is left, or may be.
    fn exit_code(&self) -> ExitCode {
        let left = |row: &Row| row.state != State::Removed;
        if self.orphans.iter().any(left) || !self.problems.is_empty() {
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }

    fn table(&self, rows: &[&Row]) -> String {
        let mut text = String::new();
        let name = |row: &Row| row.connection.clone().unwrap_or_else(|| "-".to_owned());
        let widest = rows.iter().map(|row| name(row).len()).max();
        let widest = widest.unwrap_or_default().max(10);
        if !rows.is_empty() {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:<widest$}  {:<18}  {:>5}  OBJECT",
                "CONNECTION", "WHAT", "AGE"
            );
        }
        for row in rows {
            let _ = writeln!(
                text,
                "{:<widest$}  {:<18}  {:>5}  {}",
                name(row),
                row.kind,
                age(Duration::from_secs(row.age_seconds)),
                printable(&row.object),
            );
        }
        for problem in &self.problems {
            text.push_str(&problem.line());
        }
        // Where they are all, the last line names them.
        for name in self.unsupported.iter().filter(|_| !self.has_none_to_ask()) {
            let _ = writeln!(text, "not asked: {name}: its driver cannot list orphans");
        }
        text
    }

    /// Whether no driver of these connections can list orphans.
    fn has_none_to_ask(&self) -> bool {
        self.asked_none && self.problems.is_empty() && !self.unsupported.is_empty()
    }

    /// The last line.
    fn ending(&self, remove: bool) -> String {
        let count = |state| self.orphans.iter().filter(|row| row.state == state).count();
        let all = self.orphans.len();
        match (all, remove) {
            (0, _) if self.has_none_to_ask() => {
                let names = self.unsupported.join(", ");
                format!("no orphans to look at: {names}: the driver cannot list them\n")
            }
            (0, _) if self.asked_none => {
                "nothing was looked at: there is no connection that can be asked\n".to_owned()
            }
            (0, _) if !self.problems.is_empty() => {
                "nothing was found, as far as it is known\n".to_owned()
            }
            (0, _) => "no orphans were found\n".to_owned(),
            (_, false) => format!("{all} found; `--remove` removes them\n"),
            (_, true) => format!("{} of {all} removed\n", count(State::Removed)),
        }
    }
}

/// An age for people: the largest unit that it fills.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
