//! Random changes of a folder against a model of what is served then.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// One thing that happens.
#[derive(Debug, Clone)]
enum Change {
    /// A file gets a base directory.
    Good(usize, u8),
    /// A file gets what cannot be used.
    Bad(usize),
    /// A file goes, for a moment or for good.
    Remove(usize, bool),
    /// All drivers are idle for a while.
    LetGo,
}

const NAMES: [&str; 3] = ["a", "b", "old"];

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..NAMES.len(), 0..4_u8).prop_map(|(name, base)| Change::Good(name, base)),
        2 => (0..NAMES.len()).prop_map(Change::Bad),
        2 => (0..NAMES.len(), any::<bool>()).prop_map(|(name, good)| Change::Remove(name, good)),
        1 => Just(Change::LetGo),
    ]
}

/// The served connections, by name, and whose file is missing.
#[derive(Debug, Default)]
struct Model {
    served: BTreeMap<&'static str, u8>,
    missing: BTreeSet<&'static str>,
}

impl Model {
    fn change(&mut self, change: &Change) {
        match *change {
            Change::Good(name, base) => {
                self.missing.remove(NAMES[name]);
                // `old` is another name of `a`.
                if NAMES[name] != "old" {
                    self.served.insert(NAMES[name], base);
                }
            }
            Change::Bad(name) => drop(self.missing.remove(NAMES[name])),
            Change::Remove(name, good) => {
                self.missing.insert(NAMES[name]);
                // The time that passes counts for all missing files.
                for name in self.missing.iter().filter(|_| good) {
                    self.served.remove(name);
                }
            }
            Change::LetGo => {}
        }
    }
}

async fn apply(place: &mut Place, change: &Change) {
    let file = |name: usize| format!("{}.yaml", NAMES[name]);
    match *change {
        Change::Good(name, base) => {
            let text = hostpath(&format!("/base/{base}"));
            place.write(&file(name), &text).await;
        }
        Change::Bad(name) => place.write(&file(name), "driver: [").await,
        Change::Remove(name, good) => {
            // It may not be there.
            drop(fs::remove_file(place.dir.path().join(file(name))));
            if good {
                place.grace().await;
            } else {
                place.scans().await;
            }
        }
        Change::LetGo => {
            for lazy in place.connections.all() {
                lazy.let_go(Duration::ZERO);
                // One whose file cannot be used has no driver.
                drop(lazy.look().await);
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_to_files_what_is_served_is_what_the_model_says(
        changes in prop::collection::vec(change(), 1..50)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        let names = Names {
            aliases: [(parse("old"), parse("a"))].into(),
            bare: crate::routing::connections::Bare::Of(parse("b")),
            ..Names::default()
        };
        let (mut place, mut model) = (Place::new(names, None), Model::default());
        for change in &changes {
            runtime.block_on(apply(&mut place, change));
            model.change(change);
            // A dropped driver is built again by the next query.
            for lazy in place.connections.all() {
                drop(runtime.block_on(lazy.look()));
            }
            let base = |name: &str| model.served.get(name).map(|base| format!("/base/{base}"));
            for (asked, meant) in [("a", "a"), ("b", "b"), ("old", "a")] {
                let served = runtime.block_on(place.base(asked));
                let expected = base(meant);
                let same = match (&served, &expected) {
                    (Some(served), Some(expected)) => served.ends_with(expected.as_str()),
                    (served, expected) => served.is_none() && expected.is_none(),
                };
                prop_assert!(same, "{asked} after {change:?}: {served:?}, not {expected:?}");
            }
            let bare = VolumeHandle::parse("pvc-1").expect("a handle");
            let served = runtime.block_on(place.connections.of_volume(&bare));
            prop_assert_eq!(served.is_ok(), base("b").is_some());
        }
    }
}
