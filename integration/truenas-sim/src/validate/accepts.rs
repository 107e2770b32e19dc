//! `middlewared/schema.py`: CORE, and SCALE up to 24.10.
//!
//! The name of a list's item stands in some texts of the real server; the tables do not carry it.

use regex::Regex;
use serde_json::{Map, Value};

use super::Errors;
use crate::failure::Invalid;
use crate::table::{Limits, Method, Presence, Table, Type};

struct Check {
    table: &'static Table,
    /// Found while cleaning; these stop the second pass.
    unclean: Errors,
    /// Found by the validators of the second pass.
    invalid: Errors,
}

pub(super) fn arguments(
    table: &'static Table,
    method: &Method,
    params: &[Value],
) -> (Vec<Value>, Errors) {
    if params.len() > method.args.len() {
        let text = format!(
            "Too many arguments (expected {}, found {})",
            method.args.len(),
            params.len()
        );
        return (Vec::new(), vec![Invalid::new("ALL", text)]);
    }
    let mut check = Check {
        table,
        unclean: Errors::new(),
        invalid: Errors::new(),
    };
    let mut filled = Vec::new();
    for (index, arg) in method.args.iter().enumerate() {
        let value = match (params.get(index), &arg.presence) {
            (Some(value), _) | (None, Presence::Default(value)) => value.clone(),
            (None, Presence::Optional) => Value::Null,
            (None, Presence::Required) => {
                check
                    .unclean
                    .push(Invalid::new(&arg.name, "attribute required"));
                continue;
            }
        };
        if value.is_null() && arg.presence == Presence::Optional {
            filled.push(value);
            continue;
        }
        filled.push(check.value(&arg.ty, &value, &arg.name));
    }
    let errors = if check.unclean.is_empty() {
        check.invalid
    } else {
        check.unclean
    };
    (filled, errors)
}

impl Check {
    fn value(&mut self, ty: &Type, value: &Value, path: &str) -> Value {
        if value.is_null() && !matches!(ty, Type::Nullable(_) | Type::Any | Type::Null) {
            return self.wrong(path, "null not allowed", value);
        }
        match (ty, value) {
            (Type::Nullable(_), Value::Null) => {}
            (Type::Nullable(inner), other) => return self.value(inner, other, path),
            (Type::Bool, other) if !other.is_boolean() => {
                return self.wrong(path, "Not a boolean", value);
            }
            (Type::Int(limits), Value::Number(number)) if number.is_i64() || number.is_u64() => {
                self.range(limits, number.as_i64().unwrap_or(i64::MAX), path);
            }
            (Type::Int(_), Value::String(digits)) if digits.parse::<u64>().is_ok() => {
                return Value::from(digits.parse::<u64>().unwrap_or_default());
            }
            (Type::Int(_), _) => return self.wrong(path, "Not an integer", value),
            (Type::Str(limits), Value::String(text)) => self.text(limits, text, path),
            (Type::Str(_), Value::Number(number)) if !number.is_f64() => {
                return Value::from(number.to_string());
            }
            (Type::Str(_), _) => return self.wrong(path, "Not a string", value),
            (Type::Choice(choices), other) if !choices.contains(other) => {
                return self.choice(path, value);
            }
            (Type::Choices(name), other) if !self.table.choices(name).contains(other) => {
                return self.choice(path, value);
            }
            (Type::Map, other) if !other.is_object() => {
                return self.wrong(path, "A dict was expected", value);
            }
            (Type::List(inner, _), Value::Array(items)) => return self.list(inner, items, path),
            (Type::List(..), _) => return self.wrong(path, "Not a list", value),
            (Type::Union(branches), other) => return self.union(branches, other, path),
            (Type::Object(name), Value::Object(given)) => return self.object(name, given, path),
            (Type::Object(_), _) => return self.wrong(path, "A dict was expected", value),
            _ => {}
        }
        value.clone()
    }

    fn wrong(&mut self, path: &str, text: &str, value: &Value) -> Value {
        self.unclean.push(Invalid::new(path, text));
        value.clone()
    }

    fn choice(&mut self, path: &str, value: &Value) -> Value {
        let text = value
            .as_str()
            .map_or_else(|| super::literal(value), str::to_owned);
        self.wrong(path, &format!("Invalid choice: {text}"), value)
    }

