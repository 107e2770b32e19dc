//! Reading trees that were captured from Linux 6.12 with nvmet over TCP.

use super::facts_of;
use crate::device::BlockDevice;
use crate::kernel::Kernel;
use crate::kernel::testing::Tree;
use crate::nvme::controller::{Controller, State};
use crate::nvme::namespace::Namespace;
use crate::nvme::{NvmeFacts, lacking, says_key};
use csi_types::attachment::{Listed, Nqn, Nsid, Nvmeof, Transport};

/// One subsystem with two namespaces by two routes, captured with native multipath.
const NATIVE: &str = include_str!("../captured/native.listing");
/// The same without native multipath, and with the maps of multipathd 0.11.1.
const SEPARATE: &str = include_str!("../captured/separate.listing");

fn nqn() -> Nqn {
    Nqn::parse("nqn.2026-11.lab:dev-a").expect("nqn")
}

fn facts(nsid: u32) -> NvmeFacts {
    NvmeFacts::parse(&format!("nvme {nsid} {}", nqn())).expect("facts")
}

fn way(text: &str) -> Transport {
    Transport::parse(text).expect("transport")
}

fn named(kernel: &Kernel, name: &str) -> BlockDevice {
    let found = BlockDevice::by_name(kernel, name);
    found.expect("look").expect("device")
}

#[test]
fn the_number_of_a_namespace_is_not_that_in_its_disks_name() {
    let tree = Tree::from_listing(NATIVE);
    let disks = Namespace::of(&tree.kernel(), &nqn()).expect("look");
    let seen: Vec<_> = disks
        .iter()
        .map(|disk| (disk.nsid, disk.device.name(), disk.is_joined))
        .collect();
    assert_eq!(seen, [(1, "nvme0n2", true), (2, "nvme0n1", true)]);
    let none = Namespace::of(
        &tree.kernel(),
        &Nqn::parse("nqn.2026-11.lab:dev-b").expect("nqn"),
    );
    assert!(none.expect("look").is_empty());
}

#[test]
fn without_native_multipath_each_connection_has_its_own_disk() {
    let tree = Tree::from_listing(SEPARATE);
    let disks = Namespace::of(&tree.kernel(), &nqn()).expect("look");
    let seen: Vec<_> = disks
        .iter()
        .map(|disk| (disk.nsid, disk.device.name(), disk.is_joined))
        .collect();
    assert_eq!(
        seen,
        [
            (1, "nvme2n3", false),
            (1, "nvme3n3", false),
            (2, "nvme2n4", false),
            (2, "nvme3n4", false)
        ]
    );
}

#[test]
fn a_disk_a_path_and_a_map_tell_which_volume_they_show() {
    let native = Tree::from_listing(NATIVE);
    let separate = Tree::from_listing(SEPARATE);
    for (tree, name, nsid) in [
        (&native, "nvme0n1", 2),
        (&native, "nvme0n2", 1),
        (&separate, "nvme3n4", 2),
        (&separate, "dm-1", 1),
    ] {
        let kernel = tree.kernel();
        let device = named(&kernel, name);
        let found = facts_of(&kernel, &device).expect("look");
        assert_eq!(found, Some(facts(nsid)), "{name}");
        let identity = device.wwid(&kernel).expect("look").expect("identity");
        assert!(identity.is(&format!("uuid.0000000{nsid}-1111-2222-3333-444444444444")));
    }
}

#[test]
fn a_local_disk_is_never_a_volume_and_its_controller_never_ours() {
    let tree = Tree::from_listing(NATIVE);
    for controller in ["nvme0", "nvme1"] {
        tree.file(&format!("sys/class/nvme/{controller}/transport"), "pcie\n");
    }
    let kernel = tree.kernel();
    assert_eq!(
        facts_of(&kernel, &named(&kernel, "nvme0n1")).expect("look"),
        None
    );
    assert!(Controller::of(&kernel, &nqn()).expect("look").is_empty());
}

