use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tracing::{debug, error, info, info_span, trace, warn};

use super::*;

#[derive(Debug, Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that are logged during `work`.
fn logged(style: Style, verbosity: Verbosity, work: impl FnOnce(&LogControl)) -> String {
    let page = Page::default();
    let control = LogControl::new(verbosity);
    let to = page.clone();
    let log = Log {
        control: control.clone(),
        style,
        writer: move || to.clone(),
    };
    tracing::subscriber::with_default(Registry::default().with(log), || work(&control));
    let bytes = page.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

fn one_of_each() {
    error!("an error");
    warn!("a warning");
    info!("news");
    debug!("a question");
    trace!("a detail");
    tracing::warn!(target: "h2::server", "their warning");
    tracing::info!(target: "h2::server", "their news");
    tracing::debug!(target: "h2::server", "their detail");
    tracing::trace!(target: "h2::server", "their noise");
}

#[test]
fn each_level_says_more_than_the_one_before() {
    let lines = |verbosity| {
        logged(Style::Plain, verbosity, |_| one_of_each())
            .lines()
            .count()
    };
    let counts: Vec<_> = Verbosity::ALL.into_iter().map(lines).collect();
    assert_eq!(counts, [1, 3, 4, 5, 7, 8]);
}

#[test]
fn the_level_changes_while_the_log_is_in_use() {
    let text = logged(Style::Plain, Verbosity::Error, |control| {
        info!("too early");
        assert_eq!(control.raise(), Verbosity::Warn);
        assert_eq!(control.raise(), Verbosity::Info);
        info!("heard");
        assert_eq!(control.lower(), Verbosity::Warn);
        info!("too late");
        control.set(Verbosity::Silly);
        assert_eq!(control.raise(), Verbosity::Silly);
        control.set(Verbosity::Error);
        assert_eq!(control.lower(), Verbosity::Error);
    });
    assert!(text.contains("heard"), "{text}");
    assert!(!text.contains("too "), "{text}");
}

#[test]
fn a_json_line_is_one_object_with_the_fields_of_its_spans() {
    let text = logged(Style::Json, Verbosity::Info, |_| {
        let span = info_span!("rpc", rpc = "CreateVolume", volume = tracing::field::Empty);
        let _inside = span.enter();
        span.record("volume", "v1");
        info!(elapsed_ms = 7, "answered \"fine\"");
    });
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["rpc"], "CreateVolume");
    assert_eq!(line["volume"], "v1");
    assert_eq!(line["elapsed_ms"], 7);
    assert_eq!(line["message"], "answered \"fine\"");
    assert_eq!(line["level"], "info");
    assert!(line["time"].as_str().unwrap().ends_with('Z'));
    assert_eq!(text.matches('\n').count(), 1);
}

#[test]
fn a_field_that_is_not_on_the_list_is_never_written() {
    for style in [Style::Json, Style::Plain, Style::Coloured] {
        let text = logged(style, Verbosity::Silly, |_| {
            let span = info_span!("call", password = "canary", rpc = "Probe");
            let _inside = span.enter();
            error!(secrets = ?["canary"], token = 6_174_617_461_u64, error = "no luck", "refused");
            tracing::debug!(target: "h2::codec", frame = "canary", "received");
        });
        // A number longer than any part of a time of day, which the line has as well.
        let leaked = text.contains("canary") || text.contains("6174617461");
        assert!(!leaked, "{text}");
        assert!(text.contains("no luck") && text.contains("Probe"), "{text}");
    }
}

#[test]
fn a_line_of_ours_that_lost_a_field_says_which() {
    let text = logged(Style::Json, Verbosity::Silly, |_| {
        info!(secrets = "canary", volume = "v1", "news");
        tracing::debug!(target: "h2::codec", frame = "canary", "received");
    });
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["unlisted"], serde_json::json!(["secrets"]));
    assert_eq!(lines[1].get("unlisted"), None);
}

#[test]
fn every_field_of_our_own_lines_is_on_the_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = Vec::new();
    for part in ["proxy/src", "drivers", "node-utils"] {
        sources_below(&root.join(part), &mut sources);
    }
    let mut known = 0;
    for (path, text) in sources {
        for name in fields_of(&text) {
            let is_listed = fields::ALLOWED.contains(&name.as_str());
            assert!(is_listed, "{}: `{name}` is dropped", path.display());
            known += 1;
        }
    }
    assert!(known > 50, "{known} fields were found");
}

/// The files that are part of the program, without its tests.
fn sources_below(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if path.is_dir() && !["tests", "testing", "target"].contains(&name) {
            sources_below(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).expect("a source");
            let part = text.split("\nmod tests {").next().unwrap_or_default();
            into.push((path.clone(), part.to_owned()));
        }
    }
}

/// The names of the fields that the macros of a source are given before the text of the line.
fn fields_of(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for name in ["error", "warn", "info", "debug", "trace"] {
        for opening in [format!("{name}!("), format!("{name}_span!(")] {
            for call in source.split(&opening).skip(1) {
                names.extend(words_of(call).filter_map(|word| field(&word)));
            }
        }
    }
    names
}

/// The words between the commas of a call, up to its end or its first text.
fn words_of(call: &str) -> impl Iterator<Item = String> {
    let (mut words, mut word, mut depth) = (Vec::new(), String::new(), 0_i32);
    for character in call.chars() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '"' if depth == 0 => break,
            ',' if depth == 0 => {
                words.push(std::mem::take(&mut word));
                continue;
            }
            _ => {}
        }
        if depth < 0 {
            words.push(std::mem::take(&mut word));
            break;
        }
        word.push(character);
    }
    words.into_iter()
}

/// `name = value`, `%name` or `?name`; not what tells where a line is from.
fn field(word: &str) -> Option<String> {
    let (name, _) = word.split_once('=').unwrap_or((word, ""));
    let name = name.trim().trim_start_matches(['%', '?']);
    let is_field = !name.is_empty() && !name.contains(':');
    is_field.then(|| name.to_owned())
}

#[test]
fn the_names_that_every_line_has_are_not_on_the_list() {
    for reserved in ["time", "level", "from", "message", "unlisted"] {
        assert!(!fields::ALLOWED.contains(&reserved));
    }
}

#[test]
fn control_characters_cannot_forge_a_line_or_a_colour() {
    let hostile = "v1\n2026 error forged\r\x1b[31m\u{7}\u{202e}\u{9b}";
    for style in [Style::Json, Style::Plain, Style::Coloured] {
        let text = logged(style, Verbosity::Info, |_| {
            info!(volume = hostile, "about {hostile}");
        });
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(
            !text.contains(['\r', '\u{7}', '\u{202e}', '\u{9b}']),
            "{text:?}"
        );
        assert!(!text.contains("\x1b[31m"), "{text:?}");
        assert!(text.contains("v1"));
    }
}

#[test]
fn a_value_without_end_is_cut() {
    let text = logged(Style::Plain, Verbosity::Info, |_| {
        info!("{}", "x".repeat(1 << 20));
    });
    assert!(text.len() < 5000 && text.contains('…'));
}