    fn range(&mut self, limits: &Limits, number: i64, path: &str) {
        if limits.or == Some(number) {
            return;
        }
        let below = limits.min.is_some_and(|min| number < min);
        let above = limits.max.is_some_and(|max| number > max);
        if below || above {
            let text = match (limits.min, limits.max) {
                (Some(min), Some(max)) => format!("Should be between {min} and {max}"),
                (Some(min), None) => format!("Should be greater than or equal to {min}"),
                (_, max) => format!(
                    "Should be less than or equal to {}",
                    max.unwrap_or_default()
                ),
            };
            self.invalid.push(Invalid::new(path, text));
        }
    }

    fn text(&mut self, limits: &Limits, text: &str, path: &str) {
        self.range(
            limits,
            i64::try_from(text.chars().count()).unwrap_or(i64::MAX),
            path,
        );
        // The middleware matches at the start of the text only.
        let found = |pattern: &str| {
            Regex::new(&format!("^(?:{pattern})")).is_ok_and(|regex| regex.is_match(text))
        };
        let unmatched = limits
            .pattern
            .as_deref()
            .is_some_and(|pattern| !found(pattern));
        let matched = limits.not_pattern.as_deref().is_some_and(found);
        if unmatched || matched {
            let pattern = limits
                .pattern
                .as_deref()
                .or(limits.not_pattern.as_deref())
                .unwrap_or_default();
            let plain = format!("Value does not match \"{pattern}\" pattern");
            self.invalid.push(Invalid::new(
                path,
                limits.explanation.clone().unwrap_or(plain),
            ));
        }
    }

    fn list(&mut self, inner: &Type, items: &[Value], path: &str) -> Value {
        let mut filled = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let mut own = Self {
                table: self.table,
                unclean: Errors::new(),
                invalid: Errors::new(),
            };
            filled.push(own.value(inner, item, ""));
            if let Some(first) = own.unclean.first() {
                let name = first
                    .attribute
                    .as_deref()
                    .unwrap_or_default()
                    .trim_start_matches('.');
                let text = format!(
                    "Item#{index} is not valid per list types: [{name}] {}",
                    first.message
                );
                self.wrong(path, &text, item);
                break;
            }
            for entry in own.invalid {
                let inner = entry.attribute.unwrap_or_default();
                self.invalid.push(Invalid::new(
                    format!("{path}.{index}{inner}"),
                    entry.message,
                ));
            }
        }
        Value::Array(filled)
    }

    fn union(&mut self, branches: &[Type], value: &Value, path: &str) -> Value {
        let mut texts = Vec::new();
        for branch in branches {
            let mut own = Self {
                table: self.table,
                unclean: Errors::new(),
                invalid: Errors::new(),
            };
            let filled = own.value(branch, value, path);
            if own.unclean.is_empty() && own.invalid.is_empty() {
                return filled;
            }
            texts.extend(
                own.unclean
                    .into_iter()
                    .chain(own.invalid)
                    .map(|entry| entry.message),
            );
        }
        let text = format!(
            "Result does not match specified schema: {}",
            texts.join(", ")
        );
        self.wrong(path, &text, value)
    }

    fn object(&mut self, name: &str, given: &Map<String, Value>, path: &str) -> Value {
        let fields = self.table.fields(name);
        let mut filled = Map::new();
        for (key, value) in given {
            let path = format!("{path}.{key}");
            match fields.iter().find(|field| field.name == *key) {
                Some(field) => {
                    let value = self.value(&field.ty, value, &path);
                    filled.insert(key.clone(), value);
                }
                None => self
                    .unclean
                    .push(Invalid::new(path, "Field was not expected")),
            }
        }
        // The argument of an update is a patch of the one of create with `update: True`: nothing in it
        // is required, and no default is filled in. Read in `Dict.clean`, up to 24.10.
        if path.ends_with("_update") {
            return Value::Object(filled);
        }
        for field in fields
            .iter()
            .filter(|field| !given.contains_key(&field.name))
        {
            match &field.presence {
                Presence::Required => {
                    self.unclean.push(Invalid::new(
                        format!("{path}.{}", field.name),
                        "attribute required",
                    ));
                }
                Presence::Default(value) => {
                    let filled_in = match (&field.ty, value) {
                        (Type::Object(inner), Value::Object(given)) => {
                            self.object(inner, given, &format!("{path}.{}", field.name))
                        }
                        _ => value.clone(),
                    };
                    filled.insert(field.name.clone(), filled_in);
                }
                Presence::Optional => {}
            }
        }
        Value::Object(filled)
    }
}
