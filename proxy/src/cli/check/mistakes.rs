//! Mistakes that people make in configuration files, each with the words that they need to mend it.

use std::fs;
use std::path::Path;

use driver_core::config::plain_yaml;
use serde_json::{Value, json};

use super::*;
use crate::routing::connection::{built, least};

mod foreign;

const NFS: &str = "
driver: zfs-generic-nfs
sshConnection: {host: nas.example, username: csi, password: x}
zfs: {datasetParentName: tank/v}
nfs:
  shareHost: nas.example
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: rw}}
";
const ISCSI: &str = "
driver: zfs-generic-iscsi
sshConnection: {host: nas.example, username: csi, password: x}
zfs: {datasetParentName: tank/v}
iscsi:
  targetPortal: nas.example:3260
  shareStrategy: lio
  shareStrategyLio: {basename: iqn.2003-01.org.example}
";
const NVME: &str = "
driver: zfs-generic-nvmeof
sshConnection: {host: nas.example, username: csi, password: x}
zfs: {datasetParentName: tank/v}
nvmeof:
  transports: ['tcp://nas.example:4420']
  shareStrategy: nvmet
  shareStrategyNvmet: {basename: nqn.2003-01.org.example, ports: [1]}
";
const DIRECTORY: &str = "
driver: local-hostpath
local-hostpath:
  shareBasePath: /srv/csi
  controllerBasePath: /srv/csi
";

const TRUENAS: &str = "
driver: freenas-api-iscsi
httpConnection: {protocol: https, host: nas.example, username: csi, apiKey: 1-x}
zfs: {datasetParentName: tank/v}
iscsi:
  targetPortal: nas.example:3260
  targetGroups: [{targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1}]
";
const SYNOLOGY: &str = "
driver: synology-nfs
httpConnection: {protocol: https, host: nas.example, username: csi, password: x}
nfs: {shareHost: nas.example, clients: [node-1]}
";

/// The change of a good file, and what is said about it.
struct Mistake {
    good: &'static str,
    from: &'static str,
    to: &'static str,
    said: &'static str,
}

const fn whole(text: &'static str, said: &'static str) -> Mistake {
    Mistake {
        good: "",
        from: "",
        to: text,
        said,
    }
}

const fn changed(
    good: &'static str,
    from: &'static str,
    to: &'static str,
    said: &'static str,
) -> Mistake {
    Mistake {
        good,
        from,
        to,
        said,
    }
}

