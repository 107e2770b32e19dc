//! The conformance suite over a driver that makes and exports its volumes, on real storage.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::Instant;

use futures_util::FutureExt as _;

use super::{ROOT, Served, storage};
use crate::conformance::{Holds, Target};
use crate::lab::command::run;
use crate::lab::evidence;
use crate::lab::life::step;
use crate::lab::remains::Remains;
use crate::place::Place;
use crate::server::Launch;
use crate::suite;
use crate::tree::{Entry, Tree};

/// A program that makes a real volume for each hostile name would be at it for hours.
const ONE_STRING_OF: usize = 25;

/// `<volume>@<name>`, behind the name of a connection, too, leaves room for a name that is shortened.
const LONGEST_WITH_SNAPSHOTS: usize = 64;

impl Target for Served {
    fn name(&self) -> &'static str {
        self.name
    }

    fn launch(&self, place: &Place) -> Launch {
        // Filesystems that keep ACLs, for what is compared.
        let acls = "  datasetProperties: {acltype: posix, xattr: sa}\n";
        let more = if self.kind == "zfs-local-dataset" {
            acls
        } else {
            ""
        };
        self.launch_with(place, more).set("--log-level", "silly")
    }

    /// What there is, and every property that somebody set.
    fn backend(&self, _place: &Place) -> Tree {
        let mut tree = Tree::default();
        let words = ["zfs", "get", "-Hpr", "-s", "local,received"];
        let columns = ["-o", "name,property,value", "all", ROOT];
        let set = run(&[&words[..], &columns].concat());
        let mut properties: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in set.lines() {
            let (name, property) = line.split_once('\t').unwrap_or((line, ""));
            properties.entry(name).or_default().push(property);
        }
        for name in storage() {
            let set = properties.remove(name.as_str()).unwrap_or_default();
            tree.0.insert(PathBuf::from(name), entry(&set.join("\n")));
        }
        tree
    }

    fn snapshot_parameters(&self) -> BTreeMap<String, String> {
        // The others hold their volume, which the suite deletes first.
        [("detachedSnapshots".to_owned(), "true".to_owned())].into()
    }

    fn secrets(&self) -> BTreeMap<String, String> {
        let all = Self::secrets(self).into_iter();
        all.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    fn holds(&self) -> Holds {
        match self.kind {
            "zfs-generic-nfs" => Holds::Owners,
            "zfs-generic-smb" => Holds::Bytes,
            _ => Holds::Everything,
        }
    }

    fn one_string_of(&self) -> usize {
        ONE_STRING_OF
    }

    fn longest_with_snapshots(&self) -> usize {
        LONGEST_WITH_SNAPSHOTS
    }

    fn elsewhere(&self) -> Option<BTreeMap<String, String>> {
        let key = "org.democratic-csi.topology/node".to_owned();
        let elsewhere = BTreeMap::from([(key, "another-node".to_owned())]);
        self.kind.starts_with("zfs-local").then_some(elsewhere)
    }
}

fn entry(text: &str) -> Entry {
    Entry {
        mode: 0,
        owner: (0, 0),
        modified: (0, 0),
        size: 0,
        content: text.as_bytes().to_vec(),
        attributes: BTreeMap::new(),
        same_as: None,
    }
}

/// Every check, one after the other.
///
/// # Panics
/// If one fails, or the machine is not as before.
pub async fn is_whole<T: Target>(target: &T) {
    // The first start makes the datasets that the driver is told of.
    drop(target.launch(&Place::new()));
    let before = (Remains::read(), storage());
    let mut failed = Vec::new();
    evidence::go_on_after_a_panic(true);
    for (name, check) in suite!(@every @list target) {
        let began = Instant::now();
        let outcome = AssertUnwindSafe(check).catch_unwind().await;
        let took = began.elapsed().as_secs();
        if outcome.is_ok() {
            step(&format!("{name}: {took} s"));
        } else {
            step(&format!("{name}: FAILED after {took} s"));
            failed.push(name);
        }
    }
    evidence::go_on_after_a_panic(false);
    assert!(failed.is_empty(), "failed: {failed:?}");
    Remains::back_to(&before.0, "the conformance suite").await;
    assert_eq!(storage(), before.1, "the storage is as before");
}
