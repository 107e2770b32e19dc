//! `connections`: every connection of a folder, with its driver, how its storage is, the room that
//! it has and how many volumes.
//!
//! Each is asked by itself and all at once: one that hangs costs the list its patience and nothing
//! else. Nothing is changed.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use driver_core::{Call, CapacityQuery, Error, PageRequest};
use futures_util::future::join_all;
use node_utils::Tools;
use serde::Serialize;

use crate::app::App;
use crate::cli::args::{ConnectionsFlags, EX_USAGE};
use crate::cli::check;
use crate::cli::selection::{NoAnswer, answer};
use crate::csi::environment::Environment;
use crate::csi::spec_version::CsiVersion;
use crate::message::{self, printable};
use crate::process::{self, complain};
use crate::routing::config_file::ConfigFileError;
use crate::routing::connection::Connection;
use crate::routing::folder::Surveyed;

/// The time that a storage may take to answer. As long as a probe may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything listed.
#[derive(Debug, Serialize)]
struct Census {
    connections: Vec<Row>,
    /// The entries of the folders that are no connection.
    odd: Vec<String>,
}

/// One connection.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    driver: Option<String>,
    health: Health,
    error: Option<String>,
    /// Bytes for new volumes, where that is known.
    available: Option<u64>,
    /// The number of volumes, where they can be listed.
    volumes: Option<usize>,
}

/// How a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    /// Its storage can be used.
    Good,
    /// Its storage cannot be used.
    Bad,
    /// Its file cannot be used.
    Invalid,
    /// Its storage was not asked.
    Unknown,
}

/// Lists on standard output, and returns the exit code.
pub fn run(flags: &ConnectionsFlags) -> ExitCode {
    let surveyed = match survey(flags) {
        Ok(surveyed) => surveyed,
        Err(problem) => {
            complain(&format!("omnibus-csi: {problem}"));
            return ExitCode::from(EX_USAGE);
        }
    };
    let rows = surveyed.0.into_iter().map(|one| row(one, flags.offline));
    let connections = match process::carry_out(join_all(rows)) {
        Ok(connections) => connections,
        Err(code) => return code,
    };
    let census = Census {
        connections,
        odd: surveyed.1,
    };
    if flags.json {
        process::say(&format!("{}\n", serde_json::json!(census)));
    } else {
        process::say(&census.table());
    }
    census.exit_code()
}

fn survey(flags: &ConnectionsFlags) -> Result<(Vec<Surveyed>, Vec<String>), String> {
    let at = Environment {
        node: check::node(),
        version: CsiVersion::NEWEST,
        // Nothing is run on this node.
        tools: Tools::of_this_machine(),
        modes: None,
    };
    let said = |error: ConfigFileError| process::chain(&error);
    let (_, app) = App::of_file(&flags.driver_config_file, &at).map_err(said)?;
    let App { kind, folder, .. } = app;
    let mut folder = folder.ok_or_else(|| {
        format!("the driver `{kind}` is one connection without a name; `check` looks at it")
    })?;
    let survey = folder.survey();
    Ok((survey.all, survey.odd))
}

async fn row(one: Surveyed, offline: bool) -> Row {
    let mut row = Row {
        name: one.name.to_string(),
        driver: None,
        health: Health::Unknown,
        error: None,
        available: None,
        volumes: None,
    };
    match one.opened {
        Err(error) => {
            row.health = Health::Invalid;
            row.error = Some(printable(&process::chain(&error)));
        }
        Ok((_, connection)) => {
            row.driver = Some(connection.driver().kind().to_owned());
            if !offline {
                row.ask(&connection).await;
            }
        }
    }
    row
}

// === impl Row ===

impl Row {
    /// Asks the storage. What it does not answer in time stays unknown, and is no reason to call it
    /// bad: one with many volumes takes long to count them.
    async fn ask(&mut self, connection: &Connection) {
        let driver = connection.driver();
        let probe = async |call: &Call| driver.probe(call).await;
        self.error = first(patiently(probe).await);
        self.health = match self.error {
            None => Health::Good,
            Some(_) => Health::Bad,
        };
        if self.health == Health::Bad {
            return;
        }
        if connection.can().capacity {
            let query = CapacityQuery::default();
            let room = patiently(async |call| driver.capacity(call, &query).await).await;
            self.available = self.answered("free space", room).map(|room| room.available);
        }
        if connection.can().list_volumes {
            let volumes = patiently(async |call| count(connection, call).await).await;
            self.volumes = self.answered("volumes", volumes);
        }
        // A directory that is full is a note and not bad: what is in it can be used and deleted.
        if self.error.is_none() && check::DIRECTORIES.contains(&driver.kind()) {
            let examine = async |call: &Call| driver.examine(call).await;
            self.error = first(patiently(examine).await);
        }
    }

