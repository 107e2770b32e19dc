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

/// What is logged meanwhile.
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
