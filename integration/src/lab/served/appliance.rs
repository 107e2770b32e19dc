//! TrueNAS over this machine's storage: the simulator answers the API, and makes what it is asked for with
//! ZFS, nfsd, samba, LIO and nvmet.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use driver_core::config::NoEnvironment;
use serde_json::{Value, json};
use truenas_sim::{Generation, Options, Simulator};

use super::{
    BLOCK, EXT4, ROOT, SHARE_NFS, SHARE_SMB, Served, access, configured, connected, life, sanity,
};
use crate::appliance::Appliance as Suites;
use crate::lab::command::run;
use crate::lab::fixture::Access;
use crate::lab::life::step;
use crate::requirement;

/// A kind of volumes on a release.
#[derive(Debug, Clone, Copy)]
pub struct Appliance {
    /// The driver.
    pub served: Served,
    generation: Generation,
}

/// Every kind that is tested.
pub const ALL: [Appliance; 12] = [
    appliance("nfs", NFS, Generation::V25_10, SHARE_NFS),
    appliance("nfs-24", NFS, Generation::V24_10, SHARE_NFS),
    appliance("nfs-26", NFS, Generation::V26Rc, SHARE_NFS),
    appliance("smb", SMB, Generation::V25_10, SHARE_SMB),
    appliance("iscsi", ISCSI, Generation::V25_10, EXT4),
    appliance("iscsi-26", ISCSI, Generation::V26Rc, EXT4),
    appliance("nvmeof", NVMEOF, Generation::V25_10, EXT4),
    appliance("nvmeof-block", NVMEOF, Generation::V26Rc, BLOCK),
    appliance("ssh-nfs", SSH_NFS, Generation::V25_10, SHARE_NFS),
    appliance("ssh-smb", SSH_SMB, Generation::V25_10, SHARE_SMB),
    appliance("ssh-iscsi", SSH_ISCSI, Generation::V25_10, EXT4),
    appliance("ssh-nvmeof", SSH_NVMEOF, Generation::V25_10, EXT4),
];

/// Those with access per node, each protocol once.
pub const OF_NODES: [Appliance; 3] = [
    appliance("nfs", NFS_OF_NODES, Generation::V25_10, SHARE_NFS),
    appliance(CHAP.name, ISCSI_OF_NODES, Generation::V25_10, EXT4),
    appliance("nvmeof", NVMEOF_OF_NODES, Generation::V25_10, EXT4),
];

/// Those that say who uses a share.
pub const OF_SHARES: [Appliance; 2] = [
    appliance("nfs", NFS, Generation::V25_10, SHARE_NFS),
    appliance("smb-26", SMB, Generation::V26Rc, SHARE_SMB),
];

