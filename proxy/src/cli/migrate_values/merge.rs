//! The settings of several releases as those of one.

use serde_json::{Map, Value};

/// What of the two halves is taken by its own rules, or has no effect any more.
const LEFT_OUT: [(&str, &[&str]); 2] = [
    (
        "controller",
        &[
            "strategy",
            "clusterDriverRegistrar",
            "externalAttacher",
            "externalProvisioner",
            "externalResizer",
            "externalSnapshotter",
            "externalHealthMonitorController",
        ],
    ),
    ("node", &["windows", "linux", "cleanup", "driverRegistrar"]),
];
/// What a file of ours has besides.
const OURS: [&str; 9] = [
    "driver",
    "image",
    "imagePullSecrets",
    "metrics",
    "networkPolicy",
    "openshift",
    "podMonitor",
    "nameOverride",
    "fullnameOverride",
];

/// What of a file is neither storage nor class, and the keys with an effect that are left out.
pub(super) fn only_settings(
    values: &Map<String, Value>,
    ours: bool,
) -> (Map<String, Value>, Vec<String>) {
    let mut settings = Map::new();
    let mut left_out = Vec::new();
    let mut keep = vec!["csiDriver", "controller", "node", "extraCaCerts"];
    if ours {
        keep.extend(OURS);
    }
    for key in keep {
        if let Some(value) = values.get(key) {
            settings.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(Value::Object(driver)) = settings.get_mut("csiDriver") {
        driver.remove("name");
        driver.remove("version");
    }
    if ours {
        return (settings, left_out);
    }
    for (half, keys) in LEFT_OUT {
        let Some(Value::Object(map)) = settings.get_mut(half) else {
            continue;
        };
        for key in keys {
            // Of a sidecar, only arguments and resources are the user's choice; the rest is as our chart has it.
            let chosen = map.remove(*key).is_some_and(|value| {
                ["args", "extraArgs", "resources"]
                    .iter()
                    .any(|part| has_content(value.get(part)))
            });
            if chosen {
                left_out.push(format!("{half}.{key}"));
            }
        }
        if let Some(Value::Object(driver)) = map.get_mut("driver") {
            driver.remove("image");
        }
    }
    (settings, left_out)
}

fn has_content(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
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