const MISTAKES: &[Mistake] = &[
    // The file as a whole.
    whole("", "driver: is required and missing"),
    whole(
        "- driver: local-hostpath",
        "the document is not a map of keys",
    ),
    whole(
        "driver: [",
        "did not find expected node content at line 2 column 1, while parsing a flow node",
    ),
    whole(
        "driver: local-hostpath\ndriver: node-manual",
        "file: the key `driver` appears twice",
    ),
    whole(
        "driver: local-hostpath\nlocal-hostpath:\n\tshareBasePath: /x",
        "line 3 is indented with a tab (YAML is indented with spaces)",
    ),
    whole(
        "driver: x: y",
        "mapping values are not allowed in this context at line 1 column 10",
    ),
    // The driver.
    whole("drivr: local-hostpath", "is `drivr` a misspelling of it?"),
    whole(
        "driver: zfs-generic-nsf",
        "is it a misspelling of `zfs-generic-nfs`?",
    ),
    whole(
        "driver: Local-Hostpath",
        "is it a misspelling of `local-hostpath`?",
    ),
    whole(
        "driver: vhd-ephemeral-inline",
        "does not have the driver `vhd-ephemeral-inline` yet",
    ),
    whole(
        "driver: {local-hostpath: {}}",
        "driver: expected the name of a driver",
    ),
    whole(
        "driver: zfs",
        "there is no driver `zfs`; this build has: local-hostpath, nfs-client, smb-client, lustre-client, node-manual, ",
    ),
    // Directories.
    whole(
        "driver: local-hostpath",
        "local-hostpath.shareBasePath: is required and missing",
    ),
    whole(
        "driver: local-hostpath\nlocal-hostpath:\nshareBasePath: /x",
        "the section `local-hostpath` is empty: indent its keys below it",
    ),
    whole(
        "driver: local-hostpath\nlocal-hostpath: /x",
        "local-hostpath: expected a section with keys, found text",
    ),
    whole(
        "driver: local-hostpath\nlocal_hostpath: {shareBasePath: /x}",
        "is `local_hostpath` a misspelling of `local-hostpath`?",
    ),
    changed(
        DIRECTORY,
        "shareBasePath: ",
        "sharebasepath: ",
        "is `sharebasepath` a misspelling of it?",
    ),
    changed(
        DIRECTORY,
        "controllerBasePath: /srv",
        "controllerBasePath: srv",
        "local-hostpath.controllerBasePath: is not absolute",
    ),
    changed(
        DIRECTORY,
        "/srv/csi\n  c",
        "[/srv/csi]\n  c",
        "local-hostpath.shareBasePath: expected a string, found a list",
    ),
    // The host.
    changed(
        NFS,
        "host: nas.example, ",
        "",
        "sshConnection.host: is required and missing",
    ),
    changed(
        NFS,
        "host: nas.example",
        "host: server address",
        "sshConnection.host: this is a placeholder of an example file",
    ),
    changed(
        NFS,
        "host: nas.example",
        "host: <nas>",
        "sshConnection.host: this is a placeholder of an example file",
    ),
    changed(
        NFS,
        "shareHost: nas.example",
        "shareHost: server address",
        "nfs.shareHost: this is a placeholder of an example file",
    ),
    changed(
        NFS,
        "password: x",
        "privateKey: /root/.ssh/id_ed25519",
        "this is the path of a file: give the text of the private key itself",
    ),
    changed(
        NFS,
        "password: x",
        "privateKey: abc",
        "this is no private key in a form that can be read",
    ),
    changed(
        NFS,
        ", password: x",
        "",
        "sshConnection.privateKey: or a password is needed to log in",
    ),
    changed(
        NFS,
        "password: x",
        "password: x, port: ssh",
        "sshConnection.port: expected the number of a port",
    ),
    changed(
        NFS,
        "password: x",
        "password: x, port: 99999",
        "sshConnection.port: expected the number of a port",
    ),
    changed(
        NFS,
        "password: x",
        "password: '${NO_SUCH_VARIABLE}'",
        "sshConnection.password: `${…}` stays as it is: no such environment variable exists",
    ),
    // ZFS.
    changed(
        NFS,
        "tank/v",
        "/tank/v",
        "is a path, and a dataset has a name: `tank/volumes`, without a slash before it",
    ),
    changed(
        NFS,
        "tank/v",
        "tank//v",
        "zfs.datasetParentName: has an empty part",
    ),
    changed(
        NFS,
        "tank/v",
        "'tank/v@s'",
        "zfs.datasetParentName: holds '@', which ZFS does not take",
    ),
    changed(
        NFS,
        "datasetParentName",
        "datasetParent",
        "is `datasetParent` a misspelling of it?",
    ),
    changed(
        NFS,
        "tank/v}",
        "tank/v, detachedSnapshotsDatasetParentName: tank/v}",
        "has to be apart from zfs.datasetParentName: neither may hold the other",
    ),
    changed(
        NFS,
        "tank/v}",
        "tank/v, datasetEnableQuotas: maybe}",
        "zfs.datasetEnableQuotas: expected a boolean, found text",
    ),
    // Exports.
    changed(
        NFS,
        "setDatasetProperties\n",
        "setDatasetProperty\n",
        "nfs.shareStrategy: has to say how datasets are shared: setDatasetProperties",
    ),
    changed(
        NFS,
        "shareStrategy: setDatasetProperties\n",
        "\n",
        "nfs.shareStrategy: has to say how datasets are shared: setDatasetProperties",
    ),
    changed(
        ISCSI,
        "targetPortal: nas.example:3260",
        "targetPortal: 'server[:port]'",
        "iscsi.targetPortal: this is a placeholder of an example file",
    ),
    changed(
        ISCSI,
        "iqn.2003-01.org.example",
        "org.example",
        "iscsi.shareStrategyLio.basename: has to begin with iqn. or eui. or naa. and to hold only",
    ),
    changed(
        NVME,
        "tcp://nas.example:4420",
        "nas.example:4420",
        "nvmeof.transports: is not an address of the form tcp://host:port",
    ),
    changed(
        NVME,
        "ports: [1]",
        "ports: []",
        "nvmeof.shareStrategyNvmet.ports: is needed: no node could reach a volume",
    ),
    changed(
        NFS,
        "{sharenfs: rw}",
        "{sharenf: rw}",
        "nfs.shareStrategySetDatasetProperties.properties: may hold `share` and `sharenfs` alone",
    ),
    // Appliances.
    changed(
        TRUENAS,
        "host: nas.example",
        "host: https://nas.example/api",
        "httpConnection.host: is neither the name of a host nor an address",
    ),
    changed(
        TRUENAS,
        "protocol: https",
        "protocol: htps",
        "httpConnection.protocol: `htps` is none of ",
    ),
    changed(
        TRUENAS,
        "targetGroupPortalGroup: 1",
        "targetGroupPortalGroup: one",
        "iscsi.targetGroups[0].targetGroupPortalGroup: expected ",
    ),
    changed(
        SYNOLOGY,
        "host: nas.example",
        "host: https://nas.example:5001",
        "httpConnection.host: is neither the name of a host nor an address",
    ),
    changed(
        SYNOLOGY,
        "password: x",
        "passwort: x",
        "is `passwort` a misspelling of it?",
    ),
    // What all drivers have.
    changed(
        DIRECTORY,
        "local-hostpath:\n",
        "_private: {csi: {volume: {deleteStrategy: retian}}}\nlocal-hostpath:\n",
        "_private.csi.volume.deleteStrategy: `retian` is none of ",
    ),
    changed(
        DIRECTORY,
        "local-hostpath:\n",
        "csi: {access_modes: [SINGLE_NODE_WRITTER]}\nlocal-hostpath:\n",
        "is `SINGLE_NODE_WRITER` meant?",
    ),
    changed(
        DIRECTORY,
        "local-hostpath:\n",
        "instanceid: one\nlocal-hostpath:\n",
        "instanceid: nothing reads this key (is `instance_id` meant?",
    ),
    changed(
        DIRECTORY,
        "  controllerBasePath: ",
        "  dirPermissionsMode: 0o777\n  controllerBasePath: ",
        "local-hostpath.dirPermissionsMode: ",
    ),
    // Volumes of pods.
    whole(
        "driver: zfs-local-ephemeral-inline\nzfs: {datasetParentName: tank/v}\n\
         inline: {namespaces: [Build]}",
        "inline.namespaces: `Build` is not the name of a namespace",
    ),
    // The proxy.
    whole(
        "driver: proxy",
        "proxy.configFolder: is required and missing",
    ),
    whole(
        "driver: proxy\nproxy: {configFolder: connections}",
        "proxy.configFolder: is not absolute",
    ),
];

