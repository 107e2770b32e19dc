//! The links of the node that this runs on: staged, session, mount, published. Nothing is attached or mounted.
//!
//! The kubelet records beside each staging and target path which volume is there. These files are on its own disk; the
//! paths themselves may hang, and are looked at with a limit.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use csi_types::said::{
    self, ANOTHER_DIRECTORY, FULL, NO_ANSWER, NO_INODES, NOT_MOUNTED, SESSION_DOWN,
};
use csi_types::{AbsolutePath, Attachment};
use driver_core::{Error, Kind};
use node_utils::kernel::{self, Kernel};
use node_utils::mount::MountTable;
use node_utils::node::health::{DEVICE_GONE, DIRECTORY_DELETED, READ_ONLY};
use node_utils::{Limits, Node, NodeConfig, VolumeStats};
use serde_json::Value;
use tokio::time::Instant;

use super::chain::{Link, State};
use super::{PATIENCE, read_files, size};
use crate::message;
use crate::routing::config_file;

const RECORD: &str = "vol_data.json";
const AGAIN: &str =
    "delete all pods that use the claim on this node: the volume is staged again for the next one";
const ONE_POD: &str = "delete the pod that uses the claim on this node: the volume is published again for the next one";

/// The paths of a volume on this node, as the kubelet recorded them.
#[derive(Debug, Default)]
struct Recorded {
    staged: Vec<PathBuf>,
    /// With the uid of the pod.
    published: Vec<(String, PathBuf)>,
}

/// The links of this node. None where no kubelet runs.
pub(super) async fn links(
    kubelet: &Path,
    handle: &str,
    attachment: Option<&Attachment>,
) -> Vec<Link> {
    let (dir, wanted) = (kubelet.to_owned(), handle.to_owned());
    let read = read_files(move || recorded(&dir, &wanted)).await;
    let recorded = match read.and_then(|read| read.map_err(|error| error.to_string())) {
        Ok(Some(recorded)) => recorded,
        Ok(None) => return Vec::new(),
        Err(why) => return vec![unread(kubelet, &why)],
    };
    if recorded.staged.is_empty() && recorded.published.is_empty() {
        let text = "the kubelet of this machine has no record of the volume: it is not used here";
        return vec![Link::absent("staged", text)];
    }
    let node = Node::here(NodeConfig::default());
    let mut links = Vec::new();
    for path in &recorded.staged {
        links.push(Link::holds("staged", &path.display().to_string()));
        links.extend(attachment.and_then(|to| session(&Kernel::here(), to)));
        links.push(look(&node, "mount", path, attachment, AGAIN).await);
    }
    for (pod, path) in &recorded.published {
        let link = look(&node, "published", path, attachment, ONE_POD).await;
        links.push(link.with("pod", pod.clone()));
    }
    if recorded.published.is_empty() {
        links.push(Link::absent("published", "no pod of this node uses it"));
    }
    links
}

fn unread(kubelet: &Path, why: &str) -> Link {
    Link::unknown("staged", &format!("read {}: {why}", kubelet.display())).or_do(
        "run it as root where the kubelet's folder is, such as in the node's pod, or name the folder by --kubelet-dir",
    )
}

/// The state of what is mounted at a path, and whether it is the volume where that is known.
async fn look(
    node: &Node,
    link: &'static str,
    path: &Path,
    volume: Option<&Attachment>,
    remedy: &str,
) -> Link {
    let shown = path.display().to_string();
    let Some(path) = path
        .to_str()
        .and_then(|path| AbsolutePath::parse(path).ok())
    else {
        return Link::unknown(link, &format!("{shown}: its path cannot be read"));
    };
    let at = path.as_path().to_owned();
    let read = {
        let at = at.clone();
        read_files(move || {
            MountTable::read()
                .ok()
                .and_then(|table| listed(&table, &at))
        })
        .await
    };
    let top = read.ok().flatten().unwrap_or_default();
    let limits = Limits::until(Instant::now() + PATIENCE);
    let stats = node.stats(limits, path).await;
    let seen = judge(link, &shown, stats, top.is_part, remedy);
    if seen.state != State::Holds {
        return seen;
    }
    let seen = match volume {
        Some(Attachment::Hostpath(volume)) => {
            let wanted = volume.path.as_path().to_owned();
            match read_files(move || is_another(&at, &wanted)).await {
                Ok(true) => another(link, &shown, volume.path.as_str(), &top),
                Ok(false) | Err(_) => seen,
            }
        }
        Some(Attachment::Nfs(share)) => from_share(seen, &top.source, &share.share.to_string()),
        _ => seen,
    };
    if top.is_read_only && seen.state == State::Holds {
        return read_only(seen);
    }
    seen
}

/// What the list of mounts says of the topmost mount of a path.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) is_read_only: bool,
    /// A directory of a filesystem, not all of it.
    pub(super) is_part: bool,
    /// That directory, as its filesystem names it.
    root: String,
    /// Its device or share.
    source: String,
    /// Another mount lies below.
    is_over_another: bool,
}

