//! Volume contexts and properties as democratic-csi writes them: a table of configurations, with what
//! its `createShare` gives for each. Read in its source (`controller-zfs-generic/index.js`), where
//! numbers are numbers, an unset key is an empty text and lists are joined by commas.

use crate::common::{Host, Volume};
use csi_types::VolumeContext;
use driver_core::config::{Document, NoEnvironment};
use driver_core::text::MAX_MAP;
use driver_zfs::export::Act;
use driver_zfs::property::PropertyName;
use driver_zfs::{Export, ZfsConfig, context};
use driver_zfs_cli::ZfsTools;
use driver_zfs_generic::{Facts, Protocol, ShareExport};
use serde_json::{Value, json};

/// A section, what is in `csi_share_volume_context`, and the name in the property of the `export_name`.
type Row = (&'static str, Value, &'static str);

fn disks() -> Vec<Row> {
    vec![
        (
            "iscsi:
  targetPortal: nas.lan
  targetPortals: []
  interface: ''
  shareStrategy: targetCli
  shareStrategyTargetCli: {basename: iqn.2003-01.org.x}",
            json!({"node_attach_driver": "iscsi", "portal": "nas.lan", "portals": "",
                "interface": "", "iqn": "iqn.2003-01.org.x:pvc-1", "lun": 0}),
            "pvc-1",
        ),
        (
            "iscsi:
  targetPortal: 192.0.2.1:3260
  targetPortals: ['192.0.2.1:3260', '192.0.2.2', '[2001:db8::1]:3261']
  interface: eth1
  namePrefix: CSI-
  nameSuffix: -k8s
  shareStrategy: targetCli
  shareStrategyTargetCli: {basename: iqn.2003-01.org.x}",
            json!({"node_attach_driver": "iscsi", "portal": "192.0.2.1:3260",
                "portals": "192.0.2.1:3260,192.0.2.2,[2001:db8::1]:3261",
                "interface": "eth1", "iqn": "iqn.2003-01.org.x:csi-pvc-1-k8s", "lun": 0}),
            "csi-pvc-1-k8s",
        ),
        (
            "iscsi:
  targetPortals: ['192.0.2.1', '192.0.2.2:3261']
  shareStrategy: lio
  shareStrategyLio: {basename: iqn.2003-01.org.x}",
            json!({"node_attach_driver": "iscsi", "portal": "",
                "portals": "192.0.2.1,192.0.2.2:3261",
                "interface": "", "iqn": "iqn.2003-01.org.x:pvc-1", "lun": 0}),
            "pvc-1",
        ),
        (
            "nvmeof:
  transport: 'tcp://192.0.2.1'
  transports: []
  shareStrategy: nvmetCli
  shareStrategyNvmetCli: {basename: nqn.2003-01.org.x, ports: [1]}",
            json!({"node_attach_driver": "nvmeof", "transport": "tcp://192.0.2.1",
                "transports": "", "nqn": "nqn.2003-01.org.x:pvc-1", "nsid": 1}),
            "pvc-1",
        ),
        (
            "nvmeof:
  transports: ['tcp://192.0.2.1:4420?ctrl-loss-tmo=60', 'rdma://192.0.2.2']
  shareStrategy: spdkCli
  shareStrategySpdkCli: {basename: nqn.2003-01.org.x, bdev: {type: uring}, listeners: []}",
            json!({"node_attach_driver": "nvmeof", "transport": "",
                "transports": "tcp://192.0.2.1:4420?ctrl-loss-tmo=60,rdma://192.0.2.2",
                "nqn": "nqn.2003-01.org.x:pvc-1", "nsid": 1}),
            "pvc-1",
        ),
    ]
}

#[test]
fn a_disk_of_ours_carries_what_democratic_csi_would_have_written() {
    for (section, expected, name) in disks() {
        let export = Host::new().export(section);
        let volume = Volume::new("tank/k8s/v", "pvc-1", 7);
        let subject = volume.subject();
        let export_name = export.export_name(&subject).unwrap();
        let facts = Facts::default();
        let attachment = export.attachment(&subject, &export_name, &facts).unwrap();
        let text = context::to_json(&attachment.unwrap());
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            expected,
            "{section}"
        );
        // What is answered for a volume that exists follows the configuration of today in the same way.
        let current = export.current_attachment(&subject).unwrap();
        assert_eq!(context::to_json(&current), text);
        // What was written there is read again, as it was.
        let read = context::from_json(&text).unwrap();
        assert_eq!(context::to_json(&read), text);

        let property = match expected["node_attach_driver"].as_str().unwrap() {
            "iscsi" => "democratic-csi:iscsi_assets_name",
            _ => "democratic-csi:nvmeof_assets_name",
        };
        let acts = export.ensure(&subject, &export_name, &facts).unwrap();
        let [Act::Remember(remembered)] = &acts[..] else {
            panic!("{acts:?}")
        };
        let (key, value) = (remembered.name.as_str(), remembered.value.as_str());
        assert_eq!((key, value), (property, name), "{section}");
    }
}