fn flags(file: &Path) -> CheckFlags {
    CheckFlags {
        driver_config_file: file.to_owned(),
        offline: true,
        json: false,
    }
}

#[test]
fn each_typical_mistake_is_reported_in_words_that_help() {
    assert!(MISTAKES.len() >= 40, "{}", MISTAKES.len());
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut wrong = Vec::new();
    for Mistake {
        good,
        from,
        to,
        said,
    } in MISTAKES.iter().chain(foreign::MISTAKES)
    {
        let text = if good.is_empty() {
            (*to).to_owned()
        } else {
            assert!(good.contains(from), "{from}");
            good.replacen(from, to, 1)
        };
        fs::write(file.path(), &text).expect("a file");
        let table = check(&flags(file.path())).table();
        // One finding has its advice on a line of its own.
        let plain = table.replace("\n         → ", " (");
        if !plain.contains(said) && !plain.contains(said.trim_end_matches(')')) {
            wrong.push(format!("--- {to}\nwanted: {said}\n{table}"));
        }
        assert!(!table.contains("struct "), "{table}");
        assert!(!names_itself(&table), "{table}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a name is called a misspelling of itself.
fn names_itself(text: &str) -> bool {
    text.split("is `").skip(1).any(|rest| {
        let (name, rest) = rest.split_once('`').unwrap_or_default();
        rest.strip_prefix(" a misspelling of `")
            .is_some_and(|rest| rest.starts_with(&format!("{name}`")))
    })
}

/// What a check of this text finds wrong, and what it says of it.
fn errors(text: &str) -> (Vec<String>, String) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), text).expect("a file");
    let report = check(&flags(file.path()));
    let table = report.table();
    let wrong = |finding: &Finding| finding.weight == Weight::Error;
    let found = report.findings.into_iter().filter(wrong);
    let mut about: Vec<_> = found.map(|found| found.about).collect();
    about.sort_unstable();
    (about, table)
}

