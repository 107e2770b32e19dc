//! The sources of secrets, and the places where they never go.

use std::collections::BTreeMap;

use driver_core::{
    DeleteVolume, Driver as _, FindVolume, Found, Kind, Lister as _, PageRequest, Parameters,
    Secrets,
};

use crate::stand_in::{LICENSE, PASSPHRASE, SECRET_KEY, StandIn, call, request};

fn of_class() -> Secrets {
    [
        ("env.SECRET_KEY", SECRET_KEY),
        ("env.OBJECTIVEFS_LICENSE", LICENSE),
        // Of another driver, and of this one: the narrower counts.
        ("env.OBJECTIVEFS_PASSPHRASE", "wrong"),
        (
            "democratic-csi.org/objectivefs/env.OBJECTIVEFS_PASSPHRASE",
            PASSPHRASE,
        ),
    ]
    .map(|(key, value)| (key.to_owned(), value.into()))
    .into()
}

#[tokio::test]
async fn the_secrets_of_the_class_are_enough_to_make_to_find_and_to_delete() {
    let tool = StandIn::new();
    let driver = tool.configured("env: {OBJECTSTORE: 's3://'}");
    let mut wanted = request(&driver, "pvc-1");
    let error = driver
        .create_volume(&call(), &wanted)
        .await
        .expect_err("no keys");
    assert!(error.chain().contains("access denied"), "{}", error.chain());
    wanted.secrets = of_class();
    driver.create_volume(&call(), &wanted).await.expect("made");
    assert!(tool.has("pvc-1"));
    let find = FindVolume::new(&wanted.id);
    let unknown = driver.find_volume(&call(), find).await;
    assert_eq!(unknown.expect_err("no keys").kind(), Kind::Unsupported);
    let find = FindVolume {
        id: &wanted.id,
        secrets: &wanted.secrets,
    };
    let found = driver.find_volume(&call(), find).await;
    assert_eq!(found.expect("found"), Found::Whole);
    driver
        .delete_volume(&call(), DeleteVolume::new(&wanted.id))
        .await
        .expect_err("no keys");
    let removed = driver
        .delete_volume(
            &call(),
            DeleteVolume {
                id: &wanted.id,
                secrets: &wanted.secrets,
            },
        )
        .await;
    removed.expect("gone");
    assert!(!tool.has("pvc-1"));
    let missing = driver.find_volume(&call(), find).await;
    assert_eq!(missing.expect_err("gone").kind(), Kind::NotFound);
}

#[tokio::test]
async fn secrets_are_no_arguments_and_in_no_context() {
    for section in [
        "cli: {sudoEnabled: true}, env: {OBJECTSTORE: 's3://', REGION: eu-1}",
        "env: {OBJECTSTORE: 's3://', REGION: eu-1}",
    ] {
        let tool = StandIn::new();
        let driver = tool.configured(section);
        let mut wanted = request(&driver, "pvc-1");
        wanted.secrets = of_class();
        let parameters = [
            ("env.ENDPOINT", "http://minio:9000"),
            ("env.OBJECTSTORE", "gs://"),
        ];
        let parameters = parameters.map(|(k, v)| (k.to_owned(), v.to_owned()));
        wanted.parameters = Parameters::new(BTreeMap::from(parameters));
        let volume = driver.create_volume(&call(), &wanted).await.expect("made");
        let context = volume.attachment.to_context();
        let expected = [
            ("env.ENDPOINT", "http://minio:9000"),
            ("env.OBJECTSTORE", "s3://"),
            ("env.REGION", "eu-1"),
            ("filesystem", "csi/pvc-1"),
            ("node_attach_driver", "objectivefs"),
        ];
        assert_eq!(
            context,
            expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
        driver
            .check_attachment(&volume.id, &volume.attachment)
            .expect("its own");
        let argv = tool.argv();
        assert!(argv.contains("create -f csi/pvc-1"), "{argv}");
        assert_eq!(argv.contains("sudo"), section.contains("sudo"), "{argv}");
        for secret in [LICENSE, PASSPHRASE, SECRET_KEY] {
            assert!(!argv.contains(secret), "{argv}");
            assert!(!format!("{driver:?}").contains(secret));
        }
    }
}

#[tokio::test]
async fn a_class_that_would_disclose_a_secret_is_refused_before_any_change() {
    let tool = StandIn::new();
    let driver = tool.driver();
    for key in [
        "env.SECRET_KEY",
        "env.OBJECTIVEFS_PASSPHRASE",
        "env.OBJECTIVEFS_LICENSE",
        "env.A B",
        "env.LD_PRELOAD",
        "env.PATH",
        "env.HOME",
    ] {
        let mut wanted = request(&driver, "pvc-1");
        let parameters = BTreeMap::from([(key.to_owned(), "hunter2".to_owned())]);
        wanted.parameters = Parameters::new(parameters);
        let error = driver.create_volume(&call(), &wanted).await.expect_err(key);
        assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
        assert!(!error.chain().contains("hunter2"), "{}", error.chain());
    }
    let listed = driver.list_volumes(&call(), &PageRequest::default()).await;
    assert!(listed.expect("a list").entries.is_empty());
}

#[tokio::test]
async fn a_secret_that_would_run_other_code_or_choose_the_store_is_refused_and_nothing_is_run() {
    let tool = StandIn::new();
    let driver = tool.driver();
    for key in [
        "env.LD_PRELOAD",
        "env.PATH",
        "env.BASH_ENV",
        "democratic-csi.org/objectivefs/env.HOME",
        "env.OBJECTSTORE",
    ] {
        let mut wanted = request(&driver, "pvc-1");
        wanted.secrets.insert(key.to_owned(), "hunter2".into());
        let made = driver.create_volume(&call(), &wanted).await;
        let gone = driver
            .delete_volume(
                &call(),
                DeleteVolume {
                    id: &wanted.id,
                    secrets: &wanted.secrets,
                },
            )
            .await;
        for error in [made.expect_err(key), gone.expect_err(key)] {
            assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
    }
    assert_eq!(tool.argv(), "");
}

#[tokio::test]
async fn a_context_of_another_volume_is_refused() {
    let tool = StandIn::new();
    let driver = tool.driver();
    let one = request(&driver, "one");
    let other = request(&driver, "other");
    let volume = driver.create_volume(&call(), &one).await.expect("made");
    let error = driver.check_attachment(&other.id, &volume.attachment);
    assert_eq!(error.expect_err("not its own").kind(), Kind::Invalid);
}
