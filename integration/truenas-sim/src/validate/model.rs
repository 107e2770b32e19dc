//! The models of 25.04 and later.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

use super::{Errors, literal};
use crate::Generation;
use crate::failure::Invalid;
use crate::table::{Field, Limits, Method, Presence, Table, Type};

struct Check {
    table: &'static Table,
    generation: Generation,
}

pub(super) fn arguments(
    table: &'static Table,
    generation: Generation,
    method: &Method,
    params: &[Value],
) -> (Vec<Value>, Errors) {
    let check = Check { table, generation };
    let mut errors = Errors::new();
    if params.len() > method.args.len() {
        let text = format!(
            "Too many arguments (expected {}, found {})",
            method.args.len(),
            params.len()
        );
        return (Vec::new(), vec![Invalid::new("", text)]);
    }
    let mut filled = Vec::new();
    for (index, arg) in method.args.iter().enumerate() {
        match (params.get(index), &arg.presence) {
            (Some(value), _) => filled.push(check.value(&arg.ty, value, &arg.name, &mut errors)),
            (None, Presence::Default(value)) => filled.push(value.clone()),
            // A model of which every field has a default.
            (None, Presence::Optional) => match &arg.ty {
                Type::Object(_) => {
                    let empty = Value::Object(Map::new());
                    filled.push(check.value(&arg.ty, &empty, &arg.name, &mut errors));
                }
                _ => filled.push(Value::Null),
            },
            (None, Presence::Required) => errors.push(Invalid::new(&arg.name, "Field required")),
        }
    }
    (filled, errors)
}

impl Check {
    fn value(&self, ty: &Type, value: &Value, path: &str, errors: &mut Errors) -> Value {
        let mut wrong = |text: &str| errors.push(Invalid::new(path, text));
        match (ty, value) {
            (Type::Null, other) if !other.is_null() => wrong("Input should be None"),
            (Type::Bool, other) if !other.is_boolean() => wrong("Input should be a valid boolean"),
            (Type::Map, other) if !other.is_object() => wrong("Input should be a valid dictionary"),
            (Type::Num, other) if !other.is_number() => wrong("Input should be a valid number"),
            (Type::Int(limits), Value::Number(number)) if number.is_i64() || number.is_u64() => {
                integer(limits, number.as_i64().unwrap_or(i64::MAX), path, errors);
            }
            (Type::Int(_), _) => wrong("Input should be a valid integer"),
            (Type::Str(limits), Value::String(text)) => string(limits, text, path, errors),
            (Type::Str(_), _) => wrong("Input should be a valid string"),
            (Type::Choice(choices), other) if !choices.contains(other) => wrong(&expected(choices)),
            (Type::Choices(name), other) if !self.table.choices(name).contains(other) => {
                wrong(&expected(self.table.choices(name)));
            }
            (Type::Nullable(_), Value::Null) => {}
            (Type::Nullable(inner), other) => return self.value(inner, other, path, errors),
            (Type::List(inner, limits), Value::Array(items)) => {
                return self.list(inner, limits, items, path, errors);
            }
            (Type::List(..), _) => wrong("Input should be a valid list"),
            (Type::Union(branches), other) => {
                return self.union(branches, other, path, errors, Absent::MustBeGiven);
            }
            (Type::Tagged(tag, branches), Value::Object(fields)) => {
                return self.tagged(tag, branches, fields, path, errors);
            }
            (Type::Tagged(..), _) => {
                wrong("Input should be a valid dictionary or object to extract fields from");
            }
            (Type::Object(name), Value::Object(fields)) => {
                return self.object(name, fields, path, errors);
            }
            (Type::Object(name), _) => wrong(&format!(
                "Input should be a valid dictionary or instance of {name}"
            )),
            _ => {}
        }
        value.clone()
    }

    fn list(
        &self,
        inner: &Type,
        limits: &Limits,
        items: &[Value],
        path: &str,
        errors: &mut Errors,
    ) -> Value {
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if limits.min.is_some_and(|min| count < min) {
            let min = limits.min.unwrap_or_default();
            let noun = if min == 1 { "item" } else { "items" };
            errors.push(Invalid::new(
                path,
                format!("List should have at least {min} {noun} after validation, not {count}"),
            ));
        }
        if let Some(max) = limits.max.filter(|max| count > *max) {
            errors.push(Invalid::new(
                path,
                format!("List should have at most {max} items after validation, not {count}"),
            ));
        }
        let check = |(index, item)| self.value(inner, item, &format!("{path}.{index}"), errors);
        items.iter().enumerate().map(check).collect()
    }

