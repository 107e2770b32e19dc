//! Allocated and changed ranges of snapshots.

use std::time::Duration;

use driver_core::contract::fake::{Gate, Moment, Trick, Verb};
use driver_core::{BlockRange, Kind};
use omnibus_csi::rpc::{Deadlines, Rpc};

use super::*;

const BLOCK: u64 = 4096;
const SIZE: i64 = 64 * 4096;

fn write(driver: &FakeDriver, volume: &str, blocks: &[(u64, u64)]) {
    for (at, count) in blocks {
        let range = BlockRange {
            offset: at * BLOCK,
            length: count * BLOCK,
        };
        driver.write(&id(volume), range);
    }
}

fn allocated(snapshot: &str, offset: i64, max: i32) -> v1::GetMetadataAllocatedRequest {
    v1::GetMetadataAllocatedRequest {
        snapshot_id: snapshot.to_owned(),
        starting_offset: offset,
        max_results: max,
        secrets: secrets(),
    }
}

fn delta(base: &str, target: &str, offset: i64, max: i32) -> v1::GetMetadataDeltaRequest {
    v1::GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        starting_offset: offset,
        max_results: max,
        secrets: secrets(),
    }
}

/// The blocks of each message; each says the size of the volume, and that ranges are of any length.
type Pieces = Vec<Vec<(u64, u64)>>;

fn blocks(kind: i32, capacity: i64, ranges: &[v1::BlockMetadata]) -> Vec<(u64, u64)> {
    assert_eq!((kind, capacity), (2, SIZE));
    let whole = |bytes: i64| u64::try_from(bytes).expect("a size") / BLOCK;
    let ranges = ranges.iter();
    ranges
        .map(|range| (whole(range.byte_offset), whole(range.size_bytes)))
        .collect()
}

async fn of_all(
    served: &Served,
    request: v1::GetMetadataAllocatedRequest,
) -> Result<Pieces, (Pieces, Status)> {
    let mut pieces = Vec::new();
    let reply = served.ranges().get_metadata_allocated(request).await;
    let mut stream = reply.map_err(|status| (Vec::new(), status))?.into_inner();
    loop {
        match stream.message().await {
            Ok(Some(m)) => pieces.push(blocks(
                m.block_metadata_type,
                m.volume_capacity_bytes,
                &m.block_metadata,
            )),
            Ok(None) => return Ok(pieces),
            Err(status) => return Err((pieces, status)),
        }
    }
}

async fn of_changed(
    served: &Served,
    request: v1::GetMetadataDeltaRequest,
) -> Result<Pieces, Status> {
    let mut pieces = Vec::new();
    let reply = served.ranges().get_metadata_delta(request).await?;
    let mut stream = reply.into_inner();
    while let Some(m) = stream.message().await? {
        let (kind, size) = (m.block_metadata_type, m.volume_capacity_bytes);
        pieces.push(blocks(kind, size, &m.block_metadata));
    }
    Ok(pieces)
}

/// A volume with two snapshots.
async fn written(served: &Served, driver: &FakeDriver, name: &str) -> [String; 2] {
    let volume = served.volume(name, SIZE).await;
    let own = name.rsplit('/').next().expect("a name");
    write(driver, own, &[(0, 2), (5, 1), (10, 4), (20, 1), (60, 4)]);
    let older = served.snapshot(&volume, "older").await;
    write(driver, own, &[(5, 1), (12, 4), (63, 1)]);
    let newer = served.snapshot(&volume, "newer").await;
    [older, newer]
}

#[tokio::test]
async fn ranges_come_in_pieces_in_order_and_from_any_offset_on() {
    let (served, driver) = alone().await;
    assert!(served.advertised().await.contains(&4));
    let [older, newer] = written(&served, &driver, "x").await;
    let ranges = async |offset, max| of_all(&served, allocated(&older, offset, max)).await;
    let all = [(0, 2), (5, 1), (10, 4), (20, 1), (60, 4)];
    assert_eq!(ranges(0, 0).await.expect("all"), [all.to_vec()]);
    let two = ranges(0, 2).await.expect("pieces");
    assert_eq!(two, [&all[..2], &all[2..4], &all[4..]]);
    // In the middle of a range, at its end, and behind the last one.
    let middle = ranges(11 * 4096 + 7, 1).await.expect("the rest");
    assert_eq!(middle, [[(11, 3)], [(20, 1)], [(60, 4)]]);
    let end = ranges(14 * 4096, 9).await.expect("the rest");
    assert_eq!(end, [[(20, 1), (60, 4)]]);
    assert_eq!(ranges(SIZE, 9).await.expect("no more"), [[]]);

    let changed = async |offset, max| of_changed(&served, delta(&older, &newer, offset, max)).await;
    assert_eq!(
        changed(0, 2).await.expect("pieces"),
        [vec![(5, 1), (12, 4)], vec![(63, 1)]]
    );
    assert_eq!(
        changed(13 * 4096, 0).await.expect("the rest"),
        [[(13, 3), (63, 1)]]
    );
    let same = of_changed(&served, delta(&newer, &newer, 0, 0)).await;
    assert_eq!(same.expect("nothing"), [[]], "the size is always there");
    served.counts("omnibus_csi_rpc_total{rpc=\"GetMetadataDelta\",code=\"OK\",connection=\"\"} 3");
}

