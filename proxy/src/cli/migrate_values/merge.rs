//! The settings of several releases as those of one.

use serde_json::{Map, Value, json};

use super::rights::object;
use super::{Input, at, is_ours, text};

/// What of the two halves is taken by its own rules, or has no effect any more.
const LEFT_OUT: [(&str, &[&str]); 2] = [
    ("controller", &["strategy", "clusterDriverRegistrar"]),
    ("node", &["windows", "linux", "cleanup", "driverRegistrar"]),
];
/// Sidecars of the controller, and whether the old chart runs each.
const SIDECARS: [(&str, bool); 5] = [
    ("externalAttacher", true),
    ("externalProvisioner", true),
    ("externalResizer", true),
    ("externalSnapshotter", true),
    ("externalHealthMonitorController", false),
];
/// Settings that releases of both charts have.
const SETTINGS: [&str; 4] = ["csiDriver", "controller", "node", "extraCaCerts"];
/// What a file of ours has besides.
const OURS: [&str; 15] = [
    "driver",
    "legacyNames",
    "existingConnectionsSecret",
    "commonLabels",
    "image",
    "imagePullSecrets",
    "sidecarResources",
    "metrics",
    "console",
    "csiAddons",
    "networkPolicy",
    "openshift",
    "podMonitor",
    "nameOverride",
    "fullnameOverride",
];
/// The keys that are taken elsewhere, or never meant anything.
const ELSEWHERE: [&str; 8] = [
    "connections",
    "existingConnectionsSecret",
    "storageClasses",
    "volumeSnapshotClasses",
    "driver",
    "nameOverride",
    "fullnameOverride",
    "global",
];

/// What of a file is neither storage nor class, and the keys that are left out.
pub(super) fn only_settings(
    values: &Map<String, Value>,
    ours: bool,
) -> (Map<String, Value>, Vec<String>) {
    let mut settings = Map::new();
    let mut left_out = Vec::new();
    for (key, value) in values {
        let known = SETTINGS.contains(&key.as_str());
        if known || (ours && OURS.contains(&key.as_str())) {
            settings.insert(key.clone(), value.clone());
        } else if !ELSEWHERE.contains(&key.as_str()) && has_content(Some(value)) {
            left_out.push(key.clone());
        }
    }
    if let Some(Value::Object(driver)) = settings.get_mut("csiDriver") {
        driver.remove("name");
        if !ours && driver.remove("version").is_some() {
            left_out.push("csiDriver.version".into());
        }
    }
    if ours {
        return (settings, left_out);
    }
    let driver = values.get("driver").and_then(Value::as_object);
    let beside = driver.into_iter().flatten();
    let beside = beside.filter(|(key, value)| {
        !["config", "existingConfigSecret"].contains(&key.as_str()) && has_content(Some(value))
    });
    left_out.extend(beside.map(|(key, _)| format!("driver.{}", key.escape_debug())));
    for (half, keys) in LEFT_OUT {
        let Some(Value::Object(map)) = settings.get_mut(half) else {
            continue;
        };
        for key in keys {
            // `strategy` is kept by its own rule.
            if map
                .remove(*key)
                .is_some_and(|value| has_content(Some(&value)))
                && *key != "strategy"
            {
                left_out.push(format!("{half}.{key}"));
            }
        }
        if half == "controller" {
            left_out.extend(sidecars_left_out(map));
        }
        if let Some(Value::Object(driver)) = map.get_mut("driver")
            && driver
                .remove("image")
                .is_some_and(|image| has_content(Some(&image)))
        {
            left_out.push(format!("{half}.driver.image"));
        }
    }
    (settings, left_out)
}

/// Removes the sidecars: ours are as our chart has them, but for whether they run.
fn sidecars_left_out(controller: &mut Map<String, Value>) -> Vec<String> {
    let mut left_out = Vec::new();
    for (sidecar, _) in SIDECARS {
        let Some(Value::Object(own)) = controller.remove(sidecar) else {
            continue;
        };
        let chosen = own.iter().filter(|(key, value)| {
            !["enabled", "verbosityLevel"].contains(&key.as_str()) && has_content(Some(value))
        });
        let paths = chosen.map(|(key, _)| format!("controller.{sidecar}.{}", key.escape_debug()));
        left_out.extend(paths);
    }
    left_out
}

/// The sidecars that run: one that any release needs does. Returns what there is to say.
pub(super) fn sidecars(inputs: &[Input], values: &mut Map<String, Value>) -> Vec<String> {
    let mut notes = Vec::new();
    for (sidecar, default) in SIDECARS {
        let runs = |input: &Input| {
            let own = at(&input.values, &["controller", sidecar, "enabled"]);
            own.and_then(Value::as_bool).unwrap_or(default)
        };
        let any = inputs.iter().any(runs);
        if any != default {
            let controller = object(values, "controller");
            object(controller, sidecar).insert("enabled".into(), json!(any));
            continue;
        }
        for input in inputs.iter().filter(|input| any && !runs(input)) {
            notes.push(format!(
                "{}: controller.{sidecar}.enabled is left out: another release needs it",
                input.name
            ));
            let own = values
                .get_mut("controller")
                .and_then(|all| all.get_mut(sidecar));
            if let Some(own) = own.and_then(Value::as_object_mut) {
                own.remove("enabled");
            }
        }
    }
    notes
}

/// The controller stays on the nodes where it was there. Storage of the nodes is there anyway.
pub(super) fn strategy(inputs: &[Input], values: &mut Map<String, Value>) -> Vec<String> {
    let is_node = |input: &&Input| {
        text(&input.values, &["controller", "strategy"]).as_deref() == Some("node")
    };
    if inputs.iter().any(|input| is_node(&input)) {
        object(values, "controller").insert("strategy".into(), json!("node"));
    }
    let others = inputs
        .iter()
        .filter(|input| !is_node(input) && !is_ours(input));
    let others = others.filter(|_| inputs.iter().any(|input| is_node(&input)));
    others
        .map(|input| {
            format!(
                "{}: its controller was one for all nodes, and now runs on each node, as that of another release",
                input.name
            )
        })
        .collect()
}

/// Whether a value says anything: null, an empty text, list or map does not.
pub(super) fn has_content(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => map.values().any(|value| has_content(Some(value))),
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    }
}

/// Adds `more` below what is there: maps are merged, lists get what they lack, all else stays. Returns
/// the paths of what stays although it is another in `more`.
pub(super) fn overlay(base: &mut Map<String, Value>, more: &Map<String, Value>) -> Vec<String> {
    let mut different = Vec::new();
    lay(base, more, "", &mut different);
    different
}

fn lay(
    base: &mut Map<String, Value>,
    more: &Map<String, Value>,
    prefix: &str,
    different: &mut Vec<String>,
) {
    for (key, value) in more {
        let path = format!("{prefix}{key}");
        match (base.get_mut(key), value) {
            (_, Value::Null) => {}
            (Some(Value::Object(below)), Value::Object(above)) => {
                lay(below, above, &format!("{path}."), different);
            }
            (None | Some(Value::Null), Value::Object(above)) => {
                let mut below = Map::new();
                lay(&mut below, above, &format!("{path}."), different);
                base.insert(key.clone(), Value::Object(below));
            }
            (None | Some(Value::Null), _) => {
                base.insert(key.clone(), value.clone());
            }
            (Some(Value::Array(below)), Value::Array(above)) => {
                for entry in above {
                    if !below.contains(entry) {
                        below.push(entry.clone());
                    }
                }
            }
            (Some(there), value) if there == value => {}
            (Some(_), _) => different.push(path),
        }
    }
}
