//! Typed values from a document: lenient about scalars, exact about paths, silent about values.
//!
//! A number or a boolean is accepted where text is expected, and text where a number or a boolean
//! is expected, because configurations are written by templates. An absent key and one that is null
//! are the same. serde's own messages show the offending value; these never do. Fields must not use
//! `#[serde(flatten)]` or untagged enums: both hide the known keys from serde.

mod failure;

use std::fmt;
use std::sync::{LazyLock, Mutex};

use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess};
use serde::de::{Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Number, Value};

use self::failure::ReadError;
use super::notes::{Notes, push_index, push_key};

/// The place where a value stands in the document.
#[derive(Debug, Clone, Copy)]
pub(super) enum Path<'p> {
    Root,
    Key(&'p Self, &'p str),
    Index(&'p Self, usize),
}

/// A value to read.
pub(super) struct Reader<'p, 'de> {
    pub(super) value: &'de Value,
    pub(super) path: Path<'p>,
    pub(super) notes: &'p Mutex<Notes>,
    /// Keys that count as absent.
    pub(super) hidden: &'p [String],
}

// === impl Path ===

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn write(path: &Path<'_>, text: &mut String) {
            match path {
                Path::Root => {}
                Path::Key(outer, key) => {
                    write(outer, text);
                    push_key(text, key);
                }
                Path::Index(outer, index) => {
                    write(outer, text);
                    push_index(text, *index);
                }
            }
        }
        let mut text = String::new();
        write(self, &mut text);
        f.write_str(&text)
    }
}

// === impl Reader ===

impl<'de> Reader<'_, 'de> {
    fn unexpected(&self) -> Unexpected<'static> {
        match self.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(number) if number.is_f64() => Unexpected::Float(0.0),
            Value::Number(_) => Unexpected::Unsigned(0),
            Value::String(_) => Unexpected::Str(""),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        }
    }

    fn refuse<T>(&self, expected: &dyn de::Expected) -> Result<T, ReadError> {
        Err(de::Error::invalid_type(self.unexpected(), expected))
    }

    fn note(&self, note: impl FnOnce(&mut Notes, &str)) {
        let path = self.path.to_string();
        let mut notes = self
            .notes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        note(&mut notes, &path);
    }

    fn hides(&self, path: &Path<'_>) -> bool {
        // Empty in most cases; a path costs memory.
        !self.hidden.is_empty() && self.hidden.contains(&path.to_string())
    }

    /// The number, written as a number or as text.
    fn number(&self) -> Option<Number> {
        match self.value {
            Value::Number(number) => Some(whole(number)),
            Value::String(text) => {
                let text = text.trim();
                let signed = || text.parse::<i64>().ok().map(Number::from);
                let unsigned = text.parse::<u64>().ok().map(Number::from);
                let float = || text.parse::<f64>().ok().and_then(Number::from_f64);
                unsigned
                    .or_else(signed)
                    .or_else(float)
                    .map(|number| whole(&number))
            }
            _ => None,
        }
    }

    fn read_number<V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, ReadError> {
        match self.number() {
            Some(number) => visit_number(&number, visitor),
            None => self.refuse(&visitor),
        }
    }

    fn read_text<V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Number(number) => visitor.visit_string(whole(number).to_string()),
            Value::Bool(value) => visitor.visit_str(if *value { "true" } else { "false" }),
            _ => self.refuse(&visitor),
        }
    }

    fn read_bool<V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, ReadError> {
        let text = self.value.as_str().map(str::trim);
        match (self.value.as_bool(), text) {
            (Some(value), _) => visitor.visit_bool(value),
            (_, Some("true")) => visitor.visit_bool(true),
            (_, Some("false")) => visitor.visit_bool(false),
            _ => self.refuse(&visitor),
        }
    }

    fn read_seq<V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, ReadError> {
        let entries = match self.value {
            Value::Array(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => return self.refuse(&visitor),
        };
        visitor.visit_seq(Entries {
            rest: entries.iter().enumerate(),
            reader: self,
        })
    }

    /// `fields` are the known keys; without them every key is.
    fn read_map<V: Visitor<'de>>(
        &self,
        fields: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let map = match self.value {
            Value::Object(map) => map,
            Value::Null => &EMPTY,
            _ => return self.refuse(&visitor),
        };
        match fields {
            Some(fields) => self.note(|notes, path| notes.knows(path, fields)),
            None => self.note(Notes::takes_all),
        }
        let pairs = Pairs {
            rest: map.iter(),
            fields,
            value: None,
            reader: self,
        };
        let known = fields.unwrap_or_default();
        visitor
            .visit_map(pairs)
            .map_err(|error| error.looking_in(map, known))
    }
}

