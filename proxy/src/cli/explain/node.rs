//! The links of the node that this runs on: staged, session, mount, published. Nothing is attached or mounted.
//!
//! The kubelet records beside each staging and target path which volume is there. These files are on its own disk; the
//! paths themselves may hang, and are looked at with a limit.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use csi_types::said::{self, NO_ANSWER, NOT_MOUNTED, SESSION_DOWN};
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
    "delete the pods that use it on this node: the volume is staged again for the next one";
const ONE_POD: &str = "delete this pod: the volume is published again for the next one";

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
        links.push(look(&node, "mount", path, AGAIN).await);
    }
    for (pod, path) in &recorded.published {
        let link = look(&node, "published", path, ONE_POD).await;
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

/// The state of what is mounted at a path.
async fn look(node: &Node, link: &'static str, path: &Path, remedy: &str) -> Link {
    let shown = path.display().to_string();
    let Some(path) = path
        .to_str()
        .and_then(|path| AbsolutePath::parse(path).ok())
    else {
        return Link::unknown(link, &format!("{shown}: its path cannot be read"));
    };
    let limits = Limits::until(Instant::now() + PATIENCE);
    let at = path.as_path().to_owned();
    let seen = judge(link, &shown, node.stats(limits, path).await, remedy);
    let read = read_files(move || MountTable::read().is_ok_and(|table| is_read_only(&table, &at)));
    match read.await {
        Ok(true) if seen.state == State::Holds => read_only(seen),
        _ => seen,
    }
}

/// Whether what is mounted at a path is mounted read-only.
pub(super) fn is_read_only(table: &MountTable, path: &Path) -> bool {
    let top = table.layers(path).last();
    top.is_some_and(|entry| entry.is_read_only())
}

/// A mount that holds and is read-only. Whether that was asked for is not known here: the orchestrator knows.
fn read_only(mut link: Link) -> Link {
    link.text.push_str(", read-only");
    link.with("read_only", true)
}

fn judge(link: &'static str, shown: &str, seen: Result<VolumeStats, Error>, remedy: &str) -> Link {
    let stats = match seen {
        Ok(stats) => stats,
        Err(error) if error.kind() == Kind::NotFound => {
            return Link::broken(link, &said::not_mounted(shown), remedy)
                .with("reason", NOT_MOUNTED.as_str());
        }
        Err(error) if error.kind() == Kind::Timeout => {
            let text = said::no_answer(shown, PATIENCE);
            let remedy = "its server does not answer this node: see whether it runs and is reached from here; what waits \
                          for it goes on then";
            return Link::broken(link, &text, remedy).with("reason", NO_ANSWER.as_str());
        }
        Err(error) => {
            let text = format!("{shown}: {}", message::without_advice(&error));
            return Link::unknown(link, &text);
        }
    };
    match stats.conditions.worst() {
        Some(worst) => {
            let (reason, message) = (worst.reason(), worst.message());
            let link = if reason == DEVICE_GONE {
                "device"
            } else {
                link
            };
            let remedy = match reason {
                READ_ONLY => {
                    "read the kernel's log of the node for the error, repair the storage, then delete the pods"
                }
                DIRECTORY_DELETED => {
                    "put the directory back on the storage, then delete the pods that use it"
                }
                _ => remedy,
            };
            Link::broken(link, &format!("{shown}: {message}"), remedy)
                .with("reason", reason.as_str())
        }
        None => match stats.bytes {
            None => Link::holds(link, shown),
            Some(bytes) => {
                let text = format!(
                    "{shown}: {} of {} used",
                    size(bytes.used),
                    size(bytes.total)
                );
                Link::holds(link, &text)
                    .with("used_bytes", bytes.used)
                    .with("total_bytes", bytes.total)
                    .with("available_bytes", bytes.available)
            }
        },
    }
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
    let remedy = "see whether the storage host runs and its portal is reached from this node; a session comes back by \
                  itself, or delete the pods that use the volume here";
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