    /// The answer. Without one, the row shows why.
    fn answered<T>(&mut self, what: &str, answer: Result<Result<T, Error>, String>) -> Option<T> {
        let why = match answer {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => message::of(&error),
            Err(silent) => silent,
        };
        self.error = Some(format!("{what}: {why}"));
        None
    }
}

/// The first problem, if there is one.
fn first(answer: Result<Vec<Error>, String>) -> Option<String> {
    match answer {
        Ok(problems) => problems.first().map(message::of),
        Err(silent) => Some(silent),
    }
}

/// One question, with patience of its own.
async fn patiently<T>(ask: impl AsyncFnOnce(&Call) -> T) -> Result<T, String> {
    let answer = answer(PATIENCE, Duration::ZERO, ask).await;
    answer.map_err(|why| match why {
        NoAnswer::Defect => "it met a defect of this program".to_owned(),
        NoAnswer::Late => format!("no answer within {PATIENCE:?}"),
    })
}

async fn count(connection: &Connection, call: &Call) -> Result<usize, Error> {
    let mut page = PageRequest::default();
    let mut all = 0;
    loop {
        let found = connection.driver().list_volumes(call, &page).await?;
        all += found.entries.len();
        if found.next.is_none() {
            return Ok(all);
        }
        page.after = found.next;
    }
}

// === impl Census ===

impl Census {
    /// 0: all can be used; 1: some cannot.
    fn exit_code(&self) -> ExitCode {
        let bad = |row: &Row| matches!(row.health, Health::Bad | Health::Invalid);
        if self.connections.iter().any(bad) || !self.odd.is_empty() {
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }

    fn table(&self) -> String {
        let (mut names, mut drivers) = ("NAME".len(), "DRIVER".len());
        for row in &self.connections {
            names = names.max(row.name.len());
            drivers = drivers.max(row.driver().len());
        }
        let mut text = format!(
            "{:<names$}  {:<drivers$}  {:<7}  {:>10}  {:>7}  ERROR\n",
            "NAME", "DRIVER", "HEALTH", "FREE", "VOLUMES"
        );
        let dash = || "-".to_owned();
        for row in &self.connections {
            let health = match row.health {
                Health::Good => "good",
                Health::Bad => "bad",
                Health::Invalid => "invalid",
                Health::Unknown => "unknown",
            };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:<names$}  {:<drivers$}  {health:<7}  {:>10}  {:>7}  {}",
                row.name,
                row.driver(),
                row.available.map_or_else(dash, size),
                row.volumes.map_or_else(dash, |volumes| volumes.to_string()),
                row.error.as_deref().unwrap_or("-"),
            );
        }
        for odd in &self.odd {
            let _ = writeln!(text, "not served: {}", printable(odd));
        }
        text
    }
}

// === impl Row ===

impl Row {
    fn driver(&self) -> &str {
        self.driver.as_deref().unwrap_or("-")
    }
}

/// A size for people: three digits are enough.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "B";
    for next in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = next;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use driver_core::Capabilities;
    use driver_core::config::CommonConfig;

    use super::*;
    use crate::routing::connections::ConnectionName;
    use crate::testing::{EVERYTHING, Memory, Trouble};

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_they_fill() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn storage_that_takes_long_to_count_its_volumes_is_good_and_their_number_unknown() {
        let driver = Memory::with(Capabilities {
            capacity: false,
            ..EVERYTHING
        });
        driver.trouble(Trouble::Wait);
        let config = CommonConfig::default();
        let connection = Connection::of(ConnectionName::unnamed(), driver, &config);
        let mut row = Row {
            name: "a".to_owned(),
            driver: None,
            health: Health::Unknown,
            error: None,
            available: None,
            volumes: None,
        };
        row.ask(&connection).await;
        assert_eq!((row.health, row.volumes), (Health::Good, None));
        let error = row.error.expect("an error");
        assert!(error.starts_with("volumes: no answer"), "{error}");
    }

    #[test]
    fn a_table_has_a_row_for_each_and_fails_if_one_cannot_be_used() {
        let row = |name: &str, health, error: Option<&str>| Row {
            name: name.to_owned(),
            driver: Some("local-hostpath".to_owned()),
            health,
            error: error.map(str::to_owned),
            available: Some(2048),
            volumes: Some(3),
        };
        let census = Census {
            connections: vec![
                row("a", Health::Good, None),
                row("nas", Health::Bad, Some("gone")),
            ],
            odd: vec!["/c/a b.yaml: no name".to_owned()],
        };
        let table = census.table();
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines[1],
            "a     local-hostpath  good        2.0 KiB        3  -"
        );
        assert_eq!(
            lines[2],
            "nas   local-hostpath  bad         2.0 KiB        3  gone"
        );
        assert_eq!(lines[3], "not served: /c/a b.yaml: no name");
    }
}
