//! What the program is configured with, as a user would write it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use integration::machine::Machine;
use integration::place::Place;
use integration::server::{Launch, Server};
use integration::{requirement, tools};
use serde_json::{Value, json};
use truenas_sim::Generation;

/// The storage behind a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// A directory of this machine.
    Directory,
    /// The directory that a server shares, used on the server itself.
    Share,
    /// A blank disk that looks like a zvol of this machine.
    Disk,
    /// The simulator of TrueNAS.
    TrueNas,
    /// The simulator of DSM.
    Synology,
    /// A program in the place of `mount.objectivefs`, which is proprietary.
    ObjectiveFs,
}

/// A running program, and what is around it.
pub(super) struct Bench {
    pub(super) server: Server,
    /// Removed after the server.
    pub(super) place: Held,
    /// The parameters of each snapshot.
    pub(super) snapshot_parameters: BTreeMap<String, String>,
    /// A volume that was made by hand; the driver makes none.
    pub(super) by_hand: Option<BTreeMap<String, String>>,
    pub(super) size: i64,
    /// Whether what is written to a volume is found in its copies.
    pub(super) base: Option<PathBuf>,
}

/// The environment of a server.
pub(super) enum Held {
    Place(
        Place,
        #[expect(dead_code, reason = "a simulator, which ends with it")]
        Box<dyn std::any::Any + Send>,
    ),
    Machine(Machine),
}

impl Held {
    pub(super) fn place(&self) -> &Place {
        match self {
            Self::Place(place, _) => place,
            Self::Machine(machine) => &machine.place,
        }
    }
}

// === impl Storage ===

impl Storage {
    /// Starts the program over this storage. `None` where this machine cannot, which is said.
    pub(super) async fn set_up(self, kind: &str, snapshots: &str) -> Option<Bench> {
        match self {
            Self::Directory => directory(kind, snapshots, "local-hostpath").await,
            Self::Share => {
                let section = kind.split('-').next().unwrap_or_default();
                directory(kind, snapshots, section).await
            }
            Self::Disk => disk().await,
            Self::TrueNas => Some(truenas(kind, snapshots).await),
            Self::Synology => Some(synology(kind).await),
            Self::ObjectiveFs => objectivefs().await,
        }
    }
}

impl Bench {
    async fn start(config: &Value, place: Place, around: Box<dyn std::any::Any + Send>) -> Self {
        Self::launched(&Launch::new(config.to_string()), place, around).await
    }

    async fn launched(
        launch: &Launch,
        place: Place,
        around: Box<dyn std::any::Any + Send>,
    ) -> Self {
        Self {
            server: launch.start(&place).await,
            place: Held::Place(place, around),
            snapshot_parameters: BTreeMap::new(),
            by_hand: None,
            size: 1 << 30,
            base: None,
        }
    }
}

async fn directory(kind: &str, snapshots: &str, section: &str) -> Option<Bench> {
    let place = Place::new();
    // A share is never used below the folder of the socket.
    let storage = Place::new();
    let repository = place.path().join("repository");
    let mut wrapper = Vec::new();
    let tool = match snapshots {
        "restic" => {
            requirement::tool("snapshots by restic in the served program", "restic")?;
            json!({"env": {
                "RESTIC_REPOSITORY": repository,
                "RESTIC_PASSWORD": "canary-of-the-repository",
                "RESTIC_CACHE_DIR": place.path().join("cache"),
            }})
        }
        "kopia" => {
            let (around, token) = kopia(&place).await?;
            wrapper = around;
            json!({"config_token": token})
        }
        _ => json!({}),
    };
    let mut config = json!({
        "driver": kind,
        "instance_id": "here",
        section: {
            "shareHost": "nas.example",
            "shareBasePath": storage.base(),
            "controllerBasePath": storage.base(),
            "createBase": true,
            "snapshots": {"default_driver": snapshots},
        },
    });
    if snapshots != "filecopy" {
        config[section]["snapshots"][snapshots] = tool;
    }
    if section == "local-hostpath" {
        let own = config[section].as_object_mut().expect("an object");
        own.remove("shareHost");
    }
    let base = storage.base();
    let launch = Launch::new(config.to_string()).under(wrapper);
    let mut bench = Bench::launched(&launch, place, Box::new(storage)).await;
    bench.base = Some(base);
    Some(bench)
}

/// A new repository of kopia: what the program runs in, so that it finds kopia, and the token of the repository.
async fn kopia(place: &Place) -> Option<(Vec<OsString>, String)> {
    const WHAT: &str = "snapshots by kopia in the served program";
    let program = requirement::tool_from(WHAT, "OMNIBUS_KOPIA")?;
    if !requirement::root(WHAT) {
        return None;
    }
    let theirs = place.path().join("theirs");
    let run = async |arguments: &[&str]| {
        let own = [
            format!("--config-file={}", theirs.join("config").display()),
            format!("--log-dir={}", theirs.join("log").display()),
            "--password=canary-of-the-repository".to_owned(),
        ];
        let arguments = own
            .iter()
            .map(String::as_str)
            .chain(arguments.iter().copied());
        let output = tools::run(&program, arguments, place.path()).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).expect("text")
    };
    let repository = format!("--path={}", place.path().join("repository").display());
    let cache = format!("--cache-directory={}", theirs.join("cache").display());
    run(&["repository", "create", "filesystem", &repository, &cache]).await;
    let status = run(&["repository", "status", "-t", "-s"]).await;
    let token = status
        .lines()
        .find_map(|line| line.split_once("from-config --token "));
    let (_, token) = token.expect("a token");
    let folder = program.parent().expect("a folder");
    Some((with_programs_of(folder), token.trim().to_owned()))
}