    fn object(
        &self,
        name: &str,
        given: &Map<String, Value>,
        path: &str,
        errors: &mut Errors,
    ) -> Value {
        let update = name.contains("Update");
        let mut filled = Map::new();
        for field in self.table.fields(name) {
            let path = format!("{path}.{}", field.name);
            match (given.get(&field.name), &field.presence) {
                (Some(value), _) => {
                    let value = self.field(field, value, &path, given, update, errors);
                    filled.insert(field.name.clone(), value);
                }
                (None, Presence::Required) => errors.push(Invalid::new(path, "Field required")),
                (None, Presence::Default(value)) => {
                    filled.insert(field.name.clone(), value.clone());
                }
                (None, Presence::Optional) => {}
            }
        }
        // Options of a later client are ignored: `extra="ignore"` of this one model.
        let strict = !matches!(name, "CoreOptions" | "CoreSetOptionsOptions");
        for name in given.keys().filter(|key| {
            strict
                && !self
                    .table
                    .fields(name)
                    .iter()
                    .any(|field| field.name == **key)
        }) {
            errors.push(Invalid::new(
                format!("{path}.{name}"),
                "Extra inputs are not permitted",
            ));
        }
        Value::Object(filled)
    }

    fn field(
        &self,
        field: &Field,
        value: &Value,
        path: &str,
        siblings: &Map<String, Value>,
        update: bool,
        errors: &mut Errors,
    ) -> Value {
        if let Some(text) = own_check(path, value) {
            errors.push(Invalid::new(path, text));
            return value.clone();
        }
        // The options of an SMB share are distinguished by the purpose of the share itself.
        if let (Type::Nullable(inner), Value::Object(options)) = (&field.ty, value)
            && let Type::Tagged(tag, branches) = &**inner
            && tag == "purpose"
            && !options.contains_key(tag)
        {
            let mut options = options.clone();
            let purpose = siblings
                .get(tag)
                .cloned()
                .unwrap_or_else(|| Value::from("DEFAULT_SHARE"));
            options.insert(tag.clone(), purpose);
            return self.tagged(tag, branches, &options, path, errors);
        }
        let may_be_left_out = field.presence == Presence::Optional && !update;
        match &field.ty {
            Type::Object(_) | Type::Nullable(_) => self.value(&field.ty, value, path, errors),
            Type::Union(branches) if may_be_left_out => {
                self.union(branches, value, path, errors, Absent::MayBe)
            }
            other if may_be_left_out => self.union(
                std::slice::from_ref(other),
                value,
                path,
                errors,
                Absent::MayBe,
            ),
            other => self.value(other, value, path, errors),
        }
    }

    /// Every branch is tried and, if none fits, the errors of all of them are listed.
    fn union(
        &self,
        branches: &[Type],
        value: &Value,
        path: &str,
        errors: &mut Errors,
        absent: Absent,
    ) -> Value {
        let mut failed = Errors::new();
        for (index, branch) in branches.iter().enumerate() {
            let mut own = Errors::new();
            let labelled = format!("{path}.{}", self.label(branch));
            let filled = self.value(branch, value, &labelled, &mut own);
            if own.is_empty() {
                return filled;
            }
            let last = index + 1 == branches.len();
            if last && absent == Absent::MayBe && self.generation.is_26() {
                // 26 joins the last branch with the marker of an absent field. Recorded for refquota.
                let text = format!("{} or {NOT_REQUIRED}", own[0].message);
                failed.push(Invalid::new(path, text));
            } else {
                failed.append(&mut own);
            }
        }
        if absent == Absent::MayBe && !self.generation.is_26() {
            failed.push(Invalid::new(
                format!("{path}.is-instance[_NotRequired]"),
                NOT_REQUIRED,
            ));
        }
        errors.append(&mut failed);
        value.clone()
    }

    fn tagged(
        &self,
        tag: &str,
        branches: &BTreeMap<String, Type>,
        given: &Map<String, Value>,
        path: &str,
        errors: &mut Errors,
    ) -> Value {
        let name = match given.get(tag) {
            Some(Value::String(name)) => name.clone(),
            // Recorded on 26: a dataset without a type is a file system.
            None if branches.contains_key("FILESYSTEM") => "FILESYSTEM".to_owned(),
            None => {
                errors.push(Invalid::new(
                    path,
                    format!("Unable to extract tag using discriminator '{tag}'"),
                ));
                return Value::Null;
            }
            Some(other) => other.to_string(),
        };
        if let Some(branch) = branches.get(&name) {
            return self.value(
                branch,
                &Value::Object(given.clone()),
                &format!("{path}.{name}"),
                errors,
            );
        }
        let mut known: Vec<&String> = branches.keys().collect();
        known.sort_by_key(|name| MECHANISMS.iter().position(|each| each == name));
        let tags: Vec<_> = known.into_iter().map(|each| tag_name(tag, each)).collect();
        errors.push(Invalid::new(
            path,
            format!(
                "Input tag '{name}' found using '{tag}' does not match any of the expected tags: {}",
                tags.join(", ")
            ),
        ));
        Value::Null
    }

