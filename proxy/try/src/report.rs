//! What is said before and after: to people in words, to machines in one JSON object.
//!
//! The schema is stable: names are only ever added, and a change of meaning changes its number.

use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;

use super::folder::Folder;
use super::journal::{Journal, Outcome};
use super::screen::{Screen, Style, time};
use super::seclusion::Seclusion;
use super::step::Step;
use super::story::{Interrupt, Stop, Story};
use super::trial::Trial;
use crate::process;

/// The name and number of the schema.
const SCHEMA: &str = "omnibus-csi/try/1";

/// What is known before the first step.
#[derive(Debug)]
pub(super) struct Introduction {
    pub(super) driver: String,
    pub(super) csi_version: String,
    pub(super) seclusion: Seclusion,
    /// What is odd about the configuration.
    pub(super) notes: Vec<String>,
}

/// What is known after the last step.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) introduction: Introduction,
    pub(super) trial: Arc<Trial>,
    pub(super) folder: Folder,
    pub(super) story: Story,
    pub(super) stopped: Option<Stop>,
    pub(super) left: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    schema: &'static str,
    version: &'static str,
    result: &'static str,
    name: &'a str,
    driver: &'a str,
    csi_version: &'a str,
    folder: &'a str,
    seclusion: &'static str,
    notes: &'a [String],
    milliseconds: f64,
    steps: Vec<StepReport<'a>>,
    failure: Option<FailureReport>,
    left_behind: &'a [String],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StepReport<'a> {
    step: &'static str,
    title: &'static str,
    rpc: Option<&'static str>,
    result: &'static str,
    milliseconds: Option<f64>,
    detail: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureReport {
    step: Option<&'static str>,
    code: Option<String>,
    message: String,
    meaning: Option<&'static str>,
    advice: Vec<&'static str>,
}

/// The report of a trial that did not begin.
pub(super) fn refused(problems: &[String]) -> String {
    let failure = FailureReport {
        step: None,
        code: None,
        message: problems.join("; "),
        meaning: None,
        advice: Vec::new(),
    };
    serde_json::json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "result": "refused",
        "steps": [],
        "failure": failure,
        "leftBehind": [],
    })
    .to_string()
}

// === impl Introduction ===

