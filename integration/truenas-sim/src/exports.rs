//! The rows of which exports of volumes consist, for tests that compare what is there.

use serde_json::{Map, Value};

use crate::Generation;

/// The services whose rows they are, each after those that its rows refer to by number.
pub fn services(generation: Generation) -> Vec<&'static str> {
    let mut services = vec![
        "sharing.nfs",
        "sharing.smb",
        "iscsi.target",
        "iscsi.extent",
        "iscsi.targetextent",
        "iscsi.initiator",
    ];
    if generation >= Generation::V25_10 {
        services.extend([
            "nvmet.subsys",
            "nvmet.namespace",
            "nvmet.port_subsys",
            "nvmet.host",
            "nvmet.host_subsys",
        ]);
    }
    services
}

/// The fields of a row beside its numbers.
pub fn said(row: &Value) -> Map<String, Value> {
    const SAID: [&str; 14] = [
        "name",
        "path",
        "hosts",
        "networks",
        "enabled",
        "alias",
        "disk",
        "comment",
        "initiators",
        "subnqn",
        "allow_any_host",
        "device_path",
        "hostnqn",
        "lunid",
    ];
    let said = SAID.iter();
    said.filter_map(|key| Some(((*key).to_owned(), row.get(*key)?.clone())))
        .collect()
}
