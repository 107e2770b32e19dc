//! Our results for the requests that democratic-csi was sent, beside what it made for them: answers
//! with their contexts, properties, zvols, and what the kernel exports.

use std::collections::BTreeSet;

use driver_zfs::testing::MemoryPool;

use super::fake_host::Half;
use super::{DISKS, KINDS};
use crate::beside::{
    Difference, Facts, OF_DATASETS, Side, WHOSE, all_are_listed, compare, of_pool,
};
use crate::replay::{ask, captured, failed, said};

/// Those of a configuration with an `instance_id`.
const OF_INSTANCES: [Difference; 2] = [
    Difference {
        object: "/s/pvc-old",
        property: "democratic-csi:volume_context_provisioner_instance_id",
        theirs: Side::Nothing,
        ours: Side::Is("cluster-1"),
        stands: WHOSE,
    },
    Difference {
        object: "/s/pvc-old/snapshot-old-detached",
        property: "democratic-csi:volume_context_provisioner_instance_id",
        theirs: Side::Nothing,
        ours: Side::Is("cluster-1"),
        stands: WHOSE,
    },
];
/// Besides those of every kind.
const DIFFERENCES: [Difference; 3] = [
    Difference {
        object: "/wwn",
        property: "vpd_unit_serial",
        theirs: Side::Some,
        ours: Side::Some,
        stands: IDENTITY,
    },
    Difference {
        object: "/namespaces/1",
        property: "device_uuid",
        theirs: Side::Some,
        ours: Side::Some,
        stands: IDENTITY,
    },
    Difference {
        object: "/namespaces/1",
        property: "device_nguid",
        theirs: Side::Is("00000000-0000-0000-0000-000000000000"),
        ours: Side::Some,
        stands: IDENTITY,
    },
];
const IDENTITY: &str = "made of the identity of the dataset, so it stays";

/// The exports of a host: of each folder of configfs that a look reads its files, and what it holds.
fn of_stack(half: &Half) -> Facts {
    let root = format!("{}/", half.host().path("cfg").display());
    let mut facts = Facts::new();
    for (path, text) in half.host().tree("cfg") {
        let path = path.strip_prefix(&root).unwrap();
        let text = text.replace(&root, "");
        if let Some((object, property)) = looked_at(path) {
            facts.insert((object.to_owned(), property.to_owned()), text);
        }
    }
    facts
}

/// The rest is as the kernel made it.
fn looked_at(path: &str) -> Option<(&str, &str)> {
    // What a link is called is chance.
    if let Some((lun, _)) = path.split_once("/lun/lun_0/") {
        return Some((lun, "lun_0"));
    }
    [
        "udev_path",
        "enable",
        "vpd_unit_serial",
        "emulate_tpu",
        "authentication",
        "generate_node_acls",
        "cache_dynamic_acls",
        "demo_mode_write_protect",
        "attr_allow_any_host",
        "device_path",
        "device_uuid",
        "device_nguid",
        "np/0.0.0.0:3260",
    ]
    .into_iter()
    .find_map(|name| Some((path.strip_suffix(name)?.strip_suffix('/')?, name)))
    .or_else(|| {
        path.split_once("/subsystems/nqn")
            .map(|_| (path, "subsystem"))
    })
    .filter(|(_, name)| *name != "subsystem" || path.starts_with("nvmet/ports/"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_we_make_is_what_it_made_but_for_what_is_listed() {
    let listed: Vec<_> = OF_DATASETS
        .iter()
        .chain(&OF_INSTANCES)
        .chain(&DIFFERENCES)
        .collect();
    let (mut unlisted, mut met) = (Vec::new(), BTreeSet::new());
    for kind in KINDS {
        let theirs = Half::new(MemoryPool::captured(&captured(kind, "zfs.txt")).unwrap());
        let ours = Half::new(theirs.pool().roots());
        if DISKS.contains(&kind) {
            let stack = captured(kind, "stack.txt");
            let ports = stack.lines().filter(|line| line.contains("/addr_"));
            let ports: Vec<_> = ports.chain(["nvmet/ports/1/subsystems\t/"]).collect();
            theirs.has_stack(&stack);
            ours.has_stack(&ports.join("\n"));
        }
        // What it made before it failed is beside nothing.
        let failed = failed(kind);
        let made = |facts: Facts| -> Facts {
            let of = |name: &str| format!("/v/{name}");
            let all = facts.into_iter();
            all.filter(|((object, _), _)| {
                let mut failed = failed.iter().map(|said| of(said.name()));
                !failed.any(|name| object.contains(&name))
            })
            .collect()
        };
        let driver = ours.driver(&captured(kind, "config.yaml"));
        for said in said(kind) {
            let answer = ask(&*driver, &said).await;
            let answer = answer.unwrap_or_else(|error| panic!("{said:?}: {}", error.chain()));
            if said.answer.is_some() {
                assert_eq!(answer, said.answered(), "{kind}");
            }
        }
        let (a, b) = (made(of_pool(&theirs.pool())), made(of_pool(&ours.pool())));
        unlisted.extend(compare(&a, &b, &listed, &mut met));
        let (a, b) = (of_stack(&theirs), of_stack(&ours));
        assert_eq!(a.is_empty(), !DISKS.contains(&kind), "{kind}");
        unlisted.extend(compare(&a, &b, &listed, &mut met));
    }
    assert!(unlisted.is_empty(), "in no list: {unlisted:#?}");
    all_are_listed(&listed, &met);
}
