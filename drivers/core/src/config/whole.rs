//! Everything that is wrong in a file, in one answer.
//!
//! A reader stops at the first error. To find the next one the file is read again without what is
//! wrong: a key comes from an example that can be read, and is left out if that does not have it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::document::Document;
use super::error::ConfigError;

/// The number of times that a file is read that cannot be used: each shows one more mistake.
const MOST_TRIES: usize = 128;

/// A file that cannot be used.
#[derive(Debug)]
pub struct Unusable<T> {
    /// Everything that is wrong.
    pub error: ConfigError,
    /// What the file would make without that. With it every section has been read.
    pub rest: Option<Box<T>>,
}

impl Document {
    /// Reads with `read`, which changes nothing. `example` is a file of the same driver that can be
    /// read; it is asked for only if this one cannot.
    pub fn read_whole<T>(
        self: &Arc<Self>,
        example: impl FnOnce() -> Option<Value>,
        read: impl Fn(&Arc<Self>) -> Result<T, ConfigError>,
    ) -> Result<T, Unusable<T>> {
        let first = match read(self) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let mut mended = Mended {
            root: self.root.clone(),
            hidden: Vec::new(),
            example: example().unwrap_or_default(),
            tried: BTreeMap::new(),
        };
        let (mut further, mut rest) = (Vec::new(), None);
        let mut at = first.path().map(str::to_owned);
        for _ in 0..MOST_TRIES {
            if !at.is_some_and(|at| mended.mend(&at)) {
                break;
            }
            let document = self.with_root(mended.root.clone(), mended.hidden.clone());
            match read(&Arc::new(document)) {
                Ok(value) => {
                    rest = Some(Box::new(value));
                    break;
                }
                Err(error) => {
                    at = error.path().map(str::to_owned);
                    if !at.as_deref().is_some_and(|at| mended.knows(at)) {
                        further.push(error);
                    }
                }
            }
        }
        let error = first.with_further(further);
        Err(Unusable { error, rest })
    }
}

/// A file without what is known to be wrong.
struct Mended {
    root: Value,
    /// Entries of lists that count as absent.
    hidden: Vec<String>,
    example: Value,
    /// What was done about each key that is wrong, or whose section could not be read without it.
    tried: BTreeMap<String, Tried>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// It was taken from the example.
    Example,
    /// It was left out.
    Absent,
}

// === impl Mended ===

impl Mended {
    /// Whether an error about this key says nothing new.
    fn knows(&self, at: &str) -> bool {
        self.tried.keys().any(|key| is_within(at, key))
    }

    /// Does the next thing that may help about a key: with it, or with what holds it.
    fn mend(&mut self, at: &str) -> bool {
        let mut next = Some(at);
        while let Some(path) = next {
            let tried = self.tried.get(path).copied();
            if tried.is_none() {
                self.tried.insert(path.to_owned(), Tried::Example);
                if self.take_example(path).is_some() {
                    return true;
                }
            }
            if tried != Some(Tried::Absent) {
                self.tried.insert(path.to_owned(), Tried::Absent);
                self.leave_out(path);
                return true;
            }
            next = path.rfind(['.', '[']).map(|end| &path[..end]);
        }
        false
    }

    /// Takes a key from the example; with a choice comes what belongs to it, as `shareStrategyLio` to
    /// `shareStrategy`. `None`: the example has none of them.
    fn take_example(&mut self, path: &str) -> Option<()> {
        let pointer = pointer(path);
        let (outer, key) = pointer.rsplit_once('/')?;
        let taken: Vec<_> = match self.example.pointer(outer)? {
            Value::Object(map) => {
                let fitting = map.iter().filter(|(name, _)| name.starts_with(key));
                fitting.map(|(name, value)| (&**name, value)).collect()
            }
            Value::Array(list) => vec![(key, list.get(key.parse::<usize>().ok()?)?)],
            _ => return None,
        };
        if taken.is_empty() {
            return None;
        }
        let mut steps = outer.split('/').skip(1);
        let to = steps.try_fold(&mut self.root, |to, step| below(to, step))?;
        for (name, value) in taken {
            let place = below(to, name)?;
            if name == key || place.is_null() {
                *place = value.clone();
            }
        }
        self.hidden.retain(|hidden| !is_within(hidden, path));
        Some(())
    }

    fn leave_out(&mut self, path: &str) {
        let pointer = pointer(path);
        let (outer, key) = pointer.rsplit_once('/').unwrap_or_default();
        match self.root.pointer_mut(outer) {
            Some(Value::Object(map)) => drop(map.remove(key)),
            _ => self.hidden.push(path.to_owned()),
        }
    }
}

/// The way of a path through values.
fn pointer(path: &str) -> String {
    let steps = path.replace('[', ".").replace(']', "").replace('.', "/");
    format!("/{steps}")
}

/// What stands below a value, or will.
fn below<'v>(value: &'v mut Value, step: &str) -> Option<&'v mut Value> {
    if let Value::Array(list) = value {
        return list.get_mut(step.parse::<usize>().ok()?);
    }
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let map = value.as_object_mut()?;
    Some(map.entry(step).or_insert(Value::Null))
}

/// Whether a key is this one, or below it.
fn is_within(key: &str, outer: &str) -> bool {
    let rest = key.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
