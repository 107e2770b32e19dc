//! Which driver a configuration builds, how its volumes may be used, and which options count.

use driver_core::config::NoEnvironment;
use node_utils::{AccessMode, MountAccess};

use super::*;
use crate::testing::Memory;

fn open(yaml: &str) -> Result<Connection, ConfigError> {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    let node = NodeId::parse("node-1").expect("node");
    Connection::open(
        &document,
        &node,
        CsiVersion::NEWEST,
        &Tools::of_this_machine(),
    )
}

#[test]
fn a_local_hostpath_connection_is_built_without_its_storage() {
    let connection = open(
        "
        driver: local-hostpath
        local-hostpath:
          shareBasePath: /no/such/place
          controllerBasePath: /no/such/place",
    )
    .expect("a connection");
    assert_eq!(connection.driver().kind(), "local-hostpath");
    assert_eq!(&**connection.name(), "");
}

#[test]
fn an_unknown_driver_is_told_from_one_that_is_not_built_yet_and_from_a_misspelt_one() {
    let told = |name: &str| {
        open(&format!("driver: {name}"))
            .expect_err(name)
            .to_string()
    };
    let misspelt = told("local-hostpaht");
    assert!(
        misspelt.contains("misspelling of `local-hostpath`"),
        "{misspelt}"
    );
    let misspelt = told("zfs-generic-isci");
    assert!(
        misspelt.contains("misspelling of `zfs-generic-iscsi`"),
        "{misspelt}"
    );
    let foreign = told("carrier-pigeon");
    assert!(
        foreign.contains("there is no driver `carrier-pigeon`"),
        "{foreign}"
    );
    assert!(!foreign.contains("misspelling"), "{foreign}");
    for name in NOT_YET {
        let later = told(name);
        assert!(later.contains("does not have the driver"), "{later}");
        assert!(
            later.contains("it has: local-hostpath, node-manual"),
            "{later}"
        );
    }
    assert!(open("instance_id: x").is_err());
}

fn of(yaml: &str, minor: u8) -> Connection {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    let config = document.common().expect("configuration");
    let node = Node::here(NodeConfig::default());
    Connection::of(Memory::new(), &config, CsiVersion::minor(minor), node)
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
    let connection = of(yaml, 13);
    let secrets: Secrets = [
        ("mount_flags", "a"),
        ("democratic-csi.org/memory/mount_flags", "b,c"),
        ("democratic-csi.org/other/mount_flags", "d"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned().into()))
    .into();
    let flags = |context: &VolumeContext, secrets: &Secrets| {
        let secret = connection.secret_flags(context, secrets).expect("flags");
        match connection.for_staging(with_group(), &secret).access {
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
    // Not read there: it would shut out volumes that are in use.
    let connection = open(
        "
        driver: node-manual
        csi: {access_modes: [SINGLE_NODE_READER_ONLY]}
        node: {format: {ext4: {customOptions: [-m, 0]}}}",
    );
    let connection = connection.expect("a connection");
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
    assert!(connection.allow_attached(&share, &mounted(shared)).is_ok());
    assert!(
        connection
            .allow_attached(&disk, &mounted(AccessMode::SingleNodeWriter))
            .is_ok()
    );
    assert!(
        connection
            .allow_attached(&disk, &used(Access::Block, shared))
            .is_ok()
    );
    for (attachment, capability, told) in [
        (&share, used(Access::Block, shared), "block access"),
        (&disk, mounted(shared), "MULTI_NODE_MULTI_WRITER"),
    ] {
        let refused = connection.allow_attached(attachment, &capability);
        let text = refused.expect_err(told).chain();
        assert!(text.contains(told), "{text}");
    }
    // Growth comes without a context, and must not refuse what staging allowed.
    assert!(
        connection
            .allow(&[used(Access::Block, shared), mounted(shared)])
            .is_ok()
    );
}

#[test]
fn the_modes_of_the_configuration_count_for_every_way_to_a_volume_of_another_driver() {
    let connection = of("{driver: x, csi: {access_modes: [SINGLE_NODE_WRITER]}}", 13);
    let directory = attached(&[("node_attach_driver", "hostpath"), ("path", "/a")]);
    let mut capability = with_group();
    assert!(connection.allow_attached(&directory, &capability).is_ok());
    capability.mode = AccessMode::SingleNodeMultiWriter;
    assert!(connection.allow_attached(&directory, &capability).is_err());
}

#[test]
fn options_that_no_tool_could_be_given_are_refused_where_disks_are_formatted() {
    let options = "node: {format: {ext4: {customOptions: [/dev/sda]}}}";
    let error = open(&format!("driver: node-manual\n{options}")).expect_err("a device");
    assert_eq!(error.path(), Some("node.format.ext4.customOptions[0]"));
}
