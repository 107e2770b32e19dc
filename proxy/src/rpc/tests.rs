//! Calls that are left, late, refused or broken.

use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::controller_server::Controller;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use tonic::Request;

use super::*;
use crate::csi::controller::ControllerHandler;
use crate::testing::{Memory, Trouble, plugin};

const CONFIG: &str = "driver: memory";

fn create(name: &str) -> Request<v1::CreateVolumeRequest> {
    Request::new(v1::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![v1::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }],
        ..v1::CreateVolumeRequest::default()
    })
}

fn delete(id: &str) -> Request<v1::DeleteVolumeRequest> {
    Request::new(v1::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..v1::DeleteVolumeRequest::default()
    })
}

fn service(driver: &Arc<Memory>) -> ControllerHandler {
    ControllerHandler(plugin(driver, CONFIG))
}

fn metric(service: &ControllerHandler, line: &str) -> bool {
    let page = service.0.runner.metrics.encode().expect("metrics");
    page.lines().any(|l| l == line)
}

/// Waits until no work is left.
async fn idle(service: &ControllerHandler) {
    let tracker = service.0.runner.tracker();
    tracker.close();
    tracker.wait().await;
    tracker.reopen();
}

#[tokio::test]
async fn work_whose_client_left_is_done_to_its_end_and_counted() {
    let driver = Memory::new();
    let service = service(&driver);
    driver.trouble(Trouble::Wait);
    {
        let call = std::pin::pin!(service.create_volume(create("a")));
        // The client leaves as soon as the work has started.
        tokio::select! {
            _ = call => panic!("the work waits"),
            () = driver.entered.notified() => {}
        }
    }
    assert!(!driver.has("a"));
    driver.go_on.notify_one();
    idle(&service).await;
    assert!(driver.has("a"), "the work went on");
    assert!(metric(
        &service,
        "omnibus_csi_rpc_abandoned_total{rpc=\"CreateVolume\"} 1"
    ));
    assert!(metric(
        &service,
        "omnibus_csi_rpc_in_flight{rpc=\"CreateVolume\"} 0"
    ));
    let again = service.delete_volume(delete("a")).await;
    assert!(again.is_ok(), "nothing is left locked: {again:?}");
}

#[tokio::test]
async fn a_second_call_for_the_same_object_is_aborted_at_once_and_names_the_first() {
    let driver = Memory::new();
    let service = service(&driver);
    driver.trouble(Trouble::Wait);
    let first = tokio::spawn({
        let service = service.clone();
        async move { service.create_volume(create("a")).await }
    });
    driver.entered.notified().await;
    let same = service
        .create_volume(create("a"))
        .await
        .expect_err("locked");
    let opposite = service
        .delete_volume(delete("a"))
        .await
        .expect_err("locked");
    for status in [same, opposite] {
        assert_eq!(status.code(), Code::Aborted);
        assert!(
            status.message().contains("CreateVolume"),
            "{}",
            status.message()
        );
    }
    let other = service.create_volume(create("b")).await;
    assert!(other.is_ok(), "another object is free: {other:?}");
    driver.go_on.notify_one();
    assert!(first.await.expect("task").is_ok());
}

#[tokio::test(start_paused = true)]
async fn work_that_overruns_is_answered_and_keeps_its_object_until_it_ends() {
    let driver = Memory::new();
    let service = service(&driver);
    driver.trouble(Trouble::Wait);
    let start = Instant::now();
    let status = service.delete_volume(delete("a")).await.expect_err("late");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(start.elapsed(), Deadlines::default().changing + GRACE);
    let retry = service
        .delete_volume(delete("a"))
        .await
        .expect_err("locked");
    assert_eq!(retry.code(), Code::Aborted);
    assert!(metric(
        &service,
        "omnibus_csi_rpc_in_flight{rpc=\"DeleteVolume\"} 1"
    ));
    driver.go_on.notify_one();
    idle(&service).await;
    assert!(service.delete_volume(delete("a")).await.is_ok());
    assert!(metric(
        &service,
        "omnibus_csi_rpc_in_flight{rpc=\"DeleteVolume\"} 0"
    ));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_half_of_its_time_for_a_connection_is_aborted_and_holds_nothing() {
    let runner = Runner::new(Deadlines::default(), Metrics::new());
    let start = Instant::now();
    let reply = runner.detached(Rpc::DeleteVolume, |incoming| {
        let work = async {
            std::future::pending::<()>().await;
            incoming.admit(Subject::default(), Keys::none()).map(drop)
        };
        work.boxed()
    });
    let status = reply.await.expect_err("late");
    assert_eq!(start.elapsed(), Deadlines::default().changing / 2);
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().contains("not built yet"), "{status:?}");
    assert_eq!(runner.tracker().len(), 0);
}

