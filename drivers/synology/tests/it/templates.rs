//! The templates of the configuration, of classes and of their secrets.

use std::collections::BTreeMap;

use driver_core::{CreateVolume, Kind, Parameters};
use serde_json::json;
use synology_sim::Version;

use crate::nas::{Nas, call};

fn with(mut request: CreateVolume, parameters: &[(&str, &str)], secret: &str) -> CreateVolume {
    let parameters = parameters
        .iter()
        .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
    request.parameters = Parameters::new(parameters.collect());
    if !secret.is_empty() {
        let secret = secret.to_owned().into();
        request.secrets = BTreeMap::from([("targetTemplate".to_owned(), secret)]);
    }
    request
}

#[tokio::test]
async fn what_a_class_says_is_laid_over_the_configuration() {
    let nas = Nas::start(
        Version::V7_2,
        "targetTemplate: {auth_type: 0, max_sessions: 0}",
    )
    .await;
    let request = with(
        nas.request("pvc-1", None),
        &[(
            "lunTemplate",
            "type: BLUN_THICK\ndev_attribs:\n- {dev_attrib: emulate_caw, enable: 1}",
        )],
        "{auth_type: 1, user: alice, password: canary-chap-1}",
    );
    nas.try_create(&request).await.expect("made");
    let lun = nas.lun("pvc-1");
    assert_eq!(lun["type"], "BLUN_THICK");
    assert_eq!(
        lun["dev_attribs"],
        json!([{"dev_attrib": "emulate_caw", "enable": 1}])
    );
    let target = &nas.sim.state()["targets"][0];
    assert_eq!(
        (&target["auth_type"], &target["user"]),
        (&json!(1), &json!("alice"))
    );
    assert_eq!(target["max_sessions"], 0);
}

#[tokio::test]
async fn the_description_is_a_template() {
    let nas = Nas::start(Version::V7_2, "").await;
    let class = "description: '{{ parameters.[csi.storage.k8s.io/pvc/namespace] }}-{{ name }}'";
    let parameters = [
        ("lunTemplate", class),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
    ];
    let request = with(nas.request("pvc-1", None), &parameters, "");
    nas.try_create(&request).await.expect("made");
    assert_eq!(
        nas.lun("pvc-1")["description"],
        "shop-pvc-1 csi-source: none"
    );
}

#[tokio::test]
async fn thin_and_thick_are_what_the_filesystem_has() {
    for (volume, word, kind) in [
        ("/volume1", "thin", "BLUN"),
        ("/volume1", "thick", "BLUN_THICK"),
        ("volume2", "thin", "THIN"),
        ("volume2", "thick", "FILE"),
    ] {
        let nas = Nas::start(Version::V7_2, "").await;
        let text = crate::nas::config(&nas.sim, "") + &format!("synology: {{volume: {volume}}}\n");
        let driver = crate::nas::open(&text);
        let class = format!("type: {word}");
        let request = with(nas.request("pvc-1", None), &[("lunTemplate", &class)], "");
        driver.create_volume(&call(), &request).await.expect("made");
        assert_eq!(nas.lun("pvc-1")["type"], kind);
    }
}

#[tokio::test]
async fn a_thick_lun_takes_space_and_one_that_does_not_fit_is_refused() {
    let nas = Nas::start(Version::V7_2, "").await;
    let query = driver_core::CapacityQuery::default();
    let free = async || {
        nas.driver
            .capacity(&call(), &query)
            .await
            .expect("free")
            .available
    };
    let before = free().await;
    let mut request = with(
        nas.request("pvc-1", None),
        &[("lunTemplate", "type: thick")],
        "",
    );
    nas.try_create(&request).await.expect("made");
    assert_eq!(before - free().await, 1 << 30);
    request = with(
        nas.request("pvc-2", None),
        &[("lunTemplate", "type: thick")],
        "",
    );
    request.size = driver_core::SizeRange::new(2 << 40, 0).expect("a size");
    let error = nas.try_create(&request).await.expect_err("too large");
    assert_eq!(error.kind(), Kind::OutOfSpace, "{}", error.chain());
}

#[tokio::test]
async fn snapshots_follow_their_template() {
    let nas = Nas::start(
        Version::V7_2,
        "lunSnapshotTemplate: {is_locked: true, is_app_consistent: true}",
    )
    .await;
    let volume = nas.create("pvc-1", None).await;
    nas.snapshot(&volume.id, "s").await;
    assert_eq!(nas.lun("pvc-1")["snapshots"][0]["is_locked"], true);
}

