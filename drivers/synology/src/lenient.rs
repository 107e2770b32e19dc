//! Values as a NAS really writes them: a number as text or as a float, `null` for an empty list, and objects
//! of other packages in every list. Nothing here fails but on broken JSON, and what is not wanted is never kept.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The most objects in all lists of one answer: more than any NAS has.
const MOST: usize = 20_000;

thread_local! {
    /// Those of the answer that this thread reads.
    static OBJECTS: Cell<usize> = const { Cell::new(0) };
}

/// A value without parts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scalar {
    /// `null`, a list or a map.
    Nothing,
    Flag(bool),
    Number(i64),
    Text(String),
}

/// A map as `T`; anything else is none.
#[derive(Debug, Clone)]
pub(crate) struct Entry<T>(pub(crate) Option<T>);

/// A list; anything else is an empty one.
#[derive(Debug, Clone)]
struct List<T>(Vec<T>);

struct Any<T>(PhantomData<T>);

/// From now on this thread reads another answer.
pub(crate) fn begin() {
    OBJECTS.set(0);
}

// === impl Scalar ===

impl Scalar {
    pub(crate) fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(number) => Some(number.to_string()),
            Self::Nothing | Self::Flag(_) => None,
        }
    }

    pub(crate) fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            Self::Nothing | Self::Flag(_) => None,
        }
    }

    fn flag(&self) -> bool {
        match self {
            Self::Flag(flag) => *flag,
            Self::Number(number) => *number != 0,
            Self::Text(text) => matches!(text.as_str(), "true" | "yes" | "1"),
            Self::Nothing => false,
        }
    }
}

impl<'de> Visitor<'de> for Any<Scalar> {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Flag(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(i64::try_from(value).map_or(Scalar::Nothing, Scalar::Number))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "only numbers that a float holds exactly are taken"
    )]
    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        let exact = value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0;
        Ok(if exact {
            Scalar::Number(value as i64)
        } else {
            Scalar::Nothing
        })
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Scalar, A::Error> {
        drain(seq).map(|()| Scalar::Nothing)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Scalar, A::Error> {
        let _: IgnoredAny = IgnoredAny::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Scalar::Nothing)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any::<Self>(PhantomData))
    }
}

