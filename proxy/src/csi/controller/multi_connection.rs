//! The Controller service with several connections: how calls are routed, and what connections
//! lack.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi_proto::v1::volume_content_source::{Type as Content, VolumeSource};
use driver_core::{Effect, Kind};
use tonic::Code;

use super::*;
use crate::routing::connections::{Bare, ConnectionName, Names};
use crate::testing::{Memory, Trouble, log, multi_connection};

mod absent;
mod carried;
mod choice;
mod growth;
mod hung;
mod lacking;
mod legacy;
mod partial;
mod silent;
mod slow;
mod unowned;

fn name(text: &str) -> ConnectionName {
    ConnectionName::parse(text).expect("a name")
}

fn names() -> Names {
    Names {
        aliases: [(name("old"), name("a"))].into(),
        bare: Bare::Of(name("b")),
        ..Names::default()
    }
}

/// Two connections, `a` and `b`.
fn two() -> (ControllerHandler, [Arc<Memory>; 2]) {
    let drivers = [Memory::new(), Memory::new()];
    let all = [("a", &drivers[0], ""), ("b", &drivers[1], "")];
    (ControllerHandler(multi_connection(&all, names())), drivers)
}

fn mounted() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn create(volume: &str, class: &[(&str, &str)]) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: volume.to_owned(),
        volume_capabilities: vec![mounted()],
        parameters: parameters(class),
        ..Default::default()
    }
}

fn parameters(class: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    class.iter().map(pair).collect()
}

async fn made(
    service: &ControllerHandler,
    request: v1::CreateVolumeRequest,
) -> Result<v1::Volume, Status> {
    let reply = service.create_volume(Request::new(request)).await?;
    Ok(reply.into_inner().volume.expect("a volume"))
}

async fn deleted(service: &ControllerHandler, id: &str) -> Result<(), Status> {
    let request = v1::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    service.delete_volume(Request::new(request)).await.map(drop)
}

async fn listed(
    service: &ControllerHandler,
    max: i32,
) -> Result<Vec<String>, (Vec<String>, Status)> {
    let (mut ids, mut token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListVolumesRequest {
            max_entries: max,
            starting_token: token,
        };
        let reply = match service.list_volumes(Request::new(request)).await {
            Ok(reply) => reply.into_inner(),
            Err(status) => return Err((ids, status)),
        };
        assert!(max == 0 || reply.entries.len() <= usize::try_from(max).expect("a number"));
        let volumes = reply.entries.into_iter().filter_map(|entry| entry.volume);
        ids.extend(volumes.map(|volume| volume.volume_id));
        if reply.next_token.is_empty() {
            return Ok(ids);
        }
        assert!(reply.next_token.len() <= 128);
        token = reply.next_token;
    }
}

#[tokio::test]
async fn a_volume_is_made_where_its_class_says_and_deleted_where_its_handle_says() {
    let (service, [a, b]) = two();
    let volume = made(&service, create("v", &[("connection", "b")]))
        .await
        .expect("made");
    assert_eq!(volume.volume_id, "v:b/v");
    assert!(!a.has("v") && b.has("v"));
    deleted(&service, "v:a/v")
        .await
        .expect("no such volume there");
    assert!(b.has("v"));
    deleted(&service, "v:b/v").await.expect("deleted");
    assert!(!b.has("v"));
}

#[tokio::test]
async fn a_renamed_connection_and_handles_without_a_name_live_on() {
    let (service, [a, b]) = two();
    a.fill(["x".to_owned()], "/x");
    b.fill(["bare".to_owned()], "/x");
    let request = v1::ControllerGetVolumeRequest {
        volume_id: "v:old/x".into(),
    };
    let found = service.controller_get_volume(Request::new(request)).await;
    let volume = found.expect("found").into_inner().volume.expect("a volume");
    assert_eq!(
        volume.volume_id, "v:old/x",
        "the handle that the orchestrator has"
    );
    deleted(&service, "v:old/x").await.expect("deleted");
    deleted(&service, "bare").await.expect("deleted");
    assert!(!a.has("x") && !b.has("bare"));
    let volume = made(&service, create("n", &[("connection", "old")]))
        .await
        .expect("made");
    assert_eq!(volume.volume_id, "v:a/n");
}

#[tokio::test]
async fn a_connection_that_is_gone_is_named_and_nothing_of_it_is_done() {
    let (service, _) = two();
    service.0.connections.remove(&name("a"));
    let status = deleted(&service, "v:a/v").await.expect_err("gone");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(
        status.message().contains("connection `a`"),
        "{}",
        status.message()
    );
    // Whether it was ever there makes no difference.
    for missing in ["a", "c"] {
        let made = made(&service, create("v", &[("connection", missing)])).await;
        let status = made.expect_err(missing);
        assert_eq!(status.code(), Code::InvalidArgument, "{missing}");
        let message = status.message();
        assert!(message.contains("those that exist: `b`"), "{message}");
    }
    for (bad, code) in [
        ("v:b", Code::InvalidArgument),
        ("v:../x", Code::InvalidArgument),
    ] {
        assert_eq!(deleted(&service, bad).await.expect_err(bad).code(), code);
    }
    for class in [
        &[][..],
        &[("connection", "a"), ("connections", "b")],
        &[("connection", "../b")],
    ] {
        let status = made(&service, create("v", class))
            .await
            .expect_err("no class");
        assert_eq!(status.code(), Code::InvalidArgument, "{class:?}");
    }
}

