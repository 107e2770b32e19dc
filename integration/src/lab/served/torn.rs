//! Volumes that are deleted while pods write to them, by a client that attaches and detaches nothing.
//!
//! They are clones of one snapshot, many at once. Only what the storage knows of its clients keeps a volume until its
//! node has let go of it.
#![expect(
    clippy::disallowed_methods,
    reason = "the writers are processes, as those of pods are"
)]

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use futures_util::future::join_all;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::connected::{CALL, is_unknown, named, note_unknown};
use super::life::{cut, delete, make, remove_snapshot, used};
use super::{Served, storage};
use crate::lab::calls::{KUBELET, Node, timed, until_done_within};
use crate::lab::content;
use crate::lab::fixture::{Fixture, capability};
use crate::lab::given;
use crate::lab::host::kill;
use crate::lab::kernel;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{read, step, write};
use crate::place::Place;
use crate::volume;
use crate::wait::until_within;

/// The number of clones at once, and of rounds, unless others are given.
const CLONES: u64 = 12;
const ROUNDS: u64 = 2;

/// The content of the first volume, and what each pod writes.
const LENGTH: usize = 64 << 20;
/// The time that the same step of all clones may take: an emulated machine does one after the other.
const TOGETHER: Duration = Duration::from_mins(20);
/// The time from the end of an unstage until the volume is deleted, with all others.
const AFTER: Duration = Duration::from_mins(10);
/// The pauses of the client between two deletions of the same volume.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// The least that the kernel has in memory alone, in KiB, when the volumes are deleted.
const MUCH: u64 = 10_000;
/// The file that a pod writes.
const DIRTY: &str = "dirty";
/// A pod that has a file open all the time, and writes another one again and again, without a sync. Not `cat`: it lets a
/// server of NFS copy by itself, and nothing is ever in the memory of the client. Without a pause a few pods take all of an
/// emulated processor.
const POD: &str = "exec 3<\"$0/content\"; while dd if=\"$0/content\" of=\"$0/dirty\" bs=1M 2>/dev/null; do sleep 3; \
                   done; exit 1";

/// The knowledge of a storage about those who use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// A node that is connected.
    Connected,
    /// A client that has something open.
    Open,
    /// Nothing.
    Nothing,
}

/// A clone that is deleted.
#[derive(Debug)]
struct Doomed {
    fixture: Fixture,
    staging: PathBuf,
    pod: PathBuf,
    known: Known,
    named: &'static str,
    /// Whether the storage may delete it.
    is_free: Cell<bool>,
    /// The number of deletions that were refused because of this machine.
    refusals: Cell<u32>,
    /// The end of its unstage.
    unstaged: Cell<Option<Instant>>,
}

/// The limit of a cell.
pub fn limit() -> Duration {
    Duration::from_mins(30) + Duration::from_mins(30 * given::rounds().unwrap_or(ROUNDS))
}

/// No volume goes under its node, none stays, and another one beside them stays as it is.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn by_a_bare_client(served: Served) {
    let place = Place::new();
    let node = Node::start_with(served.start_on(&place)).await;
    let before = (Leftovers::read(), storage());
    let content = content::bytes(1, LENGTH);
    let known = Known::of(served);

    step("make, stage, write, cut");
    let first = make(&node, served, "first", served.sizes().0, None).await;
    let pod = used(&node, &first).await;
    write(&first, &pod, &content);
    let moment = cut(&node, &first, &[]).await;
    step(known.means());
    if known == Known::Nothing {
        note_unknown("no deletion waited for its pod, and only other volumes were looked at");
    }

    let still = (Leftovers::read(), storage());
    let rounds = given::rounds().unwrap_or(ROUNDS);
    for number in 1..=rounds {
        let name = format!("round {number} of {rounds}");
        let (kernel, began) = (kernel::Since::now(&name), Instant::now());
        round(&node, served, &moment).await;
        let losses = kernel.losses();
        if known != Known::Nothing {
            assert!(losses.is_empty(), "{name}: the kernel says {losses:#?}");
        }
        Leftovers::back_to(&still.0, &name).await;
        assert_eq!(storage(), still.1, "{name}: the storage is as before");
        // What the node remembers is no proof.
        fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
        content::same(&content, &read(&first, &pod), "the volume that stayed");
        let seconds = began.elapsed().as_secs();
        step(&format!("{name}: the clones are gone after {seconds} s"));
    }

    step("take away, delete");
    node.take_away(&first, &[&pod]).await;
    remove_snapshot(&node, &moment).await;
    delete(&node, &first).await;
    Leftovers::back_to(&before.0, "the clones").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

