//! Scalars with a meaning: modes, owners, spans of time.
//!
//! Text, numbers and booleans need no types of their own: a document reads `5` where text is
//! expected and `"5"` where a number is.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _, Unexpected};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::notes::Notes;
use super::read::{Path, Reader};

/// Permission bits. `0777`, `"0777"`, `"777"` and `777` are all octal.
///
/// compat: "Configuration": democratic-csi reads a bare number as decimal for some drivers and as
/// octal digits for others. A bare number that could be either (`0o777` is the number 511 to YAML)
/// is rejected here and must be quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(u32);

/// A user or a group: a number, or a name that the machine knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// By number.
    Id(u32),
    /// By name.
    Name(String),
}

/// A span of time: `90` (seconds), `500ms`, `90s`, `5m`, `1h30m`, `2d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Why a scalar is rejected. Does not contain the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScalarError {
    /// Not a mode.
    #[error("is not a mode: up to four octal digits, such as \"0770\"")]
    Mode,
    /// A bare number that may have been written as octal or not.
    #[error("could be an octal or a decimal number: write the mode in quotes, such as \"0770\"")]
    Ambiguous,
    /// Neither a number nor a name.
    #[error("is neither a user or group number nor a name")]
    Owner,
    /// Not a span.
    #[error("is not a span of time, such as 90, 90s, 5m or 1h30m")]
    Span,
}

// === impl Mode ===

impl Mode {
    /// The mode of a number without quotes: its digits, unless it looks as if it had been octal
    /// before YAML read it.
    fn from_bare(number: u64) -> Result<Self, ScalarError> {
        let mode: Self = number.to_string().parse()?;
        let was_octal = u32::try_from(number).is_ok_and(|bits| Self(bits).is_sensible());
        if was_octal || !mode.is_sensible() {
            return Err(ScalarError::Ambiguous);
        }
        Ok(mode)
    }

    /// Whether the owner may read, and no class has a permission that a closer one (owner, then
    /// group) lacks.
    fn is_sensible(self) -> bool {
        let [owner, group, other] = [self.0 >> 6 & 7, self.0 >> 3 & 7, self.0 & 7];
        self.0 <= 0o7777 && owner & 4 != 0 && group & !owner == 0 && other & !group == 0
    }

    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for Mode {
    type Err = ScalarError;

    fn from_str(text: &str) -> Result<Self, ScalarError> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let digits = digits.strip_prefix('0').unwrap_or(digits);
        if text.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ScalarError::Mode);
        }
        if digits.is_empty() {
            return Ok(Self(0));
        }
        u32::from_str_radix(digits, 8)
            .map(Self)
            .map_err(|_| ScalarError::Mode)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(number) => match number.as_u64() {
                Some(number) => Self::from_bare(number).map_err(D::Error::custom),
                None => Err(D::Error::custom(ScalarError::Mode)),
            },
            Value::String(text) => text.trim().parse().map_err(D::Error::custom),
            _ => Err(D::Error::custom(ScalarError::Mode)),
        }
    }
}

// === impl Owner ===

impl FromStr for Owner {
    type Err = ScalarError;

    fn from_str(text: &str) -> Result<Self, ScalarError> {
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            // The highest number means "leave it" to chown.
            return match text.parse() {
                Ok(id) if id != u32::MAX => Ok(Self::Id(id)),
                _ => Err(ScalarError::Owner),
            };
        }
        let word = |c: char| c.is_alphanumeric() || "_.-@\\+$".contains(c);
        if text.is_empty() || text.len() > 256 || text.starts_with('-') || !text.chars().all(word) {
            return Err(ScalarError::Owner);
        }
        Ok(Self::Name(text.to_owned()))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

// === impl Span ===

impl FromStr for Span {
    type Err = ScalarError;

    fn from_str(text: &str) -> Result<Self, ScalarError> {
        if let Ok(seconds) = text.parse() {
            return Ok(Self(Duration::from_secs(seconds)));
        }
        let mut total = Duration::ZERO;
        let mut rest = text;
        while !rest.is_empty() {
            let (number, after) = split(rest, |c| c.is_ascii_digit());
            let (unit, after) = split(after, |c| c.is_ascii_alphabetic());
            let number: u64 = number.parse().map_err(|_| ScalarError::Span)?;
            let part = match unit {
                "ms" => Some(Duration::from_millis(number)),
                "s" => Some(Duration::from_secs(number)),
                "m" => number.checked_mul(60).map(Duration::from_secs),
                "h" => number.checked_mul(3_600).map(Duration::from_secs),
                "d" => number.checked_mul(86_400).map(Duration::from_secs),
                _ => None,
            };
            total = part
                .and_then(|part| total.checked_add(part))
                .ok_or(ScalarError::Span)?;
            rest = after.trim_start();
        }
        if text.is_empty() {
            return Err(ScalarError::Span);
        }
        Ok(Self(total))
    }
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

macro_rules! read_from_text {
    ($($name:ty),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.trim().parse().map_err(D::Error::custom)
            }
        }
    )*};
}

