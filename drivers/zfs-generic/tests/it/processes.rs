//! The cost of a call on its host, with none and with many other volumes there: processes, counted by the numbers
//! that the kernel gives them, and what `zfs` has to print. The `zfs` here pretends and starts none itself.
//!
//! The bounds are those of docs/benchmarks.md. A script counts one for the subshell that a shell which stays runs
//! it in, as over SSH.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use crate::common::{Host, Volume};
use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    BackendIdentity, Call, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver,
    ExpandVolume, Expander as _, Kind, Lister as _, PageRequest, Parameters, SizeRange,
    SnapshotFilter, SnapshotId, SnapshotName, Snapshots as _, TopologyRequirement, VolumeId,
    VolumeName,
};
use driver_zfs::property::PropertyName;
use driver_zfs::{Export, ZfsConfig, ZfsDriver};
use driver_zfs_cli::exec::script::Shell;
use driver_zfs_cli::exec::testing::{OneByOne, RunOne};
use driver_zfs_cli::exec::{Command, Local, Output, Program, RunError, Runner as _};
use driver_zfs_cli::{Cli, ZfsTools};
use driver_zfs_generic::{Protocol, ShareExport};
use node_utils::requirement::this_test_could_not_run;

const UNSHARE: Program = Program::constant("unshare");
const UNSHARED: [&str; 4] = ["--user", "--map-root-user", "--pid", "--fork"];

/// Runs a command and notes how many processes were started for it: no other process takes a number.
const COUNTING: &str = include_str!("processes/counting.sh");

/// Runs scripts among processes of their own.
#[derive(Debug)]
struct Counted {
    folder: PathBuf,
}

#[async_trait]
impl RunOne for Counted {
    async fn run_one(&self, command: &Command) -> Result<Output, RunError> {
        let count = self.folder.join("processes").display().to_string();
        let words = command
            .arguments()
            .iter()
            .map(|word| word.expose().to_owned());
        let counted = Command::new(UNSHARE)
            .args(UNSHARED)
            .args(["sh", "-c", COUNTING, "sh"])
            .arg(count)
            .arg(command.program().as_str())
            .args(words)
            .secret_stdin(command.input().bytes())
            .with_output_cap(command.output_cap())
            .within(command.deadline());
        Local::new().run(&counted).await
    }
}

/// The cost of the calls since the last time: processes, and bytes that `zfs` printed.
fn costs(folder: &Path) -> (u64, u64) {
    let take = |name: &str| {
        let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let _ = std::fs::remove_file(folder.join(name));
        let number = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
        text.lines().map(number).sum()
    };
    (take("processes"), take("calls"))
}

/// A host with so many other volumes, as a driver sees it.
fn driver<E>(host: &Host, others: usize, text: &str, export: E) -> ZfsDriver
where
    E: Export<Command = Command, Output = Output>,
{
    let folder = host.path("");
    for (path, text) in [("zfs/id", "1".to_owned()), ("others", others.to_string())] {
        std::fs::create_dir_all(host.path("zfs")).unwrap();
        std::fs::write(host.path(path), text + "\n").unwrap();
    }
    for name in ["tank", "tank+v", "tank+s"] {
        let rows = "type\tfilesystem\t-\nguid\t1\t-\ncreatetxg\t1\t-\navailable\t9000000000\t-\n";
        std::fs::write(host.path("zfs").join(name), rows).unwrap();
    }
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/zfs");
    host.program("zfs", &std::fs::read_to_string(fake).unwrap());
    let document = Document::parse(text, &NoEnvironment).unwrap();
    let config = ZfsConfig::read(&document).unwrap();
    let kind = export.kind();
    let settings = config
        .settings(&document.common().unwrap(), kind, None)
        .unwrap();
    let tools = ZfsTools::new(host.path("bin/zfs").to_str(), None, false).unwrap();
    let runner = Shell::new(OneByOne(Counted { folder }));
    let identity = BackendIdentity("test".into());
    let locks = host.path("locks").to_str().unwrap().to_owned();
    ZfsDriver::new(
        settings,
        Cli::new(runner, tools, identity).locking_in(locks),
        export,
    )
}

