//! Volume contexts as the property that keeps them: compact JSON, numbers as numbers.
//!
//! compat: "ZFS": the keys of the driver that made it are not part of the property; they come from
//! properties of their own.

use csi_types::{Attachment, VolumeContext};
use driver_core::{Error, Kind};
use serde_json::{Map, Value};

/// The keys whose values democratic-csi writes as numbers.
const NUMBERS: [&str; 2] = ["lun", "nsid"];

/// The text of the property.
pub fn to_json(attachment: &Attachment) -> String {
    let entry = |(key, text): (String, String)| {
        let number = text.parse::<u64>().ok();
        let number = number.filter(|_| NUMBERS.contains(&key.as_str()));
        (key, number.map_or(Value::String(text), Value::from))
    };
    let map: Map<String, Value> = attachment.to_context().into_iter().map(entry).collect();
    Value::Object(map).to_string()
}

/// Parses the property, whichever driver wrote it.
pub fn from_json(text: &str) -> Result<Attachment, Error> {
    let refused = || Error::new(Kind::Internal, "read a recorded volume context");
    let map: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| refused().because(error))?;
    let mut context = VolumeContext::new();
    for (key, value) in map {
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            _ => continue,
        };
        context.insert(key, text);
    }
    Attachment::parse(&context).map_err(|error| refused().because(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_democratic_csi_are_read() {
        for text in [
            r#"{"node_attach_driver":"nfs","server":"10.0.0.1","share":"/tank/v/pvc-1"}"#,
            r#"{"node_attach_driver":"iscsi","portal":"10.0.0.1:3260","portals":"","interface":"","iqn":"iqn.2003-01.org.x:pvc-1","lun":0}"#,
            r#"{"node_attach_driver":"nvmeof","transport":"tcp://10.0.0.1:4420","transports":"","nqn":"nqn.2003-01.org.x:pvc-1","nsid":1}"#,
            r#"{"node_attach_driver":"zfs-local","zfs_asset_name":"tank/v/pvc-1"}"#,
        ] {
            let attachment = from_json(text).unwrap();
            assert_eq!(from_json(&to_json(&attachment)).unwrap(), attachment);
            let numbers = |text: &str| text.contains(r#""lun":0"#) || text.contains(r#""nsid":1"#);
            assert_eq!(numbers(&to_json(&attachment)), numbers(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_context_is_an_error() {
        for text in ["", "[]", "{}", r#"{"node_attach_driver":"nfs"}"#] {
            assert!(from_json(text).is_err(), "{text:?}");
        }
    }
}
