//! What is said before and after: to people in words, to machines in one JSON object.
//!
//! The schema is stable: names are only ever added, and a change of meaning changes its number.

use std::process::ExitCode;
use std::time::Duration;

use csi_types::AbsolutePath;
use serde_json::{Value, json};

use crate::Storage;
use crate::client::{Failure, code_name};
use crate::flags::Flags;
use crate::screen::{Screen, Style, time};
use crate::seclusion::Seclusion;
use crate::step::Step;
use crate::story::{Outcome, Stop, Story};

/// The name and number of the schema.
const SCHEMA: &str = "omnibus-csi/try/1";

/// What does not change while a storage is tried.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) flags: &'a Flags,
    pub(crate) storage: &'a Storage,
    pub(crate) name: String,
    pub(crate) path: AbsolutePath,
    pub(crate) seclusion: Seclusion,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) took: Duration,
    pub(crate) stopped: Option<Stop>,
    /// What is left behind.
    pub(crate) left: Vec<String>,
}

/// The report of a trial that was refused.
pub(crate) fn refused(problems: &[String]) -> Value {
    json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "result": "refused",
        "steps": [],
        "failure": {
            "step": null,
            "code": null,
            "message": problems.join("; "),
            "meaning": null,
            "advice": [],
        },
        "leftBehind": [],
    })
}

/// What to do about a failure in this step: what the code says, and where to look.
fn advice(step: Step, failure: &Failure) -> Vec<&'static str> {
    let look = (!failure.blames_the_request()).then_some(step.words().advice);
    failure.code_says().into_iter().chain(look).collect()
}

/// With three decimals: what comes after them is noise.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

// === impl Setting ===

impl Setting<'_> {
    /// Says what is going to happen, and where.
    pub(crate) fn introduce(&self, screen: &Screen) {
        screen.say("");
        screen.heading(
            Style::Bold,
            "omnibus-csi try: a volume lives its whole life",
        );
        screen.say("");
        let driver = &self.storage.driver;
        let storage = match &self.flags.driver_config_file {
            None => format!("{driver}: folders in {}", self.path),
            Some(path) => format!("{driver}, as {} says", path.display()),
        };
        screen.field("storage", Style::Dim, &storage);
        screen.field("mounts", Style::Dim, self.seclusion.explained());
        let touches = format!(
            "only what it makes itself; all of it is called {}",
            self.name
        );
        screen.field("touches", Style::Dim, &touches);
        for note in &self.storage.notes {
            screen.field("odd", Style::Doubtful, note);
        }
    }

    /// Says how it ended, and returns the exit code.
    pub(crate) fn conclude(&self, story: &Story, end: &End) -> ExitCode {
        if self.flags.json {
            let report = self.report(story, end);
            crate::screen::say(&format!("{report:#}\n"));
        } else {
            self.say_end(story, end);
        }
        match end.stopped {
            None => ExitCode::SUCCESS,
            Some(Stop::Failed) => ExitCode::FAILURE,
            Some(Stop::Interrupted(code) | Stop::Abandoned(code)) => ExitCode::from(code),
        }
    }

    fn say_end(&self, story: &Story, end: &End) {
        let screen = &story.screen;
        screen.say("");
        if let Some((step, failure)) = story.failure() {
            let words = step.words();
            screen.heading(
                Style::Bad,
                &format!("It failed: {}", words.title.to_lowercase()),
            );
            screen.field("what happened", Style::Bold, &failure.what);
            screen.field("what it means", Style::Bold, words.meaning);
            screen.field("what to do", Style::Bold, &advice(step, failure).join(" "));
        }
        match end.stopped {
            Some(Stop::Interrupted(_) | Stop::Abandoned(_)) => {
                screen.heading(Style::Doubtful, "It was interrupted.");
            }
            Some(Stop::Failed) => {}
            None if self.flags.keep => {
                screen.heading(Style::Good, "Everything went well so far.");
            }
            None => self.say_success(story, end.took),
        }
        if self.flags.keep {
            self.say_kept(screen, &end.left);
        } else if end.stopped.is_some() {
            self.say_left(screen, &end.left);
        }
        screen.say("");
    }

    fn say_success(&self, story: &Story, took: Duration) {
        let screen = &story.screen;
        let count = |outcome: Outcome| {
            let name = outcome.name();
            let same = story
                .entries
                .iter()
                .filter(|entry| entry.outcome.name() == name);
            same.count()
        };
        let heading = format!("A volume lived its whole life in {}.", time(took));
        screen.heading(Style::Good, &heading);
        let (ok, more) = (count(Outcome::Ok), count(Outcome::NotOffered));
        screen.say(&format!(
            "  {ok} steps; {more} more are not offered by this storage; nothing is left."
        ));
        if self.flags.driver_config_file.is_none() {
            let command = "omnibus-csi try --driver-config-file=FILE";
            screen.say("");
            screen.field("your storage", Style::Dim, command);
            screen.field("all there is", Style::Dim, "omnibus-csi --help");
        }
    }

    fn say_left(&self, screen: &Screen, left: &[String]) {
        let style = if left.is_empty() {
            Style::Bold
        } else {
            Style::Bad
        };
        let text = match left {
            [] => "nothing: everything that was made is gone".to_owned(),
            left => format!(
                "{}. The next `try` with this configuration removes it; by hand: its name has {} in \
                 it.",
                left.join(", "),
                self.name
            ),
        };
        screen.field("left behind", style, &text);
    }

    fn say_kept(&self, screen: &Screen, left: &[String]) {
        for left in left {
            screen.field("kept", Style::Doubtful, left);
        }
        screen.field("folder", Style::Bold, self.path.as_str());
        let hint = match self.seclusion {
            Seclusion::None => format!(
                "The volumes are mounted below {}/node. `umount` what `findmnt -R` shows there, then \
                 remove the folder.",
                self.path
            ),
            _ => "Its mounts end with this process; its files stay.".to_owned(),
        };
        screen.field("", Style::Dim, &hint);
    }

    fn report(&self, story: &Story, end: &End) -> Value {
        let failure = story.failure().map(|(step, failure)| {
            json!({
                "step": step.words().name,
                "code": failure.code.map(code_name),
                "message": failure.what,
                "meaning": step.words().meaning,
                "advice": advice(step, failure),
            })
        });
        json!({
            "schema": SCHEMA,
            "version": env!("CARGO_PKG_VERSION"),
            "result": match end.stopped {
                None => "ok",
                Some(Stop::Failed) => "failed",
                Some(Stop::Interrupted(_) | Stop::Abandoned(_)) => "interrupted",
            },
            "name": self.name,
            "driver": self.storage.driver,
            "csiVersion": self.storage.csi_version,
            "folder": self.path.as_str(),
            "seclusion": self.seclusion.name(),
            "notes": self.storage.notes,
            "milliseconds": milliseconds(end.took),
            "steps": Step::ALL.iter().map(|step| report_of(story, *step)).collect::<Vec<_>>(),
            "failure": failure,
            "leftBehind": end.left,
        })
    }
}

fn report_of(story: &Story, step: Step) -> Value {
    let entry = story.entries.iter().find(|entry| entry.step == step);
    let words = step.words();
    json!({
        "step": words.name,
        "title": words.title,
        "rpc": Some(words.rpc).filter(|rpc| !rpc.is_empty()),
        "result": entry.map_or("not-reached", |entry| entry.outcome.name()),
        "milliseconds": entry.and_then(|entry| entry.took()).map(milliseconds),
        "detail": entry.map(|entry| entry.detail()).unwrap_or_default(),
    })
}
