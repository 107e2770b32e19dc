//! The templates that are accepted, and how their output becomes that of Handlebars.js.
//!
//! Only templates with the same output in both implementations are accepted: plain values, `if`,
//! `unless`, `each`, `with`, `lookup`, comments and whitespace control. Everything else is rejected
//! by name, before it could rename a volume.

use handlebars::JsonValue as Value;
use handlebars::Path;
use handlebars::template::{HelperTemplate, Parameter, Template, TemplateElement};

use super::TemplateError;

/// The helper that prints every plain value. No template can call it: the rules below do not accept
/// its name.
pub(super) const PRINT: &str = "print a value";

/// Words that Handlebars.js never reads as the name of a value.
const RESERVED: [&str; 8] = [
    "if",
    "unless",
    "each",
    "with",
    "lookup",
    "log",
    "helperMissing",
    "blockHelperMissing",
];

/// Rejects forms that the two implementations treat differently in lines with nothing but a tag.
pub(super) fn check_lines(source: &str, template: &Template) -> Result<(), TemplateError> {
    let holds = |tags: &[&str]| tags.iter().any(|tag| source.contains(tag));
    let comments = holds(&["{{!", "{{~!"]);
    let lines = source.contains('\n') && (comments || holds(&["{{#", "{{~#"]));
    if lines && source.contains('~') {
        return Err(refuse(
            "`~` together with line breaks and blocks or comments",
        ));
    }
    if (lines || source.contains('~')) && has_chain(template) {
        return Err(refuse(
            "`else` with a condition together with line breaks or `~`",
        ));
    }
    if (lines || comments) && source.ends_with([' ', '\t', '\r']) {
        return Err(refuse("a blank at its end, after a block or a comment"));
    }
    Ok(())
}

fn has_chain(template: &Template) -> bool {
    template.elements.iter().any(|element| match element {
        TemplateElement::HelperBlock(block) => {
            let inner = block.template.iter().chain(&block.inverse);
            block.is_chained() || inner.into_iter().any(has_chain)
        }
        _ => false,
    })
}

/// How deep `each` stands within `each`.
pub(super) fn loops(template: &Template) -> u32 {
    let depths = template.elements.iter().map(|element| match element {
        TemplateElement::HelperBlock(block) => {
            let inner = block.template.as_ref().map_or(0, loops);
            let here = u32::from(block.name.as_name() == Some("each"));
            (here + inner).max(block.inverse.as_ref().map_or(0, loops))
        }
        _ => 0,
    });
    depths.max().unwrap_or(0)
}

/// Checks a template and passes its values through [`PRINT`]. `scopes` is how many `../` are valid:
/// the number of enclosing `each` and `with`.
pub(super) fn adopt(template: &mut Template, scopes: usize) -> Result<(), TemplateError> {
    for element in &mut template.elements {
        match element {
            TemplateElement::RawString(_) | TemplateElement::Comment(_) => {}
            TemplateElement::Expression(call) | TemplateElement::HtmlExpression(call) => {
                adopt_value(call, scopes)?;
            }
            TemplateElement::HelperBlock(block) => adopt_block(block, scopes)?,
            _ => return Err(refuse("a partial or a decorator")),
        }
    }
    Ok(())
}

fn adopt_value(call: &mut HelperTemplate, scopes: usize) -> Result<(), TemplateError> {
    if let Parameter::Path(path) = &call.name
        && call.params.is_empty()
        && call.hash.is_empty()
    {
        check_path(path, scopes)?;
        let value = std::mem::replace(&mut call.name, Parameter::Name(PRINT.to_owned()));
        call.params.push(value);
        return Ok(());
    }
    check_lookup(call, scopes)
}

fn adopt_block(block: &mut HelperTemplate, scopes: usize) -> Result<(), TemplateError> {
    let inner = match block.name.as_name() {
        Some("if" | "unless") => scopes,
        Some("each" | "with") => scopes + 1,
        Some(name) => return Err(refuse(&format!("the block `{name}`"))),
        None => return Err(refuse("a block without a name")),
    };
    if block.block_param.is_some() {
        return Err(refuse("block parameters (`as |x|`)"));
    }
    let [param] = block.params.as_slice() else {
        return Err(refuse("a block without exactly one argument"));
    };
    if !block.hash.is_empty() {
        return Err(refuse("a named argument"));
    }
    if inner > scopes && is_this(param) {
        // Handlebars.js opens no scope for the value it is already in.
        return Err(refuse("`each` or `with` on `this`"));
    }
    check_argument(param, scopes)?;
    if let Some(template) = &mut block.template {
        adopt(template, inner)?;
    }
    if let Some(inverse) = &mut block.inverse {
        adopt(inverse, scopes)?;
    }
    Ok(())
}

