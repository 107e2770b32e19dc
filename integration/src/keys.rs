//! The keys of a configuration struct, read from the struct itself.
//!
//! serde passes the fields of a struct to a deserializer. One that answers with errors, and follows
//! one path at a time, learns all of them, so no list has to be maintained.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde::forward_to_deserialize_any;

/// The placeholder of a free key.
const FREE: &str = "*";
/// A free key that every map accepts.
const SOME: &str = "ext4";

/// The paths of all keys below `T` that have no keys below them, joined by dots.
pub fn known<T: DeserializeOwned>() -> BTreeSet<String> {
    let mut leaves = BTreeSet::new();
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let fields = fields::<T>(&path);
        if fields.is_empty() {
            leaves.insert(path.join("."));
        }
        for field in fields {
            let mut below = path.clone();
            below.push(field);
            waiting.push(below);
        }
    }
    leaves
}

fn fields<T: DeserializeOwned>(path: &[&'static str]) -> Vec<&'static str> {
    let found = RefCell::new(Vec::new());
    let probe = Probe {
        path,
        found: &found,
    };
    // It fails by design at the end of the path.
    let _ = T::deserialize(probe);
    found.into_inner()
}

struct Probe<'a> {
    path: &'a [&'static str],
    found: &'a RefCell<Vec<&'static str>>,
}

/// A map with the one key of the path.
struct One<'a> {
    probe: Option<Probe<'a>>,
}

fn arrived() -> Error {
    Error::custom("arrived")
}

impl Probe<'_> {
    fn enter<'de, V: Visitor<'de>>(
        self,
        fields: &[&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.path.is_empty() {
            self.found.borrow_mut().extend(fields);
            return Err(arrived());
        }
        visitor.visit_map(One { probe: Some(self) })
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(arrived())
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.enter(fields, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.enter(&[FREE], visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(probe) = &self.probe else {
            return Ok(None);
        };
        let key = if probe.path[0] == FREE {
            SOME
        } else {
            probe.path[0]
        };
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let probe = self.probe.take().ok_or_else(arrived)?;
        seed.deserialize(Probe {
            path: &probe.path[1..],
            found: probe.found,
        })
    }
}

impl fmt::Debug for Probe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe at {:?}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::HashMap;

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Outer {
        plain_key: Option<String>,
        #[serde(default)]
        inner: HashMap<String, Inner>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Inner {
        one: bool,
        two: Vec<String>,
    }

    #[test]
    fn every_leaf_is_found_by_its_path() {
        let keys: Vec<_> = known::<Outer>().into_iter().collect();
        assert_eq!(keys, ["inner.*.one", "inner.*.two", "plainKey"]);
    }
}
