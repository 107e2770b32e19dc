//! Parses YAML text to a value, within budgets. The only module that uses the YAML library.
//!
//! Rejects more than [`MAX_BYTES`], nesting beyond [`MAX_DEPTH`], aliases that expand beyond the
//! budget, duplicate keys, tags, and numbers that cannot be represented exactly. Merge keys (`<<`)
//! are applied. Scalars follow YAML 1.2: `on` and `yes` are text, and so is `0777`.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::error::ConfigError;
use super::{MAX_BYTES, MAX_DEPTH};

/// The most scalars, lists and maps after aliases are unfolded.
const MAX_NODES: usize = 20_000;
/// The most bytes of keys and scalars after aliases are unfolded.
const MAX_UNFOLDED: usize = 4 * MAX_BYTES;
/// The most `[` and `{`. The time to parse nested ones grows with the square of their number.
const MAX_BRACKETS: usize = 1_000;
/// Every token contains one of these: line ends and the characters with a meaning in YAML.
const MARKS: &[u8] = b"\n\r-?:,[]{}#&*!|>'\"%";
/// The most of them. The library reads the whole text before the visitor can reject anything.
const MAX_MARKS: usize = 80_000;
/// The most marks times brackets: within open brackets, each token costs time for each of them.
const MAX_WORK: usize = 5_000_000;
/// The longest message of the library that is passed on, in characters.
const MAX_MESSAGE: usize = 512;
/// The key whose value is merged into the map it stands in.
const MERGE: &str = "<<";

/// Parses one document. Empty text is an empty map.
pub(super) fn parse(text: &str) -> Result<Value, ConfigError> {
    // Some editors put a byte order mark before it.
    let text = text.trim_start_matches('\u{feff}');
    if text.len() > MAX_BYTES {
        return Err(ConfigError::new(format!(
            "the document is {} bytes long, the limit is {MAX_BYTES}",
            text.len()
        )));
    }
    check_marks(text)?;
    // `- - - -` nests without brackets, and is parsed whole before the visitor sees its depth.
    let dashes = |line: &str| {
        let words = line.split_ascii_whitespace();
        words.take_while(|word| matches!(*word, "-" | "?")).count()
    };
    if text.lines().any(|line| dashes(line) > MAX_DEPTH) {
        return Err(ConfigError::new(format!(
            "the document is nested deeper than {MAX_DEPTH} levels"
        )));
    }
    if text.lines().any(|line| line.starts_with("%TAG")) {
        return Err(ConfigError::new("%TAG directives are not supported"));
    }
    // The library silently reads `!!binary x` as plain text. With another character in place of the
    // second one it reports the tag, and only if it is a tag and not part of some text.
    let disarmed = disarm_tags(text);
    if let Some(disarmed) = disarmed {
        read(&disarmed)?;
    }
    match read(text)? {
        Value::Null => Ok(Value::Object(Map::new())),
        value => Ok(value),
    }
}

/// Rejects text that would take the library longer than a second to parse.
fn check_marks(text: &str) -> Result<(), ConfigError> {
    let (mut brackets, mut marks) = (0_usize, 0_usize);
    for byte in text.bytes() {
        brackets += usize::from(matches!(byte, b'[' | b'{'));
        marks += usize::from(MARKS.contains(&byte));
    }
    if brackets > MAX_BRACKETS {
        return Err(ConfigError::new(format!(
            "the document holds more than {MAX_BRACKETS} opening brackets"
        )));
    }
    if marks > MAX_MARKS {
        return Err(ConfigError::new(format!(
            "the document holds more than {MAX_MARKS} lines and marks"
        )));
    }
    if brackets * marks > MAX_WORK {
        return Err(ConfigError::new(
            "the document holds too many brackets for its length",
        ));
    }
    Ok(())
}

/// Turns standard and verbatim tags into local ones, character for character.
fn disarm_tags(text: &str) -> Option<String> {
    (text.contains("!!") || text.contains("!<"))
        .then(|| text.replace("!!", "!t").replace("!<", "!t"))
}

fn read(text: &str) -> Result<Value, ConfigError> {
    let budget = Budget {
        nodes: Cell::new(MAX_NODES),
        bytes: Cell::new(MAX_UNFOLDED),
    };
    let node = Node {
        budget: &budget,
        depth: 0,
    };
    node.deserialize(serde_yaml::Deserializer::from_str(text))
        .map_err(|error| match line_indented_by_tab(text) {
            Some(line) => ConfigError::new(format!("line {line} is indented with a tab"))
                .advise("YAML is indented with spaces"),
            None => explained(&error.to_string()),
        })
}

/// The message of the library, with what usually is the reason.
fn explained(message: &str) -> ConfigError {
    let error = ConfigError::new(presentable(message));
    let known = [
        (
            "mapping values are not allowed",
            "look at the indent of this line and of the one before: keys of one map begin in one column, and a text \
             with `: ` in it is quoted",
        ),
        (
            "did not find expected key",
            "look at the indent of this line and of the one before: keys of one map begin in one column",
        ),
        (
            "more than one document",
            "a configuration is one document: remove what follows the line `---`",
        ),
    ];
    match known.iter().find(|(words, _)| message.contains(words)) {
        Some((_, advice)) => error.advise(*advice),
        None => error,
    }
}

