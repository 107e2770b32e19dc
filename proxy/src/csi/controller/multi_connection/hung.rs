//! Storage that hangs: how many of the shared threads it holds.

use std::time::Duration;

use driver_core::Call;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::routing::connections::LazyConnection;
use crate::testing::among;

/// Less than the limit of a test, and more than any work that does not hang.
const LONG: Duration = Duration::from_mins(1);

async fn room(service: &ControllerHandler, class: &[(&str, &str)]) -> Result<i64, Status> {
    let request = v1::GetCapacityRequest {
        parameters: parameters(class),
        ..Default::default()
    };
    let reply = service.get_capacity(Request::new(request)).await?;
    Ok(reply.into_inner().available_capacity)
}

/// The threads of all connections together: with none left, no call is served. A thread that hangs
/// stops the automatic clock.
fn small_runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(8)
        .build()
        .expect("a runtime")
}

/// Calls to `a`, and as many probes of it, all of which have started.
async fn ask_often(service: &ControllerHandler) -> Vec<JoinHandle<Result<i64, Status>>> {
    let mut asked = Vec::new();
    let connection = service.0.connections.all()[0].peek().expect("there");
    for _ in 0..50 {
        let (service, connection) = (service.clone(), connection.clone());
        asked.push(tokio::spawn(async move {
            room(&service, &[("connection", "a")]).await
        }));
        tokio::spawn(async move { connection.probe(&Call::within(LONG)).await });
    }
    tokio::task::yield_now().await;
    asked
}

/// Creates a volume at a connection, in a thread.
async fn makes_a_volume(service: &ControllerHandler, at: &str, driver: &Memory) {
    let waits = driver.gate.shut();
    let volume = create("v", &[("connection", at)]);
    let made = tokio::spawn({
        let service = service.clone();
        async move { made(&service, volume).await }
    });
    driver.entered.notified().await;
    drop(waits);
    made.await.expect("no panic").expect("made");
}

#[test]
fn one_that_hangs_leaves_threads_to_the_others_however_often_it_is_asked() {
    let runtime = small_runtime();
    let (service, [a, b]) = two();
    // Opened before the runtime waits for its threads, in any case.
    let _hangs = a.gate.shut();
    runtime.block_on(async {
        let asked = ask_often(&service).await;
        let answered = || asked.iter().filter(|call| call.is_finished()).count();
        assert_eq!(answered(), 0, "a thread may come back");
        makes_a_volume(&service, "b", &b).await;
        tokio::time::advance(Duration::from_secs(10)).await;
        while answered() < 49 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(Duration::from_secs(20)).await;
        let start = Instant::now();
        let status = room(&service, &[("connection", "a")]).await;
        let status = status.expect_err("no thread for it");
        assert_eq!(status.code(), Code::Aborted);
        assert!(status.message().contains("hangs"), "{}", status.message());
        let connection = service.0.connections.all()[0].peek().expect("there");
        let problems = connection.probe(&Call::within(LONG)).await;
        assert_eq!(problems.len(), 1, "the last look has not come back");
        assert_eq!(start.elapsed(), Duration::ZERO, "no call waits in vain");
        makes_a_volume(&service, "b", &b).await;
    });
}

#[test]
fn one_that_is_drained_and_hangs_keeps_no_volume_from_being_made_elsewhere() {
    let runtime = small_runtime();
    let (service, [a, b]) = super::choice::closed();
    let _hangs = a.gate.shut();
    let make = |volume: &str| {
        let (service, request) = (service.clone(), create(volume, &super::choice::BOTH));
        tokio::spawn(async move { made(&service, request).await })
    };
    runtime.block_on(async {
        let first = make("v");
        a.entered.notified().await;
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(15)).await;
        first.await.expect("no panic").expect("made elsewhere");
        // Its only thread may still return; later it is known not to.
        let next = make("w");
        a.entered.notified().await;
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(10)).await;
        let status = next.await.expect("no panic").expect_err("not known");
        assert_eq!(status.code(), Code::Aborted);
        tokio::time::advance(Duration::from_secs(20)).await;
        let later = make("w").await.expect("no panic");
        assert_eq!(later.expect("made elsewhere").volume_id, "v:b/w");
        assert!(b.has("v"));
    });
}

