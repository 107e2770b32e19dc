//! A deletion while a node uses the volume: it stays, and the error names the node.

use std::time::Duration;

use driver_core::{Call, DeleteVolume, Driver, Effect, Error, Kind, VolumeId};
use serde_json::json;
use truenas_sim::backend::{Session, SmbConnection};
use truenas_sim::{Action, Generation, Rule, Simulator};

use crate::costs::{call, create, exchanges};
use crate::faults::everything;
use crate::taken_over::rows;
use crate::volumes::{appliance, driver};

const NODE: &str = "org.example:node-7";

/// Every kind of disk on every generation that has it.
fn disks() -> impl Iterator<Item = (Generation, &'static str)> {
    let api = Generation::ALL
        .into_iter()
        .filter(|generation| !generation.is_core());
    let all = api.flat_map(|generation| {
        ["freenas-api-iscsi", "freenas-api-nvmeof"].map(|kind| (generation, kind))
    });
    all.filter(|(generation, kind)| !kind.ends_with("nvmeof") || *generation >= Generation::V25_10)
}

/// The name of the export of a volume on the network.
async fn target(nas: &Simulator, kind: &str, id: &VolumeId) -> String {
    if kind.ends_with("iscsi") {
        return format!("iqn.2005-10.org.freenas.ctl:{id}");
    }
    let all = rows(nas, "nvmet.subsys").await;
    let of_it = all.iter().find(|row| row["name"] == json!(id.as_str()));
    let nqn = of_it.and_then(|row| row["subnqn"].as_str());
    nqn.expect("an NQN").to_owned()
}

fn connect(nas: &Simulator, target: &str) {
    let form = &target[..3];
    nas.model().expect("the model").connect(Session {
        target: target.to_owned(),
        initiator: format!("{form}.2014-08.{NODE}"),
        address: "10.0.0.77".to_owned(),
    });
}

