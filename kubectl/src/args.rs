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

Exit codes: those of each command; 64 for a wrong command line, 2 where the cluster or the pod cannot be asked.
docs/kubectl.md has the rights that it needs, as a ClusterRole.";

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

const AFTER_REMOTE: &str = "\
What follows goes to the command of the same name in the controller's pod: `kubectl omnibus orphans --help` shows this
page, `kubectl omnibus orphans -- --help` that of the command. Its output and its exit code are passed on.
2 is also the exit code where the pod cannot be asked.";

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
    #[command(after_help = AFTER_REMOTE)]
    Connections(RemoteFlags),
    /// List the orphans of the storages, what incomplete calls left behind, and remove them on request
    #[command(after_help = AFTER_REMOTE)]
    Orphans(RemoteFlags),
    /// See whether all volumes are still exported, and put back what is missing on request
    #[command(after_help = AFTER_REMOTE)]
    Exports(RemoteFlags),
    /// Find mistakes in the configuration, and ask each storage
    #[command(after_help = AFTER_REMOTE)]
    Check(RemoteFlags),
    /// Write the persistent volumes, claims and snapshots of what is on the storage; the name of the driver is added
    #[command(after_help = AFTER_REMOTE)]
    ExportPvs(RemoteFlags),
    /// Make a volume of a dataset, zvol or directory that exists; the name of the driver is added
    #[command(after_help = AFTER_REMOTE)]
    Adopt(RemoteFlags),
    /// Move a volume to another connection while pods use it; the name of the driver is added
    #[command(after_help = AFTER_REMOTE)]
    Move(RemoteFlags),
    /// Open the console, a page that shows what the controller knows, in your browser
    #[command(after_help = AFTER_CONSOLE)]
    Console(ConsoleFlags),
}

/// The choice of a controller.
#[derive(Debug, Args)]
pub(crate) struct ControllerFlags {
    /// The driver, as the class names it as its provisioner; needed where several releases are installed
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,
    /// The controller on this node, where each node has one
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
