//! Rows as they are read from the text of an answer: what is wanted of them is kept, all else is passed over, so
//! that an answer never takes many times the memory of its text.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::api::dataset::{Property, Source};

/// The most bytes that all rows of one NAS may take that are in memory at the same time.
const ROWS: usize = 64 << 20;
/// About what a property of a row takes besides its texts.
const ENTRY: usize = 214;

thread_local! {
    /// The count of the answer that this thread reads.
    static READING: RefCell<Option<Reading>> = const { RefCell::new(None) };
}

/// The bytes that are free for the rows of one NAS. Clones are one.
#[derive(Debug, Clone)]
pub(crate) struct RowBudget(Arc<AtomicUsize>);

/// The part of a budget that the rows of an answer have taken. Each of them holds it: the last one gives it back.
#[derive(Debug, Clone, Default)]
pub struct RowMemory {
    _taken: Option<Arc<Taken>>,
}

#[derive(Debug)]
struct Taken {
    budget: RowBudget,
    bytes: AtomicUsize,
}

#[derive(Debug)]
struct Reading {
    taken: Arc<Taken>,
    /// The bytes that kept rows need so far.
    used: usize,
    is_refused: bool,
}

/// Counts what this thread reads, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(());

// === impl RowBudget ===

impl Default for RowBudget {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(ROWS)))
    }
}

impl RowBudget {
    /// From now on this thread reads one answer.
    pub(crate) fn count(&self) -> Counted {
        let taken = Arc::new(Taken {
            budget: self.clone(),
            bytes: AtomicUsize::new(0),
        });
        READING.set(Some(Reading {
            taken,
            used: 0,
            is_refused: false,
        }));
        Counted(())
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |free: usize| free.checked_sub(bytes);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }
}

// === impl RowMemory ===