/// The settings that each kind of driver needs, where nothing is given; those of `FreeNAS` and TrueNAS are the same.
const REQUIRED: &[(&str, &[&str])] = &[
    (
        "local-hostpath",
        &[
            "local-hostpath.controllerBasePath",
            "local-hostpath.shareBasePath",
        ],
    ),
    ("nfs-client", &["nfs.shareBasePath", "nfs.shareHost"]),
    ("smb-client", &["smb.shareBasePath", "smb.shareHost"]),
    (
        "lustre-client",
        &["lustre.shareBasePath", "lustre.shareHost"],
    ),
    ("node-manual", &[]),
    (
        "zfs-generic-nfs",
        &["nfs.shareHost", "nfs.shareStrategy", ZFS],
    ),
    (
        "zfs-generic-smb",
        &["smb.shareHost", "smb.shareStrategy", ZFS],
    ),
    (
        "zfs-generic-iscsi",
        &["iscsi.shareStrategy", "iscsi.targetPortal", ZFS],
    ),
    (
        "zfs-generic-nvmeof",
        &["nvmeof.shareStrategy", "nvmeof.transport", ZFS],
    ),
    ("zfs-local-dataset", &[ZFS]),
    ("zfs-local-zvol", &[ZFS]),
    ("truenas-nfs", &[HTTP, HTTP_HOST, "nfs.shareHost", SSH, ZFS]),
    ("truenas-smb", &[HTTP, HTTP_HOST, "smb.shareHost", SSH, ZFS]),
    (
        "truenas-iscsi",
        &[
            HTTP,
            HTTP_HOST,
            "iscsi.targetGroups",
            "iscsi.targetPortal",
            SSH,
            ZFS,
        ],
    ),
    (
        "truenas-nvmeof",
        &[
            HTTP,
            HTTP_HOST,
            "nvmeof.ports",
            "nvmeof.transports",
            SSH,
            ZFS,
        ],
    ),
    ("truenas-api-nfs", &[HTTP, HTTP_HOST, "nfs.shareHost", ZFS]),
    ("truenas-api-smb", &[HTTP, HTTP_HOST, "smb.shareHost", ZFS]),
    (
        "truenas-api-iscsi",
        &[
            HTTP,
            HTTP_HOST,
            "iscsi.targetGroups",
            "iscsi.targetPortal",
            ZFS,
        ],
    ),
    (
        "truenas-api-nvmeof",
        &[HTTP, HTTP_HOST, "nvmeof.ports", "nvmeof.transports", ZFS],
    ),
    (
        "synology-iscsi",
        &[
            HTTP_HOST,
            HTTP_PASSWORD,
            HTTP_PROTOCOL,
            HTTP_USER,
            "iscsi.baseiqn",
            "iscsi.targetPortal",
        ],
    ),
    (
        "synology-nfs",
        &[
            HTTP_HOST,
            HTTP_PASSWORD,
            HTTP_PROTOCOL,
            HTTP_USER,
            "nfs.clients",
            "nfs.shareHost",
        ],
    ),
    (
        "synology-smb",
        &[
            HTTP_HOST,
            HTTP_PASSWORD,
            HTTP_PROTOCOL,
            HTTP_USER,
            "smb.shareHost",
            "smb.users",
        ],
    ),
    (
        "objectivefs",
        &["objectivefs.env.OBJECTSTORE", "objectivefs.pool"],
    ),
    ("zfs-local-ephemeral-inline", &[ZFS]),
    ("containerd-oci-ephemeral-inline", &[]),
];
const ZFS: &str = "zfs.datasetParentName";
const SSH: &str = "sshConnection";
const HTTP: &str = "httpConnection";
const HTTP_HOST: &str = "httpConnection.host";
const HTTP_PROTOCOL: &str = "httpConnection.protocol";
const HTTP_USER: &str = "httpConnection.username";
const HTTP_PASSWORD: &str = "httpConnection.password";

#[test]
fn what_is_required_is_named_at_once_for_every_kind_of_driver() {
    for kind in built() {
        let like = kind.replace("freenas", "truenas");
        let required = REQUIRED.iter().find(|(kind, _)| *kind == like);
        let (_, required) = required.expect(kind);
        let (about, table) = errors(&format!("driver: {kind}"));
        assert_eq!(about, *required, "{table}");
    }
}

/// The paths of the values at the leaves, each of which becomes one that nothing can use.
fn spoil(value: &mut Value, path: &str, leaves: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut().filter(|(key, _)| *key != "driver") {
                let path = format!("{path}.{key}");
                spoil(value, path.trim_start_matches('.'), leaves);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter_mut().enumerate() {
                spoil(value, &format!("{path}[{index}]"), leaves);
            }
        }
        leaf => {
            *leaf = json!([{}]);
            leaves.push(path.to_owned());
        }
    }
}

