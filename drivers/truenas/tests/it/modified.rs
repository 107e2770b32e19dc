//! Properties that classes set, by the API of each generation.

use std::sync::Arc;
use std::time::Duration;

use driver_core::config::{ConfigError, Document, NoEnvironment};
use driver_core::{
    AdoptVolume, Driver, Effect, Error, ExpandVolume, Kind, MadeFor, ModifyVolume, Parameters,
    SizeRange, VolumeId,
};
use driver_truenas::from_document;
use serde_json::json;
use truenas_sim::{Action, Generation, Rule, Simulator};

use crate::costs::{call, create, exchanges, request};
use crate::faults::retried;
use crate::nodes::{per_node, publish, unpublish};
use crate::taken_over::rows;
use crate::volumes::{appliance, config, driver};

const FILES: &str = "  volumeParameters: [compression, recordsize, sync, atime]";

fn pairs(all: &[(&str, &str)]) -> Parameters {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Parameters::new(all.iter().map(pair).collect())
}

async fn modify(driver: &dyn Driver, id: &VolumeId, all: &[(&str, &str)]) -> Result<Effect, Error> {
    let (parameters, call) = (pairs(all), call());
    let request = ModifyVolume::new(id, &parameters);
    let changed = driver.modify_volume(&call, request).await;
    changed.map(|()| call.effect())
}