fn check_argument(param: &Parameter, scopes: usize) -> Result<(), TemplateError> {
    match param {
        Parameter::Path(path) => check_path(path, scopes),
        Parameter::Subexpression(inner) => match inner.as_element() {
            TemplateElement::Expression(call) => check_lookup(call, scopes),
            _ => Err(refuse("a subexpression of this form")),
        },
        _ => Err(refuse("a literal here")),
    }
}

fn check_lookup(call: &HelperTemplate, scopes: usize) -> Result<(), TemplateError> {
    match call.name.as_name() {
        Some("lookup") => {}
        Some(name) => return Err(refuse(&format!("the helper `{name}`"))),
        None => return Err(refuse("a call without a name")),
    }
    match call.params.as_slice() {
        [map, key] if call.hash.is_empty() => {
            check_argument(map, scopes)?;
            match key {
                Parameter::Literal(Value::String(key)) => check_key(key),
                key => check_argument(key, scopes),
            }
        }
        _ => Err(refuse("`lookup` with other than two arguments")),
    }
}

/// Handlebars.js reads the length of a text, and its characters by number.
fn check_key(key: &str) -> Result<(), TemplateError> {
    if key == "length" || key.bytes().all(|b| b.is_ascii_digit()) {
        return Err(refuse(&format!("the key `{key}`")));
    }
    Ok(())
}

fn is_this(param: &Parameter) -> bool {
    matches!(param, Parameter::Path(Path::Relative((segments, _))) if segments.is_empty())
}

fn check_path(path: &Path, scopes: usize) -> Result<(), TemplateError> {
    match path {
        Path::Local((level, name, raw)) => {
            let plain = format!("@{}{name}", "../".repeat(*level));
            let known = matches!(name.as_str(), "key" | "index" | "first" | "last");
            if !known || *raw != plain || *level > 0 {
                return Err(refuse(&format!("the variable `{raw}`")));
            }
            Ok(())
        }
        Path::Relative((_, raw)) => check_relative(raw, scopes),
    }
}

fn check_relative(raw: &str, scopes: usize) -> Result<(), TemplateError> {
    let refused = |what: &str| Err(refuse(&format!("{what} in `{raw}`")));
    if RESERVED.contains(&raw) {
        return refused("the name of a helper");
    }
    let (root, rest) = match raw.strip_prefix("@root") {
        Some(rest) => (true, rest.strip_prefix(['.', '/']).unwrap_or(rest)),
        None => (false, raw),
    };
    let mut rest = rest;
    let mut ups = 0;
    while let Some(after) = rest.strip_prefix("../") {
        rest = after;
        ups += 1;
    }
    if ups > scopes || (root && ups > 0) {
        return refused("`../` beyond the outermost value");
    }
    for (index, segment) in segments(rest).into_iter().enumerate() {
        match segment {
            "this" | "." if index == 0 && ups == 0 && !root => {}
            "this" | "." | ".." => return refused(&format!("`{segment}`")),
            key => check_key(key)?,
        }
    }
    Ok(())
}

/// The parts of a path. Brackets make one part of everything up to the closing one.
fn segments(path: &str) -> Vec<&str> {
    let mut segments = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let (segment, after) = if let Some(raw) = rest.strip_prefix('[') {
            raw.split_once(']').unwrap_or((raw, ""))
        } else if let Some(after) = rest.strip_prefix("./") {
            segments.push(".");
            rest = after;
            continue;
        } else {
            rest.split_at(rest.find(['.', '/']).unwrap_or(rest.len()))
        };
        segments.push(segment);
        rest = after.strip_prefix(['.', '/']).unwrap_or(after);
    }
    segments
}

fn refuse(what: &str) -> TemplateError {
    TemplateError::Unsupported(super::one_line(what))
}
