//! Each exchange with the NAS, cut: one call is lost, or its answer, or the process ends before it. The next request
//! leads to the same end. Nothing that it is not about is lost, and a creation that is given up leaves nothing.

use std::collections::BTreeSet;

use driver_core::{
    CreateVolume, Effect, Error, ExpandVolume, Kind, SizeRange, SnapshotId, Source, VolumeId,
};
use serde_json::Value;
use synology_sim::{Held, Loss, Version};

use crate::nas::{GIB, Nas, call};

/// What a new volume begins with.
#[derive(Debug, Clone, Copy)]
enum Content {
    Nothing,
    Snapshot,
    Volume,
}

/// A verb that changes something. LUNs have no access per node, so there is none for that.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Create(Content),
    Expand,
    Snapshot,
    DeleteSnapshot,
    Delete,
}

const VERBS: [Verb; 7] = [
    Verb::Create(Content::Nothing),
    Verb::Create(Content::Snapshot),
    Verb::Create(Content::Volume),
    Verb::Expand,
    Verb::Snapshot,
    Verb::DeleteSnapshot,
    Verb::Delete,
];

/// A verb that was not cut.
struct Whole {
    calls: usize,
    answer: String,
    end: Vec<String>,
}

/// A NAS with a volume that has a snapshot, and one that has none.
struct World {
    nas: Nas,
    original: VolumeId,
    snapshot: SnapshotId,
    spare: VolumeId,
    begin: Held,
    /// The uuids at the beginning.
    old: BTreeSet<String>,
}

fn rows(of: &Value, key: &str) -> Vec<Value> {
    of[key].as_array().cloned().unwrap_or_default()
}

fn two_gibibytes() -> SizeRange {
    SizeRange::new(2 * GIB, 0).expect("a size")
}

// === impl World ===

impl World {
    async fn new(version: Version, mode: &str) -> Self {
        let nas = Nas::start(version, mode).await;
        let original = nas.create("original", None).await.id;
        let spare = nas.create("spare", None).await.id;
        let snapshot = nas.snapshot(&original, "s").await.id;
        let state = nas.sim.state();
        let mut old = BTreeSet::new();
        for lun in rows(&state, "luns") {
            let snapshots = rows(&lun, "snapshots").into_iter();
            old.extend(snapshots.map(|snapshot| snapshot["uuid"].to_string()));
            old.insert(lun["uuid"].to_string());
        }
        assert_eq!(old.len(), 3, "{state}");
        let begin = nas.sim.held();
        Self {
            nas,
            original,
            snapshot,
            spare,
            begin,
            old,
        }
    }

    /// Everything that the NAS holds, a row each. A uuid says only whether the object is an old one.
    fn shape(&self) -> Vec<String> {
        let state = self.nas.sim.state();
        let is_old = |uuid: &Value| Value::from(self.old.contains(&uuid.to_string()));
        let (mut shape, mut names) = (Vec::new(), Vec::new());
        for mut lun in rows(&state, "luns") {
            let name = lun["name"].to_string();
            for mut snapshot in rows(&lun, "snapshots") {
                snapshot["uuid"] = is_old(&snapshot["uuid"]);
                shape.push(format!("a snapshot of {name}: {snapshot}"));
            }
            names.push((lun["uuid"].clone(), name));
            lun["uuid"] = is_old(&lun["uuid"]);
            lun["lun_id"] = Value::Null;
            lun["snapshots"] = Value::Null;
            shape.push(format!("a LUN: {lun}"));
        }
        for mut target in rows(&state, "targets") {
            for mapping in rows(&target, "mapped") {
                let mut luns = names.iter();
                let lun = luns.find(|(uuid, _)| *uuid == mapping[1]);
                let lun = lun.map_or("nothing", |(_, name)| name.as_str());
                let (iqn, number) = (&target["iqn"], &mapping[0]);
                shape.push(format!("{iqn} shows {lun} as {number}"));
            }
            target["mapped"] = Value::Null;
            shape.push(format!("a target: {target}"));
        }
        shape.sort();
        shape
    }

    fn request(&self, of: Content) -> CreateVolume {
        let source = match of {
            Content::Nothing => None,
            Content::Snapshot => Some(Source::Snapshot(self.snapshot.clone())),
            Content::Volume => Some(Source::Volume(self.original.clone())),
        };
        let mut request = self.nas.request("new", source);
        if matches!(of, Content::Volume) {
            // A copy that has to grow.
            request.size = two_gibibytes();
        }
        request
    }

