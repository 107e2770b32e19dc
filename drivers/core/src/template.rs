//! Name templates: Handlebars, with the output of Handlebars.js 4.7.
//!
//! Existing configurations contain templates for names of volumes and exports, and one different
//! byte names another volume. A template is compiled when the configuration is read, so that a bad
//! one fails then. The reference is `tests/fixtures/handlebars.json`, captured from the original;
//! where the two differ the template is rejected. compat: "Templates".

mod builtins;
mod rules;

use std::fmt;
use std::io;
use std::sync::Arc;

use handlebars::Handlebars;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The longest output of a template, in bytes.
pub const MAX_OUTPUT: usize = 64 * 1024;
/// The longest template, in bytes.
pub const MAX_SOURCE: usize = 4 * 1024;
/// The most blocks, subexpressions and bracketed names of a template: its parser is recursive.
const MAX_NESTED: usize = 64;

/// The most iterations of `each`, nested ones multiplied. Without a limit a short template and a
/// few parameters could run for years without output.
const MAX_ROUNDS: usize = 10_000;

/// The name under which the one template of a registry is kept.
const NAME: &str = "template";

/// A compiled template.
#[derive(Clone)]
pub struct Template {
    source: Arc<str>,
    registry: Arc<Handlebars<'static>>,
    /// How deep `each` stands within `each`.
    loops: u32,
}

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Its text cannot be understood.
    #[error("is not a template: {0}")]
    Syntax(String),
    /// It uses a feature with other output than in Handlebars.js.
    #[error("uses {0}, which is not supported in templates")]
    Unsupported(String),
    /// It failed on these data.
    #[error("the template fails: {0}")]
    Render(String),
    /// It, or its output, is too long.
    #[error("the {what} is longer than {limit} bytes")]
    TooLong {
        /// The name of the number.
        what: &'static str,
        /// Its limit.
        limit: usize,
    },
}

// === impl Template ===

impl Template {
    /// Compiles `source`.
    pub fn compile(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::TooLong {
                what: "template",
                limit: MAX_SOURCE,
            });
        }
        let brackets = source.bytes().filter(|b| b"#([".contains(b)).count();
        if brackets > MAX_NESTED {
            return Err(TemplateError::Unsupported(format!(
                "more than {MAX_NESTED} brackets and blocks"
            )));
        }
        let mut template = handlebars::Template::compile(source)
            .map_err(|error| TemplateError::Syntax(syntax(source, error.reason())))?;
        rules::check_lines(source, &template)?;
        rules::adopt(&mut template, 0)?;
        let loops = rules::loops(&template);
        let mut registry = Handlebars::new();
        builtins::install(&mut registry);
        registry.register_template(NAME, template);
        Ok(Self {
            source: source.into(),
            registry: Arc::new(registry),
            loops,
        })
    }

    /// The output for `data`, which have to be maps and text: lists and numbers print differently
    /// in Handlebars.js.
    pub fn render<T: Serialize>(&self, data: &T) -> Result<String, TemplateError> {
        let data =
            serde_json::to_value(data).map_err(|error| TemplateError::Render(error.to_string()))?;
        if !is_maps_and_text(&data) {
            return Err(TemplateError::Render(
                "its data hold more than maps and text".into(),
            ));
        }
        if self.loops > 1 && most_entries(&data).saturating_pow(self.loops) > MAX_ROUNDS {
            return Err(TemplateError::Render(format!(
                "`each` within `each` would take more than {MAX_ROUNDS} rounds"
            )));
        }
        let mut output = Bounded(Vec::new());
        let rendered = self.registry.render_to_write(NAME, &data, &mut output);
        if output.0.len() > MAX_OUTPUT {
            return Err(TemplateError::TooLong {
                what: "output of the template",
                limit: MAX_OUTPUT,
            });
        }
        rendered.map_err(|error| TemplateError::Render(one_line(error.reason())))?;
        String::from_utf8(output.0).map_err(|error| TemplateError::Render(error.to_string()))
    }

    /// The text it was compiled from.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// The error about the text of a template. Filters after a `|` are of other languages.
fn syntax(source: &str, reason: impl fmt::Display) -> String {
    let is_piped = source.split("{{").skip(1).any(|part| {
        part.split("}}")
            .next()
            .is_some_and(|inner| inner.contains('|'))
    });
    if is_piped {
        return "Handlebars has no `|` between `{{` and `}}`: a helper stands before its value"
            .to_owned();
    }
    one_line(reason)
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.source).finish()
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let source = String::deserialize(deserializer)?;
        Self::compile(&source).map_err(D::Error::custom)
    }
}

fn is_maps_and_text(value: &Value) -> bool {
    match value {
        Value::Null | Value::String(_) => true,
        Value::Object(map) => map.values().all(is_maps_and_text),
        _ => false,
    }
}

/// A message that may quote the template, with its line breaks escaped.
fn one_line(message: impl fmt::Display) -> String {
    let mut line = String::new();
    for c in message.to_string().chars() {
        if c.is_control() {
            line.extend(c.escape_debug());
        } else {
            line.push(c);
        }
    }
    line
}

/// The entries of the largest map.
fn most_entries(value: &Value) -> usize {
    match value {
        Value::Object(map) => {
            let inner = map.values().map(most_entries).max();
            inner.unwrap_or(0).max(map.len())
        }
        _ => 0,
    }
}

/// Takes one byte more than allowed, so that an output that is too long is detected.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() > MAX_OUTPUT {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let room = MAX_OUTPUT + 1 - self.0.len();
        let taken = bytes.len().min(room);
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