/// Clones are made, written, and deleted while they are written.
async fn round(node: &Node, served: Served, moment: &str) {
    let numbers = 1..=given::clones().unwrap_or(CLONES);
    let made = numbers.map(|number| clone_of(node, served, moment, number));
    let clones: Vec<Doomed> = join_all(made).await;
    let writers: Vec<Child> = clones.iter().map(|clone| writer(&clone.pod)).collect();
    each(&clones, "is written", |clone| {
        clone.pod.join(DIRTY).exists()
    })
    .await;
    unsynced().await;
    let deletions = join_all(clones.iter().map(|clone| clone.deleted(node)));
    let ends = async {
        if Known::of(served) != Known::Nothing {
            each(&clones, "is refused", |clone| clone.refusals.get() > 0).await;
            unsynced().await;
        }
        let both = clones.iter().zip(writers);
        join_all(both.map(|(clone, writer)| clone.let_go(node, writer))).await;
    };
    tokio::join!(deletions, ends);
}

/// A clone, staged and published.
async fn clone_of(node: &Node, served: Served, moment: &str, number: u64) -> Doomed {
    let name = format!("clone-{number}");
    let bytes = i64::try_from(served.sizes().0).expect("a size");
    let asked = csi::CreateVolumeRequest {
        capacity_range: volume::at_least(bytes),
        volume_capabilities: vec![capability(served.access, Mode::SingleNodeMultiWriter)],
        volume_content_source: volume::from_snapshot(moment),
        ..volume::create(&format!("pvc-{name}"), &volume::parameters(&[]))
    };
    let reply = until_done_within(TOGETHER, &format!("create {name}"), || {
        let mut controller = node.server.client().controller;
        let request = timed(asked.clone(), KUBELET);
        async move { controller.create_volume(request).await }
    })
    .await;
    let made = reply.into_inner().volume;
    let fixture = served.fixture(made.expect("a volume"));
    let pod = node.pod(&fixture.volume.volume_id);
    until_done_within(TOGETHER, &format!("stage {name}"), || {
        let mut client = node.server.client().node;
        let request = timed(node.stage_request(&fixture), KUBELET);
        async move { client.node_stage_volume(request).await }
    })
    .await;
    until_done_within(TOGETHER, &format!("publish {name}"), || {
        let mut client = node.server.client().node;
        let request = timed(node.publish_request(&fixture, &pod), KUBELET);
        async move { client.node_publish_volume(request).await }
    })
    .await;
    let known = Known::of(served);
    Doomed {
        staging: node.staging(&fixture),
        fixture,
        pod,
        known,
        named: named(served),
        is_free: Cell::new(known == Known::Nothing),
        refusals: Cell::new(0),
        unstaged: Cell::new(None),
    }
}

fn writer(pod: &Path) -> Child {
    let mut command = Command::new("sh");
    let command = command.args(["-c", POD]).arg(pod).stdin(Stdio::null());
    let child = command.process_group(0).kill_on_drop(true).spawn();
    child.expect("a shell")
}

/// Waits until much is in the memory of this machine alone. A client of NFS sends it at once: then it is under writeback
/// until the server has answered.
async fn unsynced() {
    until_within(TOGETHER, "much that is not on the storage", || {
        let all = fs::read_to_string("/proc/meminfo").ok()?;
        let amounts = all.lines().filter_map(|line| {
            let (name, amount) = line.split_once(':')?;
            let amount = amount.split_whitespace().next()?;
            matches!(name, "Dirty" | "Writeback").then(|| amount.parse::<u64>().ok())?
        });
        (amounts.sum::<u64>() >= MUCH).then_some(())
    })
    .await;
}