/// As many as are listed here.
const MANY: usize = 600;

/// As external-snapshotter names them.
const OF_KUBERNETES: &str = "snapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";

const NFS: &str = "driver: zfs-generic-nfs
zfs: {datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s, datasetEnableQuotas: true}
nfs:
  shareHost: 192.0.2.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: 'on'}}
";

const ISCSI: &str = "driver: zfs-generic-iscsi
zfs: {datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}
iscsi:
  targetPortal: 192.0.2.1
  shareStrategy: lio
  shareStrategyLio: {basename: iqn.2003-01.org.example, configPath: '{etc}/saved.json'}
";

/// The only detached snapshot of the volume, in its container.
fn detached(host: &Host, kind: &str) {
    let mark = |name: PropertyName, text: &str| format!("{name}\t{text}\tlocal\n");
    let rows = |kind: &str| {
        let facts = "guid\t1\t-\ncreatetxg\t1\t-\nreferenced\t24576\t-\nmounted\tno\t-\n";
        let canmount = mark(PropertyName::CANMOUNT, "off");
        format!("type\t{kind}\t-\n{facts}{canmount}")
    };
    let container = rows("filesystem") + &mark(PropertyName::CONTAINER, "true");
    let snapshot = rows(kind)
        + &mark(PropertyName::MANAGED, "true")
        + &mark(PropertyName::SNAPSHOT_NAME, "s1")
        + &mark(PropertyName::SNAPSHOT_SOURCE, "pvc-1")
        + &mark(PropertyName::SUCCESS, "true");
    std::fs::write(host.path("zfs/tank+s+pvc-1"), container).unwrap();
    std::fs::write(host.path("zfs/tank+s+pvc-1+s1"), snapshot).unwrap();
}

/// The volume that the calls are about.
fn volume(id: &VolumeId) -> CreateVolume {
    CreateVolume {
        name: VolumeName::parse("pvc-1").unwrap(),
        id: id.clone(),
        size: SizeRange::new(1 << 30, 0).unwrap(),
        capabilities: vec![VolumeCapability {
            access: Access::Mount(MountAccess::default()),
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
        source: None,
        topology: TopologyRequirement::default(),
    }
}

/// The calls about one volume, and the lists; what each costs.
async fn calls(
    host: &Host,
    driver: &ZfsDriver,
    makes: bool,
    lists: bool,
) -> BTreeMap<&'static str, (u64, u64)> {
    let folder = host.path("");
    let call = || Call::within(Duration::from_mins(2));
    let id = VolumeId::parse("pvc-1").unwrap();
    let mut all = BTreeMap::new();
    let mut costs = |name: &'static str| {
        all.insert(name, costs(&folder));
    };
    costs("");
    if makes {
        let request = volume(&id);
        driver.create_volume(&call(), &request).await.unwrap();
        costs("CreateVolume");
    }
    let request = |name| CreateSnapshot {
        name: SnapshotName::parse(name).unwrap(),
        source: id.clone(),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
    };
    let unique = request(OF_KUBERNETES);
    let snapshot = driver.create_snapshot(&call(), &unique).await.unwrap();
    // The look at the volumes that the kernel makes for it prints nothing and is no process.
    let about_others = |line: &&str| !line.contains("pvc-1");
    let zfs = host.text("calls");
    assert_eq!(zfs.lines().find(about_others), None);
    costs("CreateSnapshot");
    let named = request("s1");
    driver.create_snapshot(&call(), &named).await.unwrap();
    let zfs = host.text("calls");
    assert!(zfs.lines().any(|line| about_others(&line)), "{zfs}");
    costs("CreateSnapshot of any name");
    if lists {
        let page = PageRequest::default();
        let volumes = driver.list_volumes(&call(), &page).await.unwrap();
        assert!(volumes.entries.iter().any(|volume| volume.id == id));
        costs("ListVolumes");
        let filter = SnapshotFilter::default();
        let snapshots = driver
            .list_snapshots(&call(), &filter, &page)
            .await
            .unwrap();
        assert!(!snapshots.entries.is_empty());
        costs("ListSnapshots");
    }
    let size = SizeRange::new(2 << 30, 0).unwrap();
    let growth = ExpandVolume::new(&id, size);
    let grown = driver.expand_volume(&call(), growth).await.unwrap();
    assert_eq!(grown.capacity, 2 << 30);
    costs("ControllerExpandVolume");
    let gone = DeleteSnapshot::new(&snapshot.id);
    driver.delete_snapshot(&call(), gone).await.unwrap();
    costs("DeleteSnapshot");
    let other = SnapshotId::parse("pvc-1@s1").unwrap();
    let gone = DeleteSnapshot::new(&other);
    driver.delete_snapshot(&call(), gone).await.unwrap();
    costs("DeleteSnapshot of any name");
    detached(host, if makes { "filesystem" } else { "volume" });
    let detached = SnapshotId::parse("pvc-1/s1").unwrap();
    let gone = DeleteSnapshot::new(&detached);
    driver.delete_snapshot(&call(), gone).await.unwrap();
    for gone in ["zfs/tank+s+pvc-1", "zfs/tank+s+pvc-1+s1"] {
        assert_eq!(host.text(gone), "", "{gone}");
    }
    costs("DeleteSnapshot, detached");
    if makes {
        let gone = DeleteVolume::new(&id);
        driver.delete_volume(&call(), gone).await.unwrap();
        costs("DeleteVolume");
    }
    all.remove("");
    all
}