async fn deleted(driver: &dyn Driver, id: &VolumeId, within: u64) -> Result<(), Error> {
    let call = Call::within(Duration::from_secs(within));
    driver.delete_volume(&call, DeleteVolume::new(id)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_stays_whole_while_a_node_is_connected_in_every_generation() {
    for (generation, kind) in disks() {
        let nas = appliance(generation).await;
        let driver = driver(&nas, kind, "");
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        // A name that ends alike is another one.
        let other = create(driver, "other-pvc-1").await.id;
        let target = target(&nas, kind, &id).await;
        connect(&nas, &target);
        let before = everything(&nas, generation).await;

        let what = format!("{kind} on {generation:?}");
        let error = deleted(driver, &id, 10).await.expect_err(&what);
        let text = error.chain();
        assert_eq!(error.kind(), Kind::Busy, "{what}: {text}");
        assert_eq!(error.effect(), Effect::None, "{what}: {text}");
        let node = format!("{NODE} at 10.0.0.77");
        assert!(text.contains(&node), "{what}: {text}");
        assert_eq!(everything(&nas, generation).await, before, "{what}");
        deleted(driver, &other, 60).await.expect(&what);

        // It leaves while the deletion waits.
        let model = nas.model().expect("the model");
        let leaves = async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            model.disconnect(&target);
        };
        let (gone, ()) = tokio::join!(deleted(driver, &id, 60), leaves);
        gone.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_for_nodes_that_fails_says_nothing_of_them_and_is_asked_again() {
    for (kind, method) in [
        ("freenas-api-iscsi", "iscsi.global.sessions"),
        ("freenas-api-nvmeof", "nvmet.global.sessions"),
    ] {
        let nas = appliance(Generation::V25_10).await;
        let driver = driver(&nas, kind, "");
        let id = create(driver.as_ref(), "pvc-1").await.id;
        let before = everything(&nas, Generation::V25_10).await;
        // A controller that goes while it is read is such a failure.
        let fails = Action::Fail {
            errno: 14,
            reason: "[Errno 2] No such file or directory".to_owned(),
        };
        nas.faults().add(Rule::new(method, fails));
        let error = deleted(driver.as_ref(), &id, 8).await.expect_err(kind);
        let text = error.chain();
        assert_eq!(error.kind(), Kind::Unreachable, "{kind}: {text}");
        assert!(text.contains("No such file"), "{kind}: {text}");
        nas.faults().clear();
        let after = everything(&nas, Generation::V25_10).await;
        assert_eq!(after, before, "{kind}");
        let gone = driver.delete_volume(&call(), DeleteVolume::new(&id)).await;
        gone.unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
    }
}

const CLIENT: &str = "Linux NFSv4.2 node-7";

/// Every kind of share on every generation that says who uses it.
fn shares() -> impl Iterator<Item = (Generation, &'static str)> {
    let all = Generation::ALL.into_iter();
    let all = all.filter(|generation| !generation.is_core());
    let all = all.flat_map(|generation| {
        ["freenas-api-nfs", "freenas-api-smb"].map(|kind| (generation, kind))
    });
    all.filter(|(generation, kind)| kind.ends_with("nfs") || *generation != Generation::V25_10)
}

/// A node uses the share of this volume.
fn mount(nas: &Simulator, kind: &str, id: &VolumeId) {
    let model = nas.model().expect("the model");
    if kind.ends_with("nfs") {
        let path = format!("/mnt/tank/csi/v/{id}");
        model.open(&path, CLIENT, "10.0.0.77:790");
    } else {
        // Names of shares ignore case.
        model.use_share(SmbConnection {
            share: id.as_str().to_uppercase(),
            machine: "10.0.0.77".to_owned(),
        });
    }
}

fn unmount(nas: &Simulator, id: &VolumeId) {
    let model = nas.model().expect("the model");
    model.close("10.0.0.77:790");
    model.leave_share(&id.as_str().to_uppercase());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_stays_whole_while_a_node_uses_it_in_every_generation_that_says_it() {
    for (generation, kind) in shares() {
        let nas = appliance(generation).await;
        let driver = driver(&nas, kind, "");
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        let other = create(driver, "pvc-10").await.id;
        mount(&nas, kind, &id);
        let before = everything(&nas, generation).await;

        let what = format!("{kind} on {generation:?}");
        let error = deleted(driver, &id, 10).await.expect_err(&what);
        let text = error.chain();
        assert_eq!(error.kind(), Kind::Busy, "{what}: {text}");
        assert_eq!(error.effect(), Effect::None, "{what}: {text}");
        let named = if kind.ends_with("nfs") {
            format!("connected is {CLIENT} at 10.0.0.77")
        } else {
            "connected is 10.0.0.77".to_owned()
        };
        assert!(text.contains(&named), "{what}: {text}");
        assert_eq!(everything(&nas, generation).await, before, "{what}");
        deleted(driver, &other, 60).await.expect(&what);

        // It leaves while the deletion waits.
        let leaves = async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            unmount(&nas, &id);
        };
        let (gone, ()) = tokio::join!(deleted(driver, &id, 60), leaves);
        gone.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    }
}

/// 25.10 does not say who uses a share of SMB, and a login may lack a role: ZFS alone keeps what is open there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_is_removed_where_the_nas_does_not_say_who_uses_it() {
    let nas = appliance(Generation::V25_10).await;
    let smb = driver(&nas, "freenas-api-smb", "");
    let id = create(smb.as_ref(), "pvc-1").await.id;
    mount(&nas, "freenas-api-smb", &id);
    let gone = deleted(smb.as_ref(), &id, 60).await;
    gone.unwrap_or_else(|error| panic!("{}", error.chain()));

    for (kind, method) in [
        ("freenas-api-nfs", "nfs.get_nfs4_clients"),
        ("freenas-api-nfs", "filesystem.stat"),
        ("freenas-api-smb", "smb.status"),
    ] {
        let nas = appliance(Generation::V24_10).await;
        let driver = driver(&nas, kind, "");
        let id = create(driver.as_ref(), "pvc-1").await.id;
        mount(&nas, kind, &id);
        let denied = Action::Fail {
            errno: 13,
            reason: "Not authorized".to_owned(),
        };
        nas.faults().add(Rule::new(method, denied));
        let gone = deleted(driver.as_ref(), &id, 60).await;
        gone.unwrap_or_else(|error| panic!("{method}: {}", error.chain()));
    }
}

/// A NAS takes a second for a thousand open files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nas_that_is_slow_to_say_who_uses_a_share_is_not_waited_for_forever() {
    let nas = appliance(Generation::V25_10).await;
    let driver = driver(&nas, "freenas-api-nfs", "");
    let id = create(driver.as_ref(), "pvc-1").await.id;
    let slow = Action::Delay(600_000);
    nas.faults().add(Rule::new("nfs.get_nfs4_clients", slow));
    let began = std::time::Instant::now();
    let gone = deleted(driver.as_ref(), &id, 60).await;
    gone.unwrap_or_else(|error| panic!("{}", error.chain()));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(45), "{took:?}");
}

