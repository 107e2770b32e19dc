//! The routes of older versions, such as `/api/v25.04.2` on 25.10: a request is read by the models of that
//! version and carried over to the current ones, and the answer back.
//!
//! Read from `api/base/server/legacy_api_method.py` and `api/base/handler/version.py` of TS-25.10.6; what is missing
//! on a route was found by running its models and those of 26.

use serde_json::Value;

use crate::Generation;
use crate::failure::{ENOMETHOD, Failure};
use crate::table::{Field, Method, Style, Table, Type};
use crate::validate;

/// A version of the API that is not the newest one of the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OldRoute {
    version: &'static str,
    /// The release whose newest models are taken for those of the version.
    models: Generation,
}

/// Methods whose models have other names in these versions than from 25.10 on, or are not there.
const RENAMED: [(&str, &str); 5] = [
    ("v25.04", "auth.login_ex_continue"),
    ("v25.04", "auth.login_with_api_key"),
    ("v25.04", "auth.login_with_token"),
    ("v25.04.0", "pool.dataset.destroy_snapshots"),
    ("v25.10", "nvmet.global.sessions"),
];

impl OldRoute {
    /// The route of a version that is one of `/api/versions`, and not the newest.
    pub(crate) fn find(generation: Generation, version: &str) -> Option<Self> {
        let (_newest, older) = generation.api_versions()?.split_last()?;
        let version = *older.iter().find(|each| **each == version)?;
        let models = if version.starts_with("v25.04") {
            Generation::V25_04
        } else {
            Generation::V25_10
        };
        Some(Self { version, models })
    }

    /// The arguments as the newest version takes them. A method without a model there does not exist, before it
    /// is asked who calls it.
    pub(crate) fn request(
        self,
        generation: Generation,
        name: &str,
        params: Vec<Value>,
    ) -> Result<Vec<Value>, Failure> {
        let current = Table::of(generation).method(name);
        // What has no model in the newest version is not carried over.
        let Some(current) = current.filter(|current| current.style == Style::Model) else {
            return Ok(params);
        };
        let old = self
            .method(generation, name)
            .ok_or_else(|| missing_method(name))?;
        let params = validate::by_models_of(self.models, generation, old, &params)?;
        let table = Table::of(generation);
        Ok(params
            .into_iter()
            .zip(&current.args)
            .map(|(value, arg)| carried(table, &arg.ty, value))
            .collect())
    }

    /// The result without the fields that the version does not know.
    pub(crate) fn answer(self, generation: Generation, name: &str, mut result: Value) -> Value {
        let create = name
            .rsplit_once('.')
            .map(|(service, _)| format!("{service}.create"));
        let fields = |table: &'static Table| {
            let method = create.as_ref().and_then(|create| table.method(create));
            method.map_or(&[][..], |method| method.result.as_slice())
        };
        let (old, new) = (
            fields(Table::of(self.models)),
            fields(Table::of(generation)),
        );
        let rows: Vec<&mut Value> = match &mut result {
            Value::Array(rows) => rows.iter_mut().collect(),
            one => vec![one],
        };
        if !old.is_empty() {
            for row in rows.into_iter().filter_map(Value::as_object_mut) {
                row.retain(|key, _| old.contains(key) || !new.contains(key));
            }
        }
        result
    }

    fn method(self, generation: Generation, name: &str) -> Option<&'static Method> {
        let renamed = RENAMED
            .iter()
            .any(|(version, method)| self.version.starts_with(version) && *method == name);
        Table::of(self.models).method(name).filter(|old| {
            old.style == Style::Model && !(renamed && generation > Generation::V25_04)
        })
    }
}

fn missing_method(name: &str) -> Failure {
    let (service, verb) = name.rsplit_once('.').unwrap_or(("", name));
    Failure::call(
        ENOMETHOD,
        format!("Method '{verb}' not found in '{service}'"),
    )
}

/// A value without the fields that only the older model has.
fn carried(table: &Table, ty: &Type, value: Value) -> Value {
    match (ty, value) {
        (Type::Nullable(inner), value) => carried(table, inner, value),
        (Type::List(inner, _), Value::Array(items)) => items
            .into_iter()
            .map(|item| carried(table, inner, item))
            .collect(),
        (Type::Object(name), Value::Object(fields)) => {
            let known = table.fields(name);
            let field =
                |key: &str| -> Option<&Field> { known.iter().find(|field| field.name == key) };
            fields
                .into_iter()
                .filter_map(|(key, value)| {
                    let value = match (&field(&key)?.ty, value) {
                        // 26 wants more rounds than older versions allowed.
                        (Type::Int(limits), Value::Number(rounds)) if key == "pbkdf2iters" => {
                            rounds.as_i64().max(limits.min).into()
                        }
                        (ty, value) => carried(table, ty, value),
                    };
                    Some((key, value))
                })
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        (Type::Tagged(tag, branches), value) => {
            let branch = value.get(tag).and_then(Value::as_str);
            match branch.and_then(|branch| branches.get(branch)) {
                Some(branch) => carried(table, branch, value),
                None => value,
            }
        }
        (_, value) => value,
    }
}