/// `5` for `5.0`, as JSON and JavaScript see it.
fn whole(number: &Number) -> Number {
    let exact = |value: f64| value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0;
    match number.as_f64() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "whole and within the range of i64: checked"
        )]
        Some(value) if number.is_f64() && exact(value) => Number::from(value as i64),
        _ => number.clone(),
    }
}

fn visit_number<'de, V: Visitor<'de>>(number: &Number, visitor: V) -> Result<V::Value, ReadError> {
    match (number.as_u64(), number.as_i64(), number.as_f64()) {
        (Some(value), _, _) => visitor.visit_u64(value),
        (_, Some(value), _) => visitor.visit_i64(value),
        (_, _, Some(value)) => visitor.visit_f64(value),
        _ => Err(ReadError::new("a number that cannot be used".into())),
    }
}

macro_rules! read {
    ($($method:ident => $read:ident,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            self.$read(visitor).map_err(|error| error.within(&self.path))
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'_, 'de> {
    type Error = ReadError;

    read! {
        deserialize_bool => read_bool,
        deserialize_i8 => read_number,
        deserialize_i16 => read_number,
        deserialize_i32 => read_number,
        deserialize_i64 => read_number,
        deserialize_u8 => read_number,
        deserialize_u16 => read_number,
        deserialize_u32 => read_number,
        deserialize_u64 => read_number,
        deserialize_f32 => read_number,
        deserialize_f64 => read_number,
        deserialize_char => read_text,
        deserialize_str => read_text,
        deserialize_string => read_text,
        deserialize_identifier => read_text,
        deserialize_seq => read_seq,
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => visit_number(&whole(number), visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(_) => self.read_seq(visitor),
            Value::Object(_) => self.read_map(None, visitor),
        }
        .map_err(|error| error.within(&self.path))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let path = self.path;
        visitor
            .visit_newtype_struct(self)
            .map_err(|error| error.within(&path))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.read_map(None, visitor)
            .map_err(|error| error.within(&self.path))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.read_map(Some(fields), visitor)
            .map_err(|error| error.within(&self.path))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let name = match self.value {
            Value::String(text) => text.clone(),
            Value::Number(number) => whole(number).to_string(),
            Value::Bool(value) => value.to_string(),
            _ => {
                return self
                    .refuse(&"a name")
                    .map_err(|error: ReadError| error.within(&self.path));
            }
        };
        visitor
            .visit_enum(name.into_deserializer())
            .map_err(|error: ReadError| error.within(&self.path))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i128 u128 bytes byte_buf unit unit_struct tuple_struct
    }
}

/// The entries of a list.
struct Entries<'r, 'p, 'de> {
    rest: std::iter::Enumerate<std::slice::Iter<'de, Value>>,
    reader: &'r Reader<'p, 'de>,
}

impl<'de> SeqAccess<'de> for Entries<'_, '_, 'de> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        let reader = self.reader;
        let shown = |index| !reader.hides(&Path::Index(&reader.path, index));
        let Some((index, value)) = self.rest.find(|(index, _)| shown(*index)) else {
            return Ok(None);
        };
        let path = Path::Index(&self.reader.path, index);
        let reader = Reader {
            value,
            path,
            notes: self.reader.notes,
            hidden: self.reader.hidden,
        };
        seed.deserialize(reader)
            .map(Some)
            .map_err(|error| error.within(&path))
    }
}

/// The keys of a map that count, with their values.
struct Pairs<'r, 'p, 'de> {
    rest: serde_json::map::Iter<'de>,
    fields: Option<&'static [&'static str]>,
    value: Option<(&'de str, &'de Value)>,
    reader: &'r Reader<'p, 'de>,
}

impl<'de> MapAccess<'de> for Pairs<'_, '_, 'de> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        let fields = self.fields;
        let counts = |key: &str, value: &Value| {
            fields.is_none_or(|fields| fields.contains(&key) && !value.is_null())
        };
        let reader = self.reader;
        let Some((key, value)) = self.rest.find(|(key, value)| {
            counts(key, value) && !reader.hides(&Path::Key(&reader.path, key))
        }) else {
            return Ok(None);
        };
        self.value = Some((key, value));
        seed.deserialize(de::value::BorrowedStrDeserializer::new(key))
            .map(Some)
            .map_err(|error: ReadError| error.within(&Path::Key(&self.reader.path, key)))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let (key, value) = self
            .value
            .take()
            .ok_or_else(|| ReadError::new("a value was read without its key".into()))?;
        let path = Path::Key(&self.reader.path, key);
        let reader = Reader {
            value,
            path,
            notes: self.reader.notes,
            hidden: self.reader.hidden,
        };
        seed.deserialize(reader)
            .map_err(|error| error.within(&path))
    }
}
