//! DSM over this machine's storage: the simulator answers the API, and makes what it is asked for with ZFS, LIO,
//! nfsd and samba.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use synology_sim::{Options, Simulator, Version};

use super::appliance::Chap;
use super::life::{cut, delete, lived, make, remove_snapshot, same, used};
use super::{EXT4, ROOT, SHARE_NFS, SHARE_SMB, Served, configured, sanity, storage};
use crate::lab::calls::Node;
use crate::lab::content;
use crate::lab::fixture::Access;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, step, write};
use crate::place::Place;
use crate::volume;

/// A kind of volumes on a release of DSM.
#[derive(Debug, Clone, Copy)]
pub struct Synology {
    /// The driver.
    pub served: Served,
    version: Version,
}

/// Many LUNs on a target, with CHAP in both directions.
pub(super) const CHAP: Chap = Chap {
    name: "iscsi-shared-target",
    node: ["node", "node-password"],
    target: ["storage", "storage-passwd"],
};
/// Every LUN on a target of its own.
pub const LUNS: Synology = nas("iscsi", "synology-iscsi", Version::V7_2, EXT4, ISCSI);
/// Every kind that is tested.
pub const ALL: [Synology; 4] = [
    LUNS,
    nas(
        CHAP.name,
        "synology-iscsi",
        Version::V7_1,
        EXT4,
        ISCSI_SHARED,
    ),
    nas("nfs", "synology-nfs", Version::V7_2, SHARE_NFS, NFS),
    nas("smb", "synology-smb", Version::V7_2, SHARE_SMB, SMB),
];

/// The address where the API is served, as the configurations say.
const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 5000);

macro_rules! config {
    ($driver:literal, $more:literal) => {
        concat!(
            "driver: ",
            $driver,
            "
httpConnection: {protocol: http, host: 127.0.0.1, port: 5000, username: csi, password: sesame}
",
            $more
        )
    };
}

/// Nodes check the identity that LIO gives the disk.
const ISCSI: &str = config!(
    "synology-iscsi",
    "iscsi:
  targetPortal: 127.0.0.1:3260
  baseiqn: 'iqn.2000-01.com.synology:lab.'
  verifyDevice: true
  lunTemplate: {type: thin, dev_attribs: [{dev_attrib: emulate_tpu, enable: 1}]}
  targetTemplate: {auth_type: 0, max_sessions: 0}
"
);
const ISCSI_SHARED: &str = config!(
    "synology-iscsi",
    "iscsi:
  mode: shared-target
  targetPortal: 127.0.0.1:3260
  baseiqn: 'iqn.2000-01.com.synology:lab.'
  targetTemplate:
    {auth_type: 2, user: node, password: node-password, mutual_user: storage, mutual_password: storage-passwd}
"
);
const NFS: &str = config!(
    "synology-nfs",
    "nfs: {shareHost: 127.0.0.1, clients: [127.0.0.1]}
"
);
const SMB: &str = config!(
    "synology-smb",
    "smb: {shareHost: 127.0.0.1, users: [csi]}
"
);

const fn nas(
    name: &'static str,
    kind: &'static str,
    version: Version,
    access: Access,
    config: &'static str,
) -> Synology {
    Synology {
        served: configured([name, kind, ROOT, config], access),
        version,
    }
}

// === impl Synology ===

impl Synology {
    async fn start(self) -> Simulator {
        let options = Options::new(self.version);
        let nas = Simulator::on_this_machine(options, API, "tank").await;
        nas.expect("a NAS on this machine")
    }

    /// The whole life of its volumes.
    ///
    /// # Panics
    /// At whatever is wrong in it.
    pub async fn life(self) {
        let nas = self.start().await;
        let place = Place::new();
        let node = Node::start_with(self.served.start_on(&place)).await;
        let before = (Leftovers::read(), storage());
        step("make");
        let first = make(&node, self.served, "first", self.served.sizes().0, None).await;
        if !first.secrets.is_empty() && self.served.is_device() {
            step("a node without the credentials");
            let mut bare = make(&node, self.served, "first", self.served.sizes().0, None).await;
            bare.secrets.clear();
            let refused = node.stage(&bare).await;
            assert!(refused.is_err(), "the target lets every node in");
            node.unstage(&bare).await.expect("unstaged");
        }
        lived(&node, self.served, &first).await;
        self.copied(&node).await;
        Leftovers::back_to(&before.0, "the whole life").await;
        is_empty(&nas);
        nas.clear().expect("shared targets go with the NAS");
        assert_eq!(storage(), before.1, "the storage is as before");
        node.end().await;
    }

    /// Copies whose volume and snapshot are gone.
    async fn copied(self, node: &Node) {
        step("copies whose sources are gone");
        let (served, bytes) = (self.served, self.served.sizes().0);
        let content = content::bytes(3, LENGTH);
        let origin = make(node, served, "origin", bytes, None).await;
        let pod = used(node, &origin).await;
        write(&origin, &pod, &content);
        node.take_away(&origin, &[&pod]).await;
        let kept = cut(node, &origin, &[]).await;
        let of_volume = volume::from_volume(&origin.volume.volume_id);
        let of_volume = make(node, served, "of-volume", bytes, of_volume).await;
        let of_snapshot = volume::from_snapshot(&kept);
        let of_snapshot = make(node, served, "of-snapshot", bytes, of_snapshot).await;
        remove_snapshot(node, &kept).await;
        delete(node, &origin).await;
        for copy in [&of_volume, &of_snapshot] {
            same(node, copy, &content, "a copy whose source is gone").await;
            delete(node, copy).await;
        }
    }

    /// csi-sanity.
    ///
    /// # Panics
    /// If a spec fails.
    pub async fn sanity(self) {
        let nas = self.start().await;
        sanity::nothing_fails(self.served).await;
        is_empty(&nas);
        nas.clear().expect("shared targets go with the NAS");
    }
}

/// Nothing is left but targets without LUNs, and no call was odd.
fn is_empty(nas: &Simulator) {
    let state = nas.state();
    assert_eq!((&state["luns"], &state["shares"]), (&json!([]), &json!([])));
    let targets = state["targets"].as_array().into_iter().flatten();
    let shown: Vec<&Value> = targets.map(|target| &target["mapped"]).collect();
    assert!(
        shown.iter().all(|mapped| **mapped == json!([])),
        "{shown:?}"
    );
    assert_eq!(nas.violations(), Vec::<String>::new());
}