read_from_text!(Owner, Span);

/// For `#[serde(default, deserialize_with = "…")]` on an optional scalar: `""`, `0`, `false` and
/// null are the same as an absent key, as they are to democratic-csi for some keys.
pub fn unless_falsy<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = Value::deserialize(deserializer)?;
    let falsy = match &value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(_) | Value::Object(_) => {
            return Err(D::Error::invalid_type(Unexpected::Map, &"a single value"));
        }
    };
    if falsy {
        return Ok(None);
    }
    let reader = Reader {
        value: &value,
        path: Path::Root,
        notes: &Mutex::new(Notes::default()),
        hidden: &[],
    };
    T::deserialize(reader).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::super::{Document, NoEnvironment};
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Section {
        mode: Option<Mode>,
        owner: Option<Owner>,
        span: Option<Span>,
        #[serde(default, deserialize_with = "unless_falsy")]
        maybe: Option<Owner>,
    }

    fn read(text: &str) -> Result<Section, super::super::ConfigError> {
        let text = format!("driver: d\ns: {{{text}}}\n");
        Document::parse(&text, &NoEnvironment)?.section("s")
    }

    #[test]
    fn every_spelling_of_a_mode_is_octal_and_an_ambiguous_one_is_refused() {
        for text in ["0777", "\"0777\"", "\"777\"", "777", "\"0o777\""] {
            let mode = read(&format!("mode: {text}")).expect(text).mode;
            assert_eq!(mode.expect(text).bits(), 0o777, "{text}");
        }
        for number in [
            700, 711, 755, 750, 770, 777, 640, 644, 660, 1777, 2775, 440, 555,
        ] {
            let mode = read(&format!("mode: {number}")).unwrap().mode.unwrap();
            assert_eq!(format!("{:o}", mode.bits()), number.to_string());
        }
        assert_eq!("1777".parse::<Mode>().map(Mode::bits), Ok(0o1777));
        for text in [
            "0o777",
            "500",
            "0o1777",
            "0o2775",
            "0o2777",
            "0o755",
            "0o770",
            "0o700",
            "\"rwx\"",
            "\"\"",
            "-1",
            "7.5",
            "\"77777\"",
            "\"+77\"",
            "true",
        ] {
            let error = read(&format!("mode: {text}")).expect_err(text);
            assert_eq!(error.path(), Some("s.mode"), "{text}");
        }
    }

    #[test]
    fn an_owner_is_a_number_or_a_name_and_never_an_option_or_two() {
        assert_eq!(read("owner: 1000").unwrap().owner, Some(Owner::Id(1000)));
        assert_eq!(
            read("owner: \"1000\"").unwrap().owner,
            Some(Owner::Id(1000))
        );
        let name = Owner::Name("DOM\\joe".into());
        assert_eq!(read("owner: DOM\\joe").unwrap().owner, Some(name));
        for text in [
            "\"\"",
            "-R",
            "\"a:b\"",
            "\"a b\"",
            "4294967295",
            "\"a/b\"",
            "\"a\\nb\"",
        ] {
            assert!(read(&format!("owner: {text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn falsy_values_are_absent_where_democratic_csi_takes_them_so() {
        for text in ["\"\"", "0", "false", "null", "0.0"] {
            assert_eq!(read(&format!("maybe: {text}")).expect(text).maybe, None);
        }
        let error = read("maybe: \"hunter2:x\"").unwrap_err().to_string();
        assert!(error.starts_with("s.maybe: ") && !error.contains("hunter2"));
    }

    #[test]
    fn spans_have_units_and_plain_numbers_are_seconds() {
        for (text, millis) in [
            ("90", 90_000),
            ("500ms", 500),
            ("1h30m", 5_400_000),
            ("\"1h 30m\"", 5_400_000),
            ("2d", 172_800_000),
        ] {
            let span = read(&format!("span: {text}")).expect(text).span;
            assert_eq!(span, Some(Span(Duration::from_millis(millis))), "{text}");
        }
        for text in [
            "5x",
            "s",
            "\"\"",
            "-5",
            "1.5",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert!(read(&format!("span: {text}")).is_err(), "{text}");
        }
    }
}
