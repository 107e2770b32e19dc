//! Answers of DSM, read straight into what is wanted of them: what a NAS sends beside it takes no memory.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::Code;
use crate::lenient::{self, Entry, Scalar};

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct Answer<T> {
    success: bool,
    #[serde(default = "nothing")]
    data: Option<T>,
    #[serde(default, deserialize_with = "lenient::object")]
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    code: i64,
}

/// Why an answer gives nothing.
#[derive(Debug)]
pub(crate) enum Unread {
    /// DSM refused.
    Refused(Code),
    /// It is not an answer of the web API.
    Foreign,
    /// It is one, and this is wrong with it.
    Odd(&'static str),
}

/// The answer of DSM to a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// The uuid of the LUN or snapshot that was made.
    pub(crate) uuid: Option<String>,
    /// The id of the target that was made.
    pub(crate) target: Option<u64>,
    /// A refusal inside an answer that says success.
    pub(crate) refused: Option<Code>,
}

fn nothing<T>() -> Option<T> {
    None
}

/// Reads an answer.
pub(crate) fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Unread> {
    lenient::begin();
    let (success, data, error) = match serde_json::from_slice::<Answer<T>>(body) {
        Ok(answer) => (answer.success, Some(answer.data), answer.error),
        Err(_) => match serde_json::from_slice::<Answer<IgnoredAny>>(body) {
            Ok(answer) => (answer.success, None, answer.error),
            Err(_) => return Err(Unread::Foreign),
        },
    };
    match (success, data, error) {
        (true, Some(data), _) => Ok(data.unwrap_or_default()),
        (true, None, _) => Err(Unread::Odd("`data` is of another form")),
        (false, _, Some(refusal)) => Err(Unread::Refused(Code(refusal.code))),
        (false, _, None) => Err(Unread::Odd("a refusal without a code")),
    }
}

#[derive(Deserialize)]
struct Made {
    #[serde(default, deserialize_with = "lenient::text")]
    uuid: String,
    #[serde(default, deserialize_with = "lenient::text")]
    dst_lun_uuid: String,
    #[serde(default, deserialize_with = "lenient::text")]
    cloned_lun_uuid: String,
    #[serde(default, deserialize_with = "lenient::text")]
    snapshot_uuid: String,
    #[serde(default, deserialize_with = "lenient::number")]
    target_id: Option<u64>,
}

/// The code of one entry of a list of refusals: `{"<uuid>": code}`, or `{"code": code, ..}`.
struct Inside(Option<Code>);

struct InsideVisitor;

impl<'de> Visitor<'de> for InsideVisitor {
    type Value = Inside;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a refusal of one object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Inside, A::Error> {
        let mut code = None;
        while let Some((_, value)) = map.next_entry::<IgnoredAny, Scalar>()? {
            // Smaller numbers are no codes but times or counts.
            let number = value.number().filter(|number| *number >= 100);
            code = code.or(number);
        }
        // An entry without a code is a refusal, too.
        Ok(Inside(Some(Code(code.unwrap_or(Code::UNKNOWN.0)))))
    }
}

impl<'de> Deserialize<'de> for Inside {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InsideVisitor)
    }
}

struct DoneVisitor;

impl<'de> Visitor<'de> for DoneVisitor {
    type Value = Done;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what was done")
    }

    fn visit_unit<E>(self) -> Result<Done, E> {
        Ok(Done::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Done, E> {
        Ok(Done::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Done, E> {
        Ok(Done::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Done, E> {
        Ok(Done::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Done, E> {
        Ok(Done::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Done, E> {
        Ok(Done::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Done, A::Error> {
        let mut done = Done::default();
        while let Some(Entry(entry)) = seq.next_element::<Entry<Inside>>()? {
            done.refused = done.refused.or(entry.and_then(|Inside(code)| code));
        }
        Ok(done)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Done, A::Error> {
        let made = Made::deserialize(MapAccessDeserializer::new(map))?;
        let uuids = [
            made.uuid,
            made.dst_lun_uuid,
            made.cloned_lun_uuid,
            made.snapshot_uuid,
        ];
        Ok(Done {
            uuid: uuids.into_iter().find(|uuid| !uuid.is_empty()),
            target: made.target_id,
            refused: None,
        })
    }
}

impl<'de> Deserialize<'de> for Done {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DoneVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(json: &str) -> Done {
        read(json.as_bytes()).expect(json)
    }

    #[test]
    fn a_refusal_inside_a_success_is_seen() {
        let refused = done(r#"{"success":true,"data":[{"f699-a":18990540}]}"#).refused;
        assert_eq!(refused, Some(Code(18_990_540)));
        let refused = done(r#"{"success":true,"data":[{"snapshot":"GMT+08","error":{}}]}"#).refused;
        assert_eq!(refused, Some(Code::UNKNOWN));
        for json in [
            r#"{"success":true}"#,
            r#"{"success":true,"data":[]}"#,
            r#"{"success":true,"data":null}"#,
            r#"{"success":true,"data":"GMT+08-2022.01.14-19.18.29"}"#,
        ] {
            assert_eq!(done(json), Done::default(), "{json}");
        }
    }

    #[test]
    fn what_was_made_is_read_under_each_of_its_names() {
        for key in ["uuid", "dst_lun_uuid", "cloned_lun_uuid", "snapshot_uuid"] {
            let json = format!(r#"{{"success":true,"data":{{"{key}":"f6"}}}}"#);
            assert_eq!(done(&json).uuid.as_deref(), Some("f6"));
        }
        let target = done(r#"{"success":true,"data":{"target_id":"7"}}"#).target;
        assert_eq!(target, Some(7));
    }

    #[test]
    fn refusals_and_what_is_no_answer_are_told_apart() {
        for data in ["", r#","data":{}"#, r#","data":[1,2]"#] {
            let json = format!(r#"{{"success":false,"error":{{"code":105}}{data}}}"#);
            let unread = read::<Done>(json.as_bytes());
            assert!(matches!(unread, Err(Unread::Refused(Code(105)))), "{json}");
        }
        let foreign = read::<Done>(b"<html></html>");
        assert!(matches!(foreign, Err(Unread::Foreign)));
        let odd = read::<Done>(br#"{"success":false}"#);
        assert!(matches!(odd, Err(Unread::Odd(_))));
    }
}