#[tokio::test]
async fn a_refused_call_says_whose_volume_it_is_about() {
    let (service, _) = two();
    let claim = [
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ("csi.storage.k8s.io/pvc/name", "data"),
    ];
    for class in [&[("connection", "nosuch")][..], &[("conection", "a")], &[]] {
        let class: Vec<_> = class.iter().chain(&claim).copied().collect();
        log::listen();
        let refused = made(&service, create("pvc-1", &class)).await;
        let refused = refused.expect_err("no such connection");
        let heard = log::heard();
        assert!(
            heard.contains("volume=pvc-1") && heard.contains("claim=shop/data"),
            "{heard}"
        );
        if class[0].0 == "conection" {
            let message = refused.message();
            assert!(
                message.contains("is `conection` a misspelling of it?"),
                "{message}"
            );
        }
    }
    log::listen();
    let request = v1::ControllerExpandVolumeRequest {
        volume_id: "v:nosuch/pvc-1".to_owned(),
        ..Default::default()
    };
    let refused = service
        .controller_expand_volume(Request::new(request))
        .await;
    refused.expect_err("no such connection");
    assert!(
        log::heard().contains("volume=v:nosuch/pvc-1"),
        "{}",
        log::heard()
    );
}

#[tokio::test]
async fn a_parameter_that_no_driver_reads_is_named_in_the_log_once() {
    let (service, _) = two();
    log::listen();
    for volume in ["v", "w"] {
        let class = [("connection", "a"), ("bogusOfThisTest", "1")];
        made(&service, create(volume, &class)).await.expect("made");
    }
    let heard = log::heard();
    assert_eq!(
        heard.matches("no driver reads this parameter").count(),
        1,
        "{heard}"
    );
    assert!(heard.contains("key=bogusOfThisTest"), "{heard}");
}

#[tokio::test]
async fn a_list_has_the_volumes_of_all_in_pages_of_any_size() {
    let (service, [a, b]) = two();
    let ids = |connection: &str, count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{connection}-{n:02}")).collect()
    };
    a.fill(ids("a", 7), "/x");
    b.fill(ids("b", 5), "/x");
    let mut expected: Vec<String> = ids("a", 7).iter().map(|id| format!("v:a/{id}")).collect();
    expected.extend(ids("b", 5).iter().map(|id| format!("v:b/{id}")));
    for max in [0, 1, 2, 3, 7, 12, 100] {
        let mut all = listed(&service, max).await.expect("a list");
        all.sort_unstable();
        assert_eq!(all, expected, "{max} a page");
    }
}

#[tokio::test]
async fn a_list_without_one_of_them_tells_the_others_and_does_not_end_well() {
    let (service, [a, b]) = two();
    a.fill(["x".to_owned()], "/x");
    b.fill(["y".to_owned()], "/y");
    a.trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    let (volumes, status) = listed(&service, 0).await.expect_err("not whole");
    assert_eq!(volumes, ["v:b/y"]);
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("connection `a`"),
        "{}",
        status.message()
    );
    assert_eq!(listed(&service, 0).await.expect("again").len(), 2);
}

#[tokio::test]
async fn of_several_connections_the_roomiest_makes_the_volume_and_keeps_it() {
    let (service, [a, b]) = two();
    let class = [("connections", "a, b")];
    a.room.store(10, Ordering::Relaxed);
    b.room.store(20, Ordering::Relaxed);
    let capacity = v1::GetCapacityRequest {
        parameters: parameters(&class),
        ..Default::default()
    };
    let room = service
        .get_capacity(Request::new(capacity))
        .await
        .expect("room");
    assert_eq!(
        room.into_inner().available_capacity,
        20,
        "the largest, not the sum"
    );
    let volume = made(&service, create("v", &class)).await.expect("made");
    assert_eq!(volume.volume_id, "v:b/v");
    a.room.store(30, Ordering::Relaxed);
    let again = made(&service, create("v", &class)).await.expect("the same");
    assert_eq!(again.volume_id, "v:b/v", "where it is, whatever the room");
    let other = made(&service, create("w", &class)).await.expect("made");
    assert_eq!(other.volume_id, "v:a/w");
    a.trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    let status = made(&service, create("x", &class))
        .await
        .expect_err("it may be there");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!a.has("x") && !b.has("x"));
}