/// Waits until something is so of each.
async fn each(clones: &[Doomed], what: &str, is_so: impl Fn(&Doomed) -> bool) {
    let deadline = Instant::now() + TOGETHER;
    loop {
        let others = clones.iter().filter(|clone| !is_so(clone));
        let others: Vec<_> = others.map(Doomed::id).collect();
        if others.is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "none of these {what}: {others:?}"
        );
        sleep(Duration::from_millis(200)).await;
    }
}

// === impl Known ===

impl Known {
    fn of(served: Served) -> Self {
        if is_unknown(served) {
            Self::Nothing
        } else if served.kind.ends_with("nfs") {
            Self::Open
        } else {
            Self::Connected
        }
    }

    fn means(self) -> &'static str {
        match self {
            Self::Connected => "a deletion waits until the node is not connected",
            Self::Open => {
                "a deletion waits until nothing is open; a share that is only mounted may go"
            }
            Self::Nothing => {
                "this kernel does not show who is connected: a deletion waits for nothing, and the pods may see \
                 errors; only other volumes must stay as they are"
            }
        }
    }
}

// === impl Doomed ===

impl Doomed {
    fn id(&self) -> &str {
        &self.fixture.volume.volume_id
    }

    /// Deletes it, again and again.
    async fn deleted(&self, node: &Node) {
        let (began, id) = (Instant::now(), self.id());
        let mut pause = PAUSES.0;
        loop {
            let mut controller = node.server.client().controller;
            let request = timed(volume::delete(id), CALL);
            let Err(status) = controller.delete_volume(request).await else {
                break;
            };
            if !self.is_free.get() {
                self.refused(&status);
            }
            let late = match self.unstaged.get() {
                Some(at) => at.elapsed() > AFTER,
                None => began.elapsed() > 2 * TOGETHER,
            };
            assert!(!late, "{id} is not deleted: {status:?}");
            sleep(pause).await;
            pause = (2 * pause).min(PAUSES.1);
        }
        assert!(self.is_free.get(), "{id} was deleted under its pod");
        if self.known == Known::Connected {
            let is_mounted = node.place.mounts().contains(&self.staging);
            assert!(!is_mounted, "{id} was deleted while it was mounted");
        }
    }

    /// Notes a refusal of a volume in use.
    fn refused(&self, status: &Status) {
        let (id, code) = (self.id(), status.code());
        if code == Code::FailedPrecondition {
            let message = status.message();
            assert!(message.contains(self.named), "{id}: {message}");
            self.refusals.set(self.refusals.get() + 1);
            return;
        }
        // An earlier call goes on, or the time of this one was over. A client that ends it itself says that it was
        // cancelled.
        let unsure = [Code::Aborted, Code::DeadlineExceeded, Code::Cancelled];
        assert!(unsure.contains(&code), "{id} is in use: {status:?}");
    }

    /// Ends its pod and takes it from the node.
    async fn let_go(&self, node: &Node, mut writer: Child) {
        let id = self.id();
        if self.known != Known::Nothing {
            let ended = writer.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "{id}: the pod met an error: {ended:?}");
        }
        if self.known == Known::Open {
            self.is_free.set(true);
        }
        kill(&mut writer).await;
        until_done_within(TOGETHER, &format!("unpublish {id}"), || {
            let mut client = node.server.client().node;
            let request = volume::unpublish(&self.fixture.volume, &self.pod);
            let request = timed(request, KUBELET);
            async move { client.node_unpublish_volume(request).await }
        })
        .await;
        self.is_free.set(true);
        until_done_within(TOGETHER, &format!("unstage {id}"), || {
            let mut client = node.server.client().node;
            let request = volume::unstage(&self.fixture.volume, &self.staging);
            let request = timed(request, KUBELET);
            async move { client.node_unstage_volume(request).await }
        })
        .await;
        self.unstaged.set(Some(Instant::now()));
    }
}