pub(super) fn listed(table: &MountTable, path: &Path) -> Option<Listed> {
    let layers: Vec<_> = table.layers(path).collect();
    let top = layers.last()?;
    let root = top.root();
    Some(Listed {
        is_over_another: layers.len() > 1,
        is_read_only: top.is_read_only(),
        is_part: *root != *Path::new("/"),
        root: root.display().to_string(),
        source: top.source().into_owned(),
    })
}

/// Whether another directory is mounted than that of the volume. One that is not there is the fault of another link.
pub(super) fn is_another(mounted: &Path, volume: &Path) -> bool {
    let identity = |path: &Path| {
        let found = std::fs::symlink_metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let (Some(mounted), Some(volume)) = (identity(mounted), identity(volume)) else {
        return false;
    };
    mounted != volume
}

fn another(link: &'static str, shown: &str, volume: &str, top: &Listed) -> Link {
    let root = &top.root;
    let why = if top.is_over_another {
        "another mount lies over it"
    } else {
        "that was moved or made again"
    };
    let text = format!(
        "{shown}: what is mounted is not the directory {volume} of the volume: {why} (mounted is {root} of its filesystem)"
    );
    let remedy = if top.is_over_another {
        format!(
            "`umount {shown}` on the node takes the upper mount away, which the driver did not make; then delete the pods that started \
             since: they have {root} of that filesystem, and not the volume"
        )
    } else {
        format!(
            "pods still write to the old directory: end all pods that use the claim on this node, copy what they have written \
             since then from {root} of that filesystem to {volume}, and start them again: the volume is staged anew"
        )
    };
    Link::broken(link, &text, &remedy)
        .with("reason", ANOTHER_DIRECTORY.as_str())
        .with("mounted", root.as_str())
}

/// A mount of an export. That it is another one than that of today's configuration is shown, and is no fault: the export may
/// have had another path when it was mounted. Servers have several names.
fn from_share(mut link: Link, source: &str, share: &str) -> Link {
    let mounted = source.split_once(":/").map_or(source, |(_, path)| path);
    if mounted.trim_matches('/') != share.trim_matches('/') {
        let more = format!(", mounted from {source}, while the connection says {share}");
        link.text.push_str(&message::printable(&more));
    }
    link.with("source", source)
}

/// A mount that holds and is read-only. Whether that was asked for is not known here: the orchestrator knows.
fn read_only(mut link: Link) -> Link {
    link.text.push_str(", read-only");
    link.with("read_only", true)
}

fn judge(
    link: &'static str,
    shown: &str,
    seen: Result<VolumeStats, Error>,
    is_part: bool,
    remedy: &str,
) -> Link {
    let stats = match seen {
        Ok(stats) => stats,
        Err(error) if error.kind() == Kind::NotFound => {
            return Link::broken(link, &said::not_mounted(shown), remedy)
                .with("reason", NOT_MOUNTED.as_str());
        }
        Err(error) if error.kind() == Kind::Timeout => {
            let text = said::no_answer(shown, PATIENCE);
            let remedy = "its server does not answer this node: see whether it runs and is reached from here, such as by `nc -z SERVER 2049` \
                          for NFS, `nc -z SERVER 445` for SMB; what waits for it goes on then";
            return Link::broken(link, &text, remedy).with("reason", NO_ANSWER.as_str());
        }
        Err(error) => {
            let text = format!("{shown}: {}", message::without_advice(&error));
            return Link::unknown(link, &text);
        }
    };
    let Some(worst) = stats.conditions.worst() else {
        let text = match stats.bytes {
            None => shown.to_owned(),
            // A directory has the figures of all that it is in, unless it has a quota. A raw device has nothing free.
            Some(bytes) if is_part && bytes.available > 0 => format!(
                "{shown}: {} free in its filesystem, which it shares with others, or in its quota",
                size(bytes.available)
            ),
            Some(bytes) => format!(
                "{shown}: {} of {} used",
                size(bytes.used),
                size(bytes.total)
            ),
        };
        return figures(Link::holds(link, &text), &stats);
    };
    let (reason, message) = (worst.reason(), worst.message());
    let link = if reason == DEVICE_GONE {
        "device"
    } else {
        link
    };
    let remedy = match reason {
        READ_ONLY => {
            "`dmesg` on the node names the error of the disk; once the storage is well again, delete all pods that use the claim on \
             this node: the volume is staged again for the next one"
        }
        DIRECTORY_DELETED => {
            "put the directory back on the storage, from a snapshot or a backup, then delete the pods that use the claim on this node"
        }
        FULL => {
            "remove files from the volume, or let it grow by a larger claim; for a directory without a quota, give its filesystem more \
             room: all that is in it counts"
        }
        NO_INODES => {
            "remove small files, such as those of a cache; or move the volume to a filesystem with more inodes: ext4 gets their number \
             when it is made"
        }
        _ => remedy,
    };
    let broken = Link::broken(link, &format!("{shown}: {message}"), remedy);
    figures(broken.with("reason", reason.as_str()), &stats)
}

fn figures(mut link: Link, stats: &VolumeStats) -> Link {
    if let Some(bytes) = stats.bytes {
        link = link
            .with("used_bytes", bytes.used)
            .with("total_bytes", bytes.total)
            .with("available_bytes", bytes.available);
    }
    if let Some(inodes) = stats.inodes {
        link = link
            .with("inodes_total", inodes.total)
            .with("inodes_free", inodes.available);
    }
    link
}

/// The session of a disk, as the kernel lists it; `None` for volumes without one.
pub(super) fn session(kernel: &Kernel, attachment: &Attachment) -> Option<Link> {
    let (class, key, name, good) = match attachment {
        Attachment::Iscsi(disk) => (
            "class/iscsi_session",
            "targetname",
            disk.iqn.to_string(),
            "LOGGED_IN",
        ),
        Attachment::Nvmeof(disk) => ("class/nvme", "subsysnqn", disk.nqn.to_string(), "live"),
        _ => return None,
    };
    let folder = kernel.sys(class);
    let listed = match kernel::list(&folder) {
        Ok(listed) => listed,
        Err(error) => {
            let text = format!("read {}: {error}", folder.display());
            return Some(Link::unknown("session", &text));
        }
    };
    let read = |entry: &str, file: &str| {
        let text = kernel::read(&folder.join(entry).join(file)).ok().flatten();
        text.map(|text| text.trim().to_owned())
    };
    let ours = listed.iter().filter(|entry| {
        let found = read(entry, key);
        found.is_some_and(|found| found.eq_ignore_ascii_case(&name))
    });
    let states: Vec<String> = ours
        .map(|entry| read(entry, "state").unwrap_or_default())
        .collect();
    let remedy = "see whether the storage host runs and its portal is reached from this node, such as by `nc -z SERVER 3260` for iSCSI, 4420 for \
                  NVMe over TCP: the session then comes back by itself. If it does not, delete all pods that use the claim on this node";
    Some(if states.iter().any(|state| state == good) {
        Link::holds("session", &format!("{name} is connected"))
    } else {
        let mut text = said::not_connected(&name);
        if !states.is_empty() {
            text = format!("{text}: it is {}", states.join(", "));
        }
        Link::broken("session", &text, remedy).with("reason", SESSION_DOWN.as_str())
    })
}

/// The records of the kubelet about a volume; `None` if its folder is not there.
fn recorded(kubelet: &Path, handle: &str) -> io::Result<Option<Recorded>> {
    let mut found = Recorded::default();
    if entries(kubelet)?.is_none() {
        return Ok(None);
    }
    let plugins = kubelet.join("plugins/kubernetes.io/csi");
    for driver in entries(&plugins)?.unwrap_or_default() {
        // Raw devices have folders of their own.
        let is_devices = driver
            .file_name()
            .is_some_and(|name| name == "volumeDevices");
        for volume in entries(&driver)?.unwrap_or_default() {
            if is_devices {
                device(&driver, &volume, handle, &mut found)?;
            } else if is_of(&volume.join(RECORD), handle)? {
                found.staged.push(volume.join("globalmount"));
            }
        }
    }
    for pod in entries(&kubelet.join("pods"))?.unwrap_or_default() {
        let volumes = entries(&pod.join("volumes/kubernetes.io~csi"))?;
        for volume in volumes.unwrap_or_default() {
            if is_of(&volume.join(RECORD), handle)? {
                found.published.push((name(&pod), volume.join("mount")));
            }
        }
    }
    Ok(Some(found))
}

/// The records about a raw device.
fn device(devices: &Path, volume: &Path, handle: &str, found: &mut Recorded) -> io::Result<()> {
    if !is_of(&volume.join("data").join(RECORD), handle)? {
        return Ok(());
    }
    found
        .staged
        .push(devices.join("staging").join(name(volume)));
    let pods = entries(&devices.join("publish").join(name(volume)))?;
    let pods = pods.unwrap_or_default().into_iter();
    found.published.extend(pods.map(|path| (name(&path), path)));
    Ok(())
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The content of a folder, sorted; `None` if there is none.
fn entries(folder: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let listed = match std::fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let paths = listed.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(Some(paths))
}

/// Whether a record of the kubelet is about this volume. One that is written just now is about none.
fn is_of(record: &Path, handle: &str) -> io::Result<bool> {
    let text = match config_file::read_regular(record) {
        Ok(text) => text,
        Err(error) if is_absent(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    let record: Value = serde_json::from_str(&text).unwrap_or_default();
    Ok(record["volumeHandle"] == handle)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