#[tokio::test]
async fn the_place_decides_before_the_room_and_only_a_place_that_none_reaches_is_refused() {
    let drivers = [Memory::new(), Memory::new()];
    let zone = |zone: u8| {
        format!("proxy: {{perDriver: {{topology: [{{requirements: {{zone: z{zone}}}}}]}}}}")
    };
    let all = [("a", &drivers[0], &*zone(1)), ("b", &drivers[1], &*zone(2))];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    drivers[0].room.store(1, Ordering::Relaxed);
    let place = |zone: &str| {
        let key = "org.democratic-csi.topology/zone".to_owned();
        v1::Topology {
            segments: [(key, zone.to_owned())].into(),
        }
    };
    let mut request = create("v", &[("connections", "b,a")]);
    request.accessibility_requirements = Some(v1::TopologyRequirement {
        requisite: vec![place("z1"), place("z2")],
        preferred: vec![place("z1"), place("z2")],
    });
    let volume = made(&service, request.clone()).await.expect("made");
    assert_eq!(volume.volume_id, "v:a/v");
    let mut here = place("z1");
    let node = "org.democratic-csi.topology/node".to_owned();
    here.segments.insert(node, "node-1".to_owned());
    assert_eq!(volume.accessible_topology, [here]);
    request.accessibility_requirements = Some(v1::TopologyRequirement {
        requisite: vec![place("z3")],
        preferred: Vec::new(),
    });
    let status = made(&service, request).await.expect_err("nowhere");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let room = async |zone: &str| {
        let request = v1::GetCapacityRequest {
            parameters: parameters(&[("connections", "a,b")]),
            accessible_topology: Some(place(zone)),
            ..Default::default()
        };
        let room = service
            .get_capacity(Request::new(request))
            .await
            .expect("room");
        room.into_inner().available_capacity
    };
    assert_eq!((room("z1").await, room("z3").await), (1, 0));
}

#[tokio::test]
async fn a_copy_of_a_source_without_export_formats_stays_in_its_connection() {
    let (service, [a, _]) = two();
    a.fill(["x".to_owned()], "/x");
    let clone = |class: &str| {
        let mut request = create("copy", &[("connection", class)]);
        request.volume_content_source = Some(v1::VolumeContentSource {
            r#type: Some(Content::Volume(VolumeSource {
                volume_id: "v:a/x".into(),
            })),
        });
        request
    };
    let status = made(&service, clone("b"))
        .await
        .expect_err("another backend");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().contains("another connection, `a`")
            && status.message().contains("exports no content"),
        "{}",
        status.message()
    );
    let volume = made(&service, clone("a")).await.expect("made");
    let source = volume.content_source.and_then(|source| source.r#type);
    let expected = Content::Volume(VolumeSource {
        volume_id: "v:a/x".into(),
    });
    assert_eq!(source, Some(expected));
}

#[tokio::test]
async fn two_names_of_one_storage_copy_from_one_another() {
    let driver = Memory::new();
    let all = [("a", &driver, ""), ("b", &driver, "")];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    driver.fill(["x".to_owned()], "/x");
    let mut request = create("copy", &[("connection", "b")]);
    request.volume_content_source = Some(v1::VolumeContentSource {
        r#type: Some(Content::Volume(VolumeSource {
            volume_id: "v:a/x".into(),
        })),
    });
    let volume = made(&service, request.clone()).await.expect("made");
    assert_eq!(volume.volume_id, "v:b/copy");
    assert_eq!(volume.content_source, request.volume_content_source);
}

#[tokio::test]
async fn a_name_that_would_not_fit_into_a_handle_is_refused_before_anything_is_made() {
    let driver = Memory::new();
    let long = "c".repeat(48);
    let service = ControllerHandler(multi_connection(&[(&long, &driver, "")], Names::default()));
    let request = create(&"n".repeat(78), &[("connection", &long)]);
    let status = made(&service, request).await.expect_err("129 bytes");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(driver.asked(), 0);
    let request = create(&"n".repeat(77), &[("connection", &long)]);
    assert_eq!(
        made(&service, request)
            .await
            .expect("128 bytes")
            .volume_id
            .len(),
        128
    );
}

#[tokio::test]
async fn one_that_hangs_or_panics_leaves_the_other_at_work() {
    let (service, [a, b]) = two();
    b.fill(["y".to_owned()], "/y");
    a.trouble(Trouble::Wait);
    let hanging = {
        let service = service.clone();
        tokio::spawn(async move { made(&service, create("h", &[("connection", "a")])).await })
    };
    a.entered.notified().await;
    for n in 0..20 {
        let volume = made(&service, create(&format!("v{n}"), &[("connection", "b")])).await;
        assert!(volume.is_ok());
    }
    let busy = made(&service, create("h", &[("connection", "a")])).await;
    assert_eq!(busy.expect_err("it hangs").code(), Code::Aborted);
    a.go_on.notify_one();
    hanging.await.expect("no panic").expect("made in the end");
    a.trouble(Trouble::Panic(Effect::None));
    let status = made(&service, create("p", &[("connection", "a")]))
        .await
        .expect_err("a defect");
    assert_eq!(
        status.code(),
        Code::Unavailable,
        "an earlier call may have started it"
    );
    assert!(
        made(&service, create("q", &[("connection", "b")]))
            .await
            .is_ok()
    );
    assert!(
        made(&service, create("p", &[("connection", "a")]))
            .await
            .is_ok()
    );
}
