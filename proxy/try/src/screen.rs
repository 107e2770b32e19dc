//! What a person sees: one line for each step, first written when it begins, and a word at the end.
//!
//! Only a terminal is rewritten and coloured (`NO_COLOR` is heeded); elsewhere each line is written
//! once. Nothing is wider than 100 columns.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::step::Step;
use crate::story::{Entry, Outcome};

/// The widest line.
const WIDEST: usize = 100;
/// The column of titles.
const TITLE: usize = 36;
/// The column of times.
const TIME: usize = 9;

/// The place where the story is shown.
#[derive(Debug)]
pub(crate) struct Screen {
    silent: bool,
    /// Whether a line can be written again.
    live: bool,
    colour: bool,
}

/// The way something is to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Bold,
    Dim,
    Good,
    Bad,
    Doubtful,
}

// === impl Screen ===

impl Screen {
    /// Looks at what standard output is. `calm`: something else writes to the same terminal.
    pub(crate) fn new(silent: bool, calm: bool) -> Self {
        let dumb = variable("TERM").is_some_and(|term| term == "dumb");
        let terminal = io::stdout().is_terminal() && !dumb;
        Self {
            silent,
            live: terminal && !calm,
            colour: terminal && variable("NO_COLOR").is_none(),
        }
    }

    /// Writes a line.
    pub(crate) fn say(&self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    /// Writes a label and what belongs to it, in as many lines as it needs.
    pub(crate) fn field(&self, label: &str, style: Style, text: &str) {
        const LABEL: usize = 15;
        for (number, line) in wrapped(text, WIDEST - LABEL - 4).iter().enumerate() {
            let label = if number == 0 { label } else { "" };
            let label = self.styled(style, &format!("{label:<LABEL$}"));
            self.say(&format!("  {label}  {line}"));
        }
    }

    /// Writes a line that stands out.
    pub(crate) fn heading(&self, style: Style, text: &str) {
        for line in wrapped(text, WIDEST - 2) {
            self.say(&format!("  {}", self.styled(style, &line)));
        }
    }

    /// Writes the heading that begins with this step, if one does.
    pub(crate) fn chapter(&self, step: Step) {
        if let Some(chapter) = step.chapter() {
            self.say(&format!("\n  {}", self.styled(Style::Bold, chapter)));
        }
    }

    /// A step begins. The next line replaces this one.
    pub(crate) fn begin(&self, step: Step) {
        if self.live {
            self.write(&format!("    ...     {}", step.words().title));
        }
    }

    /// A step has ended, or was left out.
    pub(crate) fn end(&self, entry: &Entry) {
        const ROOM: usize = WIDEST - TITLE - TIME - 16;
        let (word, style) = match &entry.outcome {
            Outcome::Ok => ("ok", Style::Good),
            Outcome::Failed(_) => ("FAILED", Style::Bad),
            Outcome::NotOffered => ("-", Style::Dim),
            Outcome::Kept => ("kept", Style::Doubtful),
        };
        let word = self.styled(style, &format!("{word:<6}"));
        let detail: String = entry.detail.chars().take(ROOM).collect();
        let took = entry.took.map(time).unwrap_or_default();
        let dim = self.styled(Style::Dim, &format!("{detail:<ROOM$}  {took:>TIME$}"));
        let title = entry.step.words().title;
        let again = if self.live { "\r" } else { "" };
        let row = format!("{again}    {word}  {title:<TITLE$}  {dim}");
        self.say(row.trim_end());
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
        if !self.silent {
            say(text);
        }
    }
}

/// `text` in lines of at most `width` characters, broken at blanks where there are some.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut letters = word.chars().peekable();
        while letters.peek().is_some() {
            let part: String = letters.by_ref().take(width).collect();
            let line = lines.last_mut().map_or(0, |line| line.chars().count());
            match lines.last_mut() {
                Some(last) if line == 0 => last.push_str(&part),
                Some(last) if line + 1 + part.chars().count() <= width => {
                    last.push(' ');
                    last.push_str(&part);
                }
                _ => lines.push(part),
            }
        }
    }
    lines
}

/// A duration as people say it, at most 9 characters up to an hour.
pub(crate) fn time(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1e3;
    match duration.as_secs() {
        _ if milliseconds < 10.0 => format!("{milliseconds:.2} ms"),
        0 => format!("{milliseconds:.0} ms"),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        seconds => format!("{} min {:02}", seconds / 60, seconds % 60),
    }
}

/// An environment variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Writes to standard output, at once. An output that is gone is no reason to stop: there may be things
/// to clean up.
pub(crate) fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = error.source().map(|cause| format!(": {}", chain(cause)));
    format!("{error}{}", causes.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_never_too_long_and_lose_nothing() {
        let text = "one two three aVeryLongWordWithoutAnyBlank four";
        let lines = wrapped(text, 10);
        let fit = lines.iter().all(|line| line.chars().count() <= 10);
        assert!(fit, "{lines:?}");
        assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
        assert_eq!(wrapped("", 10), [""]);
        assert_eq!(wrapped("one two three", 10), ["one two", "three"]);
    }

    #[test]
    fn times_and_titles_fit_their_columns() {
        for (microseconds, text) in [
            (420, "0.42 ms"),
            (12_300, "12 ms"),
            (1_240_000, "1.2 s"),
            (63_000_000, "1 min 03"),
        ] {
            assert_eq!(time(Duration::from_micros(microseconds)), text);
        }
        for step in Step::ALL {
            assert!(step.words().title.chars().count() <= TITLE, "{step:?}");
        }
    }
}
