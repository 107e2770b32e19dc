//! What is said before and after: to people in words, to machines in one JSON object.
//!
//! The schema is stable: names are only ever added, and a change of meaning changes its number.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Storage;
use crate::client::{Failure, code_name};
use crate::flags::Flags;
use crate::folder::Folder;
use crate::screen::{Style, say, time};
use crate::seclusion::Seclusion;
use crate::step::Step;
use crate::story::{Stop, Story};

/// The name and number of the schema.
const SCHEMA: &str = "omnibus-csi/try/1";

/// The setting that does not change while a storage is tried.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) flags: &'a Flags,
    pub(crate) storage: &'a Storage,
    pub(crate) folder: Folder,
    pub(crate) seclusion: Seclusion,
    pub(crate) began: Instant,
}

/// The report of a trial that was refused.
pub(crate) fn refused(problems: &str) -> Value {
    json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "result": "refused",
        "steps": [],
        "failure": { "message": problems, "advice": [] },
        "leftBehind": [],
    })
}

/// The advice for a failure in this step: what the code says, and where to look.
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
    pub(crate) fn introduce(&self, story: &Story) {
        let screen = &story.screen;
        let driver = &self.storage.driver;
        let storage = match &self.flags.driver_config_file {
            None => format!("{driver}: folders in {}", self.folder.path()),
            Some(path) => format!("{driver}, as {} says", path.display()),
        };
        let touches = "only what it makes itself; all of it is called";
        screen.say("");
        screen.heading(
            Style::Bold,
            "omnibus-csi try: a volume lives its whole life",
        );
        screen.say("");
        screen.field("storage", Style::Dim, &storage);
        screen.field("mounts", Style::Dim, self.seclusion.explained());
        screen.field(
            "touches",
            Style::Dim,
            &format!("{touches} {}", self.folder.name()),
        );
        for note in &self.storage.notes {
            screen.field("odd", Style::Doubtful, note);
        }
    }

    /// Says how it ended and what is left, and returns the exit code.
    pub(crate) fn conclude(
        &self,
        story: &Story,
        stopped: Option<Stop>,
        left: &[String],
    ) -> ExitCode {
        let took = self.began.elapsed();
        if self.flags.json {
            say(&format!("{:#}\n", self.report(story, stopped, left, took)));
        } else {
            self.say_end(story, stopped, took);
            self.say_left(story, stopped, left);
        }
        match stopped {
            None => ExitCode::SUCCESS,
            Some(Stop::Failed) => ExitCode::FAILURE,
            Some(Stop::Interrupted(code) | Stop::Abandoned(code)) => ExitCode::from(code),
        }
    }

    fn say_end(&self, story: &Story, stopped: Option<Stop>, took: Duration) {
        let screen = &story.screen;
        screen.say("");
        if let Some((step, failure)) = story.failure() {
            let words = step.words();
            let title = words.title.to_lowercase();
            screen.heading(Style::Bad, &format!("It failed: {title}"));
            screen.field("what happened", Style::Bold, &failure.what);
            screen.field("what it means", Style::Bold, words.meaning);
            let advice = advice(step, failure).join(" ");
            screen.field("what to do", Style::Bold, &advice);
        }
        let (style, heading) = match stopped {
            Some(Stop::Failed) => return,
            Some(_) => (Style::Doubtful, "It was interrupted.".to_owned()),
            None if self.flags.keep => (Style::Good, "Everything went well so far.".to_owned()),
            None => {
                let took = time(took);
                (
                    Style::Good,
                    format!("A volume lived its whole life in {took}."),
                )
            }
        };
        screen.heading(style, &heading);
    }

    fn say_left(&self, story: &Story, stopped: Option<Stop>, left: &[String]) {
        let screen = &story.screen;
        if self.flags.keep {
            screen.field("kept", Style::Doubtful, &left.join(", "));
            screen.field("folder", Style::Bold, self.folder.path().as_str());
            let hint = match self.seclusion {
                Seclusion::None => "`umount` what `findmnt -R` shows there, then remove it.",
                _ => "Its mounts end with this process; its files stay.",
            };
            screen.field("", Style::Dim, hint);
        } else if !left.is_empty() {
            let next =
                "The next `try` with this configuration tries to remove it; by hand, look for";
            screen.field("left behind", Style::Bad, &left.join(", "));
            screen.field("", Style::Bold, &format!("{next} {}.", self.folder.name()));
        } else if stopped.is_some() {
            let nothing = "nothing: everything that was made is gone";
            screen.field("left behind", Style::Bold, nothing);
        } else {
            let (ok, more) = (story.count("ok"), story.count("not-offered"));
            let count = format!("{ok} steps; {more} more are not offered by this storage");
            screen.say(&format!("  {count}; nothing is left."));
        }
        screen.say("");
    }

    fn report(
        &self,
        story: &Story,
        stopped: Option<Stop>,
        left: &[String],
        took: Duration,
    ) -> Value {
        let failure = story.failure().map(|(step, failure)| {
            json!({
                "step": step.words().name,
                "code": failure.code.map(code_name),
                "message": failure.what,
                "meaning": step.words().meaning,
                "advice": advice(step, failure),
            })
        });
        let steps = Step::ALL.iter().map(|step| report_of(story, *step));
        json!({
            "schema": SCHEMA,
            "version": env!("CARGO_PKG_VERSION"),
            "result": match stopped {
                None => "ok",
                Some(Stop::Failed) => "failed",
                Some(Stop::Interrupted(_) | Stop::Abandoned(_)) => "interrupted",
            },
            "name": self.folder.name(),
            "driver": self.storage.driver,
            "csiVersion": self.storage.csi_version,
            "folder": self.folder.path().as_str(),
            "seclusion": self.seclusion.name(),
            "notes": self.storage.notes,
            "milliseconds": milliseconds(took),
            "steps": steps.collect::<Vec<_>>(),
            "failure": failure,
            "leftBehind": left,
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
        "milliseconds": entry.and_then(|entry| entry.took).map(milliseconds),
        "detail": entry.map_or("", |entry| &entry.detail),
    })
}