impl Introduction {
    /// Says what is going to happen, and where.
    pub(super) fn say(&self, screen: &Screen, trial: &Trial, folder: &Folder) {
        let label = |label: &str, text: &str| screen.field(label, Style::Dim, text);
        screen.say("");
        screen.heading(
            Style::Bold,
            "omnibus-csi try: a volume lives its whole life",
        );
        screen.say("");
        let driver = &self.driver;
        match &trial.config {
            None => label(
                "storage",
                &format!("{driver}: folders in {}", folder.path()),
            ),
            Some(path) => label("storage", &format!("{driver}, as {} says", path.display())),
        }
        label("mounts", self.seclusion.explained());
        label(
            "touches",
            &format!(
                "only what it makes itself; all of it is called {}",
                trial.name
            ),
        );
        for note in &self.notes {
            screen.field("odd", Style::Doubtful, note);
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// Says how it ended, and returns the exit code.
    pub(super) fn pronounce(&self, as_json: bool) -> ExitCode {
        if as_json {
            // Numbers and texts only: this cannot fail.
            let report = serde_json::to_string_pretty(&self.report()).unwrap_or_default();
            process::say(&format!("{report}\n"));
        } else {
            self.say();
        }
        match self.stopped {
            None => ExitCode::SUCCESS,
            Some(Stop::Failed) => ExitCode::FAILURE,
            Some(Stop::Interrupted(Interrupt::Int) | Stop::Abandoned(Interrupt::Int)) => {
                ExitCode::from(130)
            }
            Some(Stop::Interrupted(Interrupt::Term) | Stop::Abandoned(Interrupt::Term)) => {
                ExitCode::from(143)
            }
        }
    }

    fn say(&self) {
        let screen = &self.story.screen;
        screen.say("");
        match (self.stopped, self.trial.keep) {
            (None, false) => self.say_success(screen),
            (None, true) => self.say_kept(screen, "Everything went well so far."),
            (Some(stop), keep) => {
                if let Some((step, trouble)) = self.story.journal.failure() {
                    let heading = format!("It failed: {}", lower(step.title()));
                    screen.heading(Style::Bad, &heading);
                    screen.field("what happened", Style::Bold, &trouble.what);
                    screen.field("what it means", Style::Bold, step.meaning());
                    let advice = trouble.advice(step);
                    screen.field("what to do", Style::Bold, &advice.join(" "));
                }
                if stop != Stop::Failed {
                    screen.heading(Style::Doubtful, "It was interrupted.");
                }
                if keep {
                    self.say_kept(screen, "");
                } else {
                    self.say_left(screen);
                }
            }
        }
        screen.say("");
    }

    fn say_success(&self, screen: &Screen) {
        let journal = &self.story.journal;
        let heading = format!(
            "A volume lived its whole life in {}.",
            time(self.story.took())
        );
        screen.heading(Style::Good, &heading);
        screen.say(&format!("  {}; nothing is left.", counted(journal)));
        if self.trial.config.is_none() {
            screen.say("");
            screen.field(
                "your storage",
                Style::Dim,
                "omnibus-csi try --driver-config-file=FILE",
            );
            screen.field("all there is", Style::Dim, "omnibus-csi --help");
        }
    }

    fn say_left(&self, screen: &Screen) {
        if self.left.is_empty() {
            screen.field(
                "left behind",
                Style::Bold,
                "nothing: everything that was made is gone",
            );
            return;
        }
        for (number, left) in self.left.iter().enumerate() {
            let label = if number == 0 { "left behind" } else { "" };
            screen.field(label, Style::Bad, left);
        }
        let name = &self.trial.name;
        screen.field(
            "",
            Style::Bold,
            &format!("Its name has {name} in it; remove it by hand."),
        );
    }

    fn say_kept(&self, screen: &Screen, heading: &str) {
        if !heading.is_empty() {
            screen.heading(Style::Good, heading);
        }
        for left in &self.left {
            screen.field("kept", Style::Doubtful, left);
        }
        screen.field("folder", Style::Bold, self.folder.path().as_str());
        if self.introduction.seclusion == Seclusion::None {
            let path = self.folder.path();
            let hint = format!(
                "The volumes are mounted below {path}/node. `umount` what `findmnt -R` shows there, \
                 then remove the folder."
            );
            screen.field("", Style::Dim, &hint);
        } else {
            screen.field(
                "",
                Style::Dim,
                "Its mounts end with this process; its files stay.",
            );
        }
    }

    fn report(&self) -> Report<'_> {
        let journal = &self.story.journal;
        let failure = journal.failure().map(|(step, trouble)| FailureReport {
            step: Some(step.name()),
            code: trouble.code.map(crate::process::code_name),
            message: trouble.what.clone(),
            meaning: Some(step.meaning()),
            advice: trouble.advice(step),
        });
        Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            result: match self.stopped {
                None => "ok",
                Some(Stop::Failed) => "failed",
                Some(Stop::Interrupted(_) | Stop::Abandoned(_)) => "interrupted",
            },
            name: self.trial.name.as_str(),
            driver: &self.introduction.driver,
            csi_version: &self.introduction.csi_version,
            folder: self.folder.path().as_str(),
            seclusion: self.introduction.seclusion.name(),
            notes: &self.introduction.notes,
            milliseconds: milliseconds(self.story.took()),
            steps: Step::ALL
                .iter()
                .map(|step| step_report(journal, *step))
                .collect(),
            failure,
            left_behind: &self.left,
        }
    }
}

fn step_report(journal: &Journal, step: Step) -> StepReport<'_> {
    let entry = journal.entry(step);
    let measured = entry.filter(|entry| matches!(entry.outcome, Outcome::Ok | Outcome::Failed(_)));
    StepReport {
        step: step.name(),
        title: step.title(),
        rpc: step.rpc(),
        result: entry.map_or("not-reached", |entry| entry.outcome.name()),
        milliseconds: measured.map(|entry| milliseconds(entry.took)),
        detail: entry.map_or("", |entry| entry.result.as_str()),
    }
}

/// With three decimals: what comes after them is noise.
fn milliseconds(duration: std::time::Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn counted(journal: &Journal) -> String {
    let (ok, not_offered) = (
        journal.count(&Outcome::Ok),
        journal.count(&Outcome::NotOffered),
    );
    match not_offered {
        0 => format!("{ok} steps"),
        _ => format!("{ok} steps; {not_offered} more are not offered by this storage"),
    }
}

fn lower(title: &str) -> String {
    let mut chars = title.chars();
    chars
        .next()
        .map(|first| first.to_lowercase().chain(chars).collect())
        .unwrap_or_default()
}
