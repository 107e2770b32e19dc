//! The failures of the tool, and their consequences.

use std::fs;
use std::time::Duration;

use driver_core::{
    Call, DeleteVolume, Driver as _, Effect, Kind, Lister as _, PageRequest, PageToken, VolumeId,
};

use crate::stand_in::{PASSPHRASE, SECRET_KEY, StandIn, call, request};

#[tokio::test]
async fn each_exit_code_is_an_error_of_its_kind_and_a_retry_converges() {
    for (code, kind, text) in [
        (64, Kind::Denied, "administrator"),
        (65, Kind::Denied, "passphrase is wrong"),
        (68, Kind::NotFound, "no such filesystem"),
        (78, Kind::Denied, "passphrase is missing"),
        (1, Kind::Internal, "exit code 1"),
        (70, Kind::Internal, "exit code 70"),
    ] {
        let tool = StandIn::new();
        let driver = tool.driver();
        let wanted = request(&driver, "pvc-1");
        tool.always(code, "");
        let asked = call();
        let made = driver.create_volume(&asked, &wanted).await;
        let error = made.expect_err("the tool failed");
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert_eq!(error.effect(), Effect::Possible, "it may have done a part");
        assert!(error.chain().contains(text), "{}", error.chain());
        assert!(error.chain().contains("csi/pvc-1"), "{}", error.chain());
        assert!(error.advice().is_some());
        let removed = driver
            .delete_volume(&call(), DeleteVolume::new(&wanted.id))
            .await;
        assert_eq!(removed.expect_err("the tool failed").kind(), kind);
        let listed = driver.list_volumes(&call(), &PageRequest::default()).await;
        let error = listed.expect_err("what cannot be listed is not empty");
        assert_eq!((error.kind(), error.effect()), (kind, Effect::None));
        tool.again_as_documented();
        driver.create_volume(&call(), &wanted).await.expect("now");
        assert!(tool.has("pvc-1"));
        driver
            .delete_volume(&call(), DeleteVolume::new(&wanted.id))
            .await
            .expect("now");
        assert!(!tool.has("pvc-1"));
    }
}

#[tokio::test]
async fn what_the_tool_says_itself_is_in_the_error_without_secrets() {
    let tool = StandIn::new();
    let driver = tool.driver();
    tool.always(
        70,
        &format!("cannot reach the store as {SECRET_KEY} with {PASSPHRASE}"),
    );
    let made = driver.create_volume(&call(), &request(&driver, "a")).await;
    let chain = made.expect_err("it failed").chain();
    assert!(chain.contains("cannot reach the store"), "{chain}");
    assert!(
        !chain.contains(SECRET_KEY) && !chain.contains(PASSPHRASE),
        "{chain}"
    );
}

#[tokio::test]
async fn a_filesystem_that_is_listed_and_not_found_to_be_destroyed_is_not_said_to_be_gone() {
    let tool = StandIn::new();
    let driver = tool.driver();
    let wanted = request(&driver, "pvc-1");
    driver.create_volume(&call(), &wanted).await.expect("made");
    fs::write(tool.path("blind"), "").expect("a file");
    let removed = driver
        .delete_volume(&call(), DeleteVolume::new(&wanted.id))
        .await;
    let error = removed.expect_err("it is still there");
    assert_eq!(error.kind(), Kind::Internal, "{}", error.chain());
    fs::remove_file(tool.path("blind")).expect("a file");
    driver
        .delete_volume(&call(), DeleteVolume::new(&wanted.id))
        .await
        .expect("gone");
    driver
        .delete_volume(&call(), DeleteVolume::new(&wanted.id))
        .await
        .expect("gone already");
}

#[tokio::test]
async fn a_tool_that_hangs_or_is_missing_is_an_error_that_says_so() {
    let tool = StandIn::new();
    let driver = tool.driver();
    assert!(driver.probe(&call()).await.is_empty());
    let wanted = request(&driver, "a");
    fs::write(tool.path("hang"), "").expect("a file");
    let late = Call::within(Duration::from_millis(300));
    let error = driver
        .create_volume(&late, &wanted)
        .await
        .expect_err("late");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Timeout, Effect::Possible)
    );
    fs::remove_file(tool.path("mount.objectivefs")).expect("a file");
    let error = driver
        .create_volume(&call(), &wanted)
        .await
        .expect_err("missing");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Internal, Effect::None)
    );
    assert!(error.chain().contains("install"), "{}", error.chain());
    assert_eq!(driver.probe(&call()).await.len(), 1);
}

#[tokio::test]
async fn hostile_ids_and_tokens_reach_no_command() {
    let tool = StandIn::new();
    let driver = tool.driver();
    for id in [
        "-f",
        "..",
        "a/b",
        "a b",
        "$(x)",
        "a\nb",
        "A",
        "a@b",
        &"a".repeat(63),
    ] {
        let id = VolumeId::parse(id).expect("an id");
        let removed = driver.delete_volume(&call(), DeleteVolume::new(&id)).await;
        assert_eq!(
            removed.expect_err("refused").kind(),
            Kind::Invalid,
            "{id:?}"
        );
        let found = driver.get_volume(&call(), &id).await;
        assert_eq!(found.expect_err("refused").kind(), Kind::Invalid, "{id:?}");
    }
    for token in ["", "x", "o2/a", &format!("o1/{}", "a".repeat(63))] {
        let page = PageRequest {
            max: None,
            after: Some(PageToken(token.to_owned())),
        };
        let listed = driver.list_volumes(&call(), &page).await;
        assert_eq!(
            listed.expect_err("refused").kind(),
            Kind::Pending,
            "{token}"
        );
    }
    assert_eq!(tool.argv(), "", "nothing was run");
}
