//! Ports of nvmet at another address than configured, on a fake configfs: no link is made there, none is
//! removed, and a revoked node does not stay admitted.

use crate::common::{Ask, Host, NVMET, Volume};
use driver_core::NodeId;
use driver_zfs::Export;
use driver_zfs::export::Act;
use driver_zfs::property::PropertyName;
use driver_zfs_generic::DiskExport;

const NQN: &str = "nqn.2003-01.org.example:pvc-1";
const LINK: &str = "cfg/nvmet/ports/1/subsystems/nqn.2003-01.org.example:pvc-1";

const FIELDS: [&str; 4] = ["trtype", "adrfam", "traddr", "trsvcid"];
const WANTED: [&str; 4] = ["tcp", "ipv4", "0.0.0.0", "4420"];
const ELSEWHERE: [&str; 4] = ["tcp", "ipv4", "192.0.2.9", "4420"];
const TOLD: &str = "port 1 of the host is at tcp,192.0.2.9,4420, not at tcp,0.0.0.0,4420";

/// An administrator has set up port 1 like this; a new port has only empty lines.
fn set(host: &Host, address: [&str; 4]) {
    let port = host.path("cfg/nvmet/ports/1");
    std::fs::create_dir_all(port.join("subsystems")).unwrap();
    for (field, text) in FIELDS.into_iter().zip(address) {
        std::fs::write(port.join(format!("addr_{field}")), format!("{text}\n")).unwrap();
    }
}

fn address(host: &Host) -> [String; 4] {
    FIELDS.map(|field| {
        let text = host.text(&format!("cfg/nvmet/ports/1/addr_{field}"));
        text.trim().to_owned()
    })
}

fn volume(number: u64) -> Volume {
    Volume::new("tank/v", &format!("pvc-{number}"), number)
}

fn called(name: &str) -> String {
    format!("nqn.2014-08.org.example:{name}")
}

fn remembered(volume: &Volume) -> String {
    let name = PropertyName::parse("omnibus-csi:nodes").unwrap();
    let subject = volume.subject();
    subject.remembered(&name).unwrap_or_default().to_owned()
}

/// What is said where it fails.
async fn ask(host: &Host, export: &DiskExport, volume: &mut Volume, ask: &Ask) -> Option<String> {
    let done = host.settle(export, volume, ask).await;
    done.err().map(|error| error.to_string())
}

fn allow(name: &str) -> Ask {
    Ask::Allow(NodeId::parse(name).unwrap())
}

fn revoke(name: &str) -> Ask {
    Ask::Revoke(Some(NodeId::parse(name).unwrap()))
}

/// A host with one volume, and nodes in it that are connected.
async fn with_nodes(names: &[&str], text: &str) -> (Host, DiskExport, Volume) {
    let host = Host::new();
    host.shows_controllers();
    set(&host, WANTED);
    let (export, mut volume) = (host.export(text), volume(1));
    for name in names {
        assert_eq!(
            ask(&host, &export, &mut volume, &Ask::Establish).await,
            None
        );
        assert_eq!(ask(&host, &export, &mut volume, &allow(name)).await, None);
        host.connect(NQN, &called(name), 1);
    }
    (host, export, volume)
}

#[tokio::test]
async fn a_port_at_another_address_is_reported_and_left_there() {
    let host = Host::new();
    let (export, volume) = (host.export(NVMET), volume(1));
    set(&host, ELSEWHERE);
    let refused = host.ensure(&export, &volume).await.unwrap().unwrap_err();
    assert!(refused.to_string().contains(TOLD), "{refused}");
    assert_eq!(address(&host), ELSEWHERE);
    assert!(!host.path(LINK).is_symlink());
    let facts = host.facts(&export, &volume).await;
    assert_eq!(facts.missing[0], "ports/1");
    assert_eq!(facts.blocked, ["ports/1"]);
    // Where it is put right, the retry goes on.
    set(&host, WANTED);
    host.ensure(&export, &volume).await.unwrap().unwrap();
    let facts = host.facts(&export, &volume).await;
    assert_eq!((facts.missing, facts.blocked), (vec![], vec![]));
}

#[tokio::test]
async fn a_port_that_is_partly_set_up_is_reported_and_left_as_it_is() {
    for (theirs, expected) in [
        (["loop", "", "", ""], "at loop,-,-, not at"),
        (
            ["tcp", "ipv4", "192.0.2.77", ""],
            "at tcp,192.0.2.77,-, not",
        ),
        (["", "", "192.0.2.77", ""], "at -,192.0.2.77,-, not at"),
        (["", "", "0.0.0.0", "4421"], "at -,0.0.0.0,4421, not at"),
        (["rdma", "ipv4", "0.0.0.0", ""], "at rdma,0.0.0.0,-, not at"),
    ] {
        let host = Host::new();
        let (export, volume) = (host.export(NVMET), volume(1));
        set(&host, theirs);
        let refused = host.ensure(&export, &volume).await.unwrap().unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
        assert_eq!(address(&host), theirs);
        assert_eq!(host.facts(&export, &volume).await.blocked, ["ports/1"]);
    }
}