#[tokio::test]
async fn a_panic_costs_one_call_and_is_not_final() {
    let driver = Memory::new();
    let service = service(&driver);
    for (name, trouble) in [
        ("a", Trouble::PanicInName),
        ("b", Trouble::Panic(Effect::None)),
        ("c", Trouble::Panic(Effect::Possible)),
    ] {
        driver.trouble(trouble);
        let status = service
            .create_volume(create(name))
            .await
            .expect_err("panic");
        assert_eq!(status.code(), Code::Unavailable, "{trouble:?}");
        assert!(
            !status.message().contains("hunter2"),
            "{}",
            status.message()
        );
        driver.trouble(Trouble::Fail(Kind::NotFound, Effect::None));
        let next = service
            .create_volume(create(name))
            .await
            .expect_err("it must fail");
        assert_eq!(
            next.code(),
            Code::NotFound,
            "after {trouble:?}, and not locked"
        );
    }
}

#[tokio::test]
async fn a_driver_that_forgets_its_first_change_is_not_believed() {
    let driver = Memory::new();
    let service = service(&driver);
    for kind in [Kind::Internal, Kind::Unreachable, Kind::Denied] {
        driver.trouble(Trouble::Forget(kind));
        let status = service
            .create_volume(create("a"))
            .await
            .expect_err("it must fail");
        assert_eq!(status.code(), Code::Unavailable, "{kind:?}");
    }
    for name in ["a", "b"] {
        driver.trouble(Trouble::Forget(Kind::OutOfSpace));
        let status = service
            .create_volume(create(name))
            .await
            .expect_err("it must fail");
        let believed = Code::ResourceExhausted;
        assert_eq!(status.code(), believed, "a judgement is believed");
    }
}

