//! Partial volumes: where they are finished, and which calls must not forget them.

use super::choice::{BOTH, closed, rooms};
use super::*;
use crate::routing::connections::{Blueprint, LazyConnection};
use crate::testing::among;

const CLOSED: &str = "proxy: {perDriver: {newVolumes: false}}";

/// Two connections, of which `a` has started `v`, and has less capacity since.
fn cut() -> (ControllerHandler, [Arc<Memory>; 2]) {
    let (service, drivers) = two();
    drivers[0].begin("v");
    rooms(&drivers, [1, 10]);
    (service, drivers)
}

#[tokio::test]
async fn a_started_volume_is_finished_by_a_connection_that_accepts_no_new_ones() {
    let (service, [a, b]) = cut();
    let drained = LazyConnection::fixed(among("a", &a, CLOSED));
    service.0.connections.put(drained);
    let volume = made(&service, create("v", &BOTH)).await.expect("finished");
    assert_eq!(volume.volume_id, "v:a/v");
    assert!(!b.has("v"));
    let volume = made(&service, create("w", &BOTH)).await.expect("a new one");
    assert_eq!(volume.volume_id, "v:b/w");
}

#[tokio::test]
async fn a_connection_filled_by_its_partial_volume_stays_the_only_candidate() {
    let (service, [a, b]) = cut();
    a.full.store(true, Ordering::Relaxed);
    let status = made(&service, create("v", &BOTH)).await;
    let status = status.expect_err("full of its own half");
    assert_eq!(status.code(), Code::Unavailable, "not final");
    assert!(!b.has("v"));
    a.full.store(false, Ordering::Relaxed);
    let volume = made(&service, create("v", &BOTH)).await.expect("finished");
    assert_eq!(volume.volume_id, "v:a/v");
}

#[tokio::test]
async fn a_partial_volume_of_a_storage_is_finished_there_after_a_restart() {
    for is_closed in [false, true] {
        let (service, drivers) = if is_closed { closed() } else { two() };
        rooms(&drivers, [1, 10]);
        let [a, b] = &drivers;
        a.begin("v");
        a.full.store(true, Ordering::Relaxed);
        let status = made(&service, create("v", &BOTH)).await;
        let status = status.expect_err("full of its own half");
        assert_eq!(status.code(), Code::Unavailable);
        a.full.store(false, Ordering::Relaxed);
        let volume = made(&service, create("v", &BOTH)).await.expect("finished");
        assert_eq!(volume.volume_id, "v:a/v");
        assert!(!b.has("v"));
    }
}

#[tokio::test]
async fn a_partial_volume_is_no_volume_for_queries() {
    let (service, [a, _]) = two();
    a.begin("v");
    let ask = async || {
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: "v:a/v".into(),
            volume_capabilities: vec![mounted()],
            ..Default::default()
        };
        let answer = service.validate_volume_capabilities(Request::new(request));
        answer.await.map(drop)
    };
    assert_eq!(ask().await.expect_err("half").code(), Code::NotFound);
    made(&service, create("v", &[("connection", "a")]))
        .await
        .expect("finished");
    ask().await.expect("whole");
}

#[tokio::test]
async fn one_that_makes_no_new_volumes_and_says_why_it_does_not_tell_is_waited_for() {
    let (service, [a, b]) = closed();
    for (kind, code) in [
        (Kind::Pending, Code::Aborted),
        (Kind::Denied, Code::Unavailable),
    ] {
        a.trouble(Trouble::Fail(kind, Effect::None));
        let status = made(&service, create("v", &BOTH)).await;
        assert_eq!(status.expect_err("it may be there").code(), code);
        assert!(!b.has("v"));
    }
}

#[tokio::test]
async fn a_volume_that_may_be_partial_is_not_forgotten_because_of_a_file() {
    let begin = |class: &str| create("v", &[("connection", class)]);
    let (service, drivers) = two();
    let connections = &service.0.connections;
    connections.put(LazyConnection::refused(name("b"), "a mistake in it"));
    let status = made(&service, begin("b")).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unavailable);
    // A different request is rejected.
    let status = deleted(&service, "v:b/v").await.expect_err("refused");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let status = made(&service, begin("c")).await.expect_err("never there");
    assert_eq!(status.code(), Code::InvalidArgument);
    let wrong = || driver_core::config::ConfigError::new("no such key");
    let unbuilt = Blueprint::new(move || Err(wrong()));
    connections.put(LazyConnection::new(among("b", &drivers[1], ""), unbuilt));
    let all = connections.all();
    let let_go = |lazy: &&Arc<LazyConnection>| lazy.let_go(std::time::Duration::ZERO);
    assert_eq!(all.iter().filter(let_go).count(), 1);
    drop(all);
    let status = made(&service, begin("b")).await.expect_err("not built");
    assert_eq!(status.code(), Code::Unavailable);
    let status = deleted(&service, "v:b/v").await.expect_err("not built");
    assert_eq!(status.code(), Code::Internal);
    connections.set_incomplete(Some("a folder cannot be read".into()));
    let status = made(&service, begin("c")).await.expect_err("it may exist");
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_refusal_is_final_only_for_a_volume_that_no_earlier_call_started() {
    let (service, [a, _]) = two();
    let as_device = |volume: &str| {
        let mut request = create(volume, &[("connection", "a")]);
        let device = AccessType::Block(v1::volume_capability::BlockVolume {});
        request.volume_capabilities[0].access_type = Some(device);
        request
    };
    let refused = async |request: v1::CreateVolumeRequest| {
        let status = made(&service, request).await;
        status.expect_err("refused").code()
    };
    // Before the driver is called, and by the driver.
    let by_driver = async |volume: &str, kind| {
        a.trouble(Trouble::Fail(kind, Effect::None));
        refused(create(volume, &[("connection", "a")])).await
    };
    assert_eq!(refused(as_device("v")).await, Code::InvalidArgument);
    assert_eq!(by_driver("v", Kind::NotFound).await, Code::NotFound);
    a.begin("v");
    a.fill(["w".to_owned()], "/w");
    for volume in ["v", "w"] {
        assert_eq!(
            refused(as_device(volume)).await,
            Code::Unavailable,
            "{volume}"
        );
        for kind in [Kind::Invalid, Kind::NotFound, Kind::Busy] {
            let code = by_driver(volume, kind).await;
            assert_eq!(code, Code::Unavailable, "{volume} {kind:?}");
        }
        // A caller that tries another topology finds a complete volume there.
        let code = by_driver(volume, Kind::OutOfSpace).await;
        let is_whole = volume == "w";
        assert_eq!(code == Code::ResourceExhausted, is_whole, "{volume} {code}");
        // It exists from another request.
        let code = by_driver(volume, Kind::Conflict).await;
        assert_eq!(code, Code::AlreadyExists, "{volume}");
    }
    a.trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    let code = refused(as_device("never")).await;
    assert_eq!(code, Code::Unavailable, "unknown whether it was started");
}

#[tokio::test]
async fn a_refusal_by_all_of_a_class_is_final_only_if_none_started_the_volume() {
    let (service, [_, b]) = two();
    let mut request = create("v", &BOTH);
    let device = AccessType::Block(v1::volume_capability::BlockVolume {});
    request.volume_capabilities[0].access_type = Some(device);
    let status = made(&service, request.clone()).await.expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    b.begin("v");
    let status = made(&service, request).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unavailable);
}
