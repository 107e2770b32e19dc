//! Which kinds of drivers there are, and what is said about a name that is none of them.

use driver_core::config::ConfigError;
use driver_directory::DirectoryKind;
use driver_node_manual::NodeManual;

/// Drivers of democratic-csi that this build does not have.
pub(super) const NOT_YET: [&str; 1] = ["vhd-ephemeral-inline"];

/// What stands for all connections of a folder.
pub(crate) const PROXY: &str = "proxy";

/// The sections that drivers of the fleet read, and that may stand in the main file as defaults of
/// connections.
pub(crate) const SECTIONS: [&str; 12] = [
    "containerd",
    "httpConnection",
    "iscsi",
    "local-hostpath",
    "lustre",
    "nfs",
    "nvmeof",
    "objectivefs",
    "smb",
    "sshConnection",
    "synology",
    "zfs",
];

/// The drivers that this build has.
pub(crate) fn built() -> Vec<&'static str> {
    let own = [DirectoryKind::LocalHostpath.name(), NodeManual::KIND];
    let clients = [
        DirectoryKind::NfsClient.name(),
        DirectoryKind::SmbClient.name(),
        DirectoryKind::LustreClient.name(),
    ];
    let families: [&[&'static str]; 8] = [
        &own,
        &driver_zfs_generic::KINDS,
        &driver_zfs_local::KINDS,
        &clients,
        &driver_truenas::KINDS,
        &driver_synology::KINDS,
        &[driver_objectivefs::KIND],
        &driver_inline::KINDS,
    ];
    families.concat()
}

/// What is wrong with the name of a driver, and which name may have been meant.
pub(super) fn unknown(name: &str) -> ConfigError {
    let all = built();
    let built = all.join(", ");
    if name == PROXY {
        let problem = "a connection has a driver of its own; there is no proxy behind a proxy";
        return ConfigError::at("driver", problem).advise(format!("this build has: {built}"));
    }
    if NOT_YET.contains(&name) {
        return ConfigError::at(
            "driver",
            format!("this build does not have the driver `{name}` yet; it has: {built}"),
        );
    }
    let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    let error = ConfigError::at(
        "driver",
        format!("there is no driver `{shown}`; this build has: {built}"),
    );
    let nearest = all
        .iter()
        .chain(&NOT_YET)
        .chain([&PROXY])
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .filter(|(distance, known)| *distance <= known.len() / 3)
        .min();
    match nearest {
        Some((_, known)) => error.advise(format!("is it a misspelling of `{known}`?")),
        None => error,
    }
}

/// The kinds that let in only the nodes that a volume is published to, configured to do so.
#[cfg(test)]
pub(crate) const LETTING_IN: [(&str, &str); 3] = [
    (
        "zfs-generic-nfs",
        "
        driver: zfs-generic-nfs
        sshConnection: {host: nas.example, username: csi, password: x}
        zfs: {datasetParentName: tank/v}
        nfs:
          shareHost: nas.example
          shareStrategy: setDatasetProperties
          shareStrategySetDatasetProperties:
            properties: {sharenfs: rw}
            nodes: {nameTemplate: '{{node}}.example'}",
    ),
    (
        "zfs-generic-iscsi",
        "
        driver: zfs-generic-iscsi
        sshConnection: {host: nas.example, username: csi, password: x}
        zfs: {datasetParentName: tank/v}
        iscsi:
          targetPortal: nas.example:3260
          shareStrategy: lio
          shareStrategyLio:
            basename: iqn.2003-01.org.example
            nodes: {nameTemplate: 'iqn.2004-10.org.example:{{node}}'}",
    ),
    (
        "zfs-generic-nvmeof",
        "
        driver: zfs-generic-nvmeof
        sshConnection: {host: nas.example, username: csi, password: x}
        zfs: {datasetParentName: tank/v}
        nvmeof:
          transports: ['tcp://nas.example:4420']
          shareStrategy: nvmet
          shareStrategyNvmet:
            basename: nqn.2003-01.org.example
            ports: [1]
            nodes: {nameTemplate: 'nqn.2014-08.org.example:{{node}}'}",
    ),
];
