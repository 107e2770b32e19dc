//! What a person sees: one line for each step, the running one alive, and a word at the end.
//!
//! Only a terminal is rewritten and coloured (`NO_COLOR` is heeded); elsewhere each line is written
//! once, in ASCII. Nothing is wider than 100 columns. An output that is gone is no reason to stop:
//! there may be things to clean up.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use super::journal::{Entry, Outcome};
use super::step::Step;
use crate::process;

mod text;

pub(super) use text::time;
use text::{shortened, wrapped};

/// The widest line.
const WIDEST: usize = 100;
/// The column of titles.
const TITLE: usize = 36;
/// The column of times.
const TIME: usize = 9;

/// Where the story is told.
#[derive(Debug)]
pub(super) struct Screen {
    mode: Mode,
    colour: bool,
    width: usize,
    running: Option<(Step, Instant)>,
    frame: usize,
}

/// How the story is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Not at all: the report is for a machine.
    Silent,
    /// Line by line.
    Plain,
    /// On a terminal that knows ASCII.
    Live,
    /// On a terminal that knows more.
    LiveUnicode,
}

/// How something is to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Bold,
    Dim,
    Good,
    Bad,
    Doubtful,
}

// === impl Screen ===

impl Screen {
    /// Looks at what standard output is. `calm`: something else writes to the same terminal.
    pub(super) fn new(silent: bool, calm: bool) -> Self {
        let set = |name: &str| process::variable(name).filter(|value| !value.is_empty());
        let out = io::stdout();
        let terminal = out.is_terminal() && set("TERM").is_none_or(|term| term != "dumb");
        let locale = set("LC_ALL")
            .or_else(|| set("LC_CTYPE"))
            .or_else(|| set("LANG"));
        let locale = locale.unwrap_or_default().to_uppercase();
        let mode = match (silent, terminal && !calm) {
            (true, _) => Mode::Silent,
            (false, false) => Mode::Plain,
            (false, true) if locale.contains("UTF-8") || locale.contains("UTF8") => {
                Mode::LiveUnicode
            }
            (false, true) => Mode::Live,
        };
        let columns = rustix::termios::tcgetwinsize(&out).map_or(0, |size| size.ws_col.into());
        let width = if terminal && columns >= 40 {
            WIDEST.min(columns)
        } else {
            WIDEST
        };
        let colour = terminal && set("NO_COLOR").is_none();
        Self {
            mode,
            colour,
            width,
            running: None,
            frame: 0,
        }
    }

    /// Writes whole lines.
    pub(super) fn say(&self, text: &str) {
        self.write(&format!("{}{text}\n", self.clear()));
    }

    /// Writes a label and what belongs to it, in as many lines as it needs.
    pub(super) fn field(&self, label: &str, style: Style, text: &str) {
        const LABEL: usize = 15;
        let width = self.width.saturating_sub(LABEL + 4).max(20);
        for (number, line) in wrapped(text, width).iter().enumerate() {
            let label = if number == 0 { label } else { "" };
            let label = self.styled(style, &format!("{label:<LABEL$}"));
            self.say(&format!("  {label}  {line}"));
        }
    }

    /// Writes a line that stands out.
    pub(super) fn heading(&self, style: Style, text: &str) {
        for line in wrapped(text, self.width.saturating_sub(2)) {
            self.say(&format!("  {}", self.styled(style, &line)));
        }
    }

    /// A step has begun.
    pub(super) fn begin(&mut self, step: Step) {
        if let Some(chapter) = step.chapter() {
            self.say(&format!("\n  {}", self.styled(Style::Bold, chapter)));
        }
        self.running = Some((step, Instant::now()));
        self.draw();
    }

    /// Time passes.
    pub(super) fn tick(&mut self) {
        self.frame += 1;
        self.draw();
    }

    /// A step has ended, or did not even begin.
    pub(super) fn end(&mut self, entry: &Entry) {
        if let (None, Some(chapter)) = (self.running.take(), entry.step.chapter()) {
            self.say(&format!("\n  {}", self.styled(Style::Bold, chapter)));
        }
        self.say(&self.row(entry));
    }

    fn draw(&self) {
        const UNICODE: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
        const ASCII: [char; 4] = ['|', '/', '-', '\\'];
        let sign = match self.mode {
            Mode::Silent | Mode::Plain => return,
            Mode::Live => ASCII[self.frame % ASCII.len()],
            Mode::LiveUnicode => UNICODE[self.frame % UNICODE.len()],
        };
        let Some((step, since)) = self.running else {
            return;
        };
        let waited = since.elapsed();
        let waited = match waited.as_secs() {
            0 => String::new(),
            _ => time(Duration::from_secs(waited.as_secs())),
        };
        let sign = format!("{sign:<width$}", width = self.word_width());
        let sign = self.styled(Style::Doubtful, &sign);
        // No line break at its end: the next line replaces it.
        self.write(&format!(
            "{}    {sign}  {:<TITLE$}  {waited}",
            self.clear(),
            step.title()
        ));
    }

    fn row(&self, entry: &Entry) -> String {
        let (plain, sign, style) = match &entry.outcome {
            Outcome::Ok => ("ok", "✓", Style::Good),
            Outcome::Failed(_) => ("FAILED", "✗", Style::Bad),
            Outcome::NotOffered => ("-", "–", Style::Dim),
            Outcome::Kept => ("kept", "–", Style::Doubtful),
        };
        let word = if self.mode == Mode::LiveUnicode {
            sign
        } else {
            plain
        };
        let word = format!("{word:<width$}", width = self.word_width());
        let title = format!("{:<TITLE$}", entry.step.title());
        let took = match entry.outcome {
            Outcome::Ok | Outcome::Failed(_) => time(entry.took),
            Outcome::NotOffered | Outcome::Kept => String::new(),
        };
        let room = self
            .width
            .saturating_sub(self.word_width() + TITLE + TIME + 10);
        let detail = format!(
            "{:<room$}",
            shortened(&entry.detail(), room, self.ellipsis())
        );
        let dull = matches!(entry.outcome, Outcome::NotOffered | Outcome::Kept);
        let title = if dull {
            self.styled(Style::Dim, &title)
        } else {
            title
        };
        let row = format!(
            "    {}  {title}  {}  {}",
            self.styled(style, &word),
            self.styled(Style::Dim, &detail),
            self.styled(Style::Dim, &format!("{took:>TIME$}")),
        );
        row.trim_end().to_owned()
    }

    fn word_width(&self) -> usize {
        if self.mode == Mode::LiveUnicode { 1 } else { 6 }
    }

    fn ellipsis(&self) -> &'static str {
        if self.mode == Mode::LiveUnicode {
            "…"
        } else {
            "..."
        }
    }

    /// What makes the running line go away.
    fn clear(&self) -> &'static str {
        match self.mode {
            Mode::Silent | Mode::Plain => "",
            Mode::Live | Mode::LiveUnicode => "\r\u{1b}[K",
        }
    }

    fn styled(&self, style: Style, text: &str) -> String {
        let code = match style {
            _ if !self.colour => return text.to_owned(),
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Good => "32",
            Style::Bad => "1;31",
            Style::Doubtful => "33",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    fn write(&self, text: &str) {
        if self.mode != Mode::Silent {
            process::say(text);
        }
    }
}