/// The number of the first line that is indented with a tab: the library only says that a character
/// cannot start a token.
fn line_indented_by_tab(text: &str) -> Option<usize> {
    let is_tabbed = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        line[..indent].contains('\t') && !line.trim().is_empty()
    };
    text.lines().position(is_tabbed).map(|index| index + 1)
}

/// The message of the library begins with unmodified keys: of any length, and with line breaks. The
/// problem and its position are at the end.
fn presentable(message: &str) -> String {
    let surplus = message.chars().count().saturating_sub(MAX_MESSAGE);
    let mut shown = String::from(if surplus > 0 { "…" } else { "" });
    for c in message.chars().skip(surplus) {
        if c.is_control() {
            shown.extend(c.escape_debug());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The remaining budget for aliases.
struct Budget {
    nodes: Cell<usize>,
    bytes: Cell<usize>,
}

impl Budget {
    fn spend<E: de::Error>(&self, bytes: usize) -> Result<(), E> {
        let left = |cell: &Cell<usize>, amount| cell.get().checked_sub(amount);
        match (left(&self.nodes, 1), left(&self.bytes, bytes)) {
            (Some(nodes), Some(bytes)) => {
                self.nodes.set(nodes);
                self.bytes.set(bytes);
                Ok(())
            }
            _ => Err(E::custom("the document unfolds to too many values")),
        }
    }
}

/// One value at some depth.
#[derive(Clone, Copy)]
struct Node<'a> {
    budget: &'a Budget,
    depth: usize,
}

impl Node<'_> {
    fn inner<E: de::Error>(self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format!(
                "the document is nested deeper than {MAX_DEPTH} levels"
            )));
        }
        Ok(Self {
            budget: self.budget,
            depth: self.depth + 1,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.budget.spend(0).map(|()| Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        self.budget.spend(0).map(|()| Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.budget.spend(0).map(|()| Value::from(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.budget.spend(0).map(|()| Value::from(value))
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Value, E> {
        Err(E::custom(TOO_LARGE))
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<Value, E> {
        Err(E::custom(TOO_LARGE))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        self.budget.spend(0)?;
        // 2^53: beyond it neighbouring integers are one float, and a long token written without
        // quotes would silently become another one.
        if value.abs() >= 9_007_199_254_740_992.0 {
            return Err(E::custom(TOO_LARGE));
        }
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("infinity and not-a-number are not supported"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.budget.spend(value.len())?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(de::Error::custom("tags are not supported"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.budget.spend(0)?;
        let inner = self.inner()?;
        let mut entries = Vec::new();
        while let Some(entry) = access.next_element_seed(inner)? {
            entries.push(entry);
        }
        Ok(Value::Array(entries))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.budget.spend(0)?;
        let inner = self.inner()?;
        let mut map = Map::new();
        let mut merged = None;
        while let Some(key) = access.next_key_seed(Key(self.budget))? {
            if map.contains_key(&key) || (key == MERGE && merged.is_some()) {
                return Err(de::Error::custom(format!(
                    "the key `{}` appears twice",
                    shown(&key)
                )));
            }
            let value = access.next_value_seed(inner)?;
            if key == MERGE {
                merged = Some(value);
            } else {
                map.insert(key, value);
            }
        }
        if let Some(merged) = merged {
            merge(&mut map, merged).map_err(de::Error::custom)?;
        }
        Ok(Value::Object(map))
    }
}

const TOO_LARGE: &str = "a number is too large to be kept exactly; write it in quotes";

/// A key: text, or a scalar that has one obvious text.
struct Key<'a>(&'a Budget);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key that is text, a whole number or a boolean")
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<String, E> {
        self.0.spend(value.len())?;
        Ok(value.to_owned())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<String, E> {
        self.0.spend(0).map(|()| value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<String, E> {
        self.0.spend(0).map(|()| value.to_string())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<String, E> {
        self.0.spend(0).map(|()| value.to_string())
    }
}

/// Adds what `map` does not have yet; of several maps the first one wins.
fn merge(map: &mut Map<String, Value>, merged: Value) -> Result<(), &'static str> {
    match merged {
        Value::Object(source) => {
            for (key, value) in source {
                map.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(sources) if sources.iter().all(Value::is_object) => sources
            .into_iter()
            .try_for_each(|source| merge(map, source)),
        _ => Err("`<<` needs a map or a list of maps"),
    }
}

/// A key, escaped for a message.
fn shown(key: &str) -> String {
    key.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_line_breaks_or_without_end_leaves_a_message_of_one_short_line() {
        for key in ["a\\n\\u0007", &"k".repeat(100_000)] {
            let error = parse(&format!("? \"{key}\"\n: !tag 5\n")).expect_err("a tag");
            let message = error.to_string();
            assert!(!message.chars().any(char::is_control), "{message:?}");
            assert!(message.chars().count() <= MAX_MESSAGE + 1, "{message:?}");
            assert!(message.contains("tags are not supported at line 2"));
        }
    }
}
