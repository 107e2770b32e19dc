//! The capabilities that volumes have on this node, and the options that apply.

use csi_types::{AccessMode, MountAccess};
use driver_core::NodeId;
use driver_core::config::NoEnvironment;

use super::*;
use crate::app::{App, honours_group};
use crate::csi::advertise::Advertised;
use crate::csi::environment::Environment;
use crate::csi::spec_version::CsiVersion;
use crate::testing::Memory;

fn open(yaml: &str) -> Result<NodeService, ConfigError> {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    let at = Environment {
        node: NodeId::parse("node-1").expect("node"),
        version: CsiVersion::NEWEST,
        tools: Tools::of_this_machine(),
        modes: None,
    };
    let opened = App::open(document, &at);
    opened
        .map(|(_, app)| app.node)
        .map_err(|refused| refused.error)
}

fn of(yaml: &str, minor: u8) -> NodeService {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    let config = document.common().expect("configuration");
    let (driver, version) = (Memory::new(), CsiVersion::minor(minor));
    let advertised = Advertised::new(driver.can, &driver.access_rules(), &config.service, version);
    let node = Node::here(NodeConfig {
        mount_flags: config.node.mount.mount_flags.clone(),
        ..NodeConfig::default()
    });
    NodeService::of(driver, &config, node, honours_group(&advertised, version))
}

fn with_group() -> VolumeCapability {
    VolumeCapability {
        access: Access::Mount(MountAccess {
            group: Some(1000),
            flags: MountFlags::parse(["noatime"]).expect("flags"),
            ..MountAccess::default()
        }),
        mode: AccessMode::SingleNodeWriter,
    }
}

fn group(capability: &VolumeCapability) -> Option<u32> {
    match &capability.access {
        Access::Mount(mount) => mount.group,
        Access::Block => None,
    }
}

#[test]
fn a_group_counts_only_where_the_node_advertises_it_and_the_version_knows_it() {
    let listed = "{driver: x, service: {node: {capabilities: {rpc: [VOLUME_MOUNT_GROUP]}}}}";
    let hidden = "{driver: x, service: {node: {capabilities: {rpc: []}}}}";
    for (yaml, minor, counts) in [
        ("driver: x", 5, true),
        ("driver: x", 4, false),
        (listed, 13, true),
        (listed, 4, false),
        (hidden, 13, false),
    ] {
        let served = of(yaml, minor).on_node(with_group());
        assert_eq!(group(&served).is_some(), counts, "{yaml} in 1.{minor}");
    }
}

#[test]
fn flags_for_staging_are_those_of_the_request_the_configuration_and_the_secret() {
    let yaml = "{driver: x, instance_id: i, node: {mount: {mount_flags: 'nodev,a'}}}";
    let half = of(yaml, 13);
    let secrets: Secrets = [
        ("mount_flags", "a"),
        ("democratic-csi.org/memory/mount_flags", "b,c"),
        ("democratic-csi.org/other/mount_flags", "d"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned().into()))
    .into();
    let flags = |context: &VolumeContext, secrets: &Secrets| {
        let secret = half.secret_flags(context, secrets).expect("flags");
        match for_staging(half.verbs(), with_group(), &secret).access {
            Access::Mount(mount) => mount.flags.iter().map(str::to_owned).collect(),
            Access::Block => Vec::new(),
        }
    };
    let here = VolumeContext::new();
    let first = ["noatime", "nodev", "a"];
    assert_eq!(flags(&here, &Secrets::default()), first);
    assert_eq!(flags(&here, &secrets), [&first[..], &["b", "c"]].concat());
    let made_by = [("provisioner_driver".to_owned(), "other".to_owned())].into();
    assert_eq!(flags(&made_by, &secrets), [&first[..], &["d"]].concat());
}

fn attached(keys: &[(&str, &str)]) -> Attachment {
    let context = keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    Attachment::parse(&context.collect()).expect("a context")
}

