//! `replication.run_onetime` between datasets of the same NAS.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::{Answer, Call, plain, snapshot};
use crate::backend::{Dataset, Scope};
use crate::failure::{EFAULT, EINVAL, Failure, Invalid};
use crate::rows;

pub(super) async fn run(call: &Call) -> Answer {
    let data = call.object(0);
    let errors = check(data);
    if !errors.is_empty() {
        return Err(Failure::Validation(errors));
    }
    if rows::text(data, "transport") != "LOCAL" {
        return Err(Failure::call(
            EINVAL,
            "truenas-sim replicates within one NAS only",
        ));
    }
    let target = rows::text(data, "target_dataset").to_owned();
    let sources = rows::texts(data, "source_datasets");
    let count = sources.len().max(1) as u64;
    for (index, source) in sources.iter().enumerate() {
        let target = if sources.len() == 1 {
            target.clone()
        } else {
            format!("{target}/{}", source.rsplit('/').next().unwrap_or_default())
        };
        copy_all(call, data, source, &target).await?;
        if let Some(job) = &call.job {
            job.progress(
                100 * (index as u64 + 1) / count,
                &format!("Sending {source} to {target}"),
            );
        }
    }
    Ok(Value::Null)
}

/// Attributes and the first text were recorded on 25.10.6.
fn check(data: &Map<String, Value>) -> Vec<Invalid> {
    let attribute = |name: &str| format!("replication_run_onetime.{name}");
    let mut errors = Vec::new();
    let push = rows::text(data, "direction") == "PUSH";
    let named = data.get("name_regex").is_some_and(Value::is_string);
    let also = !rows::texts(data, "also_include_naming_schema").is_empty();
    if push && !named && !also {
        let text = "You must at least either bind a periodic snapshot task or provide \"Also Include Naming \
                    Schema\" or \"Name Regex\" for push replication task";
        errors.push(Invalid::new(attribute("periodic_snapshot_tasks"), text));
    }
    if !push && !named && rows::texts(data, "naming_schema").is_empty() {
        errors.push(Invalid::new(
            attribute("naming_schema"),
            "Naming schema is required for pull replication",
        ));
    }
    if rows::text(data, "transport") == "LOCAL" {
        let forbidden = [
            (
                "ssh_credentials",
                "Remote credentials are not required for local replication",
            ),
            (
                "compression",
                "Compression is not supported for local replication",
            ),
            (
                "speed_limit",
                "Speed limit is not supported for local replication",
            ),
        ];
        for (field, text) in forbidden {
            if data.get(field).is_some_and(|value| !value.is_null()) {
                errors.push(Invalid::new(attribute(field), text));
            }
        }
    }
    errors
}

async fn copy_all(
    call: &Call,
    data: &Map<String, Value>,
    source: &str,
    target: &str,
) -> Result<(), Failure> {
    let failed = |text: String| Failure::call(EFAULT, text);
    let backend = &call.nas.backend;
    let recursive = rows::flag(data, "recursive");
    let scope = if recursive {
        Scope::Tree(vec![source.to_owned()])
    } else {
        Scope::Exact(vec![source.to_owned()])
    };
    let datasets = backend.datasets(&scope).await.map_err(plain)?;
    if !datasets.iter().any(|dataset| dataset.name == source) {
        return Err(failed(format!(
            "cannot open '{source}': dataset does not exist."
        )));
    }
    for dataset in datasets {
        let target = format!("{target}{}", &dataset.name[source.len()..]);
        let snapshots = backend
            .snapshots(&Scope::Exact(vec![dataset.name.clone()]))
            .await
            .map_err(plain)?;
        let chosen = snapshots
            .iter()
            .rev()
            .find(|each| selected(data, &each.name));
        let Some(chosen) = chosen else {
            return Err(failed(format!(
                "Dataset '{}' does not have any matching snapshots to replicate",
                dataset.name
            )));
        };
        if call.find_dataset(&target).await?.is_some() {
            let short = chosen.name.rsplit('@').next().unwrap_or_default();
            if snapshot::find(call, &format!("{target}@{short}"))
                .await?
                .is_some()
            {
                continue;
            }
            if !rows::flag(data, "allow_from_scratch") {
                return Err(failed(format!(
                    "No incremental base on dataset '{target}' and replication from scratch is not allowed"
                )));
            }
            let how = crate::backend::Destroy {
                recursive: true,
                clones: false,
            };
            backend.destroy_dataset(&target, how).await.map_err(plain)?;
        }
        let properties = carried(data, &dataset);
        // Without properties the stream has none of the snapshot's own either.
        let with_user = data.get("properties") != Some(&json!(false));
        backend
            .copy(&chosen.name, &target, &properties, with_user)
            .await
            .map_err(|problem| failed(problem.to_string()))?;
    }
    Ok(())
}

fn selected(data: &Map<String, Value>, snapshot: &str) -> bool {
    let name = snapshot.rsplit('@').next().unwrap_or_default();
    let regex = data.get("name_regex").and_then(Value::as_str);
    let by_name = regex.is_some_and(|regex| {
        Regex::new(&format!("^(?:{regex})$")).is_ok_and(|regex| regex.is_match(name))
    });
    let schemas = rows::texts(data, "also_include_naming_schema")
        .into_iter()
        .chain(rows::texts(data, "naming_schema"));
    by_name
        || schemas
            .into_iter()
            .any(|schema| matches_schema(&schema, name))
}

fn matches_schema(schema: &str, name: &str) -> bool {
    let pattern = ["%Y", "%m", "%d", "%H", "%M", "%S"]
        .iter()
        .fold(regex::escape(schema), |pattern, field| {
            pattern.replace(field, r"\d+")
        });
    Regex::new(&format!("^{pattern}$")).is_ok_and(|regex| regex.is_match(name))
}

/// Local properties go along unless they are excluded; `readonly` is set unless it is ignored.
fn carried(data: &Map<String, Value>, source: &Dataset) -> BTreeMap<String, String> {
    let excluded = rows::texts(data, "properties_exclude");
    let mut carried = BTreeMap::new();
    if data.get("properties") != Some(&json!(false)) {
        let local = source.properties.iter().chain(&source.user);
        for (name, property) in
            local.filter(|(_, property)| property.source == crate::backend::Source::Local)
        {
            if !excluded.contains(name) {
                carried.insert(name.clone(), property.raw.clone());
            }
        }
    }
    for (name, value) in data
        .get("properties_override")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let raw = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        carried.insert(name.clone(), raw);
    }
    if rows::text(data, "readonly") == "SET" {
        carried.insert("readonly".to_owned(), "on".to_owned());
    }
    carried
}
