//! `export-pvs`: the objects of Kubernetes for what is on the storage, for a cluster that has lost them.
//!
//! Every volume becomes a `PersistentVolume`, and a claim where it is known which one it was made for. Nothing is
//! changed and no cluster is asked: an operator sees the objects before they are created.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use csi_types::{FsType, MountFlags};
use driver_core::{Claim, Error, ObjectName, Page, PageRequest, Snapshot, SnapshotFilter, Volume};
use futures_util::future::join_all;

use crate::cli::args::EX_USAGE;
use crate::cli::selection::{self, Chosen, Problem, QUESTION, within};
use crate::cli::yaml;
use crate::message::printable;
use crate::process;
use crate::routing::connection::Connection;
use crate::routing::plugin_name::PluginName;
use objects::Written;

mod objects;
#[cfg(test)]
mod tests;

/// So many on a page.
const PAGE: usize = 1_000;

pub(crate) const AFTER: &str = "\
The claim that a volume was made for is on the storage if the provisioner ran with --extra-create-metadata, as our \
chart runs it, and if this program made the volume. Others, those of democratic-csi among them, become a \
PersistentVolume without a claim, unless --claim names it. Volumes of a node are listed on that node.

Access modes, the filesystem of a disk and mount options are not on the storage: shares become ReadWriteMany, others \
ReadWriteOnce, and the rest is as the flags say. Run it once for each connection whose class differs.

Examples:
  See what there is:
    omnibus-csi export-pvs --driver-config-file=proxy.yaml \\
      --csi-name=org.example.csi
  All of one connection, with snapshots, into an empty cluster:
    omnibus-csi export-pvs --driver-config-file=proxy.yaml --connection=nas \\
      --csi-name=org.example.csi --storage-class=nas \\
      --snapshot-class=nas > objects.yaml
    kubectl create namespace shop
    kubectl create -f objects.yaml

Exit codes:
  0   all volumes are written
  1   a connection could not be asked, or a volume could not be written: something is missing
  64  the command line or the configuration is wrong";

/// The volumes to write, and what the storage does not know of them.
#[derive(Debug, Args)]
pub struct ExportPvsFlags {
    /// The configuration of the storage, YAML
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: PathBuf,
    /// One connection of a folder (default: all of them)
    #[arg(long, value_name = "NAME")]
    pub connection: Option<String>,
    /// The objects
    #[command(flatten)]
    pub objects: ObjectFlags,
    /// Write the snapshots of volumes with a claim, too, with this class
    #[arg(long, value_name = "NAME", value_parser = object)]
    pub snapshot_class: Option<ObjectName>,
    /// The claim of a volume; repeat it for several
    #[arg(long, value_name = "HANDLE=NAMESPACE/NAME", value_parser = claim_of)]
    pub claim: Vec<(String, Claim)>,
}

/// The part of the objects that the storage does not know.
#[derive(Debug, Clone, Args)]
pub struct ObjectFlags {
    /// The name of the driver in the cluster
    #[arg(long, value_name = "NAME", value_parser = driver)]
    pub csi_name: PluginName,
    /// The class of the volumes and their claims (default: none)
    #[arg(long, value_name = "NAME", value_parser = object)]
    pub storage_class: Option<ObjectName>,
    /// What becomes of a volume whose claim is deleted
    #[arg(long, value_name = "POLICY", default_value = "retain")]
    pub reclaim_policy: ReclaimPolicy,
    /// The filesystem on disks (default: the kubelet's, which takes the one that is there)
    #[arg(long, value_name = "NAME", value_parser = filesystem)]
    pub fs_type: Option<FsType>,
    /// Disks are raw block volumes
    #[arg(long, conflicts_with = "fs_type")]
    pub block: bool,
    /// A mount option of the class; repeat it for several
    #[arg(long, value_name = "OPTION")]
    pub mount_option: Vec<String>,
    /// The secret by which nodes log in: of staging and publishing
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = claim)]
    pub node_secret: Option<Claim>,
}

/// What Kubernetes does with a volume whose claim is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReclaimPolicy {
    /// It stays.
    Retain,
    /// It is deleted.
    Delete,
}

