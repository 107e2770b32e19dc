//! Volumes in children of the parent of volumes, by the API of each generation.

use std::collections::BTreeSet;

use driver_core::{
    CreateVolume, DeleteSnapshot, DeleteVolume, Driver, Kind, PageRequest, Parameters, Source,
};
use truenas_sim::Generation;

use crate::costs::{call, create, request, snapshot};
use crate::volumes::{appliance, driver};

const CHILDREN: &str = "  datasetEnableQuotas: true
  datasetChildren: [fast, bulk]
  volumeParameters: [datasetChild]";

fn wanted(driver: &dyn Driver, name: &str, child: &str, source: Option<Source>) -> CreateVolume {
    let class = [("datasetChild".to_owned(), child.to_owned())];
    let parameters = Parameters::new(class.into_iter().collect());
    let plain = request(driver, name, source);
    let id = driver.name_volume(&plain.name, &parameters);
    CreateVolume {
        id: id.expect("an id"),
        parameters,
        ..plain
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_of_children_are_made_cloned_listed_and_deleted_with_their_exports() {
    for generation in [
        Generation::V22_12,
        Generation::V24_10,
        Generation::V25_10,
        Generation::V26Rc,
    ] {
        for kind in ["truenas-api-nfs", "truenas-api-smb", "truenas-api-iscsi"] {
            let what = format!("{generation:?} {kind}");
            let nas = appliance(generation).await;
            let driver = driver(&nas, kind, CHILDREN);
            let driver = driver.as_ref();
            let before = crate::faults::everything(&nas, generation).await;
            let first = wanted(driver, "pvc-1", "fast", None);
            let source = Some(Source::Volume(first.id.clone()));
            // The first volume of its child is a clone.
            let second = wanted(driver, "pvc-2", "bulk", source);
            for asked in [&first, &second, &first] {
                let made = driver.create_volume(&call(), asked).await;
                let made = made.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
                assert_eq!(made.id, asked.id, "{what}");
            }
            let twin = wanted(driver, "pvc-1", "bulk", None);
            let refused = driver.create_volume(&call(), &twin).await;
            assert_eq!(
                refused.expect_err("a twin").kind(),
                Kind::Conflict,
                "{what}"
            );
            let lister = driver.lister().expect("lists");
            let listed = lister.list_volumes(&call(), &PageRequest::default()).await;
            let listed = listed.expect("a list").entries;
            let ids: BTreeSet<_> = listed.iter().map(|volume| volume.id.as_str()).collect();
            assert_eq!(ids, BTreeSet::from(["bulk.pvc-2", "fast.pvc-1"]), "{what}");
            let found = lister.get_volume(&call(), &first.id).await;
            let found = found.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            let taken = snapshot(driver, &found, "s-1").await;
            assert_eq!(taken.id.as_str(), "fast.pvc-1@s-1", "{what}");
            let snapshots = driver.snapshots().expect("snapshots");
            let deletion = DeleteSnapshot::new(&taken.id);
            let gone = snapshots.delete_snapshot(&call(), deletion).await;
            gone.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            for id in [&second.id, &first.id] {
                let gone = driver.delete_volume(&call(), DeleteVolume::new(id)).await;
                gone.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            }
            let left = crate::faults::everything(&nas, generation).await;
            let left = left.difference(&before).filter(|row| row.contains("pvc"));
            let left: Vec<_> = left.collect();
            assert!(left.is_empty(), "{what}: {left:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_the_volumes_of_all_children_is_one_question_before_25_10() {
    for generation in [Generation::V22_12, Generation::V24_10] {
        for kind in ["truenas-api-nfs", "truenas-api-iscsi"] {
            let what = format!("{generation:?} {kind}");
            let nas = appliance(generation).await;
            let driver = driver(&nas, kind, CHILDREN);
            let driver = driver.as_ref();
            let all = [("pvc-1", "fast"), ("pvc-2", "bulk"), ("pvc-3", "fast")];
            for (name, child) in all {
                let asked = wanted(driver, name, child, None);
                let made = driver.create_volume(&call(), &asked).await;
                made.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            }
            create(driver, "pvc-4").await;
            let lister = driver.lister().expect("lists");
            for max in [None, Some(1)] {
                let mut page = PageRequest { max, after: None };
                let mut ids = BTreeSet::new();
                loop {
                    nas.reset_counts();
                    let listed = lister.list_volumes(&call(), &page).await;
                    let listed = listed.expect("a list");
                    let counts = nas.counts();
                    let asked = counts.methods.get("pool.dataset.query");
                    assert_eq!(asked.map(|cost| cost.calls), Some(1), "{what}: {counts:?}");
                    for volume in listed.entries {
                        assert!(ids.insert(volume.id.to_string()), "{what}: twice");
                    }
                    if listed.next.is_none() {
                        break;
                    }
                    page.after = listed.next;
                }
                let ids: Vec<_> = ids.iter().map(String::as_str).collect();
                let expected = ["bulk.pvc-2", "fast.pvc-1", "fast.pvc-3", "pvc-4"];
                assert_eq!(ids, expected, "{what} {max:?}");
            }
        }
    }
}
