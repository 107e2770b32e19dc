//! A pod that exchanges a directory of its volume for a link while the volume is copied and removed.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driver_core::{DeleteSnapshot, DeleteVolume, Driver as _, Kind, Snapshots as _};
use rustix::fs::{RenameFlags, renameat_with};

use crate::common::{Place, call, driver, id, leftovers, snapshot, tree};
use crate::pending::ask;

/// Each is copied and removed. `OMNIBUS_RACES` is another number of them.
fn volumes() -> usize {
    let wanted = std::env::var("OMNIBUS_RACES").ok();
    wanted.map_or(50, |number| number.parse().expect("a number"))
}

/// The pod. It keeps its volume open, so it goes on in the trash.
#[derive(Default)]
struct Pod {
    volume: Mutex<Option<Arc<File>>>,
    exchanged: AtomicUsize,
    stop: AtomicBool,
}

impl Pod {
    fn open(&self, volume: &Path) {
        let volume = File::open(volume).expect("the volume");
        *self.volume.lock().expect("lock") = Some(Arc::new(volume));
    }

    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let Some(volume) = self.volume.lock().expect("lock").clone() else {
                continue;
            };
            if renameat_with(&volume, "one", &volume, "two", RenameFlags::EXCHANGE).is_ok() {
                self.exchanged.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Ends the pod, also when the test fails.
struct Stop(Arc<Pod>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Whether a copy has followed the link: it would be a directory with what is behind it.
fn has_followed(copy: &Path) -> bool {
    ["one", "two"].iter().any(|name| {
        let path = copy.join(name);
        let is_link = path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
        !is_link && path.join("secret").exists()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_behind_a_link_is_neither_copied_nor_changed_while_a_pod_exchanges_it() {
    let place = Place::new();
    let outside = place.dir.path().join("outside");
    fs::create_dir_all(outside.join("deep")).expect("folder");
    for file in ["secret", "deep/secret"] {
        fs::write(outside.join(file), "secret").expect("file");
    }
    let before = tree(&outside);
    let pod = Arc::new(Pod::default());
    let thread = std::thread::spawn({
        let pod = Arc::clone(&pod);
        move || pod.run()
    });
    let _stop = Stop(Arc::clone(&pod));
    // The answer is never that the copy goes on.
    let driver = driver(&place.base(), "").with_patience(Duration::from_mins(10));
    for number in 0..volumes() {
        let name = format!("pvc-{number}");
        let volume = place.volume(&name).await;
        fs::create_dir_all(volume.join("one/deep")).expect("folder");
        fs::write(volume.join("one/deep/file"), "content").expect("file");
        std::os::unix::fs::symlink(&outside, volume.join("two")).expect("link");
        pod.open(&volume);
        let taken = snapshot(&driver, &name, "s").await.expect("snapshot");
        let copy = place.base().join(format!("s/{name}-s"));
        assert!(!has_followed(&copy), "at {number}");
        // A directory that was exchanged too often in the meantime is in use.
        ask(async || {
            match driver
                .delete_volume(&call(), DeleteVolume::new(&id(&name)))
                .await
            {
                Ok(()) => Some(()),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
                    None
                }
            }
        })
        .await;
        let deleted = driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await;
        deleted.expect("deleted");
    }
    pod.stop.store(true, Ordering::Relaxed);
    thread.join().expect("thread");
    assert!(pod.exchanged.load(Ordering::Relaxed) > volumes());
    assert_eq!(tree(&outside), before);
    assert!(leftovers(&place.base()).is_empty());
}
