//! The conformance suite over a driver that makes and exports its volumes, on real storage.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, Instant};

use csi_proto::v1::volume_capability::access_mode::Mode;
use driver_core::naming::MIN_LEAF;
use driver_core::text::MAX_STRING;

use super::connected::{is_unknown, note_unknown};
use super::{ROOT, Served, storage};
use crate::conformance::optional::{self, Optional};
use crate::conformance::{Holds, Target};
use crate::lab::command::run;
use crate::lab::evidence;
use crate::lab::given;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::step;
use crate::lab::outside;
use crate::place::Place;
use crate::server::Launch;
use crate::suite;
use crate::tree::{Entry, Tree};

/// A program that makes a real volume for each hostile name would be at it for hours. What becomes of each
/// of them in a command is tested by separate cells.
const ONE_STRING_OF: usize = 250;

/// Each is made, listed a dozen times and deleted, in some seconds.
const IN_PAGES: usize = 12;

/// Until all connections have logged in, which takes an emulated processor a second each.
const CALL_TIMEOUT: Duration = Duration::from_mins(3);

/// A run of nothing would count as passed.
const NONE_IS_CHOSEN: &str = "no check has that in its name";

/// The name of a check, and what it does.
type Check<'a> = (&'static str, Pin<Box<dyn Future<Output = ()> + 'a>>);

impl Target for Served {
    fn name(&self) -> &'static str {
        self.name
    }

    fn launch(&self, place: &Place) -> Launch {
        // Filesystems that keep ACLs, for what is compared.
        let acls = "  datasetProperties: {acltype: posix, xattr: sa}\n";
        let acls = match self.kind {
            "zfs-local-dataset" => acls,
            _ => "",
        };
        let served = self.to_choose();
        let more = format!("{}{acls}", served.allowing_changes());
        served.launch_with(place, &more).set("--log-level", "silly")
    }

    /// The datasets and snapshots, and every property that is set.
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
            tree.0
                .insert(PathBuf::from(name), Entry::of_text(&set.join("\n")));
        }
        // A bookmark is what a deleted snapshot leaves for the next backup.
        tree.without(|name| name.as_os_str().as_encoded_bytes().contains(&b'#'))
    }

    fn snapshot_parameters(&self) -> BTreeMap<String, String> {
        // The others hold their volume, which the suite deletes first.
        [("detachedSnapshots".to_owned(), "true".to_owned())].into()
    }

    fn optional(&self) -> BTreeSet<Optional> {
        let only = [
            (Optional::Publish, self.is_expanded_by_the_controller()),
            (Optional::Fence, self.is_for_nodes()),
            (Optional::Ranges, self.is_device()),
            (Optional::Groups, self.takes_groups()),
        ];
        let only = only.into_iter().filter(|(_, has)| *has);
        let all = only.map(|(optional, _)| optional);
        all.chain([Optional::Modify, Optional::Health]).collect()
    }

    fn classes(&self) -> [Vec<(&'static str, &'static str)>; 2] {
        self.to_choose().two_classes()
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

    fn folders_of_a_large_volume(&self) -> usize {
        1
    }

    fn in_pages(&self) -> usize {
        IN_PAGES
    }

    fn many_writers(&self) -> Mode {
        match self.kind {
            // Of a filesystem on a disk of the network, two nodes would make rubbish.
            "zfs-generic-iscsi" | "zfs-generic-nvmeof" => Mode::SingleNodeMultiWriter,
            _ => Mode::MultiNodeMultiWriter,
        }
    }

    fn longest_name_with_snapshots(&self) -> Option<usize> {
        // `<volume>@<name>`, and a volume of the node ends in a mark of its node.
        let mark = if self.is_of_the_node() {
            "-n0123abcd".len()
        } else {
            0
        };
        Some(MAX_STRING - 1 - MIN_LEAF - mark)
    }

    fn patience(&self) -> Duration {
        CALL_TIMEOUT
    }

    fn elsewhere(&self) -> Option<BTreeMap<String, String>> {
        let key = "org.democratic-csi.topology/node".to_owned();
        let elsewhere = BTreeMap::from([(key, "another-node".to_owned())]);
        self.is_of_the_node().then_some(elsewhere)
    }
}

