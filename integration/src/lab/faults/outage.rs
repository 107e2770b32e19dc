//! Storage goes away under a pod that writes, and comes back: the pod waits, and goes on.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tonic::Code;

use super::Kind;
use super::absence::{Fault, pass};
use super::writer::{Writer, Written};
use crate::lab::calls::Node;
use crate::lab::command::run;
use crate::lab::fixture::Fixture;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::step;

/// The time to wait, so that a failure shows how long it really takes.
const TIMEOUT: Duration = Duration::from_mins(5);
/// What was under way when storage went away may still have been acknowledged.
const UNDER_WAY: Duration = Duration::from_secs(3);
/// The interval at which an orchestrator asks.
const ASKING: Duration = Duration::from_secs(5);
/// The number of batches that are written before and after.
const BATCHES: usize = 20;

/// A pod writes; storage goes away and comes back; the pod goes on.
///
/// # Panics
/// If a byte is wrong, the pod gets an error, it takes too long, or something is left.
pub async fn a_writer_goes_on(kind: Kind, fault: Fault) {
    let fixture = Arc::new(kind.fixture("outage"));
    let before = Leftovers::read();
    let node = Arc::new(Node::start().await);
    let pod = node.pod("writer");
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &pod).await.expect("published");
    let writer = Writer::start(&pod, 11);
    let first = writer.goes_on(Instant::now(), BATCHES, TIMEOUT).await;
    first.expect("the writer writes");

    step(&format!("storage goes away: {fault:?}"));
    let away = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let asking = ask_again(
        Arc::clone(&node),
        Arc::clone(&fixture),
        Arc::clone(&is_over),
    );
    let asking = tokio::spawn(asking);
    let back = fault.happen(&fixture).await;
    let writable = writer.goes_on(back, 1, TIMEOUT).await;
    let writable = writable.unwrap_or_else(|| {
        let failed = writer.has_failed();
        panic!("the pod did not go on; did it get an error? {failed}")
    });
    let on = writer.goes_on(writable, BATCHES, TIMEOUT).await;
    on.expect("the writer goes on");
    is_over.store(true, Ordering::Relaxed);
    asking.await.expect("every call ended");
    measure(&writer, away, back, writable, kind.again);
    let written = writer.end().await;

    step("what is there");
    sound(&pod);
    // What the node remembers is no proof.
    fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
    written.verify("the pod", |part| read(&pod.join(part)));
    node.take_away(&fixture, &[&pod]).await;
    Leftovers::back_to(&before, "the outage").await;
    let node = Arc::into_inner(node).expect("the only owner");
    node.end().await;
    fixture.remove();
    verify_stored(&written, &fixture);
}

/// What an orchestrator does that was restarted during the outage: it repeats all calls for its
/// volumes. Their results do not matter, but they must end and destroy nothing.
pub(super) async fn ask_again(node: Arc<Node>, fixture: Arc<Fixture>, is_over: Arc<AtomicBool>) {
    let pod = node.pod("writer");
    let mut outcomes = BTreeMap::<_, u32>::new();
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let staged = node.stage(&fixture).await;
        let published = node.publish(&fixture, &pod).await;
        let counted = node.stats(&fixture, &pod).await.map(drop);
        longest = longest.max(asked.elapsed());
        for (call, outcome) in [
            ("stage", staged),
            ("publish", published),
            ("stats", counted),
        ] {
            let outcome = outcome.map_or_else(|status| status.code(), |()| Code::Ok);
            *outcomes.entry(format!("{call} {outcome:?}")).or_default() += 1;
        }
        pass(ASKING).await;
    }
    let longest = longest.as_secs_f64();
    step(&format!(
        "MEASURED asked again during the outage, at most {longest:.1} s for all three: {outcomes:?}"
    ));
}

/// Says how long it took, and asserts that storage really was away and came back soon enough.
fn measure(writer: &Writer, away: Instant, back: Instant, writable: Instant, again: Duration) {
    let synced = writer.synced();
    let gap = synced
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .max()
        .unwrap_or_default();
    let late = (writable - back).as_secs_f64();
    step(&format!(
        "MEASURED away {:.1} s, the pod waited {:.1} s, writable {late:.1} s after the port answered",
        (back - away).as_secs_f64(),
        gap.as_secs_f64()
    ));
    let during = synced
        .iter()
        .filter(|&&at| at > away + UNDER_WAY && at < back)
        .count();
    // While it ends its services, a host that is rebooted may still serve.
    assert!(
        gap + Duration::from_secs(10) > back - away && during < BATCHES,
        "storage was away, yet {during} batches reached it"
    );
    assert!(writable - back <= again, "writable only after {late:.1} s");
}

/// Neither read-only nor with an error in its records.
pub(super) fn sound(pod: &Path) {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let point = pod.display().to_string();
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(point.as_str()))
        .expect("it is still mounted");
    let words: Vec<_> = line.split(' ').collect();
    let read_only = |options: &&str| options.split(',').any(|option| option == "ro");
    let own = words.get(5).into_iter().copied();
    let of_all = words.last().into_iter().copied();
    assert!(
        !own.chain(of_all).any(|options| read_only(&options)),
        "read-only: {line}"
    );
    for entry in fs::read_dir("/sys/fs/ext4").into_iter().flatten().flatten() {
        let count = fs::read_to_string(entry.path().join("errors_count")).unwrap_or_default();
        let name = entry.file_name();
        assert!(
            matches!(count.trim(), "" | "0"),
            "{} has {count} errors",
            name.display()
        );
    }
}

/// A file, or nothing of it that could be taken for its content.
pub fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares with what the storage side has, when no node has the volume.
pub fn verify_stored(written: &Written, fixture: &Fixture) {
    step(&format!("{} blocks on the storage side", written.blocks()));
    if fixture.is_device() {
        let folder = tempfile::tempdir().expect("a folder");
        let point = folder.path().display().to_string();
        let device = fixture.zvol().device().display().to_string();
        run(&["mount", "-t", "ext4", "-o", "ro", &device, &point]);
        written.verify("the storage side", |part| read(&folder.path().join(part)));
        run(&["umount", &point]);
        run(&["fsck.ext4", "-f", "-n", &device]);
    } else {
        written.verify("the storage side", |part| fixture.stored(part));
    }
}