#[test]
fn a_share_of_ours_carries_what_democratic_csi_would_have_written() {
    for (protocol, section, share, properties) in [
        (
            Protocol::Nfs,
            "nfs:
  shareHost: nas.lan
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: 'rw=@10.0.0.0/8,no_root_squash'}}",
            json!({"node_attach_driver": "nfs", "server": "nas.lan",
                "share": "/mnt/tank/k8s/v/pvc-1"}),
            vec![("sharenfs", "rw=@10.0.0.0/8,no_root_squash")],
        ),
        (
            Protocol::Smb,
            "smb:
  shareHost: 192.0.2.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {share: '', sharesmb: on}}",
            json!({"node_attach_driver": "smb", "server": "192.0.2.1",
                "share": "tank_k8s_v_pvc_1"}),
            vec![("sharesmb", "on")],
        ),
    ] {
        let zfs = "zfs: {datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}";
        let text = format!("{section}\n{zfs}\n");
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        let tools = ZfsTools::from_config(&ZfsConfig::read(&document).unwrap()).unwrap();
        let export = ShareExport::from_document(&document, protocol, tools).unwrap();
        let volume = Volume::new("tank/k8s/v", "pvc-1", 7)
            .remembering(PropertyName::MOUNTPOINT, "/mnt/tank/k8s/v/pvc-1");
        let subject = volume.subject();
        let attachment = export.attachment(&subject, &(), &Facts::default()).unwrap();
        let text = context::to_json(&attachment.unwrap());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), share);
        // What is answered for a volume that exists follows the configuration of today in the same way.
        let current = export.current_attachment(&subject).unwrap();
        assert_eq!(context::to_json(&current), text);
        let set = export.properties(&subject, &());
        let set: Vec<_> = set
            .iter()
            .map(|property| (property.name.as_str(), property.value.as_str()))
            .collect();
        assert_eq!(set, properties);
    }
}

/// The longest context of a volume of such a connection.
fn longest(driver: &str, section: &str) -> VolumeContext {
    let zfs = "zfs: {datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}";
    let text = format!("driver: {driver}\n{zfs}\n{section}\n");
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    let driver = driver_zfs_generic::from_document(&document).unwrap();
    driver.longest_attachment().unwrap().to_context()
}

#[test]
fn the_longest_context_of_every_kind_is_known_before_there_is_a_volume() {
    let id = "x".repeat(128);
    let nfs = "nfs: {shareHost: nas.lan, shareStrategy: setDatasetProperties}";
    let share = &longest("zfs-generic-nfs", nfs)["share"];
    assert_eq!(share, &format!("/tank/v/{id}"));
    let smb = "smb: {shareHost: nas.lan, shareStrategy: setDatasetProperties}";
    let share = &longest("zfs-generic-smb", smb)["share"];
    assert_eq!(share, &format!("tank_v_{id}"));
    for (extra, name) in [
        ("", id.clone()),
        ("  namePrefix: CSI-\n", format!("csi-{id}")),
        // Any name could come of it, and no longer one could be made.
        ("  nameTemplate: '{{name}}'\n", "x".repeat(200)),
    ] {
        let lio = "shareStrategy: lio\n  shareStrategyLio: {basename: iqn.2003-01.org.x}";
        let section = format!("iscsi:\n  targetPortal: nas.lan\n{extra}  {lio}");
        let iqn = &longest("zfs-generic-iscsi", &section)["iqn"];
        assert_eq!(iqn, &format!("iqn.2003-01.org.x:{name}"));
    }
    let basename = format!("iqn.2003-01.org.{}", "x".repeat(150));
    let lio = format!("shareStrategy: lio\n  shareStrategyLio: {{basename: {basename}}}");
    let section = format!("iscsi:\n  targetPortal: nas.lan\n  {lio}");
    let iqn = &longest("zfs-generic-iscsi", &section)["iqn"];
    assert_eq!(iqn.len(), 223, "as long as an IQN can be");
}

#[test]
fn a_context_of_many_portals_is_seen_to_be_too_long() {
    let transports: Vec<_> = (0..200)
        .map(|n| format!("'tcp://nas-{n}.example:4420'"))
        .collect();
    let (transports, nvmet) = (transports.join(", "), "basename: nqn.2003-01.org.x");
    let port = "ports: [{id: 1, traddr: 0.0.0.0}]";
    let section = format!(
        "nvmeof:\n  transports: [{transports}]\n  shareStrategy: nvmet\n  \
         shareStrategyNvmet: {{{nvmet}, {port}}}"
    );
    let context = longest("zfs-generic-nvmeof", &section);
    let size: usize = context
        .iter()
        .map(|(key, text)| key.len() + text.len())
        .sum();
    assert!(size > MAX_MAP, "{size}");
}