/// What the program runs in to find the programs of a folder: it looks in fixed folders only. What it mounts is not seen
/// outside.
fn with_programs_of(folder: &Path) -> Vec<OsString> {
    let found = "mount --bind \"$0\" /usr/local/bin && exec \"$@\"";
    let words = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        found,
    ];
    let mut wrapper: Vec<OsString> = words.map(OsString::from).to_vec();
    wrapper.push(folder.into());
    wrapper
}

async fn objectivefs() -> Option<Bench> {
    const PROGRAM: &str = include_str!("../../../../drivers/objectivefs/tests/it/stand_in.sh");
    if !requirement::root("objectivefs in the served program") {
        return None;
    }
    let place = Place::new();
    let state = place.path().join("objectivefs");
    fs::create_dir_all(state.join("fs/csi")).expect("a pool");
    let text = PROGRAM.replace("STATE", &state.display().to_string());
    fs::write(state.join("text"), text).expect("a text");
    // A program that this process writes may still be open in a child of another thread, and is busy then.
    let install = ["-m", "755", "text", "mount.objectivefs"];
    let installed = tools::run(Path::new("install"), install, &state).await;
    assert!(installed.status.success(), "{installed:?}");
    let config = json!({
        "driver": "objectivefs",
        "objectivefs": {"pool": "csi", "env": {
            "OBJECTSTORE": "s3://",
            "SECRET_KEY": "store-secret-key",
            "OBJECTIVEFS_LICENSE": "license-license-license-adminkey",
            "OBJECTIVEFS_PASSPHRASE": "open-sesame-1001",
        }},
    });
    let launch = Launch::new(config.to_string()).under(with_programs_of(&state));
    Some(Bench::launched(&launch, place, Box::new(())).await)
}

async fn disk() -> Option<Bench> {
    let mut machine = Machine::new("a disk in the served program")?;
    machine.add_zvol("tank/a");
    let server = machine.launch("").start(&machine.place).await;
    let context = [
        ("node_attach_driver", "zfs-local"),
        ("zfs_asset_type", "volume"),
        ("zfs_asset_name", "tank/a"),
    ];
    let context = context.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Some(Bench {
        server,
        place: Held::Machine(machine),
        snapshot_parameters: BTreeMap::new(),
        by_hand: Some(context.into()),
        size: 64 << 20,
        base: None,
    })
}

async fn truenas(kind: &str, snapshots: &str) -> Bench {
    let options = truenas_sim::Options::new(Generation::V25_10);
    let nas = truenas_sim::Simulator::start(options).await.expect("a NAS");
    nas.set_up("10.0.0.5").await.expect("set up");
    let mut config = json!({
        "driver": kind,
        "httpConnection": {
            "protocol": "https",
            "host": "127.0.0.1",
            "port": nas.https().port(),
            "username": "root",
            "apiKey": nas.api_key(),
            "allowInsecure": true,
        },
        "zfs": {"datasetParentName": "tank/csi/v", "detachedSnapshotsDatasetParentName": "tank/csi/s"},
    });
    let protocol = kind.rsplit('-').next().unwrap_or_default();
    config[protocol] = match protocol {
        "nfs" => json!({"shareHost": "10.0.0.5", "shareAllowedNetworks": ["10.0.0.0/8"]}),
        "smb" => json!({"shareHost": "10.0.0.5"}),
        "iscsi" => json!({
            "targetPortal": "10.0.0.5:3260",
            "targetGroups": [{"targetGroupPortalGroup": 1, "targetGroupInitiatorGroup": 1}],
        }),
        _ => json!({"transports": ["tcp://10.0.0.5:4420"], "ports": [1]}),
    };
    let mut bench = Bench::start(&config, Place::new(), Box::new(nas)).await;
    if snapshots == "detached" {
        let detached = ("detachedSnapshots".to_owned(), "true".to_owned());
        bench.snapshot_parameters = BTreeMap::from([detached]);
    }
    bench
}

async fn synology(kind: &str) -> Bench {
    let options = synology_sim::Options::new(synology_sim::Version::V7_2);
    let nas = synology_sim::Simulator::start(options)
        .await
        .expect("a NAS");
    let address = nas.address();
    let protocol = kind.rsplit('-').next().unwrap_or_default();
    let mut config = json!({
        "driver": kind,
        "httpConnection": {
            "protocol": "http",
            "host": address.ip().to_string(),
            "port": address.port(),
            "username": "csi",
            "password": "sesame",
        },
    });
    config[protocol] = match protocol {
        "iscsi" => json!({
            "targetPortal": "nas.example:3260",
            "baseiqn": "iqn.2000-01.com.synology:csi.",
            "lunTemplate": {"type": "BLUN"},
        }),
        "nfs" => json!({"shareHost": "nas.example", "clients": ["10.0.0.0/24"]}),
        _ => json!({"shareHost": "nas.example", "users": ["k8s"]}),
    };
    Bench::start(&config, Place::new(), Box::new(nas)).await
}