#[test]
fn what_a_volume_made_by_hand_may_be_used_for_depends_on_the_way_to_it() {
    // Not read there: it would reject volumes that are in use.
    let half = open(
        "
        driver: node-manual
        csi: {access_modes: [SINGLE_NODE_READER_ONLY]}
        node: {format: {ext4: {customOptions: [-m, 0]}}}",
    );
    let half = half.expect("a node");
    let share = attached(&[
        ("node_attach_driver", "nfs"),
        ("server", "nas"),
        ("share", "/a"),
    ]);
    let disk = attached(&[
        ("node_attach_driver", "nvmeof"),
        ("transport", "tcp://10.0.0.1"),
        ("nqn", "nqn.2003-01.org.example:a"),
        ("nsid", "1"),
    ]);
    let used = |access: Access, mode| VolumeCapability { access, mode };
    let mounted = |mode| used(Access::Mount(MountAccess::default()), mode);
    let shared = AccessMode::MultiNodeMultiWriter;
    assert!(half.allow_attached(&share, &mounted(shared)).is_ok());
    assert!(
        half.allow_attached(&disk, &mounted(AccessMode::SingleNodeWriter))
            .is_ok()
    );
    assert!(
        half.allow_attached(&disk, &used(Access::Block, shared))
            .is_ok()
    );
    for (attachment, capability, reason) in [
        (&share, used(Access::Block, shared), "block access"),
        (&disk, mounted(shared), "MULTI_NODE_MULTI_WRITER"),
    ] {
        let refused = half.allow_attached(attachment, &capability);
        let text = refused.expect_err(reason).chain();
        assert!(text.contains(reason), "{text}");
    }
    // An expansion has no context, and must not reject what staging allowed.
    assert!(
        half.allow(&used(Access::Block, shared))
            .and(half.allow(&mounted(shared)))
            .is_ok()
    );
}

#[test]
fn the_modes_of_the_configuration_count_for_every_way_to_a_volume_of_another_driver() {
    let half = of("{driver: x, csi: {access_modes: [SINGLE_NODE_WRITER]}}", 13);
    let directory = attached(&[("node_attach_driver", "hostpath"), ("path", "/a")]);
    let mut capability = with_group();
    assert!(half.allow_attached(&directory, &capability).is_ok());
    capability.mode = AccessMode::SingleNodeMultiWriter;
    assert!(half.allow_attached(&directory, &capability).is_err());
}

#[test]
fn options_that_no_tool_could_be_given_are_refused_where_disks_are_formatted() {
    let options = "node: {format: {ext4: {customOptions: [/dev/sda]}}}";
    let error = open(&format!("driver: node-manual\n{options}")).expect_err("a device");
    assert_eq!(error.path(), Some("node.format.ext4.customOptions[0]"));
}

#[test]
fn what_a_connection_wants_counts_before_the_node_and_what_a_pod_wants_does_not() {
    let yaml = "driver: node-manual
node:
  mount:
    mount_flags: relatime
    checkFilesystem: {ext4: {enabled: true}, xfs: {enabled: true}}
  format: {xfs: {customOptions: [-K]}}";
    let half = open(yaml).expect("a node");
    let id = |text: &str| VolumeId::parse(text).expect("an id");
    let flags_of = |name: &str, context: &VolumeContext| {
        let verbs = half.verbs_for(&id(name), context).expect("options");
        let config = verbs.config().clone();
        let flags: Vec<_> = config.mount_flags.iter().map(str::to_owned).collect();
        (
            flags,
            config.filesystem.check.len(),
            config.filesystem.format.len(),
        )
    };
    let flags = |context: &VolumeContext| flags_of("v:nas/pvc-1", context);
    let own = (vec!["relatime".to_owned()], 2, 1);
    assert_eq!(flags(&VolumeContext::new()), own);
    let theirs = r#"{"mount":{"mount_flags":"noatime","checkFilesystem":{"xfs":{"enabled":false}}},"format":{"ext4":{"customOptions":["-m","0"]}}}"#;
    let mut context = VolumeContext::from([("omnibus-csi/node".to_owned(), theirs.to_owned())]);
    assert_eq!(flags(&context), (vec!["noatime".to_owned()], 1, 2));
    // Without the mark of kubelet, or with one from the author of the pod.
    let inline = format!("csi-{}", "0af9".repeat(16));
    assert_eq!(flags_of(&inline, &context), own);
    for (value, expected) in [
        ("false", &["noatime"]),
        ("true", &["relatime"]),
        ("", &["relatime"]),
    ] {
        context.insert("csi.storage.k8s.io/ephemeral".to_owned(), value.to_owned());
        assert_eq!(flags(&context).0, expected, "{value:?}");
        assert_eq!(flags_of(&inline, &context), own, "{value:?}");
    }
    let guests = r#"{"kata":{"directVolumes":true}}"#;
    let guests = VolumeContext::from([("omnibus-csi/node".to_owned(), guests.to_owned())]);
    let kata = |volume: &str| {
        let verbs = half.verbs_for(&id(volume), &guests).expect("options");
        verbs.config().kata
    };
    assert!(kata("v:nas/pvc-1") && !kata(&inline));
    let bad = VolumeContext::from([("omnibus-csi/node".to_owned(), "{".to_owned())]);
    assert_eq!(
        half.verbs_for(&id("v:nas/pvc-1"), &bad)
            .expect_err("no JSON")
            .kind(),
        driver_core::Kind::Invalid
    );
}

