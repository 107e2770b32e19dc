//! A configuration file: YAML within budgets, variables, the common keys and a driver's section.
//!
//! Input: the text. `U+0001` twice marks a piece between that is repeated to 32 KiB, so that time
//! that grows faster than the text shows as a timeout.
#![no_main]

use driver_core::config::{ConfigError, Document};
use driver_directory::{DirectoryConfig, DirectoryKind, Location};
use fuzz::{SECRET, one_line, presentable};
use libfuzzer_sys::{Corpus, fuzz_target};

/// The marker on both sides of a repeated piece.
const FOLD: char = '\u{1}';
const REPEATED: usize = 32 * 1024;
/// The keys whose value a message may show: choices between fixed names, and a template, whose
/// error shows a part of it.
const SHOWN: &[&str] = &[
    "local-hostpath.snapshots.default_driver",
    "_private.csi.volume.idTemplate",
];

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(data) else {
        return Corpus::Reject;
    };
    if text.contains(SECRET) {
        // Where it stands it is none.
        return Corpus::Reject;
    }
    let said = read(&unfolded(text));
    if !text.contains(FOLD) {
        assert_eq!(read(text), said, "the same text, another outcome");
    }
    Corpus::Keep
});

fn unfolded(text: &str) -> String {
    let pieces: Vec<&str> = text.splitn(3, FOLD).collect();
    match pieces[..] {
        [before, piece, after] if !piece.is_empty() => {
            [before, &piece.repeat(REPEATED / piece.len()), after].concat()
        }
        _ => text.to_owned(),
    }
}

fn variable(name: &str) -> Option<String> {
    match name {
        "SECRET" => Some(SECRET.to_owned()),
        "EMPTY" => Some(String::new()),
        "NUMBER" => Some("7".to_owned()),
        "LINES" => Some("a\n- b: \"\u{7}\"\n".to_owned()),
        _ => None,
    }
}

/// An error shows no value, except of some keys.
fn said_of(error: &ConfigError) -> String {
    if error.path().is_some_and(|path| SHOWN.contains(&path)) {
        return one_line(error);
    }
    presentable(error)
}

/// Every message about the document; each must be safe to log.
fn read(text: &str) -> Vec<String> {
    let document = match Document::parse(text, &variable) {
        Ok(document) => document,
        Err(error) => return vec![said_of(&error)],
    };
    let mut said = Vec::new();
    match document.common() {
        Ok(_) => assert!(document.driver().is_ok()),
        Err(error) => said.push(said_of(&error)),
    }
    let section = document.section::<DirectoryConfig>(DirectoryKind::LocalHostpath.section());
    match section.map(|section| section.layout(DirectoryKind::LocalHostpath)) {
        Ok(Ok(layout)) => {
            let Location::Hostpath(share) = &layout.location else {
                panic!("a directory of the node is no share");
            };
            for path in std::iter::once(share).chain(&layout.base) {
                assert!(fuzz::is_plain_path(path.as_str()), "{path:?}");
            }
            assert!(layout.permissions.mode.is_none_or(|mode| mode <= 0o7777));
        }
        Ok(Err(error)) | Err(error) => said.push(said_of(&error)),
    }
    said.extend(document.findings().into_iter().map(presentable));
    said
}