/// Every check, one after the other.
///
/// # Panics
/// If one fails, or the machine is not as before.
pub async fn is_whole<T: Target>(target: &T) {
    // The first start makes the datasets of the configuration.
    drop(target.launch(&Place::new()));
    let before = (Leftovers::read(), storage());
    let checks = suite!(@every @list target);
    let (all, absent) = (checks.len(), optional::absent());
    let ran = pass(checks).await;
    assert_ne!(ran, 0, "{NONE_IS_CHOSEN}");
    if given::checks().is_none() {
        let absent = optional::absent() - absent;
        step(&format!(
            "{} of {all} checks ran: the others are of what it does not tell that it has",
            all - absent
        ));
        assert_eq!(
            absent,
            optional::checks_without(target),
            "as many as its capabilities call for"
        );
    }
    Leftovers::back_to(&before.0, "the conformance suite").await;
    assert_eq!(storage(), before.1, "the storage is as before");
}

/// The checks of what is done for a node by its name, with exports that let in nodes so. Nothing is mounted.
///
/// # Panics
/// If one fails, or the machine is not as before.
pub async fn is_whole_for_nodes(served: Served) {
    let target = &served.for_nodes().expect("exports that let in by name");
    // The first start makes the datasets of the configuration, and loads what its exports need.
    drop(target.launch(&Place::new()));
    let before = (Leftovers::read(), storage());
    let checks: [Check<'_>; 6] = suite! { @list target;
        optional: publishing_is_done_once_and_undone_and_wrong_requests_change_nothing,
        optional: sixty_four_callers_publish_or_unpublish_and_the_last_has_its_way,
        optional: publishing_and_unpublishing_killed_in_the_middle_are_completed_or_undone,
        optional: a_volume_is_modified_once_and_back_and_wrong_requests_change_nothing,
        optional: sixty_four_callers_modify_a_volume_and_the_last_has_its_way,
        optional: a_modification_killed_in_the_middle_is_completed_or_undone,
    };
    let fences: [Check<'_>; 3] = suite! { @list target;
        optional: a_fence_is_set_once_and_lifted_and_wrong_requests_change_nothing,
        optional: sixty_four_callers_fence_or_unfence_and_the_last_has_its_way,
        optional: fencing_and_unfencing_killed_in_the_middle_are_completed_or_undone,
    };
    let absent = optional::absent();
    let mut ran = pass(checks).await;
    if is_unknown(*target) {
        note_unknown("no fence was tried");
    } else {
        ran += pass(fences).await;
    }
    assert_ne!(ran, 0, "{NONE_IS_CHOSEN}");
    assert_eq!(optional::absent(), absent, "it tells that it has all of it");
    Leftovers::back_to(&before.0, "the conformance suite").await;
    assert_eq!(storage(), before.1, "the storage is as before");
}

/// Runs these checks, one after the other, or those of them that are chosen. Returns their number.
async fn pass<'a>(checks: impl IntoIterator<Item = Check<'a>>) -> usize {
    let (mut ran, mut failed) = (0, Vec::new());
    let part = given::checks();
    if let Some(part) = &part {
        outside::note(&format!("only the checks with `{part}` in their names"));
    }
    for (name, check) in checks {
        if part.as_ref().is_some_and(|part| !name.contains(part)) {
            continue;
        }
        ran += 1;
        let began = Instant::now();
        let passed = evidence::passes(check).await;
        let took = began.elapsed().as_secs();
        if passed {
            step(&format!("{name}: {took} s"));
        } else {
            step(&format!("{name}: FAILED after {took} s"));
            failed.push(name);
        }
    }
    let why = "those after the first may come of what it left behind";
    assert!(failed.is_empty(), "failed: {failed:?}; {why}");
    ran
}
