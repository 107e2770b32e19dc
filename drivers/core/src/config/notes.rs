//! Records which keys are known while typed sections are read, and finds names similar to a
//! misspelt one.
//!
//! Several structs may read the same map: a key is unknown only if none of them knows it. A map
//! with free keys (properties, filesystems) makes all of its keys known.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::finding::{Finding, Severity};

/// What has been read so far, by path; the document itself has the path `""`.
#[derive(Debug, Default)]
pub(super) struct Notes {
    fields: BTreeMap<String, BTreeSet<&'static str>>,
    sections: BTreeSet<String>,
    free: BTreeSet<String>,
    idle: BTreeSet<String>,
}

// === impl Notes ===

impl Notes {
    /// A struct with these fields was read at `path`.
    pub(super) fn knows(&mut self, path: &str, fields: &[&'static str]) {
        let known = self.fields.entry(path.to_owned()).or_default();
        known.extend(fields);
    }

    /// A section of this name was asked for.
    pub(super) fn knows_section(&mut self, name: &str) {
        self.sections.insert(name.to_owned());
        self.fields.entry(String::new()).or_default();
    }

    /// A map with free keys was read at `path`.
    pub(super) fn takes_all(&mut self, path: &str) {
        self.free.insert(path.to_owned());
    }

    /// A driver knows the key at `path`, without using it.
    pub(super) fn knows_idle(&mut self, path: &str) {
        self.idle.insert(path.to_owned());
    }

    /// Every unknown key below `root`.
    pub(super) fn unknown(&self, root: &Value) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.walk(root, &mut String::new(), &mut findings);
        findings
    }

    fn walk(&self, value: &Value, path: &mut String, findings: &mut Vec<Finding>) {
        let end = path.len();
        match value {
            Value::Object(map) => {
                let free = self.free.contains(path.as_str());
                let known = self.fields.get(path.as_str());
                if !free && known.is_none() {
                    return;
                }
                for (key, entry) in map {
                    let known_here = free
                        || known.is_some_and(|known| known.contains(key.as_str()))
                        || (end == 0 && self.sections.contains(key));
                    let outer = path.clone();
                    push_key(path, key);
                    if known_here || self.idle.contains(path.as_str()) {
                        self.walk(entry, path, findings);
                    } else {
                        findings.push(Finding {
                            severity: Severity::UnknownKey,
                            path: path.clone(),
                            message: "nothing reads this key".into(),
                            advice: self.advice(&outer, key, map),
                        });
                    }
                    path.truncate(end);
                }
            }
            Value::Array(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    push_index(path, index);
                    self.walk(entry, path, findings);
                    path.truncate(end);
                }
            }
            _ => {}
        }
    }

    fn advice(&self, path: &str, key: &str, map: &Map<String, Value>) -> Option<String> {
        let fields = self.fields.get(path).into_iter().flatten().copied();
        let sections = self.sections.iter().map(String::as_str);
        let here = fields.chain(sections.filter(|_| path.is_empty()));
        // A name that is set already cannot be the intended one.
        let absent = here.filter(|name| !map.contains_key(*name));
        if let Some(name) = nearest(key, absent) {
            return Some(format!("is `{name}` meant?"));
        }
        let elsewhere = self
            .fields
            .iter()
            .find(|(_, known)| known.contains(key))
            .map(|(path, _)| path)?;
        let mut full = elsewhere.clone();
        push_key(&mut full, key);
        Some(format!("is `{full}` meant?"))
    }
}

/// Appends a key to a path; one that is not a plain word stands in brackets.
pub(super) fn push_key(path: &mut String, key: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '<');
    if !key.is_empty() && key.len() <= 64 && key.chars().all(plain) {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    } else {
        let shown: String = key.chars().take(64).collect();
        // Writing to a String cannot fail.
        let _ = write!(path, "[{shown:?}]");
    }
}

/// Appends a position in a list to a path.
pub(super) fn push_index(path: &mut String, index: usize) {
    let _ = write!(path, "[{index}]");
}

/// The candidate closest to `word`, if one is close at all.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = folded(word);
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let name = folded(candidate);
            let allowed = (candidate.len() / 3).clamp(1, 4);
            // The distance of two words is at least the difference of their lengths (in characters,
            // of four bytes at most): most of ten thousand unknown keys need no closer comparison.
            let near = word.len().abs_diff(name.len()) <= 4 * allowed;
            let distance = near.then(|| strsim::osa_distance(&word, &name))?;
            (distance <= allowed).then_some((distance, candidate))
        })
        .min()
        .map(|(_, candidate)| candidate)
}

/// Without case, `_` and `-`: the styles in which one name is written. Long words cost time.
fn folded(word: &str) -> String {
    word.chars()
        .take(128)
        .filter(|c| !matches!(c, '_' | '-'))
        .flat_map(char::to_lowercase)
        .collect()
}