async fn shares(others: usize) -> BTreeMap<&'static str, (u64, u64)> {
    let host = Host::new();
    let document = Document::parse(NFS, &NoEnvironment).unwrap();
    let tools = ZfsTools::new(host.path("bin/zfs").to_str(), None, false).unwrap();
    let export = ShareExport::from_document(&document, Protocol::Nfs, tools).unwrap();
    let driver = driver(&host, others, NFS, export);
    calls(&host, &driver, true, others <= MANY).await
}

/// Only the kernel makes targets and zvols: so this one is there, and its neighbours are saved.
async fn targets(others: usize) -> BTreeMap<&'static str, (u64, u64)> {
    let host = Host::new();
    let volume = Volume::new("tank/v", "pvc-1", 7);
    let export = host.export(ISCSI);
    host.ensure(&export, &volume).await.unwrap().unwrap();
    let neighbour = |number| {
        format!(
            "    {{\n      \"fabric\": \"iscsi\",\n      \"tpgs\": [],\n      \
             \"wwn\": \"iqn.2003-01.org.example:other-{number}\"\n    }},\n"
        )
    };
    let list = "\"targets\": [\n";
    let neighbours: String = (0..others).map(neighbour).collect();
    let saved = host.text("etc/saved.json");
    assert!(saved.contains(list), "{saved}");
    let saved = saved.replace(list, &format!("{list}{neighbours}"));
    std::fs::write(host.path("etc/saved.json"), saved).unwrap();
    let text = ISCSI.replace("{etc}", host.path("etc").to_str().unwrap());
    let driver = driver(&host, others, &text, host.export(ISCSI));
    let context = "{\"node_attach_driver\":\"iscsi\",\"portal\":\"192.0.2.1\",\"iqn\":\"iqn.2003-01.org.example:pvc-1\",\"lun\":\"0\"}";
    let rows = format!(
        "type\tvolume\t-\nguid\t7\t-\ncreatetxg\t7\t-\nvolsize\t1073741824\tlocal\nvolblocksize\t16384\t-\n\
         {}\ttrue\tlocal\n{}\tpvc-1\tlocal\n{}\t{context}\tlocal\n",
        PropertyName::MANAGED,
        PropertyName::ISCSI_ASSETS,
        PropertyName::CONTEXT
    );
    std::fs::write(host.path("zfs/tank+v+pvc-1"), rows).unwrap();
    let facts = host.facts(&export, &volume).await;
    assert_eq!(facts.missing, [""; 0], "it has to be whole");
    calls(&host, &driver, false, others <= MANY).await
}

