//! The built-in helpers, with the rules of Handlebars.js for empty values and for printing maps.

use handlebars::{
    BlockContext, Context, Handlebars, Helper, HelperDef, HelperResult, JsonValue, Output,
    RenderContext, RenderError, RenderErrorReason, Renderable, ScopedJson,
};

use super::rules::PRINT;

/// Replaces all helpers by ours: a helper that Handlebars.js does not have would hide the value of
/// that name.
pub(super) fn install(registry: &mut Handlebars<'static>) {
    for name in [
        "raw", "log", "eq", "ne", "gt", "gte", "lt", "lte", "and", "or", "not", "len",
    ] {
        registry.unregister_helper(name);
    }
    registry.register_helper("if", Box::new(Condition { wanted: true }));
    registry.register_helper("unless", Box::new(Condition { wanted: false }));
    registry.register_helper("with", Box::new(With));
    registry.register_helper("lookup", Box::new(Value(lookup)));
    registry.register_helper(PRINT, Box::new(Value(print)));
}

/// The values that are false for `if` and `with`. An empty map is not.
fn is_empty(value: &JsonValue) -> bool {
    match value {
        JsonValue::Null => true,
        JsonValue::Bool(value) => !value,
        JsonValue::Number(number) => number.as_f64() == Some(0.0),
        JsonValue::String(text) => text.is_empty(),
        JsonValue::Array(entries) => entries.is_empty(),
        JsonValue::Object(_) => false,
    }
}

/// A value as text.
fn text(value: &JsonValue) -> String {
    match value {
        JsonValue::Null => String::new(),
        JsonValue::String(text) => text.clone(),
        JsonValue::Object(_) => "[object Object]".to_owned(),
        other => other.to_string(),
    }
}

fn argument<'h, 'rc>(
    helper: &'h Helper<'rc>,
    name: &'static str,
    index: usize,
) -> Result<&'h handlebars::PathAndJson<'rc>, RenderError> {
    helper
        .param(index)
        .ok_or_else(|| RenderErrorReason::ParamNotFoundForIndex(name, index).into())
}

struct Condition {
    wanted: bool,
}

impl HelperDef for Condition {
    fn call<'reg: 'rc, 'rc>(
        &self,
        helper: &Helper<'rc>,
        registry: &'reg Handlebars<'reg>,
        context: &'rc Context,
        render: &mut RenderContext<'reg, 'rc>,
        output: &mut dyn Output,
    ) -> HelperResult {
        let value = argument(helper, "if", 0)?.value();
        let branch = if is_empty(value) == self.wanted {
            helper.inverse()
        } else {
            helper.template()
        };
        branch.map_or(Ok(()), |branch| {
            branch.render(registry, context, render, output)
        })
    }
}

struct With;

impl HelperDef for With {
    fn call<'reg: 'rc, 'rc>(
        &self,
        helper: &Helper<'rc>,
        registry: &'reg Handlebars<'reg>,
        context: &'rc Context,
        render: &mut RenderContext<'reg, 'rc>,
        output: &mut dyn Output,
    ) -> HelperResult {
        let value = argument(helper, "with", 0)?;
        if is_empty(value.value()) {
            return helper.inverse().map_or(Ok(()), |inverse| {
                inverse.render(registry, context, render, output)
            });
        }
        let mut block = BlockContext::new();
        match value.context_path() {
            Some(path) => block.base_path_mut().clone_from(path),
            None => block.set_base_value(value.value().clone()),
        }
        if let Some(outer) = render.block() {
            // `@key` and its like stay visible.
            block
                .local_variables_mut()
                .clone_from(outer.local_variables());
        }
        render.push_block(block);
        let rendered = helper.template().map_or(Ok(()), |template| {
            template.render(registry, context, render, output)
        });
        render.pop_block();
        rendered
    }
}

/// A helper that only returns a value.
struct Value(fn(&Helper<'_>) -> Result<JsonValue, RenderError>);

impl HelperDef for Value {
    fn call_inner<'reg: 'rc, 'rc>(
        &self,
        helper: &Helper<'rc>,
        _: &'reg Handlebars<'reg>,
        _: &'rc Context,
        _: &mut RenderContext<'reg, 'rc>,
    ) -> Result<ScopedJson<'rc>, RenderError> {
        (self.0)(helper).map(ScopedJson::Derived)
    }
}

fn lookup(helper: &Helper<'_>) -> Result<JsonValue, RenderError> {
    let map = argument(helper, "lookup", 0)?.value();
    let key = text(argument(helper, "lookup", 1)?.value());
    let found = match map {
        JsonValue::Object(map) => map.get(&key).cloned(),
        // Handlebars.js gives the length and single characters of a text.
        JsonValue::String(text)
            if !text.is_empty() && (key == "length" || key.parse::<usize>().is_ok()) =>
        {
            let reason = "`lookup` in a text instead of a map";
            return Err(RenderErrorReason::Other(reason.to_owned()).into());
        }
        _ => None,
    };
    Ok(found.unwrap_or(JsonValue::Null))
}

fn print(helper: &Helper<'_>) -> Result<JsonValue, RenderError> {
    let value = argument(helper, "print", 0)?.value();
    Ok(JsonValue::String(text(value)))
}
