//! Classes of several connections: which one creates the volume, and what a retry does.

use csi_proto::v1::CapacityRange;
use driver_core::Capabilities;

use super::*;

pub(super) const BOTH: [(&str, &str); 1] = [("connections", "a,b")];

/// Two connections in a zone each.
fn zones(drivers: &[Arc<Memory>; 2]) -> ControllerHandler {
    let zone = |zone: u8| {
        format!("proxy: {{perDriver: {{topology: [{{requirements: {{zone: z{zone}}}}}]}}}}")
    };
    let all = [("a", &drivers[0], &*zone(1)), ("b", &drivers[1], &*zone(2))];
    ControllerHandler(multi_connection(&all, Names::default()))
}

fn within(zones: &[&str]) -> v1::TopologyRequirement {
    let key = "org.democratic-csi.topology/zone";
    let place = |zone: &&str| v1::Topology {
        segments: [(key.to_owned(), (*zone).to_owned())].into(),
    };
    let all: Vec<_> = zones.iter().map(place).collect();
    v1::TopologyRequirement {
        requisite: all.clone(),
        preferred: all,
    }
}

fn of_size(bytes: i64, mut request: v1::CreateVolumeRequest) -> v1::CreateVolumeRequest {
    request.capacity_range = Some(CapacityRange {
        required_bytes: bytes,
        limit_bytes: 0,
    });
    request
}

