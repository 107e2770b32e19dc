//! Objects of Kubernetes, as the program writes them.

use csi_proto::v1::Volume;
use driver_core::config::plain_yaml;
use serde_json::Value;

/// Those that a command has written to standard output, in their order.
///
/// # Panics
/// If one is no YAML.
pub fn read(text: &str) -> Vec<Value> {
    let objects = text.split("---\n").skip(1);
    objects
        .map(|object| plain_yaml(object).expect("YAML"))
        .collect()
}

/// The volume as the kubelet knows it from its persistent volume.
///
/// # Panics
/// If that is none of CSI.
pub fn volume(persistent_volume: &Value) -> Volume {
    let csi = &persistent_volume["spec"]["csi"];
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let context = csi["volumeAttributes"].as_object().expect("a context");
    Volume {
        volume_id: text(&csi["volumeHandle"]),
        volume_context: context
            .iter()
            .map(|(key, value)| (key.clone(), text(value)))
            .collect(),
        ..Volume::default()
    }
}