/// What a connection has.
#[derive(Debug)]
struct Listed {
    connection: Arc<Connection>,
    volumes: Vec<Volume>,
    snapshots: Vec<Snapshot>,
    problem: Option<Problem>,
}

fn driver(text: &str) -> Result<PluginName, String> {
    PluginName::parse(text).map_err(|error| error.to_string())
}

pub(super) fn object(text: &str) -> Result<ObjectName, String> {
    ObjectName::parse(text).ok_or_else(|| "no object of Kubernetes can have this name".to_owned())
}

fn filesystem(text: &str) -> Result<FsType, String> {
    FsType::parse(text).map_err(|error| error.to_string())
}

pub(super) fn claim(text: &str) -> Result<Claim, String> {
    Claim::parse(text).ok_or_else(|| "give a namespace and a name, as in shop/data".to_owned())
}

fn claim_of(text: &str) -> Result<(String, Claim), String> {
    let form = "give a handle and a claim, as in v:nas/pvc-1=shop/data";
    let (handle, of) = text.rsplit_once('=').ok_or(form)?;
    Ok((handle.to_owned(), claim(of).map_err(|_| form)?))
}

/// A handle or a claim that stands in two flags.
fn named_twice(claims: &[(String, Claim)]) -> Option<String> {
    let (mut handles, mut names) = (BTreeSet::new(), BTreeSet::new());
    claims.iter().find_map(|(handle, claim)| {
        let twice = !handles.insert(handle) || !names.insert(claim);
        twice.then(|| format!("{}={claim}", printable(handle)))
    })
}

/// Writes the objects to standard output, what they are and what is missing to standard error.
pub fn run(flags: &ExportPvsFlags) -> ExitCode {
    if let Err(code) = flags.objects.check() {
        return code;
    }
    if let Some(twice) = named_twice(&flags.claim) {
        process::complain(&format!("omnibus-csi: --claim: {twice} is named twice"));
        return ExitCode::from(EX_USAGE);
    }
    let chosen = selection::choose(&flags.driver_config_file, flags.connection.as_deref());
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(code) => return code,
    };
    let (written, problems) = match process::carry_out(export(chosen, flags)) {
        Ok(done) => done,
        Err(code) => return code,
    };
    if let Err(code) = print(&written, &flags.objects) {
        return code;
    }
    for line in written.remarks.iter().chain(&problems) {
        process::complain(line.trim_end());
    }
    if problems.is_empty() && written.remarks.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The objects of all connections, and what could not be asked.
async fn export(mut chosen: Chosen, flags: &ExportPvsFlags) -> (Written, Vec<String>) {
    let (asked, unsupported) = chosen.able(|can| can.list_volumes);
    let mut problems: Vec<String> = chosen.problems.iter().map(Problem::line).collect();
    let cannot = |name: &String| format!("unknown: {name}: its driver cannot list volumes");
    problems.extend(unsupported.iter().map(cannot));
    let with_snapshots = flags.snapshot_class.is_some();
    let lists = asked.into_iter().map(|one| list(one, with_snapshots));
    let all = join_all(lists).await;
    problems.extend(
        all.iter()
            .filter_map(|one| one.problem.as_ref())
            .map(Problem::line),
    );
    (objects_of(flags, &all), problems)
}

fn objects_of(flags: &ExportPvsFlags, all: &[Listed]) -> Written {
    let class = flags.snapshot_class.as_ref();
    objects::write(&flags.objects, class, &flags.claim, all)
}

/// All that a connection has. If a page fails, the pages before it count.
async fn list(connection: Arc<Connection>, with_snapshots: bool) -> Listed {
    let driver = Arc::clone(connection.driver());
    let (volumes, problem) = pages("list volumes", async |call, page| {
        driver.list_volumes(call, page).await
    })
    .await;
    let mut problem = problem.map(|error| Problem::of(&connection, &error));
    let mut snapshots = Vec::new();
    if with_snapshots && problem.is_none() && !connection.can().list_snapshots {
        problem = Some(Problem::of(
            &connection,
            &driver.unsupported("list snapshots"),
        ));
    } else if with_snapshots && problem.is_none() {
        let filter = SnapshotFilter::default();
        let (listed, error) = pages("list snapshots", async |call, page| {
            driver.list_snapshots(call, &filter, page).await
        })
        .await;
        snapshots = listed;
        problem = error.map(|error| Problem::of(&connection, &error));
    }
    Listed {
        connection,
        volumes,
        snapshots,
        problem,
    }
}