#[tokio::test]
async fn a_class_cannot_change_targets_that_others_share() {
    let nas = Nas::start(Version::V7_2, "mode: shared-target").await;
    let request = with(nas.request("pvc-1", None), &[], "{auth_type: 1}");
    let error = nas.try_create(&request).await.expect_err("refused");
    assert_eq!(error.kind(), Kind::Invalid);
    assert_eq!(nas.objects(), (0, 0));
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_before_anything_is_made() {
    let nas = Nas::start(Version::V7_2, "").await;
    for class in ["[", "5", "description: '{{'"] {
        let request = with(nas.request("pvc-1", None), &[("lunTemplate", class)], "");
        let error = nas.try_create(&request).await.expect_err("refused");
        assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
    }
    assert_eq!(nas.objects(), (0, 0));
}

#[tokio::test]
async fn a_class_that_names_the_call_or_its_object_is_refused_and_nothing_is_sent() {
    let nas = Nas::start(Version::V7_2, "").await;
    let volume = nas.create("pvc-1", None).await;
    let before = nas.sim.state();
    let keys = ["api: SYNO.Core.Share", "uuid: x", "_sid: x", "'a&b': x"];
    for (template, key) in ["lunTemplate", "targetTemplate"]
        .into_iter()
        .flat_map(|template| keys.map(|key| (template, key)))
    {
        let request = with(nas.request("pvc-2", None), &[(template, key)], "");
        let error = nas.try_create(&request).await.expect_err(key);
        assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
        let request = with(nas.request("pvc-2", None), &[], key);
        let error = nas.try_create(&request).await.expect_err(key);
        assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
        let request = driver_core::CreateSnapshot {
            name: driver_core::SnapshotName::parse("s").expect("a name"),
            source: volume.id.clone(),
            parameters: Parameters::new(BTreeMap::from([(
                "lunSnapshotTemplate".to_owned(),
                key.to_owned(),
            )])),
            secrets: BTreeMap::new(),
        };
        let taken = nas.driver.create_snapshot(&call(), &request).await;
        assert_eq!(taken.expect_err(key).kind(), Kind::Invalid);
    }
    assert_eq!(nas.sim.state(), before);
}

#[tokio::test]
async fn without_templates_every_node_and_path_gets_a_session_and_thin_luns_give_space_back() {
    let nas = Nas::start(Version::V7_2, "").await;
    let text = crate::nas::config(&nas.sim, "").replace("lunTemplate: {type: BLUN}", "");
    let driver = crate::nas::open(&text);
    let request = nas.request("pvc-1", None);
    driver.create_volume(&call(), &request).await.expect("made");
    let target = &nas.sim.state()["targets"][0];
    assert_eq!(
        (&target["max_sessions"], &target["auth_type"]),
        (&json!(0), &json!(0))
    );
    let lun = nas.lun("pvc-1");
    assert_eq!(lun["type"], "BLUN");
    let on = lun["dev_attribs"].as_array().cloned().unwrap_or_default();
    assert!(
        on.contains(&json!({"dev_attrib": "emulate_tpu", "enable": 1})),
        "{on:?}"
    );
}

#[test]
fn a_target_for_few_sessions_is_doubtful() {
    let text = |most: &str| {
        format!(
            "driver: synology-iscsi\n\
             httpConnection: {{protocol: https, host: nas.example, username: csi, password: x}}\n\
             iscsi: {{targetPortal: nas.example, baseiqn: 'iqn.2000-01.com.synology:csi.', targetTemplate: {{{most}}}}}\n"
        )
    };
    for (most, count) in [("max_sessions: 1", 1), ("max_sessions: 0", 0), ("", 0)] {
        let document =
            driver_core::config::Document::parse(&text(most), &driver_core::config::NoEnvironment);
        let document = document.expect("yaml");
        document.common().expect("the common keys");
        driver_synology::from_document(&document).expect("a driver");
        let found: Vec<String> = document
            .findings()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found.len(), count, "{found:?}");
    }
}

#[tokio::test]
async fn luns_have_a_gibibyte_at_least() {
    let nas = Nas::start(Version::V7_2, "").await;
    let mut request = nas.request("pvc-1", None);
    request.size = driver_core::SizeRange::new(1 << 20, 0).expect("a size");
    let made = nas.try_create(&request).await.expect("made");
    assert_eq!(made.capacity, Some(1 << 30));
    assert_eq!(nas.try_create(&request).await.expect("again"), made);
    let mut request = nas.request("pvc-2", None);
    request.size = driver_core::SizeRange::new(1 << 20, 1 << 29).expect("a size");
    let error = nas.try_create(&request).await.expect_err("too small");
    assert_eq!(error.kind(), Kind::OutOfRange, "{}", error.chain());
    assert_eq!(nas.objects(), (1, 1));
}

#[tokio::test]
async fn a_snapshot_on_ext4_is_refused_with_a_reason() {
    let nas = Nas::start(Version::V7_2, "").await;
    let text = crate::nas::config(&nas.sim, "").replace("lunTemplate: {type: BLUN}", "");
    let driver = crate::nas::open(&(text + "synology: {volume: /volume2}\n"));
    let request = nas.request("pvc-1", None);
    driver
        .create_volume(&call(), &request)
        .await
        .expect("made and shown");
    assert_eq!(nas.lun("pvc-1")["type"], "THIN");
    let refused = nas
        .try_snapshot(&request.id, "s")
        .await
        .expect_err("refused");
    assert_eq!(refused.kind(), Kind::Invalid);
    assert!(refused.chain().contains("ext4"), "{}", refused.chain());
    assert_eq!(nas.sim.count("SYNO.Core.ISCSI.LUN/take_snapshot"), 0);
}

#[tokio::test]
async fn a_password_of_digits_is_a_text() {
    let nas = Nas::start(
        Version::V7_2,
        "targetTemplate: {auth_type: 2, user: 7, password: 123456789012, mutual_user: 8, mutual_password: 210987654321}",
    )
    .await;
    nas.create("pvc-1", None).await;
    let target = &nas.sim.state()["targets"][0];
    for (key, text) in [("user", "7"), ("mutual_user", "8")] {
        assert_eq!(target[key], text, "{key}");
    }
}
