//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const ABOUT: &str = "\
Why a claim does not work, and the commands of the controller of omnibus-csi, from your machine with the rights of your \
kubeconfig. It changes nothing in the cluster; `orphans --remove`, `exports --repair`, `adopt` and `move` change the \
storage.";

const AFTER: &str = "\
Examples:
  kubectl omnibus explain data -n shop     the first broken link between a claim and its pods
  kubectl omnibus explain -n shop          all claims of a namespace, the sick ones first
  kubectl omnibus connections              health and free space of each storage
  kubectl omnibus exports --repair         put back what the storage no longer exports
  kubectl omnibus export-pvs > pvs.yaml    the objects of all volumes, for a cluster that has lost them

Exit codes: those of each command, on its own page (--help after it); 64 for a wrong command line, 2 where the cluster or the pod cannot be asked.
\"Rights\" in docs/kubectl.md has those that it needs, as a ClusterRole. Pages named so are in the repository of omnibus-csi.";

const AFTER_EXPLAIN: &str = "\
Examples:
  kubectl omnibus explain data             a claim of the namespace of your context
  kubectl omnibus explain -n shop data     of another namespace
  kubectl omnibus explain -n shop          all its claims, one on a line, the sick ones first
  kubectl omnibus explain -A               those of all namespaces
  kubectl omnibus explain data --json      for machines

Looked at, a cause before its effects: the claim, its class, the controller's pod, the volume, the storage with the
export as the controller sees it, the driver's pods on the nodes of the pods, their registration, attachments,
mounts, and the pods. Without a name, claims of other drivers are left out.

Exit codes:
  0   all links hold, of all claims
  1   a link is broken: the first one is named with its remedy
  2   no link is known to be broken, but one could not be looked at, such as for a right that is missing
  64  the command line is wrong";

/// The end of the page of a command that runs in the controller's pod: its examples, and its exit codes there.
macro_rules! remote {
    ($command:literal, $examples:literal, $codes:literal) => {
        concat!(
            "Examples:\n",
            $examples,
            "\n\nIt runs `omnibus-csi ",
            $command,
            "` in the controller's pod, with the configuration there. `kubectl omnibus ",
            $command,
            " -- --help`\nshows the flags that it takes there: any of them may follow.\n\nExit codes:\n",
            $codes,
            "\n  2   the pod, or in it each connection, cannot be asked: the output says why\n  64  the command line or the configuration is wrong"
        )
    };
}

const AFTER_CONNECTIONS: &str = remote!(
    "connections",
    "  kubectl omnibus connections              health, free space and volumes of each storage
  kubectl omnibus connections --offline    only their files",
    "  0   all can be used
  1   a connection cannot be used"
);
const AFTER_ORPHANS: &str = remote!(
    "orphans",
    "  kubectl omnibus orphans --min-age=7d             what a week has left behind; nothing is removed
  kubectl omnibus orphans --min-age=7d --remove    remove it",
    "  0   nothing is left, as far as the drivers can list it
  1   something is left, or may be"
);
const AFTER_EXPORTS: &str = remote!(
    "exports",
    "  kubectl omnibus exports                              what is missing; nothing is changed
  kubectl omnibus exports --connection=nas --repair    put it back",
    "  0   all are exported, or there are none to export
  1   something is missing, or is not known"
);
const AFTER_CHECK: &str = remote!(
    "check",
    "  kubectl omnibus check              the configuration, each connection and its storage
  kubectl omnibus check --offline    only the files",
    "  0   no errors; there may be warnings
  1   something has to be corrected: each line with ERROR"
);
const AFTER_EXPORT_PVS: &str = remote!(
    "export-pvs",
    "  kubectl omnibus export-pvs                                                        what there is
  kubectl omnibus export-pvs --connection=nas --storage-class=nas > objects.yaml    for a cluster that has lost it",
    "  0   all volumes are written
  1   a connection could not be asked, or a volume could not be written: something is missing"
);
const AFTER_ADOPT: &str = remote!(
    "adopt",
    "  kubectl omnibus adopt --connection=nas tank/k8s/volumes/photos --dry-run             what would be done
  kubectl omnibus adopt --connection=nas --storage-class=nas --claim=shop/photos tank/k8s/volumes/photos > photos.yaml",
    "  0   it is a volume, and its objects are written; or it could become one, with --dry-run
  1   it cannot become one, or the storage failed: standard error says why"
);
const AFTER_MOVE: &str = remote!(
    "move",
    "  kubectl omnibus move v:nas/pvc-0a1b --to=ssd --dry-run    what would be done
  kubectl omnibus move v:nas/pvc-0a1b --to=ssd              carry it while pods use it
  kubectl omnibus move v:nas/pvc-0a1b --to=ssd --storage-class=ssd --finish > moved.yaml    once no pod uses it",
    "  0   the rounds have ended; or it is moved, and its objects are written
  1   it cannot be moved, is in use, or the storage failed: standard error says why"
);

