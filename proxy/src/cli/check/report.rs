//! The findings of a check, for people and for machines.

use std::fmt::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use crate::cli::args::EX_USAGE;
use crate::message::printable;
use crate::process;
use crate::routing::connection::Connection;
use crate::routing::connections::ConnectionName;

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Weight {
    /// It has to be corrected.
    Error,
    /// It hardly is what was meant.
    Warning,
    /// It changes nothing.
    Note,
}

/// One thing found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    pub(super) weight: Weight,
    /// The path of a key, `file` or `storage`.
    pub(super) about: String,
    pub(super) message: String,
    /// The advice.
    pub(super) advice: Option<String>,
}

/// Everything found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    file: String,
    driver: Option<String>,
    /// Whether the storage was looked at.
    online: bool,
    /// The place where its storage is, if the file does not name it.
    #[serde(skip)]
    elsewhere: Option<&'static str>,
    /// Whether a server could start with it.
    usable: bool,
    ok: bool,
    pub(super) findings: Vec<Finding>,
    /// The connection that this is about, if the file is one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    /// The findings about each connection of a folder.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) connections: Vec<Self>,
}

// === impl Finding ===

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            printable(&self.about),
            printable(&self.message)
        )?;
        match &self.advice {
            Some(advice) => write!(f, " ({})", printable(advice)),
            None => Ok(()),
        }
    }
}

// === impl Report ===

impl Report {
    pub(super) fn new(file: &Path) -> Self {
        Self {
            file: file.display().to_string(),
            driver: None,
            online: false,
            elsewhere: None,
            usable: true,
            ok: true,
            findings: Vec::new(),
            connection: None,
            connections: Vec::new(),
        }
    }

    /// Adds several findings.
    pub(super) fn all(&mut self, findings: impl IntoIterator<Item = Finding>) {
        findings.into_iter().for_each(|finding| self.add(finding));
    }

    /// Says that this is about one connection of a folder.
    pub(super) fn connection(&mut self, name: &ConnectionName) {
        self.connection = Some(name.to_string());
    }

    /// Whether it is about that one.
    pub(super) fn is_of(&self, name: &ConnectionName) -> bool {
        self.connection.as_deref() == Some(&**name.text())
    }

    /// Adds the reports on the connections of the folder. One that cannot be used does not stop a
    /// server.
    pub(super) fn connections(&mut self, reports: Vec<Self>) {
        self.ok &= reports.iter().all(|report| report.ok);
        self.connections = reports;
    }

    pub(super) fn add(&mut self, finding: Finding) {
        // One finding is enough for one key. What is odd about it tends to be why it is wrong.
        let is_wrong =
            |other: &&mut Finding| other.weight == Weight::Error && other.about == finding.about;
        if finding.weight == Weight::Warning
            && let Some(wrong) = self.findings.iter_mut().find(is_wrong)
        {
            wrong.message = format!("{} ({})", finding.message, wrong.message);
            wrong.advice = finding.advice;
            return;
        }
        self.ok &= finding.weight != Weight::Error;
        self.findings.push(finding);
    }

    pub(super) fn unusable(&mut self) {
        self.usable = false;
    }

    /// Whether a server could start with it.
    pub(super) fn is_usable(&self) -> bool {
        self.usable
    }

    /// Whether something is wrong with this key, or below it.
    pub(super) fn is_about(&self, key: &str) -> bool {
        let wrong = |finding: &Finding| finding.weight == Weight::Error;
        self.findings
            .iter()
            .any(|finding| wrong(finding) && finding.about.starts_with(key))
    }

    pub(super) fn driver(&mut self, kind: &str) {
        self.driver = Some(kind.to_owned());
    }

    pub(super) fn looked(&mut self) {
        self.online = true;
    }

    /// Says whose storage it is: volumes of some drivers are made by hand, and each names its own.
    pub(super) fn storage_of(&mut self, connection: &Connection) {
        if !connection.has_storage() {
            self.elsewhere = Some("the file was looked at; each volume names its own storage");
        }
    }

    /// 0: nothing to correct; 64: a server would refuse it; 1: something to correct.
    pub(super) fn exit_code(&self) -> ExitCode {
        match (self.usable, self.ok) {
            (false, _) => ExitCode::from(EX_USAGE),
            (true, false) => ExitCode::FAILURE,
            (true, true) => ExitCode::SUCCESS,
        }
    }

    pub(super) fn print(&self, json: bool) {
        if json {
            process::say(&format!("{}\n", serde_json::json!(self)));
        } else {
            process::say(&self.table());
        }
    }

    /// The number of findings of this weight, about the file and each connection.
    fn count(&self, weight: Weight) -> usize {
        let own = self.findings.iter().filter(|f| f.weight == weight);
        let below = self.connections.iter().map(|report| report.count(weight));
        own.count() + below.sum::<usize>()
    }

    /// The last line is what a tired person reads: warnings are part of it.
    fn verdict(&self) -> String {
        let counted = [(Weight::Error, "error"), (Weight::Warning, "warning")];
        let counted = counted
            .into_iter()
            .filter_map(|(weight, word)| match self.count(weight) {
                0 => None,
                1 => Some(format!("1 {word}")),
                many => Some(format!("{many} {word}s")),
            });
        let counted: Vec<_> = counted.collect();
        if counted.is_empty() {
            "nothing to correct".to_owned()
        } else {
            counted.join(", ")
        }
    }

    pub(super) fn table(&self) -> String {
        let mut findings: Vec<_> = self.findings.iter().collect();
        findings.sort_by_key(|finding| finding.weight);
        let mut text: String = self.connections.iter().map(Self::table).collect();
        for Finding {
            weight,
            about,
            message,
            advice,
        } in findings
        {
            let weight = match weight {
                Weight::Error => "ERROR",
                Weight::Warning => "WARNING",
                Weight::Note => "note",
            };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{weight:<8} {}: {}",
                printable(about),
                printable(message)
            );
            if let Some(advice) = advice {
                let _ = writeln!(text, "{:<8} → {}", "", printable(advice));
            }
        }
        let looked = self.elsewhere.unwrap_or(match (self.online, self.usable) {
            (true, _) => "the file and the storage were looked at",
            (false, true) => "the storage was not looked at (--offline)",
            (false, false) => "the storage was not looked at: the file cannot be used",
        });
        let driver = self
            .driver
            .as_deref()
            .map(|kind| format!(" ({kind})"))
            .unwrap_or_default();
        let driver = match self.connections.len() {
            0 => driver,
            1 => format!("{driver}, 1 connection"),
            many => format!("{driver}, {many} connections"),
        };
        let verdict = self.verdict();
        let _ = writeln!(
            text,
            "{}{driver}: {verdict}; {looked}",
            printable(&self.file)
        );
        text
    }
}
