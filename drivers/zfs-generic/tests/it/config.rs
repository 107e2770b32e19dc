//! Connections as people write them: what is taken, what is refused and where.

use driver_core::config::{Document, NoEnvironment};
use driver_zfs_generic::{KINDS, from_document};

const ZFS: &str = "zfs: {datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}
sshConnection: {host: nas, port: '2222', username: csi, password: secret-word}
";

const ISCSI: &str = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: '192.0.2.1:3260'
  targetPortals: []
  interface: ''
  namePrefix: csi-
  nameSuffix: -x
  shareStrategy: targetCli
  shareStrategyTargetCli:
    sudoEnabled: true
    basename: iqn.2003-01.org.linux-iscsi.host
    tpg:
      attributes: {authentication: 0, generate_node_acls: 1}
      auth: {userid: '', password: secret-word}
    block: {attributes: {emulate_tpu: 0}}
";

const NVMET: &str = "driver: zfs-generic-nvmeof
nvmeof:
  transports: ['tcp://192.0.2.1:4420']
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2003-01.org.linux-nvme
    ports: [1, {id: 2, traddr: 192.0.2.1}]
";

const NFS: &str = "driver: zfs-generic-nfs
nfs:
  shareHost: 192.0.2.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: on}}
";

const SPDK: &str = "driver: zfs-generic-nvmeof
nvmeof:
  transport: tcp://192.0.2.1:4420
  shareStrategy: spdkCli
  shareStrategySpdkCli:
    spdkcliPath: spdkcli.py
    configPath: /etc/spdk/spdk.json
    basename: nqn.2003-01.org.linux-nvmeof
    bdev: {type: uring, attributes: {block_size: 512}}
    subsystem: {attributes: {allow_any_host: 'true'}}
    listeners: [{trtype: tcp, traddr: 192.0.2.1, trsvcid: 4420, adrfam: ipv4}]
";

fn build(section: &str) -> Result<String, String> {
    let document = Document::parse(&format!("{section}{ZFS}"), &NoEnvironment).unwrap();
    let driver = from_document(&document).map_err(|error| {
        assert!(!error.to_string().contains("secret-word"), "{error}");
        error.path().unwrap_or_default().to_owned()
    })?;
    assert!(!format!("{driver:?}").contains("secret-word"));
    Ok(driver.kind().to_owned())
}

#[test]
fn connections_of_democratic_csi_are_taken() {
    let smb = NFS.replace("nfs", "smb");
    for text in [ISCSI, NVMET, NFS, SPDK, &smb] {
        let kind = build(text).unwrap();
        assert!(KINDS.contains(&kind.as_str()), "{kind}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn what_cannot_be_right_is_refused_with_its_key() {
    let strategy = "iscsi.shareStrategyTargetCli";
    for (text, from, to, key) in [
        (ISCSI, "targetCli\n", "none\n", "iscsi.shareStrategy"),
        (ISCSI, "'192.0.2.1:3260'", "''", "iscsi.targetPortal"),
        (ISCSI, "'192.0.2.1:3260'", "'a b'", "iscsi.targetPortal"),
        (ISCSI, "csi-", "'a/b'", "iscsi.namePrefix"),
        (
            ISCSI,
            "basename: iqn.",
            "basename: nqn.",
            &format!("{strategy}.basename"),
        ),
        (
            ISCSI,
            "host\n",
            "'host;x'\n",
            &format!("{strategy}.basename"),
        ),
        (
            ISCSI,
            "emulate_tpu: 0",
            "'../x': 0",
            &format!("{strategy}.block.attributes"),
        ),
        (
            ISCSI,
            "authentication: 0",
            "authentication: '$(x)'",
            &format!("{strategy}.tpg.attributes.authentication"),
        ),
        (
            ISCSI,
            "password: secret-word",
            "password: 'secret-word {'",
            &format!("{strategy}.tpg.auth.password"),
        ),
        (
            ISCSI,
            "password:",
            "passwort:",
            &format!("{strategy}.tpg.auth.passwort"),
        ),
        (
            ISCSI,
            "sudoEnabled: true",
            "configPath: /x",
            &format!("{strategy}.configPath"),
        ),
        (
            ISCSI,
            "sudoEnabled: true",
            "nodes: {nameTemplate: 'iqn.x:{{node}}'}",
            &format!("{strategy}.nodes"),
        ),
        (
            ISCSI,
            "interface: ''",
            "interface: 'eth0;x'",
            "iscsi.interface",
        ),
        (
            NVMET,
            "ports: [1,",
            "nodes: {names: {a: iqn.x}}\n    ports: [1,",
            "nvmeof.shareStrategyNvmet.nodes.names",
        ),
        (
            NVMET,
            "ports: [1,",
            "nodes: {names: {a: nqn.x}}\n    subsystem: {attributes: {allow_any_host: 1}}\n    ports: [1,",
            "nvmeof.shareStrategyNvmet.subsystem.attributes.allow_any_host",
        ),
        (
            NFS,
            "{properties: {sharenfs: on}}",
            "{properties: {sharenfs: 'rw=@10.0.0.0/8'}, nodes: {nameTemplate: '{{node}}'}}",
            "nfs.shareStrategySetDatasetProperties.nodes",
        ),
        (
            NFS,
            "{properties: {sharenfs: on}}",
            "{properties: {sharenfs: on}, nodes: {names: {a: a.lan}, mode: loose}}",
            "nfs.shareStrategySetDatasetProperties.nodes.mode",
        ),
        (
            NVMET,
            "ports: [1,",
            "nodes: {names: {a: nqn.x}, mode: additive}\n    ports: [1,",
            "nvmeof.shareStrategyNvmet.nodes.mode",
        ),
        (
            NFS,
            "{properties: {sharenfs: on}}",
            "{properties: {sharenfs: on}, nodes: {names: {a: '*'}}}",
            "nfs.shareStrategySetDatasetProperties.nodes.names",
        ),
        (
            SPDK,
            "traddr: 192.0.2.1, ",
            "",
            "nvmeof.shareStrategySpdkCli.listeners",
        ),
        (NVMET, "tcp://", "carrier://", "nvmeof.transports"),
        (NVMET, "[1, ", "[70000, ", "nvmeof.shareStrategyNvmet.ports"),
        (
            NVMET,
            "traddr: 192.0.2.1",
            "traddr: 'a,b'",
            "nvmeof.shareStrategyNvmet.ports",
        ),
        (
            NFS,
            "sharenfs: on",
            "mountpoint: /",
            "nfs.shareStrategySetDatasetProperties.properties",
        ),
        (
            NFS,
            "setDatasetProperties\n",
            "exports\n",
            "nfs.shareStrategy",
        ),
        (
            SPDK,
            "uring",
            "'../x'",
            "nvmeof.shareStrategySpdkCli.bdev.type",
        ),
        (
            SPDK,
            "/etc/spdk/spdk.json",
            "'/etc/a b'",
            "nvmeof.shareStrategySpdkCli.configPath",
        ),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        assert_eq!(build(&changed).unwrap_err(), key, "{from} -> {to}");
    }
}

#[test]
fn without_a_way_to_log_in_a_connection_is_refused() {
    let text = format!(
        "{NFS}{}",
        ZFS.replace("password: secret-word", "debug: true")
    );
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    let error = from_document(&document).unwrap_err();
    assert_eq!(error.path(), Some("sshConnection.privateKey"));
}
