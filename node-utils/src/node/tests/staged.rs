//! Volumes that are looked at and repaired without a call.

use super::*;

const MIB: u64 = 1 << 20;

impl Bench {
    fn seen(&self, relative: &str) -> Vec<&'static str> {
        let path = AbsolutePath::parse(&self.text(relative)).expect("path");
        let found = self.run(self.node.look(soon(), &path)).expect("look");
        let lacks = self.storage.lacks.load(Ordering::Relaxed);
        assert_eq!(found.lacking.len(), lacks, "each address is named");
        found
            .conditions
            .iter()
            .map(|one| one.reason().as_str())
            .collect()
    }

    fn reconnect(&self, relative: &str) -> Result<(), Error> {
        let path = AbsolutePath::parse(&self.text(relative)).expect("path");
        self.run(self.node.reconnect(soon(), &path))
    }

    fn lacks(&self, ways: usize) {
        self.storage.lacks.store(ways, Ordering::Relaxed);
    }
}

#[test]
fn a_way_that_is_missing_is_seen_and_opened_below_the_mount() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 64 * MIB);
        bench.stage_device("one", "s").expect("stage");
        let attaches = || bench.storage.attaches.load(Ordering::Relaxed);
        assert_eq!((bench.seen("k/s"), attaches()), (vec![], 1));
        bench.lacks(1);
        assert_eq!(bench.seen("k/s"), ["PathMissing"]);
        assert_eq!(attaches(), 1, "a look changes nothing");
        bench.reconnect("k/s").expect("opened");
        assert_eq!((bench.seen("k/s"), attaches()), (vec![], 2));
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
        bench.lacks(1);
        bench.reconnect("k/s").expect("nothing to do");
        assert_eq!(attaches(), 2, "it is not staged any more");
    });
}

#[test]
fn a_volume_that_is_unstaged_during_a_repair_does_not_stay_attached() {
    bench(|bench| {
        bench.storage.put("one", 64 * MIB);
        bench.stage_device("one", "s").expect("stage");
        bench.lacks(1);
        let mut late = bench.storage.is_late_for.lock().expect("lock");
        *late = Some(bench.path("k/s"));
        drop(late);
        bench.reconnect("k/s").expect("taken back");
        assert_eq!(bench.storage.attached(), []);
    });
}