/// All pages of a list, up to the first that fails.
async fn pages<T>(
    doing: &str,
    ask: impl AsyncFn(&driver_core::Call, &PageRequest) -> Result<Page<T>, Error>,
) -> (Vec<T>, Option<Error>) {
    let mut page = PageRequest {
        max: Some(PAGE),
        after: None,
    };
    let mut all = Vec::new();
    loop {
        let one = within(QUESTION, doing, async |call| ask(call, &page).await).await;
        match one {
            Ok(listed) => {
                all.extend(listed.entries);
                if listed.next.is_none() {
                    return (all, None);
                }
                page.after = listed.next;
            }
            Err(error) => return (all, Some(error)),
        }
    }
}

/// Writes the objects to standard output.
fn print(written: &Written, flags: &ObjectFlags) -> Result<(), ExitCode> {
    let mut out = io::stdout().lock();
    let text = text_of(written, flags);
    let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    done.map_err(|error| {
        process::complain(&format!("omnibus-csi: the objects are not whole: {error}"));
        ExitCode::FAILURE
    })
}

/// A volume that was just made, with the size that the operator says where nothing on the storage limits it. A missing
/// claim is pointed out.
pub(super) fn with_size(mut volume: Volume, said: Option<u64>) -> Volume {
    volume.capacity = volume.capacity.or(said);
    if volume.made_for.claim.is_none() {
        process::complain("its PersistentVolume has no claim: name one by --claim");
    }
    volume
}

/// Writes the objects of one volume to standard output, and what is doubtful about them to standard error.
pub(super) fn print_one(
    connection: Arc<Connection>,
    volume: Volume,
    flags: &ObjectFlags,
) -> ExitCode {
    let listed = Listed {
        connection,
        volumes: vec![volume],
        snapshots: Vec::new(),
        problem: None,
    };
    let written = objects::write(flags, None, &[], &[listed]);
    if let Err(code) = print(&written, flags) {
        return code;
    }
    for line in &written.remarks {
        process::complain(line);
    }
    ExitCode::SUCCESS
}

/// The file: a comment that says what it is, and one document for each object.
fn text_of(written: &Written, flags: &ObjectFlags) -> String {
    let namespaces: Vec<&str> = written.namespaces.iter().map(ObjectName::as_str).collect();
    let namespaces = match namespaces.as_slice() {
        [] => "none".to_owned(),
        all => all.join(" "),
    };
    let mut text = format!(
        "# Objects of {} for {} volumes, {} of which have a claim, and {} snapshots.\n# Namespaces that \
         have to exist first: {namespaces}\n# To be used with `kubectl create -f`, which changes no object that is there.\n",
        flags.csi_name, written.volumes, written.claims, written.snapshots
    );
    for object in &written.objects {
        text.push_str("---\n");
        text.push_str(&yaml::document(object));
    }
    text
}

// === impl ObjectFlags ===

impl ObjectFlags {
    /// Whether they can be meant. If not, it is said.
    pub(super) fn check(&self) -> Result<(), ExitCode> {
        let checked = MountFlags::parse(&self.mount_option);
        checked.map(drop).map_err(|error| {
            process::complain(&format!("omnibus-csi: --mount-option: {error}"));
            ExitCode::from(EX_USAGE)
        })
    }
}

// === impl Listed ===

impl Listed {
    fn all_volumes(&self) -> impl Iterator<Item = (&Self, &Volume)> {
        self.volumes.iter().map(move |volume| (self, volume))
    }

    fn all_snapshots(&self) -> impl Iterator<Item = (&Self, &Snapshot)> {
        let all = self.snapshots.iter();
        all.map(move |snapshot| (self, snapshot))
    }
}
