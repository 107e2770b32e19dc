//! What a name of ZFS on this node stands for.

use exec::{Command, Program, RunError};
use tokio::time::Instant;

use crate::attachment::DatasetName;
use crate::error::{Effect, Error, Kind};
use crate::tools::Tools;

const ZFS: Program = Program::constant("zfs");

/// What a name of ZFS stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asset {
    /// A dataset, which is mounted.
    Dataset {
        /// Whether ZFS leaves mounting it to others.
        legacy: bool,
    },
    /// A zvol, which is a disk.
    Zvol,
}

/// Asks what the name stands for. `NotFound`: this node has nothing of that name.
pub async fn asset(tools: &Tools, name: &DatasetName, deadline: Instant) -> Result<Asset, Error> {
    let command = Command::new(ZFS)
        .args(["get", "-Hp", "-o", "property,value", "type,mountpoint"])
        .arg(name.as_str());
    let doing = || format!("find out what `{name}` is");
    let output = tools
        .host()
        .run_checked(&bounded(tools, command, deadline))
        .await;
    let output = output.map_err(|error| failed(doing(), error))?;
    let text = output.text();
    let value = |property: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(property)?.strip_prefix('\t'))
    };
    match value("type") {
        Some("filesystem") => Ok(Asset::Dataset {
            legacy: value("mountpoint") == Some("legacy"),
        }),
        Some("volume") => Ok(Asset::Zvol),
        other => {
            let kind = other.unwrap_or("nothing that is known").escape_debug();
            Err(Error::invalid(doing())
                .advise(format!("it is {kind}; a volume is a dataset or a zvol")))
        }
    }
}

/// Leaves mounting a dataset to us, as democratic-csi does; it stays so.
pub async fn make_legacy(
    tools: &Tools,
    name: &DatasetName,
    deadline: Instant,
) -> Result<(), Error> {
    let command = Command::new(ZFS)
        .args(["set", "mountpoint=legacy"])
        .arg(name.as_str());
    let done = tools
        .host()
        .perform(&bounded(tools, command, deadline))
        .await;
    done.map_err(|error| failed(format!("set the mount point of `{name}` to legacy"), error))
}

fn bounded(tools: &Tools, command: Command, deadline: Instant) -> Command {
    let left = deadline.saturating_duration_since(Instant::now());
    command.within(left.min(tools.timeouts().mount))
}

fn failed(doing: String, error: RunError) -> Error {
    let (kind, advice) = if error.stderr().contains("dataset does not exist") {
        (
            Kind::NotFound,
            "this node has no such dataset: the volume lives on another one, or was deleted",
        )
    } else if matches!(error, RunError::NotFound { .. }) {
        (Kind::Internal, "install ZFS on the host")
    } else {
        (Kind::Internal, "see `zpool status` on this node")
    };
    let effect = match error.effect() {
        exec::Effect::None => Effect::None,
        exec::Effect::Possible => Effect::Possible,
    };
    Error::new(kind, doing)
        .with_effect(effect)
        .because(error)
        .advise(advice)
}
