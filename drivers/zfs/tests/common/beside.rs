//! Compares our objects for the recorded requests of democratic-csi to its own.

use std::collections::{BTreeMap, BTreeSet};

use driver_zfs::testing::MemoryPool;
use serde_json::Value;

/// Facts: of an object (a dataset, or a folder of a target stack) a property, and its value.
pub(crate) type Facts = BTreeMap<(String, String), String>;

/// One side of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Nothing,
    Is(&'static str),
    /// Any value: it is generated for each volume.
    Some,
}

/// Intended differences. docs/compatibility-drivers.md has each with its reason.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The end of the name of the object, and the name of the property.
    pub(crate) object: &'static str,
    pub(crate) property: &'static str,
    pub(crate) theirs: Side,
    pub(crate) ours: Side,
    /// The text of docs/compatibility-drivers.md about it.
    pub(crate) stands: &'static str,
}

/// Those of all kinds of driver.
pub(crate) const OF_DATASETS: [Difference; 5] = [
    Difference {
        object: "/s/pvc-old",
        property: "canmount",
        theirs: Side::Nothing,
        ours: Side::Is("off"),
        stands: "new ones have `canmount=off`",
    },
    Difference {
        object: "/s/pvc-old",
        property: "omnibus-csi:container",
        theirs: Side::Nothing,
        ours: Side::Is("true"),
        stands: "destroyed if it bears our mark `omnibus-csi:container`",
    },
    Difference {
        object: "/s/pvc-old",
        property: "democratic-csi:volume_context_provisioner_driver",
        theirs: Side::Nothing,
        ours: Side::Some,
        stands: WHOSE,
    },
    Difference {
        object: "/s/pvc-old/snapshot-old-detached",
        property: "democratic-csi:volume_context_provisioner_driver",
        theirs: Side::Nothing,
        ours: Side::Some,
        stands: WHOSE,
    },
    Difference {
        object: "/v/pvc-old@volume-source-for-volume-pvc-old-cloned",
        property: "defer_destroy",
        theirs: Side::Nothing,
        ours: Side::Is("on"),
        stands: "doomed as soon as the clone is there",
    },
];
/// The difference for each such property.
pub(crate) const WHOSE: &str = "recorded with it and with the dataset that holds it";

/// JSON has no order.
const CONTEXT: &str = "democratic-csi:csi_share_volume_context";
/// Set on a dataset that is created empty; later ZFS shows it as a fact, without an owner.
const AT_CREATION: &str = "casesensitivity";

impl Side {
    fn is(self, value: Option<&String>) -> bool {
        match (self, value) {
            (Self::Nothing, None) | (Self::Some, Some(_)) => true,
            (Self::Is(text), Some(value)) => text == value,
            _ => false,
        }
    }
}

/// All own properties of the datasets and snapshots of a pool, and their facts.
pub(crate) fn of_pool(pool: &MemoryPool) -> Facts {
    let mut facts = Facts::new();
    for (object, thing) in pool.things() {
        let object = object.to_string();
        let mut put = |name: &str, value: String| {
            facts.insert((object.clone(), name.to_owned()), value);
        };
        for (name, value) in thing.own {
            match name.as_str() {
                AT_CREATION => {}
                CONTEXT => {
                    let json: Value = serde_json::from_str(&value).unwrap();
                    put(CONTEXT, json.to_string());
                }
                name => put(name, value),
            }
        }
        if thing.doomed {
            put("defer_destroy", "on".into());
        }
    }
    for (object, facts_of) in pool.facts() {
        for (name, value) in facts_of {
            facts.insert((object.to_string(), name.to_string()), value);
        }
    }
    facts
}

/// The differences that are not in `differences`; and which of those occurred.
pub(crate) fn compare(
    theirs: &Facts,
    ours: &Facts,
    differences: &[&Difference],
    met: &mut BTreeSet<usize>,
) -> Vec<String> {
    let keys: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
    let mut unlisted = Vec::new();
    for key in keys {
        let (a, b) = (theirs.get(key), ours.get(key));
        if a == b {
            continue;
        }
        let (object, property) = key;
        let listed = differences.iter().position(|it| {
            object.ends_with(it.object)
                && property == it.property
                && it.theirs.is(a)
                && it.ours.is(b)
        });
        match listed {
            Some(number) => drop(met.insert(number)),
            None => unlisted.push(format!("{object} {property}: {a:?} {b:?}")),
        }
    }
    unlisted
}

/// Asserts that each difference occurred, and that the page of differences has its text.
pub(crate) fn all_are_listed(differences: &[&Difference], met: &BTreeSet<usize>) {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/compatibility-drivers.md"
    );
    let page = std::fs::read_to_string(page).unwrap();
    for (number, it) in differences.iter().enumerate() {
        assert!(met.contains(&number), "nothing differs so: {it:?}");
        assert!(page.contains(it.stands), "no page says so: {it:?}");
    }
}
