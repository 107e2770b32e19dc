//! The rights of the old controller because it ran as root, and what ours needs for the same.

use serde_json::{Map, Value, json};

use super::{at, text};

/// Drivers whose controller works in the directory of a share.
const SHARES: [(&str, &str); 3] = [
    ("nfs-client", "nfs"),
    ("smb-client", "smb"),
    ("lustre-client", "lustre"),
];

/// Gives the controller what such connections need, and returns what there is to say about it.
pub(super) fn grant(
    values: &mut Map<String, Value>,
    connections: &Map<String, Value>,
) -> Option<String> {
    // Beside the nodes' half it has all rights already.
    if text(values, &["controller", "strategy"]).as_deref() == Some("node") {
        return None;
    }
    let folders: Vec<_> = connections.values().filter_map(folder_of_share).collect();
    if folders.is_empty() {
        return None;
    }
    let mounts = at(values, &["controller", "driver", "extraVolumeMounts"]);
    let mounts = mounts.and_then(Value::as_array).into_iter().flatten();
    let mounted: Vec<_> = mounts
        .filter_map(|mount| mount.get("mountPath")?.as_str())
        .collect();
    let is_mounted = |folder: &&str| {
        let path = std::path::Path::new(folder);
        mounted.iter().any(|mount| path.starts_with(mount))
    };
    let all_mounted = folders.iter().all(is_mounted);
    let controller = object(values, "controller");
    controller
        .entry("podSecurityContext")
        .or_insert(json!({"runAsNonRoot": false, "runAsUser": 0, "runAsGroup": 0}));
    let context = object(controller, "driver").entry("securityContext");
    let own = context.or_insert(Value::Null);
    if own.as_object().is_none_or(Map::is_empty) {
        // With SYS_ADMIN alone AppArmor refuses the mount on Debian and Ubuntu.
        *own = if all_mounted {
            json!({"allowPrivilegeEscalation": false})
        } else {
            json!({"privileged": true})
        };
    }
    let said = if all_mounted {
        "as root, as the old one did, because it makes directories on a share that is mounted into it"
    } else {
        "privileged and as root, because it mounts the share itself: to avoid that, mount it with \
         controller.extraVolumes and controller.driver.extraVolumeMounts, see docs/share-clients.md"
    };
    Some(format!(
        "the controller runs {said} (controller.podSecurityContext, controller.driver.securityContext)"
    ))
}

/// The `controllerBasePath` of a share, empty without one; `None` if the connection is no share.
fn folder_of_share(config: &Value) -> Option<&str> {
    let kind = config.get("driver")?.as_str()?;
    let (_, section) = SHARES.iter().find(|(share, _)| *share == kind)?;
    let folder = config
        .get(section)
        .and_then(|share| share.get("controllerBasePath"));
    Some(folder.and_then(Value::as_str).unwrap_or_default())
}

/// The map below a key, made if there is none.
pub(super) fn object<'a>(
    values: &'a mut Map<String, Value>,
    key: &str,
) -> &'a mut Map<String, Value> {
    let value = values.entry(key).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    value
        .as_object_mut()
        .unwrap_or_else(|| unreachable!("made above"))
}
