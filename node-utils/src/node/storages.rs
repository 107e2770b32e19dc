//! The storages of the volumes that are staged on this node, and whether it reaches them.
//!
//! The kubelet stages a mounted volume in a folder of its driver, so the list of mounts says which are ours. A raw device
//! has no such folder, and is left out.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path};

use super::backing::{Backing, of_entry};
use super::health::{DEVICE_GONE, of_storage};
use crate::blocking::Source;
use crate::kernel::Kernel;
use crate::mount::{MountEntry, MountTable};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};
use csi_types::health::{Condition, ConditionKind, Conditions};

/// What is known of storages. What could not be looked at is passed over.
#[derive(Debug, Default)]
pub(super) struct Storages {
    /// What is wrong, each once.
    conditions: Vec<Condition>,
    /// The paths where something of each server is mounted.
    pub(super) servers: BTreeMap<String, Vec<AbsolutePath>>,
    /// Something could be looked at.
    has_looked: bool,
    /// The first failure of a look.
    failed: Option<Error>,
}

/// Looks at the storages of the volumes of a driver, without touching what is mounted.
pub(super) fn look(kernel: &Kernel, driver: &str) -> Result<Storages, Error> {
    let unreadable = |error| Error::new(Kind::Internal, "find out what is mounted").because(error);
    let table = MountTable::read().map_err(unreadable)?;
    Ok(of_table(kernel, &table, driver))
}

fn of_table(kernel: &Kernel, table: &MountTable, driver: &str) -> Storages {
    let mut found = Storages::default();
    for entry in table.entries() {
        let point = entry.point();
        if !is_staged_for(&point, driver) {
            continue;
        }
        if !entry.is_remote() {
            found.add(&entry.source(), of_disk(kernel, &entry));
            continue;
        }
        let path = point.to_str().map(AbsolutePath::parse);
        if let Some(Ok(path)) = path {
            let server = Source::of_mount(&entry).name().to_owned();
            found.servers.entry(server).or_default().push(path);
        }
    }
    found
}

/// The paths at which the kubelet has staged mounted volumes for drivers, each with its server or disk; of a mount that is
/// visible at several the first. What is mounted below one, as NFS does with exports below an export, is part of it.
pub(super) fn staged(drivers: &[String]) -> Result<Vec<(AbsolutePath, String)>, Error> {
    let unreadable = |error| Error::new(Kind::Internal, "find out what is mounted").because(error);
    let table = MountTable::read().map_err(unreadable)?;
    Ok(staged_in(&table, drivers))
}

fn staged_in(table: &MountTable, drivers: &[String]) -> Vec<(AbsolutePath, String)> {
    let mut found: Vec<(AbsolutePath, String)> = Vec::new();
    let mut locations = Vec::new();
    for entry in table.entries() {
        let point = entry.point();
        if !drivers.iter().any(|driver| is_staged_for(&point, driver)) {
            continue;
        }
        let Some(Ok(path)) = point.to_str().map(AbsolutePath::parse) else {
            continue;
        };
        let location = table.location(&entry);
        let is_known = found
            .iter()
            .any(|(known, _)| point.starts_with(known.as_path()))
            || location.is_some() && locations.contains(&location);
        locations.push(location);
        if !is_known {
            found.push((path, Source::of_mount(&entry).name().to_owned()));
        }
    }
    found
}

/// The conditions of the storage of a disk that is mounted.
fn of_disk(kernel: &Kernel, entry: &MountEntry<'_>) -> Result<Conditions, Error> {
    match of_entry(kernel, entry)? {
        Backing::Device(device) => of_storage(kernel, &device),
        // The kernel removes the disks of a storage that it has given up, and one that was deleted there.
        Backing::Gone => {
            let text = format!(
                "a device has disappeared from this node: {}",
                entry.source()
            );
            let gone = Condition::new(ConditionKind::Degraded, DEVICE_GONE, text);
            Ok([gone].into_iter().collect())
        }
        Backing::Other => Ok(Conditions::default()),
    }
}

