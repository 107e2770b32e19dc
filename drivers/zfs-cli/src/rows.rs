//! Parses the output of `zfs get -Hp -o name,property,value,source` into objects.
//!
//! Not JSON: only ZFS 2.3 and later has `-j`, and one format for all versions is enough.

use std::collections::{BTreeMap, BTreeSet};

use driver_core::{Error, Kind};

use driver_zfs::name::{DatasetName, Object};
use driver_zfs::observed::{Dataset, Guid, Snapshot, State, VolumeKind};
use driver_zfs::property::{Origin, Properties, PropertyName, Value};

/// The requested columns.
pub(super) const COLUMNS: &str = "name,property,value,source";

/// Objects that are being collected from rows, and rows that could not be parsed.
#[derive(Debug, Default)]
pub(super) struct Rows {
    objects: BTreeMap<Object, Properties>,
    strange: Vec<String>,
}

/// The objects of the rows. A value of a user may look like the end of a row, or like a row of
/// another object; so a row begins with a requested name, and continues until the next one.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    names: BTreeSet<&'a str>,
    below: bool,
}

/// One row.
struct Row<'a> {
    name: &'a str,
    property: &'a str,
    value: &'a str,
    source: &'a str,
}

/// A complete dataset or snapshot.
pub(super) enum Whole {
    Dataset(Dataset),
    Snapshot(Snapshot),
}

fn not_understood(what: &str) -> Error {
    Error::new(Kind::Internal, "read the answer of zfs get")
        .because(format!("{what:?} is not understood"))
}

// === impl Scope ===

impl<'a> Scope<'a> {
    /// Of these names alone.
    pub(super) fn of(names: impl IntoIterator<Item = &'a str>) -> Self {
        let (names, below) = (names.into_iter().collect(), false);
        Self { names, below }
    }

    /// Also of objects below them.
    pub(super) fn with_all_below(mut self) -> Self {
        self.below = true;
        self
    }

    fn begins(&self, line: &str) -> bool {
        let Some((name, _)) = line.split_once('\t') else {
            return false;
        };
        let is_above = |asked: &&str| {
            let rest = name.strip_prefix(asked);
            rest.is_some_and(|rest| rest.starts_with(['/', '@']))
        };
        self.names.contains(name) || (self.below && self.names.iter().any(is_above))
    }
}

// === impl Row ===

impl<'a> Row<'a> {
    /// Parses a row, if it is complete. A value of a user may contain tabs and line ends.
    fn read(text: &'a str) -> Option<Self> {
        let (name, rest) = text.split_once('\t')?;
        let (property, rest) = rest.split_once('\t')?;
        let (value, source) = rest.rsplit_once('\t')?;
        let known = matches!(source, "-" | "local" | "received" | "default" | "temporary");
        (known || source.starts_with("inherited from ")).then_some(Self {
            name,
            property,
            value,
            source,
        })
    }
}

// === impl Rows ===

impl Rows {
    /// Adds the output of one command about the objects of this scope.
    pub(super) fn add(&mut self, text: &str, scope: &Scope<'_>) {
        let text = text.strip_suffix('\n').unwrap_or(text);
        if text.is_empty() {
            return;
        }
        let mut row: Option<String> = None;
        for line in text.split('\n') {
            match &mut row {
                // A value of a user continues.
                Some(row) if !scope.begins(line) => {
                    row.push('\n');
                    row.push_str(line);
                }
                _ => {
                    let whole = row.replace(line.to_owned());
                    self.row(whole, scope);
                }
            }
        }
        self.row(row, scope);
    }

    fn row(&mut self, text: Option<String>, scope: &Scope<'_>) {
        let Some(text) = text else {
            return;
        };
        match Row::read(&text).filter(|_| scope.begins(&text)) {
            Some(row) => self.put(&row),
            None => self.strange.push(text),
        }
    }

    fn put(&mut self, row: &Row<'_>) {
        let Ok(object) = Object::parse(row.name) else {
            self.strange.push(row.name.to_owned());
            return;
        };
        // Not a requested property: the line is in the middle of a value.
        let Ok(property) = PropertyName::parse(row.property) else {
            self.strange.push(row.property.to_owned());
            return;
        };
        let origin = match row.source {
            "local" | "received" => Origin::Own,
            other if other.starts_with("inherited") => Origin::Inherited,
            _ => Origin::Default,
        };
        let text = row.value.to_owned();
        let properties = self.objects.entry(object).or_default();
        properties.insert(property, Value { text, origin });
    }

    /// The complete objects, and the problems of all others.
    pub(super) fn into_objects(self) -> (Vec<Whole>, Vec<Error>) {
        let mut errors: BTreeSet<&str> = self.strange.iter().map(String::as_str).collect();
        errors.remove("");
        let mut strange: Vec<_> = errors.into_iter().map(not_understood).collect();
        let mut objects = Vec::new();
        for (object, properties) in self.objects {
            match whole(object, properties) {
                Ok(object) => objects.push(object),
                Err(error) => strange.push(error),
            }
        }
        (objects, strange)
    }

    /// The objects as a state. A missing object counts as nonexistent, so none may be left out.
    pub(super) fn into_state(self) -> Result<State, Error> {
        let mut state = State::default();
        let (objects, strange) = self.into_objects();
        if let Some(error) = strange.into_iter().next() {
            return Err(error);
        }
        for object in objects {
            match object {
                Whole::Dataset(dataset) => state.add_dataset(dataset),
                Whole::Snapshot(snapshot) => state.add_snapshot(snapshot),
            }
        }
        Ok(state)
    }
}

fn whole(object: Object, properties: Properties) -> Result<Whole, Error> {
    let guid = properties
        .number(&PropertyName::GUID)
        .ok_or_else(|| not_understood(&format!("{object} without guid")))?;
    let guid = Guid(guid);
    Ok(match object {
        Object::Dataset(name) => {
            let word = properties.get(&PropertyName::TYPE).unwrap_or_default();
            let kind = VolumeKind::parse(word).ok_or_else(|| not_understood(word))?;
            Whole::Dataset(Dataset {
                name,
                kind,
                guid,
                properties,
            })
        }
        Object::Snapshot(name) => {
            let clones = properties.get(&PropertyName::CLONES).unwrap_or_default();
            let clones = clones.split(',').filter(|clone| !clone.is_empty());
            // The target of a running `receive` is a clone without a usable name.
            let (mut named, mut hidden) = (Vec::new(), Vec::new());
            for clone in clones {
                match DatasetName::parse(clone) {
                    Ok(clone) => named.push(clone),
                    Err(_) => hidden.push(clone.to_owned()),
                }
            }
            Whole::Snapshot(Snapshot {
                name,
                guid,
                clones: named,
                hidden,
                properties,
            })
        }
    })
}
