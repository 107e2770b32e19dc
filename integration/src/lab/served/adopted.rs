//! Datasets and zvols that are there already become volumes by `omnibus-csi adopt`, with the files in them.
//!
//! Three are made with the commands of ZFS: as an administrator does, with what tns-csi records, and with nothing, as the
//! driver of TrueNAS itself leaves them.

use std::path::PathBuf;

use serde_json::Value;
use tokio::time::timeout;

use super::life::{delete, make, same};
use super::{Served, storage};
use crate::lab::calls::{KUBELET, Node};
use crate::lab::command::{attempt, run};
use crate::lab::content;
use crate::lab::fixture::{Fixture, SIZE};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{FILE, LENGTH, step};
use crate::lab::storage::nvmet::Subsystem;
use crate::lab::storage::shares;
use crate::lab::storage::zfs::{Dataset, Zvol};
use crate::place::Place;
use crate::{objects, tools};

/// The client of an export that is made by hand.
const CLIENT: &str = "127.0.0.1";

/// A dataset or zvol that others made.
struct Found {
    name: &'static str,
    /// The properties that are set.
    own: &'static [&'static str],
    /// Those that are set on a share, whose size nothing else says.
    of_a_share: &'static [&'static str],
    /// Flags of the adoption.
    flags: &'static [&'static str],
    /// The claim that the volume gets.
    claim: &'static str,
}

const FOUND: [Found; 3] = [
    Found {
        name: "photos",
        own: &[],
        of_a_share: &["refquota=512M"],
        flags: &["--claim=shop/photos"],
        claim: "shop/photos",
    },
    Found {
        name: "pvc-of-tns",
        own: &[
            "tns-csi:managed_by=tns-csi",
            "tns-csi:csi_volume_name=pvc-of-tns",
            "tns-csi:capacity_bytes=536870912",
            "tns-csi:pvc_namespace=web",
            "tns-csi:pvc_name=logs",
        ],
        of_a_share: &[],
        flags: &[],
        claim: "web/logs",
    },
    Found {
        name: "pvc-of-truenas",
        own: &[],
        of_a_share: &["quota=512M"],
        flags: &["--claim=shop/other"],
        claim: "shop/other",
    },
];