impl Storages {
    /// Adds what is wrong with a storage, or that it could not be looked at.
    pub(super) fn add(&mut self, of: &str, found: Result<Conditions, Error>) {
        match found {
            Ok(conditions) => {
                self.has_looked = true;
                for condition in conditions {
                    if !self.conditions.contains(&condition) {
                        self.conditions.push(condition);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(of, error = %error.chain(), "a storage of this node could not be looked at");
                if self.failed.is_none() {
                    self.failed = Some(error);
                }
            }
        }
    }

    /// All that is wrong; an error if nothing could be looked at.
    pub(super) fn conditions(self) -> Result<Conditions, Error> {
        match self.failed {
            Some(error) if !self.has_looked => Err(error),
            _ => Ok(joined(self.conditions)),
        }
    }
}

/// One condition of each kind and reason, as the specification wants it: how many storages have it, and what was said of the
/// first.
fn joined(all: Vec<Condition>) -> Conditions {
    let mut joined: Vec<(Condition, usize)> = Vec::new();
    for one in all {
        let is_same = |(known, _): &&mut (Condition, usize)| {
            (known.kind(), known.reason()) == (one.kind(), one.reason())
        };
        match joined.iter_mut().find(is_same) {
            None => joined.push((one, 1)),
            Some((_, count)) => *count += 1,
        }
    }
    let shown = |(one, count): (Condition, usize)| {
        if count == 1 {
            return one;
        }
        let text = format!("{count} of them, such as: {}", one.message());
        Condition::new(one.kind(), one.reason(), text)
    };
    joined.into_iter().map(shown).collect()
}

/// Whether a path is one at which the kubelet stages volumes of a driver.
fn is_staged_for(point: &Path, driver: &str) -> bool {
    let names = point.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let names: Vec<&OsStr> = names.collect();
    let folder = ["plugins", "kubernetes.io", "csi", driver];
    names.windows(folder.len()).any(|window| *window == folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::Tree;
    use crate::node::health::{PATH_DOWN, SESSION_DOWN};
    use csi_types::health::Reason;

    /// A target with two disks by two portals, and a map over each.
    const ISCSI: &str = include_str!("../iscsi/captured/two.listing");
    const STATE: &str = "sys/devices/platform/host6/session8/iscsi_session/session8/state";

    /// The disk `sda` for two drivers, its map for one, and shares of two servers.
    const MOUNTS: &str = "\
21 1 8:0 / /var/lib/kubelet/plugins/kubernetes.io/csi/org.example/a1/globalmount rw - ext4 /dev/sda rw
22 1 8:0 / /var/lib/kubelet/plugins/kubernetes.io/csi/org.example/a2/globalmount rw - ext4 /dev/sda rw
23 1 0:51 / /var/lib/kubelet/plugins/kubernetes.io/csi/org.example/a3/globalmount rw - nfs4 nas:/a rw
24 1 0:52 / /var/lib/kubelet/plugins/kubernetes.io/csi/org.example/a4/globalmount rw - nfs4 nas:/b rw
25 1 0:53 / /var/lib/kubelet/plugins/kubernetes.io/csi/org.other/a5/globalmount rw - nfs4 other:/c rw
26 1 253:7 / /var/lib/kubelet/plugins/kubernetes.io/csi/org.other/a6/globalmount rw - ext4 /dev/dm-7 rw
";

    fn reasons(tree: &Tree, driver: &str) -> Vec<Reason> {
        let table = MountTable::from_text(MOUNTS);
        let found = of_table(&tree.kernel(), &table, driver);
        found.conditions.iter().map(Condition::reason).collect()
    }

    #[test]
    fn a_session_that_is_down_is_said_once_and_to_its_driver_alone() {
        let tree = Tree::from_listing(ISCSI);
        assert!(reasons(&tree, "org.example").is_empty());
        tree.file(STATE, "FAILED\n");
        assert_eq!(reasons(&tree, "org.example"), [SESSION_DOWN]);
        // Its map is not there.
        assert_eq!(reasons(&tree, "org.other"), [DEVICE_GONE]);
        assert!(reasons(&tree, "org").is_empty());
    }

    #[test]
    fn a_disk_that_was_deleted_on_its_storage_says_nothing_about_the_storage() {
        let tree = Tree::from_listing(&ISCSI.replace(
            "6:0:0:0/state = running",
            "6:0:0:0/state = transport-offline",
        ));
        assert!(reasons(&tree, "org.example").is_empty());
        tree.file(STATE, "FAILED\n");
        assert_eq!(reasons(&tree, "org.example"), [SESSION_DOWN]);
    }

    #[test]
    fn a_disk_that_the_kernel_has_removed_degrades_its_storage() {
        let tree = Tree::from_listing(ISCSI);
        let mounts = MOUNTS.replace("8:0", "8:240");
        let table = MountTable::from_text(mounts);
        let found = of_table(&tree.kernel(), &table, "org.example").conditions();
        let found = found.expect("look");
        let shown: Vec<_> = found.iter().map(|one| (one.kind(), one.reason())).collect();
        assert_eq!(shown, [(ConditionKind::Degraded, DEVICE_GONE)]);
    }

    #[test]
    fn what_cannot_be_looked_at_is_an_error_only_where_nothing_can() {
        let failed = || Err(Error::new(Kind::Internal, "look"));
        let mut found = Storages::default();
        found.add("one", failed());
        assert!(found.conditions().is_err());
        let down = Condition::new(ConditionKind::Inaccessible, SESSION_DOWN, "down");
        let mut found = Storages::default();
        found.add("one", failed());
        found.add("two", Ok([down.clone()].into_iter().collect()));
        found.add("three", Ok([down].into_iter().collect()));
        let found = found.conditions().expect("one could be looked at");
        let texts: Vec<_> = found.iter().map(Condition::message).collect();
        assert_eq!(texts, ["down"]);
    }

    #[test]
    fn of_one_kind_and_reason_there_is_one_condition_that_counts_all() {
        let down = |text: &str| Condition::new(ConditionKind::Inaccessible, SESSION_DOWN, text);
        let degraded = Condition::new(ConditionKind::Degraded, PATH_DOWN, "c");
        let found = joined(vec![degraded, down("a"), down("b")]);
        let texts: Vec<_> = found.iter().map(Condition::message).collect();
        assert_eq!(texts, ["2 of them, such as: a", "c"]);
    }

    #[test]
    fn each_staged_volume_of_these_drivers_is_there_once() {
        let staged = |text: &str, drivers: &[&str]| {
            let drivers: Vec<String> = drivers.iter().map(|name| (*name).to_owned()).collect();
            staged_in(&MountTable::from_text(text), &drivers)
        };
        let servers = staged(MOUNTS, &["org.example"]);
        let servers: Vec<_> = servers.iter().map(|(_, server)| &**server).collect();
        assert_eq!(servers, ["8:0", "8:0", "nas", "nas"]);
        assert_eq!(staged(MOUNTS, &["org.example", "org.other"]).len(), 6);
        assert_eq!(staged(MOUNTS, &["org"]), []);
        let below = "\
27 23 0:54 / /var/lib/kubelet/plugins/kubernetes.io/csi/org.example/a3/globalmount/b rw - nfs4 nas:/a/b rw
";
        let nested = format!("{MOUNTS}{below}");
        assert_eq!(staged(&nested, &["org.example"]).len(), 4);
        let roots = "\
20 1 8:1 / / rw - overlay overlay rw
19 20 8:1 / /host rw - ext4 /dev/root rw
";
        let below_root = MOUNTS.replace(" 1 ", " 20 ");
        let below_host = format!("\n{below_root}").replace("\n2", "\n3");
        let below_host = below_host
            .replace(" 20 ", " 19 ")
            .replace(" /var/", " /host/var/");
        let twice = format!("{roots}{below_root}{below_host}");
        assert_eq!(staged(&twice, &["org.example", "org.other"]).len(), 6);
    }

    #[test]
    fn each_server_has_its_paths_in_the_order_of_their_mounts() {
        let tree = Tree::from_listing(ISCSI);
        let table = MountTable::from_text(MOUNTS);
        let found = of_table(&tree.kernel(), &table, "org.example");
        let servers: Vec<_> = found.servers.iter().collect();
        let [(server, paths)] = &*servers else {
            panic!("{servers:?}");
        };
        assert_eq!(*server, "nas");
        let [first, second] = paths.as_slice() else {
            panic!("{paths:?}");
        };
        assert!(first.as_path().ends_with("a3/globalmount"), "{first}");
        assert!(second.as_path().ends_with("a4/globalmount"), "{second}");
    }

    #[test]
    fn a_map_with_a_path_that_is_down_is_degraded() {
        let tree = Tree::from_listing(ISCSI);
        tree.file(STATE, "FAILED\n");
        let dev = tree.kernel().sys("class/block/dm-0/dev");
        let number = std::fs::read_to_string(dev).expect("a number");
        let mounts = MOUNTS.replace("8:0", number.trim());
        let table = MountTable::from_text(mounts);
        let found = of_table(&tree.kernel(), &table, "org.example");
        let reasons: Vec<_> = found.conditions.iter().map(Condition::reason).collect();
        assert_eq!(reasons, [PATH_DOWN]);
    }
}