#[tokio::test]
async fn what_cannot_be_listed_is_refused_before_the_first_message() {
    let (served, driver) = alone().await;
    let [older, newer] = written(&served, &driver, "x").await;
    served.volume("y", SIZE).await;
    let other = served.snapshot("y", "other").await;
    for (request, code, text) in [
        (allocated("", 0, 0), Code::InvalidArgument, "snapshot_id"),
        (
            allocated(&older, -1, 0),
            Code::OutOfRange,
            "starting_offset",
        ),
        (allocated(&older, SIZE + 1, 0), Code::OutOfRange, ""),
        (
            allocated(&older, 0, -1),
            Code::InvalidArgument,
            "max_results",
        ),
        (allocated("x@missing", 0, 0), Code::NotFound, "x@missing"),
    ] {
        let reply = served.ranges().get_metadata_allocated(request).await;
        is(&reply.expect_err(text), code, text);
    }
    for (request, code, text) in [
        (
            delta("", &newer, 0, 0),
            Code::InvalidArgument,
            "base_snapshot_id",
        ),
        (
            delta(&older, "", 0, 0),
            Code::InvalidArgument,
            "target_snapshot_id",
        ),
        (
            delta(&other, &newer, 0, 0),
            Code::FailedPrecondition,
            "base",
        ),
        (delta(&newer, &older, 0, 0), Code::InvalidArgument, "base"),
        (
            delta("x@missing", &newer, 0, 0),
            Code::FailedPrecondition,
            "x@missing",
        ),
        (
            delta(&older, "x@missing", 0, 0),
            Code::NotFound,
            "x@missing",
        ),
    ] {
        let reply = served.ranges().get_metadata_delta(request).await;
        is(&reply.expect_err(text), code, text);
    }
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_and_goes_on_where_it_was() {
    let (served, driver) = alone().await;
    let [older, _] = written(&served, &driver, "x").await;
    for (trick, code) in [
        (Trick::Fail(Kind::Unreachable), Code::Unavailable),
        (Trick::Panic, Code::Internal),
    ] {
        let gate = Gate::new();
        gate.open();
        let verb = Verb::NextRanges;
        driver.play(verb, Moment::BeforeChange, Trick::Block(gate));
        driver.play(verb, Moment::BeforeChange, trick);
        let broken = of_all(&served, allocated(&older, 0, 2)).await;
        let (pieces, status) = broken.expect_err("it broke");
        is(&status, code, "");
        assert_eq!(pieces, [[(0, 2), (5, 1)]], "what came before is right");
        let rest = of_all(&served, allocated(&older, 6 * 4096, 2)).await;
        assert_eq!(
            rest.expect("the rest"),
            [vec![(10, 4), (20, 1)], vec![(60, 4)]]
        );
    }
}

#[tokio::test]
async fn a_stream_holds_its_snapshots_and_ends_when_its_client_leaves() {
    let (served, driver) = alone().await;
    let [older, newer] = written(&served, &driver, "x").await;
    let (open, shut) = (Gate::new(), Gate::new());
    open.open();
    for gate in [&open, &shut] {
        let trick = Trick::Block(gate.clone());
        driver.play(Verb::NextRanges, Moment::BeforeChange, trick);
    }
    let mut client = served.ranges();
    let reply = client.get_metadata_delta(delta(&older, &newer, 0, 1)).await;
    let mut stream = reply.expect("a stream").into_inner();
    stream
        .message()
        .await
        .expect("a message")
        .expect("a message");
    shut.reached().await;
    for id in [&older, &newer] {
        let status = served.delete_snapshot(id).await.expect_err("in use");
        is(&status, Code::Aborted, "GetMetadataDelta");
    }
    drop(stream);
    // The driver is still at its work, which is dropped.
    served.idle().await;
    served.counts("omnibus_csi_rpc_abandoned_total{rpc=\"GetMetadataDelta\"} 1");
    served.counts("omnibus_csi_rpc_in_flight{rpc=\"GetMetadataDelta\"} 0");
    for id in [&older, &newer] {
        served.delete_snapshot(id).await.expect("free");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_at_its_deadline_with_an_error() {
    let driver = Arc::new(FakeDriver::new());
    let plugin = process(of_one(driver.clone(), "driver: fake"), &Metrics::new());
    // Without a socket, which a clock that stands still does not know.
    let mut client = SnapshotMetadataClient::new(plugin.clone().routes());
    let gate = Gate::new();
    driver.play(Verb::BlockRanges, Moment::BeforeChange, Trick::Block(gate));
    let start = tokio::time::Instant::now();
    let reply = client.get_metadata_allocated(allocated("x@s", 0, 0)).await;
    let status = reply.expect_err("late");
    is(&status, Code::DeadlineExceeded, "");
    let deadline = Deadlines::default().of(Rpc::GetMetadataAllocated);
    assert_eq!(start.elapsed(), deadline + Duration::from_secs(1));
    // What hangs is dropped with the answer.
    let tracker = plugin.runner.tracker();
    tracker.close();
    tracker.wait().await;
}

#[tokio::test]
async fn snapshots_of_two_connections_are_never_compared() {
    let (served, [a, b]) = two().await;
    assert!(served.advertised().await.contains(&4));
    let [older, newer] = written(&served, &a, "a/x").await;
    let [foreign, _] = written(&served, &b, "b/x").await;
    assert!(older.starts_with("s:a/") && foreign.starts_with("s:b/"));
    let all = of_all(&served, allocated(&newer, 0, 0)).await;
    assert_eq!(all.expect("all").concat().len(), 5);
    let changed = of_changed(&served, delta(&older, &newer, 0, 1)).await;
    assert_eq!(changed.expect("changed"), [[(5, 1)], [(12, 4)], [(63, 1)]]);
    for (base, text) in [
        (
            &*foreign,
            "it is on connection `b`, and the target is on connection `a`",
        ),
        ("s:c/x", "`c`"),
        // Of another driver, and of none.
        ("snap-1", "`snap-1`"),
        ("s:a", "`s:a`"),
    ] {
        let status = of_changed(&served, delta(base, &newer, 0, 0)).await;
        is(&status.expect_err(base), Code::FailedPrecondition, text);
    }
}
