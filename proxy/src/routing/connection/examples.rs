//! The least that each kind of driver can be configured with.
//!
//! What is required comes from here while a file is read that lacks it, so that everything else that is
//! wrong with it is found in one go.

use driver_core::config::{Document, plain_yaml};
use serde_json::Value;

use super::kinds::PROXY;

/// A file of the same driver that can be used.
pub(crate) fn like(document: &Document) -> Option<Value> {
    plain_yaml(&least(document.driver().ok()?)?).ok()
}

/// The text of such a file, of any kind that this build has.
pub(crate) fn least(kind: &str) -> Option<String> {
    let zfs = "zfs: {datasetParentName: tank/v}";
    let sections = match kind {
        PROXY => "proxy: {configFolder: /none}".to_owned(),
        "node-manual" | "containerd-oci-ephemeral-inline" => String::new(),
        "local-hostpath" => {
            "local-hostpath: {shareBasePath: /x, controllerBasePath: /x}".to_owned()
        }
        "nfs-client" | "smb-client" | "lustre-client" => format!(
            "{}: {{shareHost: nas.example, shareBasePath: /x, controllerBasePath: /x}}",
            kind.trim_end_matches("-client")
        ),
        "objectivefs" => "objectivefs: {pool: csi, env: {OBJECTSTORE: 's3://'}}".to_owned(),
        "zfs-local-dataset" | "zfs-local-zvol" | "zfs-local-ephemeral-inline" => zfs.to_owned(),
        kind if driver_zfs_generic::KINDS.contains(&kind) => {
            let ssh = "sshConnection: {host: nas.example, username: csi, password: x}";
            format!("{zfs}\n{ssh}\n{}", of_a_host(kind)?)
        }
        kind if driver_synology::KINDS.contains(&kind) => {
            let http = "{protocol: https, host: nas.example, username: csi, password: x}";
            format!("httpConnection: {http}\n{}", of_synology(kind)?)
        }
        kind if driver_truenas::KINDS.contains(&kind) => {
            let http = "{protocol: https, host: nas.example, username: csi, apiKey: 1-x}";
            let ssh = if kind.contains("-api-") {
                ""
            } else {
                "sshConnection: {host: nas.example, username: csi, password: x}"
            };
            format!(
                "{zfs}\nhttpConnection: {http}\n{ssh}\n{}",
                of_truenas(kind)?
            )
        }
        _ => return None,
    };
    Some(format!("driver: {kind}\n{sections}\n"))
}

fn of_a_host(kind: &str) -> Option<&'static str> {
    Some(match kind.rsplit('-').next()? {
        "nfs" => {
            "nfs: {shareHost: nas.example, shareStrategy: setDatasetProperties,
                   shareStrategySetDatasetProperties: {properties: {sharenfs: rw}}}"
        }
        "smb" => {
            "smb: {shareHost: nas.example, shareStrategy: setDatasetProperties,
                   shareStrategySetDatasetProperties: {properties: {sharesmb: on}}}"
        }
        "iscsi" => {
            "iscsi: {targetPortal: 'nas.example:3260', shareStrategy: lio,
                     shareStrategyLio: {basename: iqn.2003-01.org.example}}"
        }
        "nvmeof" => {
            "nvmeof: {transports: ['tcp://nas.example:4420'], shareStrategy: nvmet,
                      shareStrategyNvmet: {basename: nqn.2003-01.org.example, ports: [1]}}"
        }
        _ => return None,
    })
}

fn of_synology(kind: &str) -> Option<&'static str> {
    Some(match kind.rsplit('-').next()? {
        "nfs" => "nfs: {shareHost: nas.example, clients: [node-1]}",
        "smb" => "smb: {shareHost: nas.example, users: [csi]}",
        "iscsi" => "iscsi: {targetPortal: nas.example, baseiqn: 'iqn.2000-01.com.synology:csi.'}",
        _ => return None,
    })
}

fn of_truenas(kind: &str) -> Option<&'static str> {
    Some(match kind.rsplit('-').next()? {
        "nfs" => "nfs: {shareHost: nas.example}",
        "smb" => "smb: {shareHost: nas.example}",
        "iscsi" => {
            "iscsi: {targetPortal: 'nas.example:3260',
                     targetGroups: [{targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1}]}"
        }
        "nvmeof" => "nvmeof: {transports: ['tcp://nas.example:4420'], ports: [1]}",
        _ => return None,
    })
}