pub(super) fn rooms(drivers: &[Arc<Memory>; 2], rooms: [u64; 2]) {
    for (driver, room) in drivers.iter().zip(rooms) {
        driver.room.store(room, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_retry_for_another_place_makes_no_second_volume() {
    let drivers = [Memory::new(), Memory::new()];
    let service = zones(&drivers);
    let mut request = create("v", &BOTH);
    request.accessibility_requirements = Some(within(&["z1"]));
    let first = made(&service, request.clone()).await.expect("made");
    assert_eq!(first.volume_id, "v:a/v");
    request.accessibility_requirements = Some(within(&["z2"]));
    let status = made(&service, request.clone()).await;
    let status = status.expect_err("it is elsewhere");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(!drivers[1].has("v"), "a second one would lose the first");
    drivers[0].trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    let status = made(&service, request.clone()).await;
    let status = status.expect_err("it may be there");
    assert_eq!(status.code(), Code::Unavailable);
    for part in ["connection `a` may have the volume", "newVolumes"] {
        assert!(status.message().contains(part), "{}", status.message());
    }
    assert!(!drivers[1].has("v"));
    request.accessibility_requirements = Some(within(&["z1"]));
    let again = made(&service, request).await.expect("the same");
    assert_eq!(again.volume_id, "v:a/v");
}

#[tokio::test]
async fn nothing_is_deleted_where_the_volume_is_not_made() {
    let (service, [a, b]) = two();
    a.room.store(1, Ordering::Relaxed);
    made(&service, create("v", &BOTH)).await.expect("made");
    assert!(b.has("v"));
    assert_eq!(a.asked(), 2, "whether it has the volume, and for its room");
}

#[tokio::test]
async fn one_without_the_room_is_tried_last_however_near() {
    let drivers = [Memory::new(), Memory::new()];
    let service = zones(&drivers);
    rooms(&drivers, [1, 5]);
    let mut request = of_size(3, create("v", &BOTH));
    request.accessibility_requirements = Some(within(&["z1", "z2"]));
    let volume = made(&service, request.clone()).await.expect("made");
    assert_eq!(volume.volume_id, "v:b/v");
    // With enough capacity everywhere the nearest one is used.
    rooms(&drivers, [3, 5]);
    request.name = "w".into();
    let volume = made(&service, request.clone()).await.expect("made");
    assert_eq!(volume.volume_id, "v:a/w");
    // With too little everywhere the driver reports that.
    rooms(&drivers, [1, 2]);
    request.name = "x".into();
    let volume = made(&service, request).await.expect("made");
    assert_eq!(volume.volume_id, "v:a/x");
}

#[tokio::test]
async fn unknown_room_comes_after_enough_and_before_too_little() {
    let silent = Memory::with(Capabilities {
        capacity: false,
        ..crate::testing::EVERYTHING
    });
    let drivers = [silent, Memory::new()];
    let all = [("a", &drivers[0], ""), ("b", &drivers[1], "")];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    for (name, room, expected) in [("v", 4, "v:b/v"), ("w", 2, "v:a/w")] {
        rooms(&drivers, [u64::MAX, room]);
        let request = of_size(3, create(name, &BOTH));
        let volume = made(&service, request).await.expect("made");
        assert_eq!(volume.volume_id, expected);
    }
}

#[tokio::test]
async fn one_that_turns_out_to_be_full_gives_way_to_the_next() {
    let (service, drivers) = two();
    rooms(&drivers, [20, 10]);
    let [a, b] = &drivers;
    a.full.store(true, Ordering::Relaxed);
    let volume = made(&service, create("v", &BOTH)).await.expect("made");
    assert_eq!(volume.volume_id, "v:b/v");
    b.full.store(true, Ordering::Relaxed);
    let status = made(&service, create("w", &BOTH)).await;
    let status = status.expect_err("both are full");
    assert_eq!(status.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn while_one_of_a_class_is_missing_nothing_is_made_whatever_this_process_has_served() {
    let (service, [a, b]) = two();
    // One that was never there, and one that was.
    service.0.connections.remove(&name("a"));
    for class in ["missing,b", "b,a"] {
        let status = made(&service, create("w", &[("connections", class)])).await;
        let status = status.expect_err("it may have started the volume");
        assert_eq!(status.code(), Code::Unavailable, "{class}");
        let one = class.trim_matches(['b', ',']);
        let named = format!("connection `{one}`");
        assert!(status.message().contains(&named), "{}", status.message());
    }
    assert!(!a.has("w") && !b.has("w"));
    for class in ["x,y", "a"] {
        let status = made(&service, create("w", &[("connections", class)])).await;
        let code = status.expect_err("none is there").code();
        assert_eq!(code, Code::InvalidArgument, "{class}");
    }
}

/// Two connections, of which `a` accepts no new volumes.
pub(super) fn closed() -> (ControllerHandler, [Arc<Memory>; 2]) {
    let drivers = [Memory::new(), Memory::new()];
    let closed = "proxy: {perDriver: {newVolumes: false}}";
    let all = [("a", &drivers[0], closed), ("b", &drivers[1], "")];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    rooms(&drivers, [20, 10]);
    (service, drivers)
}

#[tokio::test]
async fn one_that_makes_no_new_volumes_answers_for_those_that_it_has() {
    let (service, [a, b]) = closed();
    let volume = made(&service, create("v", &BOTH)).await.expect("made");
    assert_eq!(volume.volume_id, "v:b/v");
    // The answer to its creation was lost, and then it was closed.
    a.fill(["old".to_owned()], "/x");
    for class in [&BOTH[..], &[("connection", "a")]] {
        let volume = made(&service, create("old", class)).await;
        assert_eq!(volume.expect("it has it").volume_id, "v:a/old");
    }
    assert!(!b.has("old"));
    let status = made(&service, create("w", &[("connection", "a")])).await;
    let status = status.expect_err("closed");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(!a.has("w") && !a.has("v"));
    let request = v1::GetCapacityRequest {
        parameters: parameters(&BOTH),
        ..Default::default()
    };
    let room = service.get_capacity(Request::new(request)).await;
    assert_eq!(room.expect("room").into_inner().available_capacity, 10);
}

#[tokio::test]
async fn one_that_makes_no_new_volumes_and_does_not_answer_stops_only_those_that_are_its_own() {
    let (service, [a, b]) = closed();
    let mute = || a.trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    mute();
    let volume = made(&service, create("v", &BOTH)).await.expect("made");
    assert_eq!(volume.volume_id, "v:b/v");
    mute();
    let status = made(&service, create("w", &[("connection", "a")])).await;
    let status = status.expect_err("it may have it");
    assert_eq!(status.code(), Code::Unavailable, "not final");
    assert!(b.has("v") && !b.has("w"));
}

#[tokio::test]
async fn a_partial_volume_is_finished_where_it_was_started() {
    let (service, drivers) = two();
    let [a, b] = &drivers;
    // It takes space, so that the other has more capacity now.
    a.begin("v");
    rooms(&drivers, [5, 10]);
    let other = made(&service, create("w", &BOTH)).await.expect("made");
    assert_eq!(other.volume_id, "v:b/w");
    let again = made(&service, create("v", &BOTH)).await.expect("made");
    assert_eq!(again.volume_id, "v:a/v");
    assert!(a.has("v") && !b.has("v"));
}

#[tokio::test]
async fn a_volume_that_two_storages_have_is_refused_and_one_under_two_names_is_not() {
    let (service, [a, b]) = two();
    for driver in [&a, &b] {
        driver.fill(["v".to_owned()], "/x");
    }
    let status = made(&service, create("v", &BOTH)).await;
    let status = status.expect_err("which?");
    assert_eq!(status.code(), Code::Unavailable, "neither is forgotten");
    for part in ["connection `a`", "connection `b`", "by hand"] {
        assert!(status.message().contains(part), "{}", status.message());
    }
    let zone =
        |zone| format!("proxy: {{perDriver: {{topology: [{{requirements: {{zone: z{zone}}}}}]}}}}");
    let all = [("a", &a, &*zone(1)), ("b", &a, &*zone(2))];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    let mut request = create("v", &BOTH);
    request.accessibility_requirements = Some(within(&["z2"]));
    let volume = made(&service, request).await.expect("the same");
    assert_eq!(volume.volume_id, "v:b/v", "the one that is able");
}

#[tokio::test]
async fn what_makes_no_volumes_makes_no_class_endless() {
    let by_hand = Memory::with(Capabilities::NONE);
    let nas = Memory::new();
    nas.room.store(10, Ordering::Relaxed);
    let all = [("manual", &by_hand, ""), ("nas", &nas, "")];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    for class in [&[][..], &[("connections", "nas,manual")]] {
        let request = v1::GetCapacityRequest {
            parameters: parameters(class),
            ..Default::default()
        };
        let room = service.get_capacity(Request::new(request)).await;
        let room = room.expect("room").into_inner().available_capacity;
        assert_eq!(room, 10, "{class:?}");
    }
}

#[tokio::test]
async fn one_storage_under_two_names_is_worked_on_once() {
    let driver = Memory::new();
    let all = [("a", &driver, ""), ("b", &driver, "")];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    driver.fill(["x".to_owned()], "/x");
    driver.trouble(Trouble::Wait);
    let deleting = {
        let service = service.clone();
        tokio::spawn(async move { deleted(&service, "v:a/x").await })
    };
    driver.entered.notified().await;
    let status = deleted(&service, "v:b/x").await.expect_err("the same");
    assert_eq!(status.code(), Code::Aborted);
    driver.go_on.notify_one();
    deleting.await.expect("no panic").expect("deleted");
}