const AFTER_CONSOLE: &str = "\
The console has to be on: `console: {enabled: true}` in the values of the chart. Ctrl-C ends it. It needs the right to
forward ports of the controller's pod: get and create on pods/portforward.

Exit codes: 0 after Ctrl-C; 2 where the console is off or cannot be reached; 64 for a wrong command line.";

#[derive(Debug, Parser)]
#[command(
    name = "kubectl-omnibus",
    bin_name = "kubectl omnibus",
    version,
    about = ABOUT,
    after_help = AFTER,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterFlags {
    /// The kubeconfig; else that of KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; else the current one
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// Look for the driver's pods in this namespace alone; else in all
    #[arg(long, value_name = "NAMESPACE", global = true)]
    pub(crate) driver_namespace: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Walk from a claim to its pods and its storage, and name the first broken link with its remedy
    #[command(after_help = AFTER_EXPLAIN)]
    Explain(ExplainFlags),
    /// List the connections: health, free space and volumes of each
    #[command(after_help = AFTER_CONNECTIONS)]
    Connections(RemoteFlags),
    /// List the orphans of the storages, what incomplete calls left behind, and remove them on request
    #[command(after_help = AFTER_ORPHANS)]
    Orphans(RemoteFlags),
    /// See whether all volumes are still exported, and put back what is missing on request
    #[command(after_help = AFTER_EXPORTS)]
    Exports(RemoteFlags),
    /// Find mistakes in the configuration, and ask each storage
    #[command(after_help = AFTER_CHECK)]
    Check(RemoteFlags),
    /// Write the persistent volumes, claims and snapshots of what is on the storage; the name of the driver is added
    #[command(after_help = AFTER_EXPORT_PVS)]
    ExportPvs(RemoteFlags),
    /// Make a volume of a dataset, zvol or directory that exists; the name of the driver is added
    #[command(after_help = AFTER_ADOPT)]
    Adopt(RemoteFlags),
    /// Move a volume to another connection while pods use it; the name of the driver is added
    #[command(after_help = AFTER_MOVE)]
    Move(RemoteFlags),
    /// Open the console, a page that shows what the controller knows, in your browser
    #[command(after_help = AFTER_CONSOLE)]
    Console(ConsoleFlags),
}

/// The choice of a controller.
#[derive(Debug, Args)]
pub(crate) struct ControllerFlags {
    /// The driver, as the class names it as its provisioner; where several are installed, commands that only look ask each
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,
    /// The controller on this node, where each node has one; commands that only look ask each
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RemoteFlags {
    #[command(flatten)]
    pub(crate) controller: ControllerFlags,
    /// Flags of the command in the pod
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ConsoleFlags {
    #[command(flatten)]
    pub(crate) controller: ControllerFlags,
    /// Listen on this port of the loopback; else on that of the console, or a free one; 0 for a free one
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Print the address only
    #[arg(long)]
    pub(crate) no_open: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainFlags {
    /// The name of a claim; else all claims of the namespace
    #[arg(value_parser = claim)]
    pub(crate) claim: Option<String>,
    /// Its namespace; else that of the context
    #[arg(long, short, value_name = "NAMESPACE", value_parser = namespace)]
    pub(crate) namespace: Option<String>,
    /// The claims of all namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["claim", "namespace"])]
    pub(crate) all_namespaces: bool,
    /// Write one JSON object; without a name, an array of them
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw with plain letters; on where the output is no terminal
    #[arg(long)]
    pub(crate) ascii: bool,
}

/// The name of a claim, also as `kubectl get -o name` prints it. An empty one is that of a variable that is not set.
fn claim(text: &str) -> Result<String, String> {
    let name = text.rsplit('/').next().unwrap_or_default();
    if name.is_empty() {
        return Err("the name of the claim is empty: leave it out for all claims".to_owned());
    }
    Ok(name.to_owned())
}

fn namespace(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(
            "the name of the namespace is empty: leave out the flag for that of the context"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}
