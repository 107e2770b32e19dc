//! Nodes that are connected to a disk, as the kernel shows it: a deletion waits for them.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use driver_core::{Error, Kind, NodeId};
use driver_zfs::Export as _;
use driver_zfs_generic::DiskExport;

use crate::common::{Ask, Host, LIO, NVMET, Volume};

const IQN: &str = "iqn.2003-01.org.example:pvc-1";
const NQN: &str = "nqn.2003-01.org.example:pvc-1";

/// A volume that every node may reach, or with `nodes` one that is let in.
async fn volume(host: &Host, text: &str, nodes: &[&str]) -> (DiskExport, Volume) {
    let (open, _) = text.split_once("    nodes:").unwrap();
    let export = host.export(if nodes.is_empty() { open } else { text });
    let mut volume = Volume::new("tank/v", "pvc-1", 7);
    let asks = nodes
        .iter()
        .map(|node| Ask::Allow(NodeId::parse(node).unwrap()));
    for ask in std::iter::once(Ask::Establish).chain(asks) {
        host.settle(&export, &mut volume, &ask).await.unwrap();
    }
    (export, volume)
}

async fn connected(
    host: &Host,
    (export, volume): &(DiskExport, Volume),
) -> Result<Vec<String>, Error> {
    let facts = host.facts(export, volume).await;
    let subject = volume.subject();
    let name = export.export_name(&subject).unwrap();
    export.connected(&subject, &name, &facts)
}

fn tpg(host: &Host, file: &str) -> PathBuf {
    host.path(&format!("cfg/target/iscsi/{IQN}/tpgt_1/{file}"))
}

#[tokio::test]
async fn initiators_are_seen_whether_or_not_they_have_an_access_entry() {
    let host = Host::new();
    let open = volume(&host, LIO, &[]).await;
    assert_eq!(connected(&host, &open).await.unwrap(), [""; 0]);
    host.connect(IQN, "iqn.2004-10.org.example:x", 1);
    host.connect(IQN, "iqn.2004-10.org.example:y", 1);
    let both = ["iqn.2004-10.org.example:x", "iqn.2004-10.org.example:y"];
    assert_eq!(connected(&host, &open).await.unwrap(), both);

    let host = Host::new();
    let closed = volume(&host, LIO, &["a", "b"]).await;
    assert_eq!(connected(&host, &closed).await.unwrap(), [""; 0]);
    host.connect(IQN, "iqn.2004-10.org.example:b", 1);
    let b = ["iqn.2004-10.org.example:b"];
    assert_eq!(connected(&host, &closed).await.unwrap(), b);
}

#[tokio::test]
async fn what_the_kernel_does_not_let_be_read_is_no_empty_list() {
    // A socket cannot be opened as a file, not even by root.
    for (nodes, file) in [
        (&[][..], "dynamic_sessions"),
        (&["a"][..], "acls/iqn.2004-10.org.example:a/info"),
    ] {
        let host = Host::new();
        let of = volume(&host, LIO, nodes).await;
        let _socket = UnixListener::bind(host.path("socket")).unwrap();
        std::fs::rename(host.path("socket"), tpg(&host, file)).unwrap();
        let error = connected(&host, &of).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
        assert!(error.chain().contains(file), "{}", error.chain());
    }
    // A kernel that has no such list cannot say it.
    let host = Host::new();
    let of = volume(&host, LIO, &[]).await;
    std::fs::remove_file(tpg(&host, "dynamic_sessions")).unwrap();
    assert_eq!(connected(&host, &of).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn hosts_are_seen_where_the_kernel_shows_controllers_even_those_that_cannot_be_ended() {
    let host = Host::new();
    host.shows_controllers();
    let of = volume(&host, NVMET, &["a"]).await;
    assert_eq!(connected(&host, &of).await.unwrap(), [""; 0]);
    for name in ["nqn.2014-08.org.example:a", "two words"] {
        host.connect(NQN, name, 1);
    }
    let state = host.path(&format!("controllers/{NQN}/ctrl1/state"));
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    let both = ["nqn.2014-08.org.example:a", "?"];
    assert_eq!(connected(&host, &of).await.unwrap(), both);

    // Another kernel shows nothing of it.
    let host = Host::new();
    let of = volume(&host, NVMET, &["a"]).await;
    host.connect(NQN, "nqn.2014-08.org.example:a", 1);
    assert_eq!(connected(&host, &of).await.unwrap(), [""; 0]);
}