/// Both sides of a target that wants credentials, and proves itself.
#[derive(Debug)]
pub struct Chap {
    /// The cell with such a target.
    pub name: &'static str,
    pub(super) node: [&'static str; 2],
    pub(super) target: [&'static str; 2],
}

/// The credentials of the target with access per node.
pub const CHAP: Chap = Chap {
    name: "iscsi-chap",
    node: ["node", "lab-node-secret"],
    target: ["storage", "lab-peer-secret"],
};

/// The address where the API is served, as the configurations say.
const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8443);

/// Where names are short (an extent: 64 characters, an SMB share: 80), ids are hashes.
macro_rules! config {
    ($driver:literal, $more:literal) => {
        concat!(
            "driver: ",
            $driver,
            "
httpConnection:
  {protocol: https, host: 127.0.0.1, port: 8443, username: root, password: sesame-for-root, allowInsecure: true}
zfs:
  datasetParentName: tank/csi/served/v
  detachedSnapshotsDatasetParentName: tank/csi/served/s
",
            $more
        )
    };
}

/// The configurations of each protocol, by the driver with the API alone and by that with SSH.
macro_rules! nfs {
    ($driver:literal) => {
        config!(
            $driver,
            "  datasetEnableQuotas: true
  datasetPermissionsMode: '0777'
nfs:
  {shareHost: 127.0.0.1, shareAllowedHosts: [127.0.0.1], shareMaprootUser: root, shareMaprootGroup: root}
"
        )
    };
}
macro_rules! smb {
    ($driver:literal) => {
        config!(
            $driver,
            "  datasetEnableQuotas: true
  datasetPermissionsMode: '0777'
_private: {csi: {volume: {idHash: {strategy: md5}}}}
smb:
  {shareHost: 127.0.0.1}
"
        )
    };
}
macro_rules! iscsi {
    ($driver:literal) => {
        config!(
            $driver,
            "_private: {csi: {volume: {idHash: {strategy: md5}}}}
iscsi:
  targetPortal: 127.0.0.1:3260
  targetGroups: [{targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1, targetGroupAuthType: None}]
"
        )
    };
}
macro_rules! nvmeof {
    ($driver:literal) => {
        config!(
            $driver,
            "nvmeof:
  {transports: ['tcp://127.0.0.1:4420'], ports: [1]}
"
        )
    };
}

const NFS: [&str; 2] = ["freenas-api-nfs", nfs!("freenas-api-nfs")];
const SMB: [&str; 2] = ["freenas-api-smb", smb!("freenas-api-smb")];
const ISCSI: [&str; 2] = ["freenas-api-iscsi", iscsi!("freenas-api-iscsi")];
const NVMEOF: [&str; 2] = ["freenas-api-nvmeof", nvmeof!("freenas-api-nvmeof")];
/// With datasets over SSH, which is that of this machine.
const SSH_NFS: [&str; 2] = ["freenas-nfs", nfs!("freenas-nfs")];
const SSH_SMB: [&str; 2] = ["freenas-smb", smb!("freenas-smb")];
const SSH_ISCSI: [&str; 2] = ["freenas-iscsi", iscsi!("freenas-iscsi")];
const SSH_NVMEOF: [&str; 2] = ["freenas-nvmeof", nvmeof!("freenas-nvmeof")];

const NFS_OF_NODES: [&str; 2] = [
    "freenas-api-nfs",
    config!(
    "freenas-api-nfs",
    "  datasetEnableQuotas: true
  datasetPermissionsMode: '0777'
nfs:
  {shareHost: 127.0.0.1, shareMaprootUser: root, shareMaprootGroup: root, nodes: {names: {node-1: 127.0.0.1}}}
"
    ),
];
const ISCSI_OF_NODES: [&str; 2] = [
    "freenas-api-iscsi",
    config!(
        "freenas-api-iscsi",
        "_private: {csi: {volume: {idHash: {strategy: md5}}}}
iscsi:
  targetPortals: ['127.0.0.1:3260', '127.0.0.2:3260']
  targetGroups:
  - {targetGroupPortalGroup: 1, targetGroupAuthType: CHAP Mutual, targetGroupAuthGroup: 1}
  - {targetGroupPortalGroup: 2, targetGroupAuthType: CHAP Mutual, targetGroupAuthGroup: 1}
  nodes: {names: {node-1: '${LAB_NODE}'}}
"
    ),
];
const NVMEOF_OF_NODES: [&str; 2] = [
    "freenas-api-nvmeof",
    config!(
        "freenas-api-nvmeof",
        "nvmeof:
  transports: ['tcp://127.0.0.1:4420']
  ports: [1]
  nodes: {names: {node-1: '${LAB_NODE}'}}
"
    ),
];

const fn appliance(
    name: &'static str,
    [kind, config]: [&'static str; 2],
    generation: Generation,
    access: Access,
) -> Appliance {
    Appliance {
        served: configured([name, kind, ROOT, config], access),
        generation,
    }
}

// === impl Chap ===

impl Chap {
    /// The secrets of a stage.
    pub(super) fn secrets(&self) -> Vec<(&'static str, String)> {
        [
            ("node-db.node.session.auth.authmethod", "CHAP"),
            ("node-db.node.session.auth.username", self.node[0]),
            ("node-db.node.session.auth.password", self.node[1]),
            ("node-db.node.session.auth.username_in", self.target[0]),
            ("node-db.node.session.auth.password_in", self.target[1]),
        ]
        .map(|(key, value)| (key, value.to_owned()))
        .into()
    }
}

// === impl Appliance ===

impl Appliance {
    /// The NAS, as docs/truenas-tasks.md tells people to prepare it.
    async fn start(self) -> Simulator {
        let mut options = Options::new(self.generation);
        options.pools = vec![("tank".to_owned(), 0)];
        options.https = API;
        let nas = Simulator::start_on_this_machine(options).await;
        let nas = nas.expect("a NAS on this machine");
        let call = async |method: &str, params: Value| {
            let params = params.as_array().cloned().unwrap_or_default();
            let done = nas.call(method, params).await;
            done.unwrap_or_else(|failure| panic!("{method}: {failure:?}"));
        };
        let services: &[&str] = if self.served.kind.ends_with("nvmeof") {
            let port =
                json!({"addr_trtype": "TCP", "addr_traddr": "127.0.0.1", "addr_trsvcid": 4420});
            call("nvmet.port.create", json!([port])).await;
            &["nvmet"]
        } else {
            let portal = json!({"listen": [{"ip": "127.0.0.1"}]});
            call("iscsi.portal.create", json!([portal])).await;
            let second = json!({"listen": [{"ip": "127.0.0.2"}]});
            call("iscsi.portal.create", json!([second])).await;
            call("iscsi.initiator.create", json!([{}])).await;
            let [user, secret] = CHAP.node;
            let [peer, peer_secret] = CHAP.target;
            let auth = json!({"tag": 1, "user": user, "secret": secret, "peeruser": peer, "peersecret": peer_secret});
            call("iscsi.auth.create", json!([auth])).await;
            &["nfs", "cifs", "iscsitarget"]
        };
        for service in services {
            if self.generation < Generation::V25_10 {
                call("service.start", json!([service])).await;
            } else {
                call("service.control", json!(["START", service])).await;
            }
        }
        nas
    }

    /// The whole life of its volumes.
    ///
    /// # Panics
    /// At whatever is wrong in it.
    pub async fn life(self) {
        let _nas = self.start().await;
        life::whole(self.served).await;
    }

    /// Access of a node.
    ///
    /// # Panics
    /// At whatever is wrong in it.
    pub async fn access(self) {
        let _nas = self.start().await;
        access::of_the_published_node(self.served).await;
    }

    /// A deletion while the node uses the volume.
    ///
    /// # Panics
    /// At whatever is wrong in it.
    pub async fn connected(self) {
        let _nas = self.start().await;
        connected::to_a_volume(self.served).await;
    }

    /// The suites that `make truenas-test` runs against an appliance.
    ///
    /// # Panics
    /// If one of the suites fails, or something is left.
    pub async fn suites(self) {
        let program = requirement::tool_from("csi-sanity", "OMNIBUS_CSI_SANITY")
            .expect("the lab is given csi-sanity");
        let _nas = self.start().await;
        run(&["zfs", "create", "-p", &format!("{ROOT}/v")]);
        let text = self.served.whole.expect("a configuration");
        let suites = Suites::new(text, "5a11ed", Arc::new(NoEnvironment));
        let suites = suites.expect("a NAS");
        let well = |ended: anyhow::Result<()>| ended.unwrap_or_else(|why| panic!("{why:#}"));
        well(suites.is_checked().await);
        step("the contract");
        well(suites.keeps_the_contract().await);
        step("try");
        well(suites.is_tried(None).await);
        step("csi-sanity");
        well(suites.is_sane(&program, None).await);
        let left = suites.leaks().await.expect("an answer");
        assert!(left.is_empty(), "{left:#?}");
    }

    /// csi-sanity.
    ///
    /// # Panics
    /// If a spec fails.
    pub async fn sanity(self) {
        let _nas = self.start().await;
        sanity::nothing_fails(self.served).await;
    }
}