    fn label(&self, ty: &Type) -> String {
        match ty {
            Type::Any => "any".to_owned(),
            Type::Null => "none".to_owned(),
            Type::Bool => "bool".to_owned(),
            Type::Map => "dict[str,any]".to_owned(),
            Type::Num => "float".to_owned(),
            Type::Int(limits) if limits.bounded() => "constrained-int".to_owned(),
            Type::Int(_) => "int".to_owned(),
            Type::Str(limits) if limits.bounded() => "constrained-str".to_owned(),
            Type::Str(_) => "str".to_owned(),
            Type::Choice(choices) => literals(choices),
            Type::Choices(name) => literals(self.table.choices(name)),
            Type::Object(name) => name.clone(),
            Type::List(inner, _) => format!("list[{}]", self.label(inner)),
            Type::Nullable(inner) => format!("nullable[{}]", self.label(inner)),
            Type::Union(_) | Type::Tagged(..) => "union".to_owned(),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Absent {
    MayBe,
    MustBeGiven,
}

const NOT_REQUIRED: &str = "Input should be an instance of _NotRequired";

/// The order in which 25.10.6 lists the mechanisms was recorded; 26 adds the last one.
const MECHANISMS: [&str; 5] = [
    "API_KEY_PLAIN",
    "PASSWORD_PLAIN",
    "TOKEN_PLAIN",
    "OTP_TOKEN",
    "SCRAM",
];

fn tag_name(tag: &str, name: &str) -> String {
    if tag == "mechanism" {
        format!("<AuthMech.{name}: '{name}'>")
    } else {
        format!("'{name}'")
    }
}

fn literals(choices: &[Value]) -> String {
    let choices: Vec<_> = choices.iter().map(literal).collect();
    format!("literal[{}]", choices.join(","))
}

fn expected(choices: &[Value]) -> String {
    let choices: Vec<_> = choices.iter().map(literal).collect();
    match choices.split_last() {
        Some((last, rest)) if !rest.is_empty() => {
            format!("Input should be {} or {last}", rest.join(", "))
        }
        _ => format!("Input should be {}", choices.concat()),
    }
}

fn integer(limits: &Limits, number: i64, path: &str, errors: &mut Errors) {
    let mut wrong = |text: String| errors.push(Invalid::new(path, text));
    if let Some(min) = limits.min.filter(|min| number < *min) {
        wrong(format!("Input should be greater than or equal to {min}"));
    }
    if let Some(max) = limits.max.filter(|max| number > *max) {
        wrong(format!("Input should be less than or equal to {max}"));
    }
    if let Some(above) = limits.above.filter(|above| number <= *above) {
        wrong(format!("Input should be greater than {above}"));
    }
    if let Some(below) = limits.below.filter(|below| number >= *below) {
        wrong(format!("Input should be less than {below}"));
    }
}

fn string(limits: &Limits, text: &str, path: &str, errors: &mut Errors) {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let noun = |count: i64| {
        if count == 1 {
            "character"
        } else {
            "characters"
        }
    };
    if let Some(min) = limits.min.filter(|min| length < *min) {
        errors.push(Invalid::new(
            path,
            format!("String should have at least {min} {}", noun(min)),
        ));
    } else if let Some(max) = limits.max.filter(|max| length > *max) {
        errors.push(Invalid::new(
            path,
            format!("String should have at most {max} {}", noun(max)),
        ));
    } else if let Some(pattern) = &limits.pattern {
        let matches = Regex::new(pattern).is_ok_and(|regex| regex.is_match(text));
        if !matches {
            errors.push(Invalid::new(
                path,
                format!("String should match pattern '{pattern}'"),
            ));
        }
    }
}

/// Validators that the models carry as code. Texts recorded on 25.10.6 and 26.
fn own_check(path: &str, value: &Value) -> Option<String> {
    let text = value.as_str()?;
    if path == "iscsi_target_create.name" || path == "iscsi_target_update.name" {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
        return (!text.chars().all(plain)).then(|| {
            "Assertion failed, Name can only contain lowercase alphanumeric charactersplus dot (.), dash (-), and \
             colon (:)"
                .to_owned()
        });
    }
    if path.ends_with(".naming_schema") {
        let missing = ["%Y", "%m", "%d", "%H", "%M"]
            .into_iter()
            .find(|each| !text.contains(each));
        return missing
            .map(|each| format!("Value error, {each} must be present in snapshot naming schema"));
    }
    None
}