#[tokio::test]
async fn passing_trouble_never_makes_the_caller_forget_what_an_earlier_process_may_have_begun() {
    for (kind, nothing_there) in [
        (Kind::Unreachable, Code::Unavailable),
        (Kind::Denied, Code::Unauthenticated),
        (Kind::Internal, Code::Internal),
    ] {
        // A process that knows of no earlier call, as after a kill.
        let driver = Memory::new();
        let service = service(&driver);
        let attempt = async |name: &str| {
            driver.trouble(Trouble::Fail(kind, Effect::None));
            let created = service.create_volume(create(name)).await;
            created.expect_err("it must fail").code()
        };
        assert_eq!(attempt("a").await, nothing_there, "{kind:?}");
        driver.begin("b");
        assert_eq!(attempt("b").await, Code::Unavailable, "{kind:?}");
        let snapshot = v1::CreateSnapshotRequest {
            name: "one".into(),
            source_volume_id: "a".into(),
            ..Default::default()
        };
        // The storage cannot be asked for what an earlier call has started of it.
        driver.trouble(Trouble::Fail(kind, Effect::None));
        let taken = service.create_snapshot(Request::new(snapshot)).await;
        let code = taken.expect_err("it must fail").code();
        assert_eq!(code, Code::Unavailable, "{kind:?}");
    }
    // A deletion is asked for again whatever the code.
    let driver = Memory::new();
    let service = service(&driver);
    driver.trouble(Trouble::Fail(Kind::Denied, Effect::None));
    let deleted = service.delete_volume(delete("a")).await;
    assert_eq!(
        deleted.expect_err("it must fail").code(),
        Code::Unauthenticated
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_free_as_soon_as_the_answer_was_read() {
    let driver = Memory::new();
    let service = service(&driver);
    for _ in 0..2_000 {
        service.create_volume(create("a")).await.expect("created");
        service.delete_volume(delete("a")).await.expect("deleted");
    }
}

#[tokio::test]
async fn a_question_that_panics_costs_one_call() {
    let runner = Runner::new(Deadlines::default(), Metrics::new());
    let reply = runner.quick::<()>(Rpc::Probe, || panic!("hunter2"));
    let status = reply.expect_err("a panic");
    assert_eq!(status.code(), Code::Internal);
    assert!(!status.message().contains("hunter2"));
}

mod logs {
    use super::*;
    use crate::testing::log::{heard, listen};

    #[tokio::test]
    async fn each_call_ends_with_one_line_that_tells_who_what_and_how_it_ended() {
        listen();
        let driver = Memory::new();
        let service = service(&driver);
        service
            .create_volume(create("vol-1"))
            .await
            .expect("created");
        driver.trouble(Trouble::Fail(Kind::Internal, Effect::None));
        assert!(service.delete_volume(delete("vol-1")).await.is_err());
        let text = heard();
        let done: Vec<_> = text.lines().filter(|l| l.contains("duration_ms")).collect();
        assert_eq!(done.len(), 2, "{text}");
        for part in ["INFO", "CreateVolume", "vol-1", "request_id=1", "code=OK"] {
            assert!(done[0].contains(part), "{part} in {}", done[0]);
        }
        for part in [
            "ERROR",
            "DeleteVolume",
            "vol-1",
            "code=INTERNAL",
            "work on memory",
        ] {
            assert!(done[1].contains(part), "{part} in {}", done[1]);
        }
    }

    fn last(text: &str) -> &str {
        let ended = |line: &&str| line.contains("duration_ms");
        text.lines().rfind(ended).expect("a line")
    }

    #[tokio::test]
    async fn questions_are_logged_at_debug_and_changes_at_info() {
        listen();
        let service = service(&Memory::new());
        let asked = service.list_volumes(Request::new(v1::ListVolumesRequest::default()));
        assert!(asked.await.is_ok());
        let text = heard();
        assert!(last(&text).contains("DEBUG"), "{text}");
        assert!(text.contains("ListVolumes succeeded"), "{text}");
        service.create_volume(create("a")).await.expect("created");
        let text = heard();
        assert!(last(&text).contains("INFO"), "{text}");
        assert!(text.contains("CreateVolume succeeded"), "{text}");
        assert!(!text.contains("abandoned"), "{text}");
    }

    #[tokio::test]
    async fn the_line_of_a_new_volume_has_its_size_its_claim_and_its_source() {
        listen();
        let service = service(&Memory::new());
        service
            .create_volume(create("origin"))
            .await
            .expect("created");
        let mut request = create("a").into_inner();
        request.capacity_range = Some(v1::CapacityRange {
            required_bytes: 4096,
            limit_bytes: 0,
        });
        for (key, value) in [("namespace", "shop"), ("name", "data")] {
            let key = format!("csi.storage.k8s.io/pvc/{key}");
            request.parameters.insert(key, value.to_owned());
        }
        let source = v1::volume_content_source::VolumeSource {
            volume_id: "origin".to_owned(),
        };
        request.volume_content_source = Some(v1::VolumeContentSource {
            r#type: Some(v1::volume_content_source::Type::Volume(source)),
        });
        heard();
        // Whether this driver can clone does not matter here.
        let _ = service.create_volume(Request::new(request)).await;
        let text = heard();
        for part in ["size=4096", "claim=shop/data", "source=origin"] {
            assert!(last(&text).contains(part), "{part}: {text}");
        }
    }

    #[tokio::test]
    async fn no_log_at_any_level_holds_a_secret_a_flag_or_a_line_break_of_the_client() {
        listen();
        let driver = Memory::new();
        let service = service(&driver);
        let mut request = create("v\n2026 ERROR forged\u{9}").into_inner();
        let secret = "hunter2".to_owned();
        request.secrets.insert("password".into(), secret.clone());
        request.parameters.insert("a".into(), secret.clone());
        let Some(AccessType::Mount(mount)) = &mut request.volume_capabilities[0].access_type else {
            panic!("a mounted volume");
        };
        mount.mount_flags.push(format!("password={secret}"));
        assert!(
            service
                .create_volume(Request::new(request.clone()))
                .await
                .is_ok()
        );
        request.secrets.insert("bad key".into(), secret.clone());
        assert!(service.create_volume(Request::new(request)).await.is_err());
        driver.trouble(Trouble::Panic(Effect::Possible));
        assert!(service.create_volume(create("b")).await.is_err());
        let text = heard();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("volume=v 2026 ERROR forged"), "{text}");
        assert!(
            text.lines().all(|l| !l.starts_with("2026 ERROR forged")),
            "{text}"
        );
    }
}