    /// Does it. The answer is compared without what DSM gives a new object.
    async fn run(&self, verb: Verb) -> Result<String, Error> {
        let nas = &self.nas;
        Ok(match verb {
            Verb::Create(of) => {
                let made = nas.try_create(&self.request(of)).await?;
                let context = made.attachment.to_context();
                let shown = (&context["iqn"], &context["lun"]);
                format!(
                    "{} {:?} {:?} {shown:?}",
                    made.id, made.capacity, made.source
                )
            }
            Verb::Expand => {
                let request = ExpandVolume::new(&self.original, two_gibibytes());
                let grown = nas.driver.expand_volume(&call(), request).await?;
                grown.capacity.to_string()
            }
            Verb::Snapshot => {
                let taken = nas.try_snapshot(&self.original, "new").await?;
                format!("{} {} {}", taken.source, taken.size, taken.ready)
            }
            Verb::DeleteSnapshot => {
                nas.try_delete_snapshot(&self.snapshot).await?;
                String::new()
            }
            Verb::Delete => {
                nas.try_delete(&self.spare).await?;
                String::new()
            }
        })
    }

    /// The verb without a cut, and once more.
    async fn whole(&self, verb: Verb, before: &[String]) -> Whole {
        let sim = &self.nas.sim;
        sim.restore(&self.begin);
        let calls = sim.calls();
        let answer = self.run(verb).await;
        let answer = answer.unwrap_or_else(|error| panic!("{verb:?}: {}", error.chain()));
        let calls = sim.calls() - calls;
        let end = self.shape();
        assert_ne!(end, before, "{verb:?} changes something");
        let again = self.run(verb).await;
        let again = again.unwrap_or_else(|error| panic!("{verb:?} again: {}", error.chain()));
        assert_eq!(again, answer, "{verb:?} again");
        assert_eq!(self.shape(), end, "{verb:?} again");
        Whole { calls, answer, end }
    }

    /// The verb with a cut, and then without.
    async fn survives(&self, verb: Verb, loss: Loss, whole: &Whole, before: &[String]) {
        let what = format!("{verb:?}, {loss:?} of {}", whole.calls);
        let sim = &self.nas.sim;
        sim.restore(&self.begin);
        sim.lose(Some(loss));
        let cut = self.run(verb).await;
        sim.lose(None);
        let (now, left) = (self.shape(), sim.held());
        let mut kept = before.iter().filter(|row| whole.end.contains(row));
        let lost = kept.find(|row| !now.contains(row));
        assert_eq!(lost, None, "{what}");
        match &cut {
            Ok(answer) => {
                assert_eq!(*answer, whole.answer, "{what}");
                assert_eq!(now, whole.end, "{what}");
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Unreachable, "{what}: {}", error.chain());
                let is_undone = error.effect() == Effect::None;
                assert!(!is_undone || now == before, "{what}: {now:#?}");
            }
        }
        let is_killed = matches!(loss, Loss::Rest(_));
        if is_killed {
            assert!(cut.is_err(), "{what}");
            // The next process has no session.
            sim.expire_sessions();
        }
        let answer = self.run(verb).await;
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        assert_eq!(answer, whole.answer, "{what}");
        assert_eq!(self.shape(), whole.end, "{what}");
        if let (Verb::Create(of), true) = (verb, is_killed) {
            sim.restore(&left);
            self.nas.delete(&self.request(of).id).await;
            assert_eq!(self.shape(), before, "{what}, then deleted");
        }
    }
}

async fn every_prefix(version: Version, mode: &str) {
    let world = World::new(version, mode).await;
    let before = world.shape();
    for verb in VERBS {
        let whole = world.whole(verb, &before).await;
        assert!(whole.calls >= 2, "{verb:?}: {} calls", whole.calls);
        for at in 0..whole.calls {
            for loss in [Loss::Call(at), Loss::Answer(at), Loss::Rest(at)] {
                world.survives(verb, loss, &whole, &before).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prefix_of_every_exchange_with_dsm_6_2_leads_to_the_same_end() {
    every_prefix(Version::V6_2, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prefix_of_every_exchange_with_dsm_7_1_leads_to_the_same_end() {
    every_prefix(Version::V7_1, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prefix_of_every_exchange_with_dsm_7_2_leads_to_the_same_end() {
    every_prefix(Version::V7_2, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prefix_of_every_exchange_about_shared_targets_leads_to_the_same_end() {
    every_prefix(Version::V7_2, "mode: shared-target").await;
}
