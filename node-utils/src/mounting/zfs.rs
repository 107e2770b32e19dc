//! The kinds of objects that a name of ZFS on this node may stand for.

use exec::{Command, Program, RunError};
use tokio::time::Instant;

use super::LABELS;
use crate::tools::Tools;
use csi_types::attachment::DatasetName;
use csi_types::error::{Error, Kind};

const ZFS: Program = Program::constant("zfs");

/// The properties to read. The kernel applies only the first two; the mounting program applies the others.
/// `setuid=off` of a dataset has no effect by itself, and `readonly=on` must be passed before the intent log is
/// replayed.
pub(super) const ASKED: &str = "type,mountpoint,readonly,atime,devices,exec,setuid,context,fscontext,defcontext,\
                     rootcontext";
/// The option that each property that is switched from its default asks of a mount.
const SWITCHES: [(&str, &str, &str); 5] = [
    ("readonly", "on", "ro"),
    ("atime", "off", "noatime"),
    ("devices", "off", "nodev"),
    ("exec", "off", "noexec"),
    ("setuid", "off", "nosuid"),
];

/// The object that a name of ZFS stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asset {
    /// A dataset, which is mounted.
    Dataset {
        /// Whether ZFS leaves mounting it to others.
        legacy: bool,
        /// The mount options that its properties stand for.
        options: Vec<String>,
    },
    /// A zvol, which is a disk.
    Zvol,
}

/// Asks what the name stands for. `NotFound`: this node has nothing of that name.
pub async fn asset(tools: &Tools, name: &DatasetName, deadline: Instant) -> Result<Asset, Error> {
    let command = Command::new(ZFS)
        .args(["get", "-Hp", "-o", "property,value,source", ASKED])
        .arg(name.as_str());
    let doing = || format!("find out what `{name}` is");
    let output = tools
        .host()
        .run_checked(&bounded(tools, command, deadline))
        .await;
    let output = output.map_err(|error| failed(doing(), error))?;
    parse_properties(&output.text()).map_err(|kind| {
        let kind = kind.escape_debug();
        Error::invalid(doing()).advise(format!("it is {kind}; a volume is a dataset or a zvol"))
    })
}

/// Parses the output of `zfs get`. Fails with the type if it is neither a dataset nor a zvol.
fn parse_properties(text: &str) -> Result<Asset, &str> {
    let value = |property: &str| {
        text.lines().find_map(|line| {
            let mut columns = line.split('\t');
            let (name, value) = (columns.next()?, columns.next()?);
            // Set for the current mount only, by an option.
            (name == property && columns.next() != Some("temporary")).then_some(value)
        })
    };
    match value("type") {
        Some("filesystem") => {}
        Some("volume") => return Ok(Asset::Zvol),
        other => return Err(other.unwrap_or("nothing that is known")),
    }
    let switched = SWITCHES
        .iter()
        .filter(|(property, switch, _)| value(property) == Some(switch));
    let switched = switched.map(|(_, _, option)| (*option).to_owned());
    // `none` by default.
    let labels = LABELS.iter().filter_map(|property| {
        let label = value(property).filter(|label| !matches!(*label, "none" | "-" | ""))?;
        Some(format!("{property}=\"{label}\""))
    });
    Ok(Asset::Dataset {
        legacy: value("mountpoint") == Some("legacy"),
        options: switched.chain(labels).collect(),
    })
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
    error.while_doing(kind, doing).advise(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `zfs get` of OpenZFS 2.3.9 printed it, with other values.
    fn shown(changes: &[(&str, &str, &str)]) -> String {
        let defaults = [
            ("type", "filesystem", "-"),
            ("mountpoint", "/tank/a", "default"),
            ("readonly", "off", "default"),
            ("atime", "on", "default"),
            ("devices", "on", "default"),
            ("exec", "on", "default"),
            ("setuid", "on", "default"),
            ("context", "none", "default"),
            ("fscontext", "none", "default"),
            ("defcontext", "none", "default"),
            ("rootcontext", "none", "default"),
        ];
        let line = |line: &(&str, &str, &str)| {
            let changed = changes.iter().find(|change| change.0 == line.0);
            let (name, value, source) = changed.unwrap_or(line);
            format!("{name}\t{value}\t{source}\n")
        };
        defaults.iter().map(line).collect()
    }

    fn options(changes: &[(&str, &str, &str)]) -> Vec<String> {
        match parse_properties(&shown(changes)) {
            Ok(Asset::Dataset { options, .. }) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_switched_on_the_dataset_is_asked_of_the_mount() {
        assert_eq!(options(&[]), [""; 0]);
        let off = ["devices", "exec", "setuid"].map(|name| (name, "off", "inherited from tank"));
        assert_eq!(options(&off), ["nodev", "noexec", "nosuid"]);
        let both = [("readonly", "on", "local"), ("atime", "off", "received")];
        assert_eq!(options(&both), ["ro", "noatime"]);
        let label = [("context", "system_u:object_r:a_t:s0:c1,c2", "local")];
        assert_eq!(
            options(&label),
            ["context=\"system_u:object_r:a_t:s0:c1,c2\""]
        );
        assert_eq!(options(&[("readonly", "on", "temporary")]), [""; 0]);
    }
}
