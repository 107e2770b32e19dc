//! Text in columns: lines of a width, times that are easy to read.

use std::time::Duration;

/// `text` in lines of at most `width` characters, broken at blanks where there are some.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + word.len() > width {
            lines.push(std::mem::take(&mut line));
            length = 0;
        }
        while word.len() > width {
            let rest = word.split_off(width);
            lines.push(word.into_iter().collect());
            word = rest;
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        length += word.len();
        line.extend(word);
    }
    lines.push(line);
    lines
}

/// `text` if it has room, its beginning otherwise.
pub(super) fn shortened(text: &str, room: usize, ellipsis: &str) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let room = room.saturating_sub(ellipsis.chars().count());
    text.chars().take(room).chain(ellipsis.chars()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_never_too_long_and_lose_nothing() {
        let text = "one two three aVeryLongWordWithoutAnyBlank four";
        let lines = wrapped(text, 10);
        assert!(
            lines.iter().all(|line| line.chars().count() <= 10),
            "{lines:?}"
        );
        assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
        assert_eq!(wrapped("", 10), [""]);
        assert_eq!(wrapped("one two", 10), ["one two"]);
    }

    #[test]
    fn what_has_no_room_is_shortened() {
        assert_eq!(shortened("12345", 5, "..."), "12345");
        assert_eq!(shortened("123456", 5, "..."), "12...");
        assert_eq!(shortened("éééééé", 5, "…"), "éééé…");
    }

    #[test]
    fn times_fit_their_column() {
        for (microseconds, text) in [
            (420, "0.42 ms"),
            (12_300, "12 ms"),
            (999_400, "999 ms"),
            (1_240_000, "1.2 s"),
            (63_000_000, "1 min 03"),
        ] {
            assert_eq!(time(Duration::from_micros(microseconds)), text);
        }
    }
}