fn context(pairs: &[(&str, &str)]) -> VolumeContext {
    let pairs = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    pairs.collect()
}

const HOSTPATH: &str = "{driver: local-hostpath, local-hostpath: {shareBasePath: /data/csi, controllerBasePath: \
                        /data/csi}}";

#[test]
fn a_directory_is_attached_only_as_that_volume_below_the_base() {
    let node = open(HOSTPATH).expect("node");
    let id = VolumeId::parse("pvc-1").expect("id");
    let at = |path: &str| {
        let context = context(&[
            ("node_attach_driver", "hostpath"),
            ("path", path),
            // As in the volumes of democratic-csi.
            ("provisioner_driver", "local-hostpath"),
        ]);
        node.attachment(&id, &context).map(drop)
    };
    at("/data/csi/v/pvc-1").expect("its own directory");
    at("/data//csi/v/pvc-1/").expect("the same, spelled otherwise");
    for path in [
        "/",
        "/etc",
        "/data/csi",
        "/data/csi/v",
        "/data/csi/v/pvc-2",
        "/data/csi/v/pvc-1/below",
        "/data/csi/s/pvc-1",
    ] {
        let error = at(path).expect_err(path);
        assert_eq!(error.kind(), driver_core::Kind::Invalid, "{path}");
        let advice = error.advice().expect("advice");
        assert!(advice.contains("/data/csi/v/pvc-1"), "{advice}");
    }
}

#[test]
fn kinds_that_the_driver_does_not_make_are_attached_only_by_node_manual_and_the_proxy() {
    let id = VolumeId::parse("pvc-1").expect("id");
    let kinds = [
        context(&[("node_attach_driver", "hostpath"), ("path", "/etc")]),
        context(&[
            ("node_attach_driver", "nfs"),
            ("server", "nas"),
            ("share", "/a"),
        ]),
        context(&[
            ("node_attach_driver", "zfs-local"),
            ("zfs_asset_name", "tank/pvc-1"),
        ]),
    ];
    let folder = tempfile::tempdir().expect("folder");
    let proxy = format!(
        "{{driver: proxy, proxy: {{configFolder: {}}}}}",
        folder.path().display()
    );
    for yaml in ["driver: node-manual", &proxy] {
        let node = open(yaml).expect("node");
        for context in &kinds {
            node.attachment(&id, context).expect("any kind");
        }
    }
    let node = open(HOSTPATH).expect("node");
    for context in &kinds {
        node.attachment(&id, context)
            .expect_err("not of this driver");
    }
    // The file of the operator has no such limit.
    let written = HOSTPATH.replace(
        "{driver:",
        "{_private: {volume_context: {pvc-1: {node_attach_driver: hostpath, path: /etc}}}, driver:",
    );
    let node = open(&written).expect("node");
    node.attachment(&id, &VolumeContext::new()).expect("known");
}