#[test]
fn what_is_put_in_the_place_of_one_that_hangs_is_served() {
    let runtime = small_runtime();
    let (old, new) = (Memory::new(), Memory::new());
    let plugin = multi_connection(&[("a", &old, "")], Names::default());
    let service = ControllerHandler(plugin);
    let _hangs = old.gate.shut();
    runtime.block_on(async {
        let _asked = ask_often(&service).await;
        tokio::time::advance(LONG).await;
        let connections = &service.0.connections;
        connections.put(LazyConnection::fixed(among("a", &new, "")));
        makes_a_volume(&service, "a", &new).await;
        let connection = connections.all()[0].peek().expect("there");
        let waits = new.gate.shut();
        let probe = tokio::spawn(async move { connection.probe(&Call::within(LONG)).await });
        tokio::task::yield_now().await;
        drop(waits);
        assert!(probe.await.expect("no panic").is_empty());
    });
}

#[test]
fn a_list_goes_on_without_one_that_has_no_thread_for_the_rest_of_its_own() {
    let runtime = small_runtime();
    let (service, drivers) = two();
    for (driver, of) in drivers.iter().zip(["a", "b"]) {
        driver.fill((0..4).map(|n| format!("{of}{n}")), "/x");
    }
    let page = |token: String| {
        let service = service.clone();
        let request = v1::ListVolumesRequest {
            max_entries: 3,
            starting_token: token,
        };
        tokio::spawn(async move { service.list_volumes(Request::new(request)).await })
    };
    runtime.block_on(async {
        let first = page(String::new()).await.expect("no panic");
        let first = first.expect("a page").into_inner();
        let listed = first.entries[0].volume.as_ref().expect("a volume");
        let (hung, class) = if listed.volume_id.starts_with("v:a/") {
            (&drivers[0], "a")
        } else {
            (&drivers[1], "b")
        };
        let (_hangs, asked) = (hung.gate.shut(), hung.asked());
        let waiting = service.clone();
        tokio::spawn(async move { room(&waiting, &[("connection", class)]).await });
        while hung.asked() == asked {
            tokio::task::yield_now().await;
        }
        let next = page(first.next_token);
        while !next.is_finished() {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let next = next.await.expect("no panic").expect("a page").into_inner();
        assert!(!next.entries.is_empty());
        for entry in next.entries {
            let id = entry.volume.expect("a volume").volume_id;
            assert!(!id.starts_with(&format!("v:{class}/")), "{id}");
        }
    });
}

#[tokio::test]
async fn one_with_a_defect_leaves_the_answers_of_the_others() {
    let (service, [a, b]) = two();
    a.fill(["x".to_owned()], "/x");
    b.fill(["y".to_owned()], "/y");
    b.room.store(20, Ordering::Relaxed);
    a.trouble(Trouble::Panic(Effect::None));
    let (volumes, status) = listed(&service, 0).await.expect_err("not whole");
    assert_eq!(
        (volumes, status.code()),
        (vec!["v:b/y".to_owned()], Code::Unavailable)
    );
    a.trouble(Trouble::Panic(Effect::None));
    assert_eq!(room(&service, &[]).await.expect("room"), 20);
    a.trouble(Trouble::Panic(Effect::None));
    let status = made(&service, create("v", &[("connections", "a,b")]))
        .await
        .expect_err("it may have the volume");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("connection `a` may have"),
        "{}",
        status.message()
    );
    assert!(!b.has("v"));
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_answer_is_missing_in_a_list_and_in_no_other_way() {
    let (service, [a, b]) = two();
    a.fill(["x".to_owned()], "/x");
    b.fill(["y".to_owned()], "/y");
    b.room.store(20, Ordering::Relaxed);
    a.trouble(Trouble::Wait);
    let (volumes, status) = listed(&service, 0).await.expect_err("not whole");
    assert_eq!(
        (volumes, status.code()),
        (vec!["v:b/y".to_owned()], Code::Unavailable)
    );
    a.trouble(Trouble::Wait);
    assert_eq!(room(&service, &[]).await.expect("room"), 20);
}

#[tokio::test]
async fn a_full_page_asks_no_further_connection() {
    let drivers: Vec<_> = (0..8).map(|_| Memory::new()).collect();
    let names: Vec<_> = (0..8).map(|n| format!("c{n}")).collect();
    let all = names.iter().zip(&drivers);
    let all: Vec<_> = all.map(|(n, d)| (&**n, d, "")).collect();
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    for driver in &drivers {
        driver.fill(["x".to_owned(), "y".to_owned()], "/x");
    }
    let request = v1::ListVolumesRequest {
        max_entries: 1,
        ..Default::default()
    };
    let reply = service.list_volumes(Request::new(request)).await;
    assert_eq!(reply.expect("a page").into_inner().entries.len(), 1);
    let asked: u64 = drivers.iter().map(|driver| driver.asked()).sum();
    assert_eq!(asked, 1);
    assert_eq!(listed(&service, 3).await.expect("a list").len(), 16);
}

#[tokio::test]
async fn connections_that_come_and_go_between_two_pages_neither_repeat_nor_hide_the_others() {
    let (service, [a, b]) = two();
    for (driver, of) in [(&a, "a"), (&b, "b")] {
        driver.fill((0..4).map(|n| format!("{of}{n}")), "/x");
    }
    let page = async |token: String| {
        let request = v1::ListVolumesRequest {
            max_entries: 3,
            starting_token: token,
        };
        let reply = service.list_volumes(Request::new(request)).await;
        let reply = reply.expect("a page").into_inner();
        let volumes = reply.entries.into_iter().filter_map(|entry| entry.volume);
        let ids: Vec<_> = volumes.map(|volume| volume.volume_id).collect();
        (ids, reply.next_token)
    };
    let (first, token) = page(String::new()).await;
    assert_eq!(first.len(), 3);
    let a_first = first[0].starts_with("v:a/");
    let (listed_now, other) = if a_first { ("a", "b") } else { ("b", "a") };
    service.0.connections.remove(&name(listed_now));
    let (mut rest, mut token) = page(token).await;
    while !token.is_empty() {
        let (more, next) = page(token).await;
        rest.extend(more);
        token = next;
    }
    let expected: Vec<_> = (0..4).map(|n| format!("v:{other}/{other}{n}")).collect();
    assert_eq!(rest, expected);
}

#[tokio::test]
async fn snapshots_are_listed_for_the_requested_source() {
    let (service, [a, _]) = two();
    a.fill(["x".to_owned()], "/x");
    let request = v1::CreateSnapshotRequest {
        name: "s".into(),
        source_volume_id: "v:old/x".into(),
        ..Default::default()
    };
    let made = service.create_snapshot(Request::new(request)).await;
    let made = made.expect("taken").into_inner().snapshot.expect("one");
    for snapshot_id in ["", "s:old/s"] {
        let request = v1::ListSnapshotsRequest {
            source_volume_id: "v:old/x".into(),
            snapshot_id: snapshot_id.into(),
            ..Default::default()
        };
        let listed = service.list_snapshots(Request::new(request)).await;
        let mut listed = listed.expect("a list").into_inner().entries;
        let found = listed.pop().expect("one").snapshot.expect("one");
        assert_eq!(found.source_volume_id, "v:old/x");
        let expected = if snapshot_id.is_empty() {
            &made.snapshot_id
        } else {
            snapshot_id
        };
        assert_eq!(found.snapshot_id, *expected);
        assert!(listed.is_empty());
    }
}
