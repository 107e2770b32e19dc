//! What a tree shows that was captured from Linux 6.12 with open-iscsi 2.1.11 and multipathd 0.11.1.

use super::super::lookup::Place;
use super::super::session::{Session, State, origin};
use super::super::{facts_of, lacking};
use super::{named, soon};
use crate::kernel::testing::Tree;
use csi_types::attachment::{Iqn, Iscsi, Listed, Lun, Portal};

/// A target with disks 0 and 300 by two portals, and a map over each.
const TWO: &str = include_str!("../captured/two.listing");

const TARGET: &str = "iqn.2005-10.org.example:isc-one";
const FIRST: &str = "10.77.0.1:3271";
const SECOND: &str = "127.0.0.1:3272";

fn lun(number: u32) -> Lun {
    Lun::parse(&number.to_string()).expect("number")
}

fn place(text: &str) -> Place {
    Place::unresolved(Portal::parse(text, Portal::ISCSI).expect("portal"))
}

#[test]
fn captured_sessions_are_read_with_their_portals_and_disks() {
    let kernel = Tree::from_listing(TWO);
    let kernel = kernel.kernel();
    let sessions = Session::of(&kernel, TARGET).expect("look");
    let sids: Vec<u32> = sessions.iter().map(|session| session.sid).collect();
    assert_eq!(sids, [8, 9]);
    assert!(
        Session::of(&kernel, "iqn.2005-10.org.example:isc")
            .expect("look")
            .is_empty()
    );
    let first = &sessions[0];
    assert_eq!(first.state, State::LoggedIn);
    assert!(first.is_through(&place(FIRST)) && !first.is_through(&place(SECOND)));
    assert!(!first.is_through(&place("10.77.0.1:3272")));
    let disks = first.disks(&kernel).expect("look");
    let seen: Vec<_> = disks
        .iter()
        .map(|disk| (disk.lun, disk.device.name()))
        .collect();
    assert_eq!(seen, [(0, "sda"), (300, "sdb")]);
    assert_eq!(
        first.scan(&kernel, lun(5)),
        (kernel.sys("class/scsi_host/host6/scan"), "0 0 5".to_owned())
    );
    assert_eq!(first.scan(&kernel, lun(300)).1, "0 0 -");
}

#[test]
fn a_disk_a_path_and_a_map_tell_which_volume_they_show() {
    let tree = Tree::from_listing(TWO);
    let kernel = tree.kernel();
    for (name, lun) in [("sda", 0), ("sdd", 300), ("dm-0", 0), ("dm-1", 300)] {
        let found = facts_of(&kernel, &named(&kernel, name))
            .expect("look")
            .expect("facts");
        assert_eq!(
            found.to_string(),
            format!("iscsi {lun} {TARGET} {FIRST} {SECOND}")
        );
    }
    tree.disk("pci0000:00/0000:00:05.0/virtio2", "vda", "254:0", 2048);
    assert_eq!(
        facts_of(&kernel, &named(&kernel, "vda")).expect("look"),
        None
    );
}

#[test]
fn a_number_above_255_may_be_written_flat() {
    // Some targets write 300 as 0x412c; the kernel shows what they write.
    let flat = TWO.replace(":300", ":16684");
    let tree = Tree::from_listing(&flat);
    let kernel = tree.kernel();
    let sessions = Session::of(&kernel, TARGET).expect("look");
    let disk = sessions[0]
        .disk(&kernel, lun(300))
        .expect("look")
        .expect("disk");
    assert_eq!(disk.name(), "sdb");
    let (session, number) = origin(&kernel, &disk).expect("look").expect("origin");
    assert_eq!((session.sid, number), (8, lun(300)));
}

#[tokio::test]
async fn a_portal_by_name_is_the_session_by_name_or_by_its_address() {
    let by_name = TWO.replace(
        "persistent_address = 10.77.0.1",
        "persistent_address = isc-nas",
    );
    let tree = Tree::from_listing(&by_name);
    let sessions = Session::of(&tree.kernel(), TARGET).expect("look");
    assert!(sessions[0].is_through(&place("ISC-nas:3271")));
    assert!(
        sessions[0].is_through(&place(FIRST)),
        "its address is shown too"
    );
    // A session whose portal was not given by name: the name is resolved.
    let portal = Portal::parse("localhost:3272", Portal::ISCSI).expect("portal");
    let localhost = Place::among(&portal, &sessions, soon()).await;
    assert!(sessions[1].is_through(&localhost));
    assert!(!sessions[1].is_through(&place("localhost:3272")));
}

#[test]
fn each_state_of_a_session_is_understood() {
    // The words are those of `iscsi_session_state_names` in the kernel's sources.
    for (word, state) in [
        ("LOGGED_IN", State::LoggedIn),
        ("FAILED", State::Recovering),
        ("FREE", State::Other),
    ] {
        let tree =
            Tree::from_listing(&TWO.replace("state = LOGGED_IN", &format!("state = {word}")));
        let sessions = Session::of(&tree.kernel(), TARGET).expect("look");
        assert_eq!(sessions[0].state, state);
    }
}

#[tokio::test]
async fn a_portal_without_a_session_is_missing_below_a_map_and_not_behind_a_password() {
    let tree = Tree::from_listing(TWO);
    let kernel = tree.kernel();
    let missing = async |device: &str, portals: &[&str]| {
        let volume = Iscsi {
            iqn: Iqn::parse(TARGET).expect("name"),
            lun: lun(0),
            portals: Listed::portals("", portals.iter().copied()).expect("portals"),
            interface: None,
            device_id: None,
        };
        let found = lacking(&kernel, &named(&kernel, device), &volume, soon()).await;
        found.expect("look")
    };
    let (third, none) = ("10.77.0.9:3271", [""; 0]);
    let three = [FIRST, SECOND, third];
    assert_eq!(missing("dm-0", &[FIRST, SECOND]).await, none);
    assert_eq!(missing("dm-0", &three).await, [third]);
    assert_eq!(missing("sda", &three).await, none, "nothing would use it");
    tree.file(
        "sys/devices/platform/host7/session9/iscsi_session/session9/state",
        "FREE\n",
    );
    assert_eq!(
        missing("dm-0", &three).await,
        [third],
        "the daemon still has it"
    );
    let user = "sys/devices/platform/host6/session8/iscsi_session/session8/username";
    for (name, expected) in [("(null)\n", &[third][..]), ("a-user\n", &none[..])] {
        tree.file(user, name);
        assert_eq!(missing("dm-0", &three).await, expected, "{name}");
    }
    tree.remove(user);
    tree.file(
        "sys/devices/platform/host6/session8/iscsi_session/session8/state",
        "FAILED\n",
    );
    assert_eq!(missing("dm-0", &three).await, none, "the target is away");
}