/// The field of a volume as the NAS shows it: the value and its source.
async fn shown(nas: &Simulator, id: &VolumeId, field: &str) -> (String, String) {
    let dataset = format!("tank/csi/v/{id}");
    let row = nas.call("pool.dataset.query", vec![json!([["id", "=", dataset]])]);
    let row = row.await.expect("a row")[0][field].take();
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    (text("rawvalue"), text("source"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_gets_all_that_its_class_says_by_one_update() {
    for generation in [
        Generation::V22_12,
        Generation::V24_10,
        Generation::V25_04,
        Generation::V25_10,
        Generation::V26Rc,
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", FILES);
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        let class = [
            ("atime", "off"),
            ("compression", "zstd-fast-20"),
            ("recordsize", "1M"),
            ("sync", "always"),
        ];
        exchanges(&nas, async {
            let effect = modify(driver, &id, &class).await.expect("changed");
            assert_eq!(effect, Effect::Possible, "{generation:?}");
        })
        .await;
        let updates = nas.counts().methods["pool.dataset.update"].calls;
        assert_eq!(updates, 1, "{generation:?}");
        for (field, raw) in [
            ("atime", "off"),
            ("compression", "zstd-fast-20"),
            ("recordsize", "1048576"),
            ("sync", "always"),
        ] {
            let (value, source) = shown(&nas, &id, field).await;
            assert_eq!(value, raw, "{generation:?} {field}");
            assert_eq!(source, "LOCAL", "{generation:?} {field}");
        }
        let effect = modify(driver, &id, &class).await.expect("changed again");
        assert_eq!(effect, Effect::None, "{generation:?}: it has all that");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_gets_the_blocks_of_its_class_and_the_nas_refuses_what_it_does_not_offer() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let zfs = "  volumeParameters: [volblocksize, compression, sync]";
        let driver = driver(&nas, "truenas-api-iscsi", zfs);
        let driver = driver.as_ref();
        let mut asked = request(driver, "pvc-1", None);
        asked.parameters = pairs(&[("volblocksize", "64K"), ("compression", "lz4")]);
        for _ in 0..2 {
            let made = driver.create_volume(&call(), &asked).await;
            made.unwrap_or_else(|error| panic!("{generation:?}: {}", error.chain()));
        }
        assert_eq!(shown(&nas, &asked.id, "volblocksize").await.0, "65536");
        assert_eq!(shown(&nas, &asked.id, "compression").await.0, "lz4");
        // ZFS has nine levels, and the NAS offers three of them.
        let class = [("compression", "gzip-4"), ("sync", "always")];
        let error = modify(driver, &asked.id, &class)
            .await
            .expect_err("refused");
        assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
        assert_eq!(shown(&nas, &asked.id, "compression").await.0, "lz4");
        assert_ne!(shown(&nas, &asked.id, "sync").await.0, "always");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reserved_for_a_disk_is_what_its_class_says() {
    let [reserved, none] = ["refreservation", "none"].map(|value| [("reservationMode", value)]);
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let zfs = "  volumeParameters: [reservationMode]";
        let driver = driver(&nas, "truenas-api-iscsi", zfs);
        let driver = driver.as_ref();
        for (name, class, other) in [("pvc-1", reserved, none), ("pvc-2", none, reserved)] {
            let mut asked = request(driver, name, None);
            asked.parameters = pairs(&class);
            for _ in 0..2 {
                let made = driver.create_volume(&call(), &asked).await;
                made.unwrap_or_else(|error| panic!("{generation:?}: {}", error.chain()));
            }
            let size = shown(&nas, &asked.id, "volsize").await.0;
            let is_reserved = async || shown(&nas, &asked.id, "refreservation").await.0 == size;
            assert_eq!(is_reserved().await, class == reserved, "{generation:?}");
            modify(driver, &asked.id, &other).await.expect("changed");
            assert_eq!(is_reserved().await, other == reserved, "{generation:?}");
            let wanted = SizeRange::new(4 << 30, 0).expect("a size");
            let expander = driver.expander().expect("growth");
            let grown = expander
                .expand_volume(&call(), ExpandVolume::new(&asked.id, wanted))
                .await;
            grown.expect("grown");
            let [size, kept] =
                ["volsize", "refreservation"].map(|field| shown(&nas, &asked.id, field));
            assert_eq!(size.await.0, "4294967296", "{generation:?}");
            let wanted = if other == reserved { "4294967296" } else { "0" };
            assert_eq!(kept.await.0, wanted, "{generation:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_grows_after_there_is_room_for_what_is_reserved() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let zfs = "  volumeParameters: [reservationMode]";
        let driver = driver(&nas, "truenas-api-iscsi", zfs);
        let driver = driver.as_ref();
        let mut asked = request(driver, "pvc-1", None);
        asked.parameters = pairs(&[("reservationMode", "refreservation")]);
        let made = driver.create_volume(&call(), &asked).await;
        made.unwrap_or_else(|error| panic!("{generation:?}: {}", error.chain()));
        let before = shown(&nas, &asked.id, "volsize").await.0;
        let reason = "cannot set property: size is greater than available space".to_owned();
        nas.faults().add(Rule {
            contains: Some("refreservation".to_owned()),
            times: Some(1),
            ..Rule::new(
                "pool.dataset.update",
                Action::FailAfter { errno: 14, reason },
            )
        });
        let wanted = SizeRange::new(4 << 30, 0).expect("a size");
        let expander = driver.expander().expect("growth");
        let grow = async || {
            let request = ExpandVolume::new(&asked.id, wanted);
            expander.expand_volume(&call(), request).await
        };
        let error = grow().await.expect_err("no room");
        assert_eq!(error.kind(), Kind::OutOfSpace, "{}", error.chain());
        assert_eq!(shown(&nas, &asked.id, "volsize").await.0, before);
        grow().await.expect("grown");
        let [size, kept] = ["volsize", "refreservation"].map(|field| shown(&nas, &asked.id, field));
        assert_eq!(size.await.0, "4294967296", "{generation:?}");
        assert_eq!(kept.await.0, "4294967296", "{generation:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_has_the_quota_and_the_reservation_of_its_class() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let zfs = "  volumeParameters: [quotaMode, reservationMode]";
        let driver = driver(&nas, "truenas-api-nfs", zfs);
        let driver = driver.as_ref();
        let reserved = [("reservationMode", "refreservation")];
        for (name, mode, quota) in [("pvc-1", "refquota", "2147483648"), ("pvc-2", "none", "0")] {
            let mut asked = request(driver, name, None);
            asked.parameters = pairs(&[("quotaMode", mode)]);
            let made = driver.create_volume(&call(), &asked).await;
            made.unwrap_or_else(|error| panic!("{generation:?}: {}", error.chain()));
            assert_eq!(shown(&nas, &asked.id, "refquota").await.0, quota);
            let changed = modify(driver, &asked.id, &reserved).await;
            if mode == "none" {
                assert_eq!(changed.expect_err("no size").kind(), Kind::Invalid);
            } else {
                changed.expect("changed");
            }
            assert_eq!(shown(&nas, &asked.id, "refreservation").await.0, quota);
        }
    }
}

const CHOICES: &str = "  shareChoices:
    readonly: {shareReadOnly: true}
    office: {shareAllowedNetworks: [192.0.2.0/24], shareMaprootUser: root, shareMaprootGroup: wheel}
";

/// A driver whose classes may choose the options of shares, if these choices stand in its section.
fn choosing(nas: &Simulator, list: &str, choices: &str) -> Result<Arc<dyn Driver>, ConfigError> {
    let text = config(
        nas,
        "truenas-api-nfs",
        &format!("  volumeParameters: [{list}]"),
    );
    let section = "nfs: {shareHost: 10.0.0.5, shareAllowedNetworks: [10.0.0.0/8]}";
    let of_lines = "nfs:\n  shareHost: 10.0.0.5\n  shareAllowedNetworks: [10.0.0.0/8]\n";
    let changed = text.replace(section, &format!("{of_lines}{choices}"));
    assert_ne!(changed, text);
    from_document(&Document::parse(&changed, &NoEnvironment).expect("a document"))
}

/// The options of the only share of the NAS: whether it is for reading alone, its networks, and who root is.
async fn share_of(nas: &Simulator) -> (bool, Vec<String>, String) {
    let mut shares = rows(nas, "sharing.nfs").await;
    assert_eq!(shares.len(), 1);
    let share = shares.remove(0);
    let networks = share["networks"].as_array().expect("networks").iter();
    let networks = networks.filter_map(|one| one.as_str().map(str::to_owned));
    let root = share["maproot_user"].as_str().unwrap_or_default();
    let is_read_only = share["ro"].as_bool().expect("a truth value");
    (is_read_only, networks.collect(), root.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_chooses_what_its_share_allows_and_another_class_changes_that() {
    let is = |read_only, network: &str, root: &str| {
        (read_only, vec![network.to_owned()], root.to_owned())
    };
    let read_only = [("shareOptions", "readonly")];
    let office = [("shareOptions", "office")];
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = choosing(&nas, "shareOptions", CHOICES).expect("a driver");
        let driver = driver.as_ref();
        let mut asked = request(driver, "pvc-1", None);
        asked.parameters = pairs(&read_only);
        for _ in 0..2 {
            let made = driver.create_volume(&call(), &asked).await;
            made.unwrap_or_else(|error| panic!("{generation:?}: {}", error.chain()));
            assert_eq!(
                share_of(&nas).await,
                is(true, "10.0.0.0/8", ""),
                "{generation:?}"
            );
        }
        for _ in 0..2 {
            let changed = modify(driver, &asked.id, &office).await;
            changed.unwrap_or_else(|error| panic!("{generation:?}: {}", error.chain()));
            assert_eq!(
                share_of(&nas).await,
                is(false, "192.0.2.0/24", "root"),
                "{generation:?}"
            );
        }
        let error = driver
            .create_volume(&call(), &asked)
            .await
            .expect_err("another class");
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
        let unknown = [("shareOptions", "open")];
        let error = modify(driver, &asked.id, &unknown)
            .await
            .expect_err("no such choice");
        assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
        assert_eq!(
            share_of(&nas).await,
            is(false, "192.0.2.0/24", "root"),
            "{generation:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_choice_that_the_nas_refuses_leaves_the_volume_as_it_was() {
    let choices = format!("{CHOICES}    strange: {{shareMaprootUser: stranger}}\n");
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = choosing(&nas, "compression, shareOptions", &choices).expect("a driver");
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        for had in [None, Some("readonly")] {
            if let Some(name) = had {
                let class = [("compression", "gzip-9"), ("shareOptions", name)];
                let changed = modify(driver, &id, &class).await;
                changed.unwrap_or_else(|error| panic!("{generation:?}: {}", error.chain()));
            }
            let before = (share_of(&nas).await, shown(&nas, &id, "compression").await);
            let class = [("compression", "zstd"), ("shareOptions", "strange")];
            let error = modify(driver, &id, &class).await.expect_err("refused");
            assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
            assert_eq!(error.effect(), Effect::None, "{generation:?} {had:?}");
            assert!(error.chain().contains("stranger"), "{}", error.chain());
            let after = (share_of(&nas).await, shown(&nas, &id, "compression").await);
            assert_eq!(after, before, "{generation:?} {had:?}");
            let exports = driver.exports().expect("exports");
            let is_exported = exports.is_exported(&call(), &id).await;
            assert!(is_exported.expect("an answer"), "{generation:?} {had:?}");
        }
    }
}

/// The choice that the dataset of a volume records.
async fn recorded(nas: &Simulator, id: &VolumeId) -> Option<String> {
    let dataset = format!("tank/csi/v/{id}");
    let row = nas.call("pool.dataset.query", vec![json!([["id", "=", dataset]])]);
    let row = row.await.expect("a row")[0].take();
    let record = &row["user_properties"]["omnibus-csi:share_options"]["rawvalue"];
    record.as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_cut_at_any_call_is_recorded_last_and_completed_by_the_next_process() {
    let class = [("compression", "zstd"), ("shareOptions", "office")];
    let office = (false, vec!["192.0.2.0/24".to_owned()], "root".to_owned());
    let offering =
        |nas: &Simulator| choosing(nas, "compression, shareOptions", CHOICES).expect("a driver");
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        for action in [Action::CutBefore, Action::CutAfter] {
            let mut skip = 0;
            loop {
                let what = format!("{generation:?} {action:?} of call {skip}");
                let nas = appliance(generation).await;
                nas.faults().set(|settings| settings.idle_timeout = false);
                let driver = offering(&nas);
                let id = create(driver.as_ref(), "pvc-1").await.id;
                let rule = Rule::new("*", action.clone()).skip(skip).times(1);
                nas.faults().add(rule);
                let _ = modify(driver.as_ref(), &id, &class).await;
                let rules = nas.faults().rules();
                let was_cut = rules.iter().all(|rule| rule.times == Some(0));
                nas.faults().clear();
                drop(driver);
                if recorded(&nas, &id).await.is_some() {
                    assert_eq!(share_of(&nas).await, office, "{what}: it is recorded");
                }
                nas.clock().advance(Duration::from_mins(2));
                let driver = offering(&nas);
                retried(&what, async || modify(driver.as_ref(), &id, &class).await).await;
                assert_eq!(share_of(&nas).await, office, "{what}");
                assert_eq!(shown(&nas, &id, "compression").await.0, "zstd", "{what}");
                let record = recorded(&nas, &id).await;
                assert_eq!(record.as_deref(), Some("office"), "{what}");
                if !was_cut {
                    break;
                }
                skip += 1;
            }
            assert!(skip > 2, "{generation:?} {action:?}: {skip} calls");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn networks_that_the_nas_writes_in_its_own_form_are_those_that_were_chosen() {
    let networks = "[10.1.0.5/16, 192.0.2.7, '2001:DB8:0::/32']";
    let choices = format!("  shareChoices: {{a: {{shareAllowedNetworks: {networks}}}}}\n");
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = choosing(&nas, "shareOptions", &choices).expect("a driver");
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        for wanted in [Effect::Possible, Effect::None] {
            let effect = modify(driver, &id, &[("shareOptions", "a")]).await;
            let effect = effect.unwrap_or_else(|error| panic!("{}", error.chain()));
            assert_eq!(effect, wanted, "{generation:?}");
            let (_, networks, _) = share_of(&nas).await;
            let kept = ["10.1.0.0/16", "192.0.2.7/32", "2001:db8::/32"];
            assert_eq!(networks, kept, "{generation:?}");
        }
        let exports = driver.exports().expect("exports");
        let is_exported = exports.is_exported(&call(), &id).await;
        assert!(is_exported.expect("an answer"), "{generation:?}");
    }
}

/// A volume with a choice.
async fn made_for_the_office(nas: &Simulator) -> VolumeId {
    let driver = choosing(nas, "shareOptions", CHOICES).expect("a driver");
    let mut asked = request(driver.as_ref(), "pvc-1", None);
    asked.parameters = pairs(&[("shareOptions", "office")]);
    let made = driver.create_volume(&call(), &asked).await;
    made.unwrap_or_else(|error| panic!("{}", error.chain()));
    asked.id
}

/// A driver with `nodes`, by which a node has the volume.
async fn published_by_node(nas: &Simulator, id: &VolumeId) -> Arc<dyn Driver> {
    let driver = per_node(nas, "truenas-api-nfs");
    let published = publish(driver.as_ref(), id, "n1").await;
    published.unwrap_or_else(|error| panic!("{}", error.chain()));
    driver
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_whose_choice_is_gone_is_left_alone_and_not_opened_to_others() {
    let nas = appliance(Generation::V25_10).await;
    let volume = made_for_the_office(&nas).await;
    let before = share_of(&nas).await;
    let driver = choosing(&nas, "sync", "").expect("a driver");
    let exports = driver.exports().expect("exports");
    exports
        .repair_export(&call(), &volume)
        .await
        .expect("there is nothing to repair");
    assert_eq!(share_of(&nas).await, before);
    let id = rows(&nas, "sharing.nfs").await[0]["id"].clone();
    nas.call("sharing.nfs.delete", vec![id])
        .await
        .expect("deleted");
    let error = exports
        .repair_export(&call(), &volume)
        .await
        .expect_err("no options");
    assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
    assert!(error.chain().contains("`office`"), "{}", error.chain());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_whose_choice_is_gone_is_not_opened_when_nodes_is_removed() {
    let nas = appliance(Generation::V25_10).await;
    let id = made_for_the_office(&nas).await;
    published_by_node(&nas, &id).await;
    let driver = choosing(&nas, "sync", "").expect("a driver");
    let exports = driver.exports().expect("exports");
    for _ in 0..2 {
        let repaired = exports.repair_export(&call(), &id).await;
        repaired.unwrap_or_else(|error| panic!("{}", error.chain()));
        let shares = rows(&nas, "sharing.nfs").await;
        assert_eq!(shares[0]["hosts"], json!(["n1.lan"]));
        assert_eq!(shares[0]["networks"], json!([]));
    }
    let is_exported = exports.is_exported(&call(), &id).await;
    assert!(is_exported.expect("an answer"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_that_lets_in_no_node_is_refused_where_its_choice_is_gone() {
    let nas = appliance(Generation::V25_10).await;
    let id = made_for_the_office(&nas).await;
    let driver = published_by_node(&nas, &id).await;
    let unpublished = unpublish(driver.as_ref(), &id, Some("n1")).await;
    unpublished.unwrap_or_else(|error| panic!("{}", error.chain()));
    let no_node = json!(["127.255.255.254"]);
    assert_eq!(rows(&nas, "sharing.nfs").await[0]["hosts"], no_node);
    let driver = choosing(&nas, "sync", "").expect("a driver");
    let exports = driver.exports().expect("exports");
    for _ in 0..2 {
        let repaired = exports.repair_export(&call(), &id).await;
        let error = repaired.expect_err("no options");
        assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
        assert!(error.chain().contains("`office`"), "{}", error.chain());
        assert_eq!(rows(&nas, "sharing.nfs").await[0]["hosts"], no_node);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_dataset_has_the_choice_that_is_recorded_on_it_and_the_operator_hears_it() {
    let nas = appliance(Generation::V25_10).await;
    let driver = choosing(&nas, "shareOptions", CHOICES).expect("a driver");
    let record = json!([{"key": "omnibus-csi:share_options", "value": "readonly"}]);
    let name = "tank/csi/v/old";
    let dataset = json!({"name": name, "create_ancestors": true, "user_properties": record});
    nas.call("pool.dataset.create", vec![dataset])
        .await
        .expect("made");
    let adopter = driver.adopter().expect("it adopts");
    let asked = AdoptVolume {
        source: name.to_owned(),
        size: Some(1 << 30),
        made_for: MadeFor::read(Some("shop/data"), None),
    };
    let plan = adopter.plan_adoption(&call(), &asked).await;
    let plan = plan.unwrap_or_else(|error| panic!("{}", error.chain()));
    let says_it = |remark: &String| remark.contains("`readonly`");
    assert!(plan.remarks.iter().any(says_it), "{:?}", plan.remarks);
    let adopted = adopter.adopt_volume(&call(), &asked).await;
    adopted.unwrap_or_else(|error| panic!("{}", error.chain()));
    let of_choice = (true, vec!["10.0.0.0/8".to_owned()], String::new());
    assert_eq!(share_of(&nas).await, of_choice);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choices_that_no_share_can_have_are_refused_when_the_connection_is_read() {
    let nas = appliance(Generation::V25_10).await;
    let at = "nfs.shareChoices";
    for (choices, path) in [
        ("  shareChoices: {'a b': {}}\n", format!("{at}.a b")),
        (
            "  shareChoices: {a: {shareAllowedNetworks: [x]}}\n",
            format!("{at}.a.shareAllowedNetworks"),
        ),
        (
            "  shareChoices: {a: {shareMaprootUser: root, shareMapallUser: root}}\n",
            format!("{at}.a.shareMaprootUser"),
        ),
        ("", "zfs.volumeParameters".to_owned()),
    ] {
        let error = choosing(&nas, "shareOptions", choices).expect_err(choices);
        assert_eq!(error.path(), Some(path.as_str()), "{error}");
    }
    for (field, value, path) in [
        (
            "shareAllowedNetworks",
            "[0.0.0.0/0]",
            "shareAllowedNetworks",
        ),
        ("shareAllowedNetworks", "['::/0']", "shareAllowedNetworks"),
        (
            "shareAllowedNetworks",
            "[10.0.0.0/8, 10.1.0.5/16]",
            "shareAllowedNetworks",
        ),
        ("shareAllowedHosts", "[192.0.2.0/24]", "shareAllowedHosts"),
        ("shareAllowedHosts", "['a b']", "shareAllowedHosts"),
        ("shareAllowedHosts", "[0.0.0.0]", "shareAllowedHosts"),
        ("shareAllowedHosts", "[a, a]", "shareAllowedHosts"),
        ("shareMaprootGroup", "wheel", "shareMaprootUser"),
        ("shareMapallGroup", "wheel", "shareMapallUser"),
    ] {
        let choices = format!("  shareChoices: {{a: {{{field}: {value}}}}}\n");
        let error = choosing(&nas, "shareOptions", &choices).expect_err(&choices);
        let path = format!("{at}.a.{path}");
        assert_eq!(error.path(), Some(path.as_str()), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_api_cannot_set_is_refused_when_the_connection_is_read() {
    let nas = appliance(Generation::V25_10).await;
    for (kind, list, words) in [
        ("truenas-api-nfs", "logbias", "API of TrueNAS"),
        ("truenas-api-nfs", "volblocksize", "filesystem"),
        ("truenas-api-iscsi", "recordsize", "volume"),
        ("truenas-api-iscsi", "quotaMode", "volume"),
        ("truenas-api-smb", "shareOptions", "nothing to choose from"),
        ("truenas-api-iscsi", "sharenfs", "known are atime"),
    ] {
        let text = config(&nas, kind, &format!("  volumeParameters: [{list}]"));
        let document = Document::parse(&text, &NoEnvironment).expect("a document");
        let error = from_document(&document).expect_err(list).to_string();
        assert!(error.contains("zfs.volumeParameters"), "{error}");
        assert!(error.contains(words), "{error}");
    }
}