#[test]
fn a_captured_connection_goes_its_route_and_no_other() {
    let tree = Tree::from_listing(NATIVE);
    let controllers = Controller::of(&tree.kernel(), &nqn()).expect("look");
    assert_eq!(controllers.len(), 2);
    let goes = |way: &Transport, address: &str| -> Vec<&str> {
        let addresses = [address.to_owned()];
        let going = controllers.iter().filter(|one| one.goes(way, &addresses));
        going.map(|one| one.name.as_str()).collect()
    };
    assert_eq!(goes(&way("tcp://10.77.0.1:4440"), "10.77.0.1"), ["nvme0"]);
    assert_eq!(goes(&way("tcp://nas.lab:4440"), "10.0.2.15"), ["nvme1"]);
    assert!(goes(&way("tcp://10.77.0.2:4440"), "10.77.0.2").is_empty());
    let port = way("tcp://10.77.0.1");
    assert!(goes(&port, "10.77.0.1").is_empty());
    let rdma = way("rdma://10.77.0.1:4440");
    assert!(goes(&rdma, "10.77.0.1").is_empty());
    let leaving = way("tcp://10.77.0.1:4440?host-iface=eth1");
    assert!(goes(&leaving, "10.77.0.1").is_empty());
}

#[test]
fn each_state_of_a_connection_is_understood() {
    // The words are those of `nvme_sysfs_show_state` in the kernel's sources.
    for (text, state) in [
        ("live", State::Live),
        ("new", State::Coming),
        ("resetting", State::Coming),
        ("connecting", State::Coming),
        ("deleting", State::Going),
        ("deleting (no IO)", State::Going),
        ("dead", State::Going),
        ("unknown state", State::Coming),
    ] {
        let tree = Tree::from_listing(NATIVE);
        tree.file("sys/class/nvme/nvme0/state", &format!("{text}\n"));
        let controllers = Controller::of(&tree.kernel(), &nqn()).expect("look");
        assert_eq!(controllers[0].state, state, "{text}");
    }
}

#[test]
fn the_text_of_facts_is_read_back_and_other_text_is_refused() {
    let text = facts(7).to_string();
    assert_eq!(text, "nvme 7 nqn.2026-11.lab:dev-a");
    assert_eq!(NvmeFacts::parse(&text), Some(facts(7)));
    for bad in [
        "nvme 0 nqn.x",
        "nvme 4294967295 nqn.x",
        "nvme 1 x",
        "nvme 1 nqn.a,b",
        "nvme 1 nqn.a b",
        "nvme +1 nqn.a",
        "nvme x nqn.a",
        "nvme 1",
        "iscsi 1 nqn.a",
        "",
    ] {
        assert_eq!(NvmeFacts::parse(bad), None, "{bad}");
    }
}

fn volume(ways: &[&str]) -> Nvmeof {
    Nvmeof {
        nqn: nqn(),
        nsid: Nsid::parse("1").expect("nsid"),
        transports: Listed::transports("", ways.iter().copied()).expect("transports"),
        device_id: None,
        is_fenced: false,
    }
}

#[tokio::test]
async fn a_way_without_a_connection_is_missing_beside_one_that_works() {
    let tree = Tree::from_listing(NATIVE);
    let ways = [
        "tcp://10.77.0.1:4440",
        "tcp://10.0.2.15:4440",
        "tcp://10.0.2.16:4440",
    ];
    let missing = async |tree: &Tree, ways: &[&str]| {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_mins(1);
        let found = lacking(&tree.kernel(), &volume(ways), deadline).await;
        found.expect("look")
    };
    let none = [""; 0];
    assert_eq!(missing(&tree, &ways[..2]).await, none);
    assert_eq!(missing(&tree, &ways).await, ["tcp 10.0.2.16 port 4440"]);
    let separate = Tree::from_listing(SEPARATE);
    assert_eq!(missing(&separate, &ways).await, none, "nothing joins it");
    for number in [0, 1] {
        let state = format!("sys/devices/virtual/nvme-fabrics/ctl/nvme{number}/state");
        tree.file(&state, "connecting\n");
    }
    assert_eq!(missing(&tree, &ways).await, none, "the target is away");
}

#[test]
fn a_volume_with_a_key_of_any_kind_says_so() {
    for (way, expected) in [
        ("tcp://10.0.0.1?nr-io-queues=2", false),
        ("tcp://10.0.0.1?dhchap-secret=a", true),
        ("tcp://10.0.0.1?tls_key=a", true),
    ] {
        assert_eq!(
            says_key(&volume(&["tcp://10.0.0.2", way])),
            expected,
            "{way}"
        );
    }
}
