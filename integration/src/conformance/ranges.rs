//! The ranges of a snapshot that hold data, and those that differ from an older one.

use std::fs;

use csi_proto::v1 as csi;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use futures_util::future::join_all;
use tonic::{Code, Response, Status};

use super::Target;
use super::optional::{Optional, SECRET, secrets, with};
use super::world::{World, asks_again, ends_with};
use crate::client::Client;
use crate::requirement;
use crate::server::{Server, log_of};
use crate::{volume, wait};

/// The bytes that are written.
const BYTES: i64 = 4 << 20;

/// A question for the ranges that differ from a base, or hold data: of a snapshot, from an offset, with so many in a message.
#[derive(Debug, Clone, Copy)]
struct Question<'a>(Option<&'a str>, &'a str, i64, i32);

/// The size of a snapshot and its ranges.
type Ranges = (i64, Vec<[i64; 2]>);

/// Some of the messages of an answer; after the first of them a server is killed, if there is one.
macro_rules! read {
    ($answer:expr, $messages:expr, $killed:expr) => {{
        let (mut stream, mut all) = ($answer.await?.into_inner(), Ranges::default());
        for _ in 0..$messages {
            let Some(piece) = stream.message().await? else {
                break;
            };
            let ranges = piece.block_metadata.iter();
            all.0 = piece.volume_capacity_bytes;
            all.1
                .extend(ranges.map(|one| [one.byte_offset, one.size_bytes]));
            if let Some(server) = $killed.take() {
                server.kill().await;
            }
        }
        Ok(all)
    }};
}

impl Question<'_> {
    async fn ask(self, client: &Client, messages: usize) -> Result<Ranges, Status> {
        self.ask_amid(client, messages, None).await
    }

    async fn ask_amid(
        self,
        client: &Client,
        messages: usize,
        mut killed: Option<&mut Server>,
    ) -> Result<Ranges, Status> {
        let Self(base, of, starting_offset, max_results) = self;
        let mut service = SnapshotMetadataClient::new(client.channel.clone());
        let secrets = secrets();
        if let Some(base) = base {
            let request = csi::GetMetadataDeltaRequest {
                base_snapshot_id: base.to_owned(),
                target_snapshot_id: of.to_owned(),
                starting_offset,
                max_results,
                secrets,
            };
            read!(service.get_metadata_delta(request), messages, killed)
        } else {
            let request = csi::GetMetadataAllocatedRequest {
                snapshot_id: of.to_owned(),
                starting_offset,
                max_results,
                secrets,
            };
            read!(service.get_metadata_allocated(request), messages, killed)
        }
    }
}

/// A snapshot that has blocks in common with its volume, whatever the parameters of the target are.
async fn cut(world: &World<'_>, name: &str, volume: &csi::Volume) -> String {
    let request = volume::snapshot(name, &volume.volume_id);
    let cut = world.client.snapshot(request).await;
    cut.expect("a snapshot").snapshot_id
}