#[test]
fn each_value_that_is_wrong_is_named_at_once_and_no_other_for_every_kind_of_driver() {
    for kind in built() {
        let mut value = plain_yaml(&least(kind).expect(kind)).expect("an example");
        let mut leaves = Vec::new();
        spoil(&mut value, "", &mut leaves);
        leaves.sort_unstable();
        let (about, table) = errors(&value.to_string());
        // Some lists are read as a whole.
        let plain = |all: Vec<String>| -> Vec<_> {
            let all = all.iter().map(|path| path.trim_end_matches("[0]"));
            all.map(str::to_owned).collect()
        };
        assert_eq!(plain(about), plain(leaves), "{table}");
    }
}

#[test]
fn all_mistakes_of_a_section_are_reported_at_once() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = "
driver: local-hostpath
local-hostpath:
  shareBasePath: [/srv/csi]
  controllerBasePath: {}
  dirPermissionsMode: rwx
  dirPermissionsUser: {id: 5}
  dirPermissionGroup: csi
  snapshots: filecopy
";
    fs::write(file.path(), text).expect("a file");
    let report = check(&flags(file.path()));
    let mut about: Vec<_> = report.findings.iter().map(|found| &*found.about).collect();
    about.sort_unstable();
    let keys = [
        "controllerBasePath",
        "dirPermissionGroup",
        "dirPermissionsMode",
        "dirPermissionsUser",
        "shareBasePath",
        "snapshots",
    ];
    let keys = keys.map(|key| format!("local-hostpath.{key}"));
    assert_eq!(about, keys, "{}", report.table());
}

#[test]
fn mistakes_in_the_file_of_a_proxy_and_in_its_connections_are_reported_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, folder) = (dir.path().join("proxy.yaml"), dir.path().join("c"));
    fs::create_dir(&folder).expect("a folder");
    let yaml = format!(
        "driver: proxy\nproxy: {{configFolder: {}, cacheTimeoutMinutes: soon, aliases: [a]}}\n\
         node: {{mount: 5}}\nprxy: {{}}\n",
        folder.display()
    );
    fs::write(&file, yaml).expect("a file");
    fs::write(folder.join("disk.yaml"), "driver: local-hostpath\ncsi: 5\n").expect("a file");
    fs::write(folder.join("nas.yaml"), NFS.replace("tank/v", "/tank/v")).expect("a file");
    let report = check(&flags(&file));
    let table = report.table();
    for expected in [
        "proxy.cacheTimeoutMinutes: ",
        "proxy.aliases: ",
        "node.mount: ",
        "prxy: nothing reads this key",
        "csi: expected a section with keys",
        "local-hostpath.shareBasePath: is required and missing",
        "local-hostpath.controllerBasePath: is required and missing",
        "driver: the volumes of `local-hostpath` belong to a node",
        "zfs.datasetParentName: is a path",
    ] {
        assert_eq!(table.matches(expected).count(), 1, "{expected}\n{table}");
    }
    assert!(!report.is_usable(), "{table}");
    assert!(table.contains("9 errors"), "{table}");
}

#[test]
fn the_good_files_have_nothing_to_correct() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    for good in [NFS, ISCSI, NVME, DIRECTORY, TRUENAS, SYNOLOGY] {
        fs::write(file.path(), good).expect("a file");
        let table = check(&flags(file.path())).table();
        assert!(table.contains("nothing to correct"), "{good}\n{table}");
    }
}

#[test]
fn a_folder_that_cannot_be_read_is_not_blamed_on_a_flag_that_was_not_given() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("proxy.yaml");
    let missing = dir.path().join("missing");
    let yaml = format!(
        "{{driver: proxy, proxy: {{configFolder: {}}}}}",
        missing.display()
    );
    fs::write(&file, yaml).expect("a file");
    let online = CheckFlags {
        offline: false,
        ..flags(&file)
    };
    let table = check(&online).table();
    assert!(!table.contains("--offline"), "{table}");
    assert!(table.contains("missing"), "{table}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    for (file, why) in [
        (dir.path().join("missing.yaml"), "No such file"),
        (dir.path().to_owned(), "directory"),
    ] {
        let table = check(&flags(&file)).table();
        assert!(
            table.contains(why) && table.contains("give the path of a YAML file"),
            "{table}"
        );
    }
}