#[tokio::test]
async fn a_port_that_was_cut_while_it_was_made_gets_the_rest_of_its_address() {
    for set_up in 0..=FIELDS.len() {
        let host = Host::new();
        let (export, volume) = (host.export(NVMET), volume(1));
        let mut cut = WANTED;
        cut[set_up..].fill("");
        set(&host, cut);
        assert_eq!(host.facts(&export, &volume).await.blocked, [""; 0]);
        host.ensure(&export, &volume).await.unwrap().unwrap();
        assert_eq!(address(&host), WANTED, "{set_up}");
        assert!(host.path(LINK).is_symlink());
    }
}

#[tokio::test]
async fn a_port_that_is_made_limits_requests_where_the_kernel_can_and_no_other_one_is_changed() {
    let limit = "cfg/nvmet/ports/1/param_mdts";
    for (theirs, before, after) in [([""; 4], "0", "8"), ([""; 4], "5", "5"), (WANTED, "0", "0")] {
        let host = Host::new();
        let (export, volume) = (host.export(NVMET), volume(1));
        set(&host, theirs);
        std::fs::write(host.path(limit), format!("{before}\n")).unwrap();
        host.ensure(&export, &volume).await.unwrap().unwrap();
        assert_eq!(host.text(limit).trim(), after);
        assert_eq!(address(&host), WANTED);
        let facts = host.facts(&export, &volume).await;
        assert_eq!((facts.missing, facts.blocked), (vec![], vec![]));
    }
}

#[tokio::test]
async fn volumes_of_a_port_that_has_moved_are_published_grown_and_left_by_every_node() {
    let (host, export, mut volume) = with_nodes(&["a", "b"], NVMET).await;
    set(&host, ELSEWHERE);
    let facts = host.facts(&export, &volume).await;
    assert_eq!((&facts.missing, &facts.blocked), (&vec![], &vec![]));
    assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 0);
    let size = format!("cfg/nvmet/subsystems/{NQN}/namespaces/1/revalidate_size");
    let subject = volume.subject();
    let export_name = export.export_name(&subject).unwrap();
    for act in export.resize(&subject, &export_name, Some(&facts)).unwrap() {
        let Act::Do(command) = act else {
            panic!("{act:?}")
        };
        let _ = host.run(&command).await.unwrap();
    }
    assert_eq!(host.text(&size).trim(), "1");
    assert_eq!(ask(&host, &export, &mut volume, &allow("c")).await, None);
    host.connect(NQN, &called("c"), 1);

    for name in ["a", "b", "c"] {
        assert_eq!(ask(&host, &export, &mut volume, &revoke(name)).await, None);
        assert!(!host.is_connected(NQN, &called(name)), "{name}");
        assert!(!remembered(&volume).contains(&called(name)), "{name}");
    }
    assert_eq!(host.facts(&export, &volume).await.allowed, [""; 0]);
    assert!(host.path(LINK).is_symlink());
    assert_eq!(address(&host), ELSEWHERE);
    // A new one would be looked for where it is not.
    let mut new = self::volume(2);
    let refused = ask(&host, &export, &mut new, &Ask::Establish).await;
    assert!(refused.unwrap().contains(TOLD));
}

#[tokio::test]
async fn revoking_needs_no_port_and_admitting_reports_what_is_wrong_with_it() {
    let number = NVMET.replace("{id: 1, traddr: 0.0.0.0}", "1");
    for (text, expected) in [
        (NVMET, TOLD),
        (number.as_str(), "nvmet of the host has no port 1"),
    ] {
        for lost in [false, true] {
            let (host, export, mut volume) = with_nodes(&["a", "b"], text).await;
            if lost {
                host.starts_again();
            } else {
                std::fs::remove_file(host.path(LINK)).unwrap();
                std::fs::remove_dir_all(host.path("cfg/nvmet/ports/1")).unwrap();
            }
            if text == NVMET {
                set(&host, ELSEWHERE);
            }
            // Also when it is asked again.
            for name in ["a", "a", "b", "b"] {
                let left = ask(&host, &export, &mut volume, &revoke(name)).await;
                assert_eq!(left, None, "{name}");
                assert!(!remembered(&volume).contains(&called(name)), "{name}");
                assert!(!host.path(LINK).is_symlink());
            }
            let refused = ask(&host, &export, &mut volume, &Ask::Establish).await;
            assert!(refused.unwrap().contains(expected));
        }
    }
}