async fn can_count() -> bool {
    let tried = Command::new(UNSHARE).args(UNSHARED).arg("true");
    let can = Local::new().run_checked(&tried).await.is_ok();
    if !can {
        this_test_could_not_run("unshare cannot make a namespace of processes here");
    }
    can
}

/// Costs are within these processes; with others the same, and no more than 1.3 of the bytes, but in lists.
fn assert_bounded(
    bounds: &[(&str, u64)],
    alone: &BTreeMap<&str, (u64, u64)>,
    among: &BTreeMap<&str, (u64, u64)>,
) {
    for (name, (processes, bytes)) in alone {
        let bound = bounds
            .iter()
            .find(|(bounded, _)| bounded == name)
            .unwrap()
            .1;
        assert!(
            *processes <= bound,
            "{name}: {processes} processes, not {bound}: {alone:?}"
        );
        let Some((many, more)) = among.get(name) else {
            continue;
        };
        assert_eq!(many, processes, "{name}: {among:?}");
        let is_list = name.starts_with("List");
        assert!(
            is_list || more * 10 <= bytes * 13,
            "{name}: {more} bytes, not {bytes}"
        );
    }
    assert_eq!(alone.len(), bounds.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_snapshot_in_a_parent_that_does_not_exist_is_not_taken_for_deleted() {
    if !can_count().await {
        return;
    }
    let host = Host::new();
    let document = Document::parse(NFS, &NoEnvironment).unwrap();
    let tools = ZfsTools::new(host.path("bin/zfs").to_str(), None, false).unwrap();
    let export = ShareExport::from_document(&document, Protocol::Nfs, tools).unwrap();
    let driver = driver(&host, 0, NFS, export);
    let call = Call::within(Duration::from_mins(2));
    let id = SnapshotId::parse("pvc-1/s1").unwrap();
    for is_there in [true, false] {
        let gone = driver.delete_snapshot(&call, DeleteSnapshot::new(&id));
        let gone = gone.await.map_err(|error| (error.kind(), error.chain()));
        match gone {
            Ok(()) if is_there => {}
            Err((Kind::Unreachable, why)) if !is_there => {
                assert!(why.contains("tank/s does not exist"), "{why}");
            }
            other => panic!("the parent is there: {is_there}: {other:?}"),
        }
        std::fs::write(host.path("zfs/tank+s"), "").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_about_a_share_costs_few_processes_and_the_same_among_many_volumes() {
    if !can_count().await {
        return;
    }
    let bounds = [
        ("CreateVolume", 16),
        ("CreateSnapshot", 7),
        ("CreateSnapshot of any name", 8),
        ("ListVolumes", 4),
        ("ListSnapshots", 5),
        ("ControllerExpandVolume", 5),
        ("DeleteSnapshot", 2),
        ("DeleteSnapshot of any name", 4),
        ("DeleteSnapshot, detached", 13),
        ("DeleteVolume", 11),
    ];
    let alone = shares(0).await;
    assert_bounded(&bounds, &alone, &shares(MANY).await);
    assert_bounded(&bounds, &alone, &shares(10_000).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_about_a_target_costs_few_processes_and_the_same_among_many_volumes() {
    if !can_count().await {
        return;
    }
    let bounds = [
        ("CreateSnapshot", 7),
        ("CreateSnapshot of any name", 8),
        ("ListVolumes", 4),
        ("ListSnapshots", 5),
        ("ControllerExpandVolume", 8),
        // With the bookmark that a backup may ask for later.
        ("DeleteSnapshot", 9),
        ("DeleteSnapshot of any name", 9),
        ("DeleteSnapshot, detached", 13),
    ];
    let alone = targets(0).await;
    assert_bounded(&bounds, &alone, &targets(MANY).await);
    assert_bounded(&bounds, &alone, &targets(10_000).await);
}
