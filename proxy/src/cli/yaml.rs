//! A value as YAML that every reader takes for the same. Helm reads YAML 1.1, in which `on` and `0770`
//! are no text: whatever is not plainly a word is quoted as in JSON, which YAML knows.

use serde_json::{Map, Value};

/// The whole document.
pub(crate) fn document(values: &Map<String, Value>) -> String {
    let mut out = String::new();
    map(&mut out, values, 0, true);
    out
}

/// The lines of a map. The first may follow a `- ` on its line.
fn map(out: &mut String, values: &Map<String, Value>, depth: usize, own_line: bool) {
    for (number, (key, value)) in values.iter().enumerate() {
        if number > 0 || own_line {
            out.push_str(&"  ".repeat(depth));
        }
        out.push_str(&text(key));
        out.push(':');
        below(out, value, depth);
    }
}

/// The text that follows a key.
fn below(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(values) if !values.is_empty() => {
            out.push('\n');
            map(out, values, depth + 1, true);
        }
        Value::Array(values) if !values.is_empty() => {
            out.push('\n');
            for value in values {
                out.push_str(&"  ".repeat(depth));
                out.push('-');
                match value {
                    Value::Object(values) if !values.is_empty() => {
                        out.push(' ');
                        map(out, values, depth + 1, false);
                    }
                    // A list in a list, as no value of a chart is: on one line.
                    value => line(out, value),
                }
            }
        }
        value => line(out, value),
    }
}

fn line(out: &mut String, value: &Value) {
    out.push(' ');
    match value {
        Value::String(words) => out.push_str(&text(words)),
        value => out.push_str(&value.to_string()),
    }
    out.push('\n');
}

/// Bare if no version of YAML can take it for anything else.
fn text(words: &str) -> String {
    const OTHERS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let begins = words.starts_with(|c: char| c.is_ascii_alphabetic());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_./-".contains(&b);
    let other = OTHERS.contains(&words.to_ascii_lowercase().as_str());
    if begins && words.bytes().all(plain) && !other {
        words.to_owned()
    } else {
        // JSON leaves these as they are, and YAML knows none of them.
        let odd = |c: char| {
            matches!(
                c,
                '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}'
            )
        };
        let escaped = |c: char| match c {
            c if odd(c) => format!("\\u{:04x}", c as u32),
            c => c.to_string(),
        };
        Value::from(words)
            .to_string()
            .chars()
            .map(escaped)
            .collect()
    }
}