fn drain<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<(), A::Error> {
    while seq.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

/// The types that are read over.
macro_rules! read_over {
    ($value:expr) => {
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Any<Entry<T>> {
    type Value = Entry<T>;

    read_over!(Entry(None));

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Entry<T>, A::Error> {
        drain(seq).map(|()| Entry(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry<T>, A::Error> {
        let value = T::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Entry(Some(value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entry<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any::<Self>(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Any<List<T>> {
    type Value = List<T>;

    read_over!(List(Vec::new()));

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(Entry(entry)) = seq.next_element()? {
            let Some(entry) = entry else { continue };
            let objects = OBJECTS.get() + 1;
            if objects > MOST {
                return Err(A::Error::custom("it has too many objects"));
            }
            OBJECTS.set(objects);
            all.push(entry);
        }
        Ok(List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<List<T>, A::Error> {
        let _: IgnoredAny = IgnoredAny::deserialize(MapAccessDeserializer::new(map))?;
        Ok(List(Vec::new()))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any::<Self>(PhantomData))
    }
}

/// Whether a value has anything in it.
struct Filled(bool);

impl<'de> Visitor<'de> for Any<Filled> {
    type Value = Filled;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Filled, E> {
        Ok(Filled(false))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Filled, E> {
        Ok(Filled(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Filled, E> {
        Ok(Filled(value != 0))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Filled, E> {
        Ok(Filled(value != 0))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Filled, E> {
        Ok(Filled(true))
    }

    fn visit_str<E>(self, value: &str) -> Result<Filled, E> {
        Ok(Filled(!value.is_empty()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Filled, A::Error> {
        let first = seq.next_element::<IgnoredAny>()?.is_some();
        drain(seq).map(|()| Filled(first))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Filled, A::Error> {
        let mut filled = false;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            filled = true;
        }
        Ok(Filled(filled))
    }
}

impl<'de> Deserialize<'de> for Filled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any::<Self>(PhantomData))
    }
}

/// A text, empty if there is none.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let value = Scalar::deserialize(deserializer)?;
    Ok(value.text().unwrap_or_default())
}

/// A whole number of 0 or more.
pub(crate) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let value = Scalar::deserialize(deserializer)?;
    Ok(value.number().and_then(|number| number.try_into().ok()))
}

/// Whether it is set.
pub(crate) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let value = Scalar::deserialize(deserializer)?;
    Ok(value.flag())
}

/// Whether it is said not to be set: anything but a no is none.
pub(crate) fn refused<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(match Scalar::deserialize(deserializer)? {
        Scalar::Flag(flag) => !flag,
        Scalar::Number(number) => number == 0,
        Scalar::Text(text) => matches!(text.as_str(), "false" | "no" | "0"),
        Scalar::Nothing => false,
    })
}

/// Whether a list or a text has anything in it.
pub(crate) fn filled<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let Filled(filled) = Filled::deserialize(deserializer)?;
    Ok(filled)
}

/// A list without what is no object. A key that is there and holds `null` is an empty list.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let List(all) = List::deserialize(deserializer)?;
    Ok(Some(all))
}

/// An object; `None` if it is something else.
pub(crate) fn object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let Entry(entry) = Entry::deserialize(deserializer)?;
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{Unread, read};

    #[derive(Debug, Default, Deserialize)]
    struct Odd {
        #[serde(default, deserialize_with = "text")]
        name: String,
        #[serde(default, deserialize_with = "number")]
        size: Option<u64>,
        #[serde(default, deserialize_with = "flag")]
        locked: bool,
        #[serde(default, deserialize_with = "list")]
        parts: Option<Vec<Self>>,
    }

    #[test]
    fn values_of_any_type_are_read_or_left_out() {
        for (json, name, size, locked, parts) in [
            ("{}", "", None, false, None),
            (
                r#"{"name":null,"size":"7","locked":1,"parts":null}"#,
                "",
                Some(7),
                true,
                Some(0),
            ),
            (
                r#"{"name":5,"size":36146658672640.0,"locked":null}"#,
                "5",
                Some(36_146_658_672_640),
                false,
                None,
            ),
            (
                r#"{"name":[{"a":1}],"size":-1,"parts":{"a":[]}}"#,
                "",
                None,
                false,
                Some(0),
            ),
            (
                r#"{"name":"a","size":1.5,"parts":[null,5,"x",[1],{"name":"b"}]}"#,
                "a",
                None,
                false,
                Some(1),
            ),
        ] {
            let read: Odd = serde_json::from_str(json).expect(json);
            let count = read.parts.map(|parts| parts.len());
            assert_eq!(
                (&*read.name, read.size, read.locked, count),
                (name, size, locked, parts),
                "{json}"
            );
        }
    }

    #[test]
    fn objects_of_nested_lists_are_counted_for_the_whole_answer() {
        let list = format!(r#"{{"parts":[{}{{}}]}},"#, "{},".repeat(1_000));
        let answer = |lists: usize| {
            let lists = list.repeat(lists);
            format!(r#"{{"success":true,"data":{{"parts":[{lists}{{}}]}}}}"#)
        };
        // Just below the longest answer that is read: millions of objects.
        let flood = answer(2_780);
        assert!((8_000_000..8 << 20).contains(&flood.len()));
        let refused = read::<Odd>(flood.as_bytes());
        assert!(matches!(refused, Err(Unread::Odd(_))), "{refused:?}");
        // Each answer has a count of its own.
        for _ in 0..3 {
            let read: Odd = read(answer(15).as_bytes()).expect("as many as a NAS has");
            assert_eq!(read.parts.map(|parts| parts.len()), Some(16));
        }
    }
}