/// Again, by many, in pieces, with a kill amid the stream, and from each place by the next process.
pub async fn ranges_are_in_order_and_the_same_from_any_place_also_after_a_kill(
    target: &dyn Target,
) {
    let Some(mut world) = with(target, Optional::Ranges).await else {
        return;
    };
    if !requirement::root("ranges of what was written") {
        return world.end().await;
    }
    let written = world.volume("written").await;
    let mut cuts = Vec::new();
    for name in ["before", "after"] {
        let pod = world.mount(&written).await;
        let bytes = vec![b'x'; usize::try_from(BYTES).expect("a few")];
        fs::write(pod.join(name), bytes).expect("a file");
        world.unmount(&written).await;
        cuts.push(cut(&world, name, &written).await);
    }
    for base in [None, Some(&*cuts[0])] {
        let question = Question(base, &cuts[1], 0, 0);
        let whole = question
            .ask(&world.client, usize::MAX)
            .await
            .expect("ranges");
        let (capacity, ranges) = &whole;
        let mut end = 0;
        for [offset, size] in ranges {
            assert!(*offset >= end && *size > 0, "out of order: {ranges:?}");
            end = offset + size;
        }
        let bytes: i64 = ranges.iter().map(|[_, size]| size).sum();
        assert!(end <= *capacity && *capacity >= written.capacity_bytes);
        assert!(bytes >= BYTES, "{bytes} of the bytes of a file");
        for again in join_all([question; 8].map(|one| one.ask(&world.client, usize::MAX))).await {
            assert_eq!(again.expect("ranges"), whole);
        }
        let first = Question(base, &cuts[1], 0, 1).ask(&world.client, 1).await;
        assert_eq!(first.expect("a range").1, ranges[..1]);
        // What is cut is never taken for the whole.
        let (client, pieces) = (world.client.clone(), Question(base, &cuts[1], 0, 1));
        let killed = Some(&mut world.server);
        let cut = pieces.ask_amid(&client, usize::MAX, killed).await;
        assert!(cut.is_err() || cut.is_ok_and(|all| all == whole), "half");
        world.start_again().await;
        for from in [0, ranges.len() / 2, ranges.len() - 1] {
            let rest = Question(base, &cuts[1], ranges[from][0], 1);
            let rest = wait::until_answered("the rest of the ranges", async || {
                let rest = rest.ask(&world.client, usize::MAX).await;
                let code = rest.as_ref().map_or_else(Status::code, |_| Code::Ok);
                (!asks_again(code)).then_some(rest)
            });
            let rest = rest.await.expect("the rest");
            assert_eq!(rest, (*capacity, ranges[from..].to_vec()));
        }
    }
    for cut in cuts.iter().rev() {
        world.remove_snapshot(cut).await;
    }
    world.remove(&written.volume_id).await;
    assert!(
        !log_of(&world.place).contains(SECRET),
        "a secret in the log"
    );
    world.end().await;
}

/// Ids that are missing or of nothing, places that there are not, a base of another volume or of another driver.
pub async fn wrong_questions_for_ranges_are_refused_and_change_nothing(target: &dyn Target) {
    let Some(world) = with(target, Optional::Ranges).await else {
        return;
    };
    let volumes = [world.volume("one").await, world.volume("two").await];
    let mut cuts = Vec::new();
    // The name of a snapshot is of one volume only.
    for (name, volume) in ["cut-1", "cut-2"].into_iter().zip(&volumes) {
        cuts.push(cut(&world, name, volume).await);
    }
    let ghost = cuts[0].replace("cut", "ghost");
    let [ghost, own, foreign] = [&*ghost, &*cuts[0], &*cuts[1]];
    let same = Question(Some(own), own, 0, 0);
    let none = same.ask(&world.client, usize::MAX).await.expect("no range");
    assert!(none.0 > 0 && none.1.is_empty(), "{none:?}");
    let before = world.backend();
    let refused: [(_, &[Code]); 10] = [
        (Question(None, "", 0, 0), &[Code::InvalidArgument]),
        (Question(Some(own), "", 0, 0), &[Code::InvalidArgument]),
        (Question(Some(""), own, 0, 0), &[Code::InvalidArgument]),
        (Question(None, own, 0, -1), &[Code::InvalidArgument]),
        (Question(None, own, -1, 0), &[Code::OutOfRange]),
        (Question(None, own, i64::MAX, 0), &[Code::OutOfRange]),
        (Question(None, ghost, 0, 0), &[Code::NotFound]),
        (
            Question(Some(ghost), own, 0, 0),
            &[Code::FailedPrecondition],
        ),
        (
            Question(Some(foreign), own, 0, 0),
            &[Code::FailedPrecondition],
        ),
        (
            Question(Some("snap-0123"), own, 0, 0),
            &[Code::FailedPrecondition],
        ),
    ];
    for (question, codes) in refused {
        let what = format!("{question:?}");
        let outcome = question.ask(&world.client, usize::MAX).await;
        ends_with(outcome.map(Response::new), codes, &what);
        world.unchanged(&before, &what);
    }
    for (cut, volume) in cuts.iter().zip(&volumes) {
        world.remove_snapshot(cut).await;
        world.remove(&volume.volume_id).await;
    }
    world.end().await;
}
