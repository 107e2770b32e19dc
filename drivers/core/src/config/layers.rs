//! Layers one file over another: the defaults of all connections of a proxy, and the settings of
//! each.
//!
//! compat: "The proxy": maps are merged and lists replaced; the capabilities and the driver of the
//! file above are its own.

use serde_json::{Map, Value};

/// Keys of the process above that do not apply to its connections.
const OF_THE_PROCESS: [&str; 2] = ["driver", "service"];

/// The part of a document for the connections below it.
pub(super) fn defaults(base: &Value) -> Value {
    let mut map = base.as_object().cloned().unwrap_or_default();
    map.retain(|key, _| !OF_THE_PROCESS.contains(&key.as_str()));
    let shared = map.remove("proxy").and_then(|mut proxy| {
        let shared = proxy.as_object_mut()?.remove("perDriver")?;
        Some(Value::Object(Map::from_iter([(
            "perDriver".to_owned(),
            shared,
        )])))
    });
    if let Some(shared) = shared {
        map.insert("proxy".to_owned(), shared);
    }
    Value::Object(map)
}

/// Lays `upper` over `lower`.
pub(super) fn lay(lower: &mut Value, upper: &Value) {
    match (lower, upper) {
        (Value::Object(lower), Value::Object(upper)) => {
            for (key, value) in upper {
                match lower.get_mut(key) {
                    Some(below) => lay(below, value),
                    None => drop(lower.insert(key.clone(), value.clone())),
                }
            }
        }
        (lower, upper) => lower.clone_from(upper),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{Document, NoEnvironment};

    #[test]
    fn maps_are_merged_and_everything_else_is_replaced() {
        let mut below = json!({"a": {"b": 1, "c": [1, 2, 3]}, "d": "x", "e": {"f": 1}});
        lay(&mut below, &json!({"a": {"c": [4]}, "d": null, "g": 5}));
        let merged = json!({"a": {"b": 1, "c": [4]}, "d": null, "e": {"f": 1}, "g": 5});
        assert_eq!(below, merged);
    }

    #[test]
    fn what_the_process_above_is_does_not_come_down() {
        let base = json!({
            "driver": "proxy", "service": {"node": 1}, "instance_id": "i",
            "proxy": {"configFolder": "/c", "perDriver": {"topology": []}},
        });
        let expected = json!({"instance_id": "i", "proxy": {"perDriver": {"topology": []}}});
        assert_eq!(defaults(&base), expected);
        assert_eq!(
            defaults(&json!({"driver": "proxy", "proxy": {"configFolder": "/c"}})),
            json!({})
        );
    }

    #[test]
    fn only_keys_of_the_file_itself_are_reported_and_its_driver_is_required() {
        let parse = |text: &str| Document::parse(text, &NoEnvironment).expect("yaml");
        let base = parse("{driver: proxy, instance_id: i, nfs: {}, node: {odd: 1}}");
        let document = parse("{driver: x, node: {mount: {mount_flags: ro, odd: 2}}}").over(&base);
        let config = document.common().expect("keys");
        assert_eq!(config.instance_id.as_deref(), Some("i"));
        let odd: Vec<_> = document
            .findings()
            .into_iter()
            .map(|found| found.path)
            .collect();
        assert_eq!(odd, ["node.mount.odd"]);
        let with = parse("{driver: proxy, nfs: {shareHost: a}, nodee: {}, instnce_id: i}");
        with.common().expect("keys");
        with.has_defaults_for_others(&["nfs", "smb"]);
        let odd: Vec<_> = with
            .findings()
            .into_iter()
            .map(|found| found.path)
            .collect();
        assert_eq!(odd, ["instnce_id", "nodee"]);
        let error = parse("{}").over(&base).common().expect_err("no driver");
        assert_eq!(error.path(), Some("driver"));
    }
}
