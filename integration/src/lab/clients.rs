//! Directories of a share: the whole program on nfsd and samba, with a share that it mounts itself.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::lab::leftovers::Leftovers;
use crate::lab::storage::shares;
use crate::place::Place;
use crate::requirement;
use crate::sanity::{self, ANY_NODE, PENDING, Questions, SPECS, Spec, ended};
use crate::server::{Launch, log_of};

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// nfs-client.
    Nfs,
    /// smb-client.
    Smb,
}

/// Both, with the names of their cells.
pub const ALL: [(&str, Client); 2] = [("nfs", Client::Nfs), ("smb", Client::Smb)];

const SHARED: &str = "/srv/omnibus-clients";
const SMB_SHARE: &str = "omnibus-clients";
const NUMBER: u32 = 78;
const HERE: &str = "127.0.0.1";
/// The number of specs its capabilities call for.
const RAN: usize = 80;
/// Words of the specs that are skipped: modification, groups and read-only publishing are not offered, nothing grows on
/// the node, and a node reports no number of volumes.
const SKIPPED: [&str; 7] = [
    "ModifyVolume",
    "volume attribute class",
    "GroupController",
    "NodeExpandVolume",
    "accessibility requirements",
    "node max attach limit",
    "already published but is incompatible",
];

// === impl Client ===

impl Client {
    fn share(self) {
        let all = fs::Permissions::from_mode(0o777);
        fs::create_dir_all(SHARED).expect("a folder of ours");
        fs::set_permissions(SHARED, all).expect("its mode");
        match self {
            Self::Nfs => shares::nfs(Path::new(SHARED), NUMBER, HERE),
            Self::Smb => shares::smb(Path::new(SHARED), SMB_SHARE, false),
        }
    }

    fn unshare(self) {
        match self {
            Self::Nfs => shares::no_nfs(Path::new(SHARED), HERE),
            Self::Smb => shares::no_smb(SMB_SHARE),
        }
        fs::remove_dir_all(SHARED).expect("what is left of it");
    }

    /// The program without a path for the controller, and the login for both of its halves.
    fn launch(self) -> Launch {
        let (user, password) = shares::SMB_USER;
        Launch::new(match self {
            Self::Nfs => format!(
                "driver: nfs-client\nnfs: {{shareHost: {HERE}, shareBasePath: {SHARED}}}\n\
                 node: {{mount: {{mount_flags: 'nfsvers=4.2'}}}}\n"
            ),
            Self::Smb => format!(
                "driver: smb-client\nsmb: {{shareHost: {HERE}, shareBasePath: {SMB_SHARE}}}\n\
                 node: {{mount: {{mount_flags: 'username={user},password={password}'}}}}\n"
            ),
        })
        .set("--log-level", "debug")
    }
}

/// Every spec runs that the driver's capabilities call for, and none fails; what the program has mounted is
/// unmounted at its end.
///
/// # Panics
/// If that is not so.
pub async fn nothing_fails(client: Client) {
    let program = requirement::tool_from("csi-sanity", "OMNIBUS_CSI_SANITY")
        .expect("the lab is given csi-sanity");
    client.share();
    let place = Place::new();
    let before = Leftovers::read();
    let mut server = client.launch().start(&place).await;
    let questions = Questions {
        size: Some(1 << 20),
        ..Questions::default()
    };
    let (specs, output) = sanity::ask(&program, &place, &questions).await;
    let mounted = place.mounts();
    assert_eq!(mounted.len(), 1, "the share alone: {mounted:?}");
    assert!(server.terminate().await.success());
    let none: [PathBuf; 0] = [];
    assert_eq!(place.mounts(), none, "mounts are left");

    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    let known = |name: &str| ANY_NODE.iter().any(|words| name.ends_with(words));
    let as_known = failed.len() == ANY_NODE.len() && failed.iter().all(|(name, _)| known(name));
    assert!(as_known, "{failed:#?}\n{}", log_of(&place));
    assert!(!output.status.success(), "csi-sanity: {}", output.status);
    let skipped = ended(&specs, "skipped");
    let known = |name: &&String| SKIPPED.iter().any(|words| name.contains(words));
    let unexpected: Vec<_> = skipped.iter().filter(|name| !known(name)).collect();
    assert!(unexpected.is_empty(), "skipped: {unexpected:#?}");
    let passed = ended(&specs, "passed").len();
    assert_eq!(passed + failed.len() + skipped.len() + PENDING, SPECS);
    assert_eq!(passed, RAN, "as many as its capabilities call for");
    let log = log_of(&place);
    assert!(
        !log.contains(shares::SMB_USER.1),
        "the password is in the log"
    );
    Leftovers::back_to(&before, "csi-sanity").await;
    client.unshare();
}