/// Rows are equal whatever memory they take.
impl PartialEq for RowMemory {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RowMemory {}

impl RowMemory {
    /// That of the answer that this thread reads.
    pub(crate) fn of_this() -> Self {
        let taken = |reading: &Option<Reading>| reading.as_ref().map(|it| Arc::clone(&it.taken));
        Self {
            _taken: READING.with_borrow(taken),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.budget.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        READING.set(None);
    }
}

impl Reading {
    fn charge(&mut self, bytes: usize) -> bool {
        self.used += bytes;
        let taken = self.taken.bytes.load(Ordering::Relaxed);
        let more = self.used.saturating_sub(taken);
        if !self.taken.budget.take(more) {
            self.is_refused = true;
            return false;
        }
        self.taken.bytes.fetch_add(more, Ordering::Relaxed);
        true
    }
}

/// Whether something of this answer was not read because there is no room for it.
pub(crate) fn is_refused() -> bool {
    READING.with_borrow(|reading| reading.as_ref().is_some_and(|it| it.is_refused))
}

/// The bytes that are counted at this moment.
pub(crate) fn used() -> usize {
    READING.with_borrow(|reading| reading.as_ref().map_or(0, |it| it.used))
}

/// Forgets the bytes that were read since then: those rows are not kept.
pub(crate) fn forget(used: usize) {
    READING.with_borrow_mut(|reading| {
        if let Some(reading) = reading {
            reading.used = used;
        }
    });
}

/// Counts an entry with so many bytes of text.
pub(crate) fn charge<E: serde::de::Error>(text: usize) -> Result<(), E> {
    charge_text(ENTRY + text)
}

/// Counts so many bytes of text.
pub(crate) fn charge_text<E: serde::de::Error>(text: usize) -> Result<(), E> {
    READING.with_borrow_mut(|reading| {
        let has_room = reading.as_mut().is_none_or(|it| it.charge(text));
        let refused = || E::custom("there is no memory for so many rows of one NAS");
        has_room.then_some(()).ok_or_else(refused)
    })
}

/// A text; anything else is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) Option<String>);

/// A number, also one that is written as a text; anything else is 0.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Number(pub(crate) u64);

/// A property of a row: an object with its value. Anything else is none.
#[derive(Debug, Default)]
pub(crate) struct RowProperty(pub(crate) Option<Property>);

/// Properties of users: texts, or objects with a value. Those of which it is said come from above are named.
#[derive(Debug, Default)]
pub(crate) struct UserProperties {
    pub(crate) texts: BTreeMap<String, String>,
    pub(crate) inherited: Vec<String>,
}

/// The tags that hold a snapshot: the keys of an object, or a list. Anything else is none.
#[derive(Debug, Default)]
pub(crate) struct Holds(pub(crate) Option<Vec<String>>);

/// A scalar of any kind, or what an object says it is.
#[derive(Debug, Default)]
struct Scalar {
    text: Option<String>,
    fields: Fields,
}

/// The fields of objects of properties.
#[derive(Debug, Default)]
struct Fields {
    raw: Option<String>,
    rawvalue: Option<String>,
    value: Option<String>,
    source: Option<String>,
    kind: Option<String>,
}

/// Reads a scalar or an object of properties; passes over lists.
struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar::default())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::of(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::of(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
        Ok(Scalar::of(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::of(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Scalar, A::Error> {
        while all.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        let mut fields = Fields::default();
        while let Some(key) = map.next_key::<Text>()? {
            let field = match key.0.as_deref().unwrap_or_default() {
                "raw" => &mut fields.raw,
                "rawvalue" => &mut fields.rawvalue,
                "value" => &mut fields.value,
                "type" => &mut fields.kind,
                "source" => {
                    // A word, or from `zfs.resource` an object with it.
                    let source: Scalar = map.next_value()?;
                    fields.source = source.text.or(source.fields.kind);
                    continue;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = map.next_value::<Scalar>()?.text;
        }
        Ok(Scalar { text: None, fields })
    }
}

impl Scalar {
    fn of(text: String) -> Self {
        Self {
            text: Some(text),
            fields: Fields::default(),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(Some(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Text, A::Error> {
                while all.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text(None))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Scalar::deserialize(deserializer)?.text;
        let number = text.and_then(|text| text.parse().ok());
        Ok(Self(number.unwrap_or_default()))
    }
}

impl<'de> Deserialize<'de> for RowProperty {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Fields {
            raw,
            rawvalue,
            source,
            ..
        } = Scalar::deserialize(deserializer)?.fields;
        let Some(raw) = rawvalue.or(raw) else {
            return Ok(Self(None));
        };
        charge(raw.len())?;
        Ok(Self(Some(Property {
            number: raw.parse().ok().or((raw == "none").then_some(0)),
            source: Source::of(source.as_deref()),
            raw,
        })))
    }
}

impl<'de> Deserialize<'de> for UserProperties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut all = Self::default();
        let read: Option<BTreeMap<String, Charged>> = Option::deserialize(deserializer)?;
        for (name, Charged(value)) in read.unwrap_or_default() {
            charge_text(name.len())?;
            let fields = value.fields;
            if fields.source.as_deref() == Some("INHERITED") {
                all.inherited.push(name.clone());
            }
            // A text from 26 on, a property before.
            if let Some(text) = value.text.or(fields.rawvalue).or(fields.value) {
                all.texts.insert(name, text);
            }
        }
        Ok(all)
    }
}

/// A value that is counted.
#[derive(Debug)]
struct Charged(Scalar);

impl<'de> Deserialize<'de> for Charged {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Scalar::deserialize(deserializer)?;
        let fields = &value.fields;
        let texts = [&value.text, &fields.rawvalue, &fields.value, &fields.raw];
        let bytes = texts.into_iter().flatten().map(String::len).sum();
        charge(bytes)?;
        Ok(Self(value))
    }
}

impl<'de> Deserialize<'de> for Holds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HoldsVisitor;
        impl<'de> Visitor<'de> for HoldsVisitor {
            type Value = Holds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tags")
            }

            fn visit_unit<E>(self) -> Result<Holds, E> {
                Ok(Holds(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Holds, E> {
                Ok(Holds(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Holds, E> {
                Ok(Holds(None))
            }

            fn visit_str<E>(self, _: &str) -> Result<Holds, E> {
                Ok(Holds(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Holds, A::Error> {
                let mut tags = Vec::new();
                while let Some(tag) = all.next_element::<Text>()? {
                    charge(0)?;
                    tags.extend(tag.0);
                }
                Ok(Holds(Some(tags)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Holds, A::Error> {
                let mut tags = Vec::new();
                while let Some((tag, _)) = map.next_entry::<String, IgnoredAny>()? {
                    charge(tag.len())?;
                    tags.push(tag);
                }
                Ok(Holds(Some(tags)))
            }
        }
        deserializer.deserialize_any(HoldsVisitor)
    }
}

/// Reads a map of properties, and leaves out what is none.
pub(crate) fn properties<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Property>, D::Error> {
    struct MapVisitor;
    impl<'de> Visitor<'de> for MapVisitor {
        type Value = BTreeMap<String, Property>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("properties")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some((name, RowProperty(property))) = map.next_entry::<String, _>()? {
                if let Some(property) = property {
                    charge_text(name.len())?;
                    all.insert(name, property);
                }
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(MapVisitor)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::dataset::Dataset;
    use crate::api::snapshot::{FoundSnapshot, Snapshot};

    #[test]
    fn a_row_keeps_what_is_a_property_and_passes_over_the_rest() {
        let row = json!({
            "id": "tank/v", "type": "FILESYSTEM", "mountpoint": "/mnt/tank/v", "locked": false,
            "refquota": {"value": "1G", "rawvalue": "1073741824", "parsed": 1_u64 << 30, "source": "LOCAL"},
            "quota": {"value": null, "rawvalue": "none", "source": "DEFAULT"},
            "children": [{"id": "tank/v/a"}], "encrypted": false, "pool": "tank", "odd": [[{"a": 0}]],
            "user_properties": {"a:b": {"value": "x", "rawvalue": "x", "source": "INHERITED"}, "c:d": "y"},
            "snapshots": [{"id": "tank/v@s", "name": "tank/v@s"}, {"name": null}],
        });
        let read: Dataset = serde_json::from_str(&row.to_string()).expect("a dataset");
        assert_eq!(read.number("refquota"), Some(1 << 30));
        assert_eq!(read.properties["refquota"].source, Source::Own);
        assert_eq!(read.number("quota"), Some(0));
        assert_eq!(read.properties.len(), 2, "{read:?}");
        assert_eq!(read.user_properties["c:d"], "y");
        assert!(read.inherited.contains("a:b") && !read.inherited.contains("c:d"));
        assert_eq!(read.snapshots, ["tank/v@s"]);
        assert_eq!(read.locked, Some(false));
    }

    #[test]
    fn a_snapshot_has_its_number_and_its_holds_however_they_are_written() {
        for (txg, holds, tags) in [
            (json!("7"), json!({"a": 1}), Some(1)),
            (json!(7), json!(["a", "b"]), Some(2)),
            (json!(7), json!(null), None),
        ] {
            let row = json!({
                "name": "t@s", "dataset": "t", "snapshot_name": "s", "createtxg": txg, "holds": holds,
                "properties": {"guid": {"raw": "9", "source": null}, "a:b": {"rawvalue": "c"}},
            });
            let read: Snapshot = serde_json::from_str(&row.to_string()).expect("a snapshot");
            assert_eq!(read.txg, 7);
            assert_eq!(read.holds.map(|tags| tags.len()), tags);
            assert_eq!(read.properties["guid"].number, Some(9));
            assert_eq!(read.user_properties["a:b"], "c");
        }
    }

    #[test]
    fn an_answer_of_more_entries_than_memory_is_refused() {
        let row = r#"{"id":"","type":""},"#;
        let all = format!("[{}{{\"id\":\"\",\"type\":\"\"}}]", row.repeat(600_000));
        let budget = RowBudget::default();
        let read = |text: &str| {
            let _counted = budget.count();
            let read = serde_json::from_str::<Vec<Dataset>>(text);
            assert_eq!(is_refused(), read.is_err());
            read
        };
        assert!(read(&all).is_err());
        let few = format!("[{}{{\"id\":\"\",\"type\":\"\"}}]", row.repeat(200));
        read(&few).expect("few rows");
    }

    #[test]
    fn rows_of_all_answers_of_a_nas_count_for_as_long_as_they_are_kept() {
        let row = r#"{"name":"tank/v@s","dataset":"tank/v","snapshot_name":"s"},"#;
        let all = format!("[{}{}]", row.repeat(40_000), row.trim_end_matches(','));
        let budget = RowBudget::default();
        let snapshots = || {
            let _counted = budget.count();
            serde_json::from_str::<Vec<Snapshot>>(&all)
        };
        let names = || {
            let _counted = budget.count();
            serde_json::from_str::<Vec<FoundSnapshot>>(&all)
        };
        let mut kept = Vec::new();
        while let Ok(rows) = snapshots() {
            kept.push(rows);
            assert!(kept.len() < 20, "they are counted");
        }
        assert!(kept.len() > 2, "{}", kept.len());
        assert!(names().is_err(), "the others have all");
        // A single row of an answer keeps what all of it has taken.
        let one = kept.first_mut().and_then(Vec::pop);
        kept.remove(0);
        assert!(snapshots().is_err());
        drop(one);
        names().expect("there is room again");
        drop(kept);
        assert_eq!(budget.0.load(Ordering::Relaxed), ROWS);
    }
}
