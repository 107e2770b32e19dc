//! An export that goes away on the storage below a pod comes back without a call, by the controller's own check.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use super::exports::lose;
use super::life::{delete, make, used};
use super::{Served, storage};
use crate::lab::calls::Node;
use crate::lab::content;
use crate::lab::faults::outage::read;
use crate::lab::faults::writer::{Writer, Written};
use crate::lab::healed::{Figures, writes};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, step};
use crate::place::Place;

/// The exports that the controller has restored without a call.
const LOST: &str = "omnibus_csi_lost_exports_total";
/// The file that a pod has open all the time, and the folder of what it writes after.
const OPEN: &str = "open";
const LATER: &str = "later";

/// The export of a volume is taken away by hand, and the program checks it a minute after it was started. The pod keeps its
/// mount. With a disk it writes all the time; with NFS it is silent in between, as the server would answer that
/// the handles of its files are stale.
///
/// # Panics
/// If the export does not come back, the pod gets an error, a byte is wrong or anything is left.
pub async fn an_export_comes_back(served: Served) {
    let place = Place::new();
    let figures = Figures::on_a_free_port();
    let mut node = Node::start_with(figures.of(served.start_on(&place))).await;
    let before = (Leftovers::read(), storage());
    let volume = make(&node, served, "first", served.sizes().0, None).await;
    let pod = used(&node, &volume).await;
    let mut open = File::create(pod.join(OPEN)).expect("a file");
    put(&mut open, 1);
    fs::create_dir(pod.join(LATER)).expect("a folder");
    let mut writer = Some(Writer::start(&pod, 14));
    writes(writer.as_ref().expect("one")).await;
    let mut written: Option<Written> = None;
    if !served.is_device()
        && let Some(writer) = writer.take()
    {
        written = Some(writer.end().await);
    }

    step("the export is taken away by hand, and comes back");
    // The first check of a process comes after a minute, the next one after ten.
    node.crash().await;
    lose(served);
    assert_eq!(figures.done(LOST).await, 0, "nothing was restored yet");
    figures.reach(LOST, 1).await;

    step("the pod goes on");
    put(&mut open, 2);
    drop(open);
    if let Some(writer) = writer {
        writes(&writer).await;
        written = Some(writer.end().await);
    }
    let later = Writer::start(&pod.join(LATER), 15);
    writes(&later).await;
    let later = later.end().await;
    let written = written.expect("it was ended");
    // What the node remembers is no proof.
    fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
    verify(&pod, &written, &later);

    step("take away, read again, delete");
    node.take_away(&volume, &[&pod]).await;
    let pod = used(&node, &volume).await;
    verify(&pod, &written, &later);
    node.take_away(&volume, &[&pod]).await;
    delete(&node, &volume).await;
    Leftovers::back_to(&before.0, "the export").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

/// Adds content of its own to a file, down to the storage.
fn put(file: &mut File, seed: u64) {
    let bytes = content::bytes(seed, LENGTH);
    file.write_all(&bytes).expect("it can be written");
    file.sync_all().expect("it reaches the storage");
}

/// All that a pod has written.
fn verify(pod: &Path, written: &Written, later: &Written) {
    written.verify("the first writer", |part| read(&pod.join(part)));
    later.verify("the later writer", |part| read(&pod.join(LATER).join(part)));
    let both = [content::bytes(1, LENGTH), content::bytes(2, LENGTH)].concat();
    content::same(&both, &read(&pod.join(OPEN)), "the file that was open");
}