/// It keeps the NAS busy to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_question_for_clients_of_nfs_is_open_at_a_time_also_when_its_caller_has_given_up() {
    let nas = appliance(Generation::V25_10).await;
    let driver = driver(&nas, "freenas-api-nfs", "");
    let driver = driver.as_ref();
    let ids = [
        create(driver, "pvc-1").await.id,
        create(driver, "pvc-2").await.id,
    ];
    let held = Rule::new("nfs.get_nfs4_clients", Action::Hold);
    nas.faults().add(held);
    let [first, second] = ids.each_ref().map(|id| deleted(driver, id, 3));
    let (first, second) = tokio::join!(first, second);
    for ended in [first, second] {
        let error = ended.expect_err("no answer");
        assert_eq!(nas.faults().holding(), 1, "{}", error.chain());
    }
    nas.faults().release();
    for id in &ids {
        let gone = deleted(driver, id, 60).await;
        gone.unwrap_or_else(|error| panic!("{id}: {}", error.chain()));
    }
}

/// A namespace with a hundred claims is deleted in one go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_at_one_time_share_a_question_for_clients_of_nfs() {
    const OTHERS: u64 = 7;
    const METHOD: &str = "nfs.get_nfs4_clients";
    let nas = appliance(Generation::V25_10).await;
    let driver = driver(&nas, "freenas-api-nfs", "");
    let driver = driver.as_ref();
    let asked = || {
        nas.counts()
            .methods
            .get(METHOD)
            .map_or(0, |cost| cost.calls)
    };
    let alone = create(driver, "alone").await.id;
    nas.reset_counts();
    deleted(driver, &alone, 60).await.expect("no volume");
    let once = asked();
    assert!(once > 0);

    let mut ids = Vec::new();
    for number in 0..=OTHERS {
        ids.push(create(driver, &format!("pvc-{number}")).await.id);
    }
    mount(&nas, "freenas-api-nfs", &ids[0]);
    nas.reset_counts();
    nas.faults().add(Rule::new(METHOD, Action::Hold));
    let deletions = ids[1..].iter().map(|id| deleted(driver, id, 60));
    let others = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!((asked(), nas.faults().holding()), (1, 1));
        nas.faults().release();
    };
    let (gone, ()) = tokio::join!(futures_util::future::join_all(deletions), others);
    for gone in gone {
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
    }
    // That which was held, and one for all who came after it.
    let most = 2 + OTHERS * (once - 1);
    assert!(asked() <= most, "{} are more than {most}", asked());
    let error = deleted(driver, &ids[0], 10).await.expect_err("in use");
    assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
}

/// The directory of a dataset that is not mounted is on the filesystem above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_uses_the_filesystem_above_one_that_is_not_mounted_does_not_use_it() {
    let nas = appliance(Generation::V25_10).await;
    let driver = driver(&nas, "freenas-api-nfs", "");
    let id = create(driver.as_ref(), "pvc-1").await.id;
    mount(&nas, "freenas-api-nfs", &id);
    let path = json!(format!("/mnt/tank/csi/v/{id}"));
    let mut found = nas.call("filesystem.stat", vec![path]).await.expect("it");
    found["is_mountpoint"] = json!(false);
    let unmounted = Rule::new("filesystem.stat", Action::Answer(found));
    nas.faults().add(unmounted);
    let gone = deleted(driver.as_ref(), &id, 60).await;
    gone.unwrap_or_else(|error| panic!("{}", error.chain()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_uses_a_share_is_asked_in_the_exchange_of_the_other_questions() {
    for (generation, kind) in shares() {
        let nas = appliance(generation).await;
        let driver = driver(&nas, kind, "");
        create(driver.as_ref(), "warm").await;
        let id = create(driver.as_ref(), "pvc-1").await.id;
        mount(&nas, kind, &create(driver.as_ref(), "pvc-2").await.id);
        nas.faults().set(|settings| settings.round_trip_ms = 120);
        let (count, _) = exchanges(&nas, async {
            let gone = driver.delete_volume(&call(), DeleteVolume::new(&id)).await;
            gone.unwrap_or_else(|error| panic!("{}", error.chain()));
        })
        .await;
        let most = 3 + u64::from(generation.is_26());
        assert!(count <= most, "{kind} on {generation:?}: {count}");
    }
}