/// A use of a dataset or zvol by hand.
#[derive(Debug, Clone, Copy)]
enum User {
    /// A mount, and what is said of it.
    Mount(&'static str),
    /// A subsystem of nvmet with another name.
    Subsystem,
    /// An export by `exportfs`.
    Export,
    /// A share of ZFS by this setting.
    Share(&'static str),
}

/// The answer of the program.
struct Ran {
    code: Option<i32>,
    out: String,
    said: String,
}

/// Each becomes a volume that is used and deleted; what must not become one stays as it is.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn whole(served: Served) {
    let place = Place::new();
    let node = Node::start_with(served.start_on(&place)).await;
    let before = (Leftovers::read(), storage());
    for (seed, found) in (20..).zip(&FOUND) {
        step(found.name);
        lived(&node, served, found, &content::bytes(seed, LENGTH)).await;
    }
    others(&node, served).await;
    in_use(&node, served).await;
    Leftovers::back_to(&before.0, "what was adopted").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

async fn lived(node: &Node, served: Served, found: &Found, content: &[u8]) {
    let mut own = found.own.to_vec();
    if !served.is_device() {
        own.extend(found.of_a_share);
    }
    let name = put(served, found.name, &own, content);
    let set = set_on(&name);
    let dry = adopt(node, &name, &[found.flags, &["--dry-run"]].concat()).await;
    assert_eq!(dry.code, Some(0), "{}", dry.said);
    assert_eq!(set_on(&name), set, "to look changes nothing");

    let ran = adopt(node, &name, found.flags).await;
    let [volume, claim] = ran.objects();
    let of_claim = |key: &str| claim["metadata"][key].as_str().unwrap_or_default();
    let named = format!("{}/{}", of_claim("namespace"), of_claim("name"));
    assert_eq!(named, found.claim);
    assert_eq!(volume["spec"]["capacity"]["storage"], SIZE.to_string());
    let again = adopt(node, &name, found.flags).await;
    assert_eq!(again.out, ran.out, "{}", again.said);
    assert!(again.said.contains("was adopted"), "{}", again.said);

    let fixture = ran.fixture(served);
    same(node, &fixture, content, found.name).await;
    delete(node, &fixture).await;
    assert!(attempt(&["zfs", "list", &name]).is_err(), "{name} is left");
}

/// A volume, a clone, and what is of the other kind.
async fn others(node: &Node, served: Served) {
    step("what cannot become a volume");
    let made = make(node, served, "made", served.sizes().0, None).await;
    let name = format!("{}/v/{}", served.root, made.volume.volume_id);
    adopt(node, &name, &[]).await.is_refused("already");

    let snapshot = format!("{name}@by-hand");
    let clone = format!("{}/v/clone", served.root);
    run(&["zfs", "snapshot", &snapshot]);
    run(&["zfs", "clone", &snapshot, &clone]);
    let ran = adopt(node, &clone, &["--claim=shop/clone"]).await;
    ran.is_refused("it is a clone of");
    destroy(&clone);
    destroy(&snapshot);
    delete(node, &made).await;

    let other = format!("{}/v/other", served.root);
    if served.is_device() {
        run(&["zfs", "create", &other]);
    } else {
        run(&["zfs", "create", "-s", "-V", "64M", &other]);
    }
    let ran = adopt(node, &other, &["--claim=shop/other"]).await;
    ran.is_refused("name a connection of that kind");
    destroy(&other);
}

/// A dataset or zvol that this machine uses in another way is refused, and becomes a volume when it is free.
async fn in_use(node: &Node, served: Served) {
    let content = content::bytes(30, LENGTH);
    let folder = tempfile::tempdir().expect("a folder");
    let point = folder.path().display().to_string();
    let flags = ["--claim=shop/used"];
    let own: &[&str] = if served.is_device() {
        &[]
    } else {
        &["refquota=512M"]
    };
    let name = put(served, "used", own, &content);
    for user in User::all(served) {
        step(&format!("what is in use: {user:?}"));
        let end = user.begin(served, &name, &point);
        let set = set_on(&name);
        adopt(node, &name, &flags).await.is_refused(user.said());
        assert_eq!(set_on(&name), set, "a refusal changes nothing");
        end();
    }
    let fixture = adopt(node, &name, &flags).await.fixture(served);
    same(node, &fixture, &content, "what was in use").await;
    delete(node, &fixture).await;
}

/// Makes a dataset or zvol where volumes are, with a file.
fn put(served: Served, leaf: &str, own: &[&str], content: &[u8]) -> String {
    let name = format!("{}/v/{leaf}", served.root);
    let size = SIZE.to_string();
    let mut words = vec!["zfs", "create"];
    words.extend(own.iter().flat_map(|property| ["-o", property]));
    if served.is_device() {
        words.extend(["-s", "-V", &size]);
    }
    words.push(&name);
    run(&words);
    if served.is_device() {
        let name = name.clone();
        Zvol { name }.fill(FILE, content);
    } else {
        let name = name.clone();
        Dataset { name }.fill(FILE, content);
    }
    name
}

/// The properties that a dataset has of its own, not inherited.
fn set_on(name: &str) -> String {
    let columns = ["-o", "property,value", "all", name];
    run(&[&["zfs", "get", "-H", "-s", "local,received"], &columns[..]].concat())
}

/// Destroys what was made by hand; udev may still look into a zvol that is new.
fn destroy(name: &str) {
    run(&["udevadm", "settle", "--timeout=60"]);
    run(&["zfs", "destroy", name]);
}

/// Runs `adopt` beside the server, with its configuration.
async fn adopt(node: &Node, source: &str, flags: &[&str]) -> Ran {
    let config = format!("--driver-config-file={}", node.place.config().display());
    let words = [
        &["adopt", &config, "--csi-name=org.omnibus-csi.test", source],
        flags,
    ]
    .concat();
    let path = std::env::var("PATH").expect("a path of programs");
    let environment = [("CSI_NODE_ID", "node-a"), ("PATH", path.as_str())];
    let output = timeout(6 * KUBELET, tools::omnibus(&words, &environment)).await;
    let output = output.unwrap_or_else(|_| panic!("adopt {source} does not end"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        code: output.status.code(),
        out: text(&output.stdout),
        said: text(&output.stderr),
    }
}

// === impl User ===

impl User {
    /// Those that this kind of volume cannot have beside it.
    fn all(served: Served) -> &'static [Self] {
        match served.kind {
            "zfs-generic-nfs" => &[Self::Export, Self::Share("sharesmb=on")],
            "zfs-generic-smb" => &[Self::Export, Self::Share("sharenfs=on")],
            "zfs-generic-iscsi" | "zfs-generic-nvmeof" => {
                &[Self::Mount("the mount at"), Self::Subsystem]
            }
            "zfs-local-zvol" => &[Self::Mount("its device is mounted")],
            "zfs-local-dataset" => &[Self::Mount("it is mounted, and not by ZFS")],
            _ => &[],
        }
    }

    /// The words of the refusal.
    fn said(self) -> &'static str {
        match self {
            Self::Mount(said) => said,
            Self::Subsystem => "the subsystem nqn.2026-01.lab.storage:theirs of nvmet",
            Self::Export => "the export of",
            Self::Share(set) => set,
        }
    }

    /// Begins it, and returns what ends it.
    fn begin(self, served: Served, name: &str, point: &str) -> Box<dyn FnOnce() + Send> {
        let (name, point) = (name.to_owned(), point.to_owned());
        match self {
            Self::Mount(_) if served.is_device() => {
                run(&["mount", &format!("/dev/zvol/{name}"), &point]);
                Box::new(move || drop(run(&["umount", &point])))
            }
            Self::Mount(_) => {
                run(&["zfs", "set", "mountpoint=legacy", &name]);
                run(&["mount", "-t", "zfs", &name, &point]);
                Box::new(move || drop(run(&["umount", &point])))
            }
            Self::Subsystem => {
                let theirs = Subsystem::create("theirs", &[]);
                theirs.attach(1, &Zvol { name });
                Box::new(move || theirs.remove())
            }
            Self::Export => {
                let path = run(&["zfs", "get", "-H", "-o", "value", "mountpoint", &name]);
                let path = PathBuf::from(path.trim());
                shares::nfs(&path, 4711, CLIENT);
                Box::new(move || shares::no_nfs(&path, CLIENT))
            }
            Self::Share(set) => {
                run(&["zfs", "set", set, &name]);
                let off = set.replace("=on", "=off");
                Box::new(move || drop(run(&["zfs", "set", &off, &name])))
            }
        }
    }
}

// === impl Ran ===

impl Ran {
    /// The persistent volume and the claim that it has written.
    fn objects(&self) -> [Value; 2] {
        assert_eq!(self.code, Some(0), "{}", self.said);
        let objects: Result<[Value; 2], _> = objects::read(&self.out).try_into();
        objects.unwrap_or_else(|all| panic!("{all:#?}"))
    }

    /// The volume, as a node gets it by its object.
    fn fixture(&self, served: Served) -> Fixture {
        let [volume, _] = self.objects();
        served.fixture(objects::volume(&volume))
    }

    fn is_refused(&self, why: &str) {
        assert_eq!(
            (self.code, self.out.as_str()),
            (Some(1), ""),
            "{}",
            self.said
        );
        assert!(self.said.contains(why), "{}", self.said);
    }
}
