//! Locks that a server forgets, or that are not shared: another controller takes live work for a leftover.

use std::path::Path;
use std::time::Duration;

use driver_core::{Call, Effect, Error, Kind, Source, VolumeId};

use crate::collection::Collection;
use crate::crash_tests::{call, create, directories, volume};
use crate::volumes::Directories;

fn source(base: &Path, files: usize) -> Source {
    create(&directories(base), "src", None).expect("source");
    for number in 0..files {
        let folder = base.join(format!("v/src/{}", number % 7));
        std::fs::create_dir_all(&folder).expect("folder");
        std::fs::write(folder.join(number.to_string()), "content").expect("file");
    }
    Source::Volume(VolumeId::parse("src").expect("id"))
}

fn files(top: &Path) -> usize {
    let mut pending = vec![top.to_path_buf()];
    let mut count = 0;
    while let Some(path) = pending.pop() {
        for entry in std::fs::read_dir(path).expect("list") {
            let entry = entry.expect("entry");
            if entry.file_type().expect("type").is_dir() {
                pending.push(entry.path());
            } else {
                count += 1;
            }
        }
    }
    count
}

/// Fills a volume by `one`, from which `other` takes it away at the end.
fn fill_and_lose(call: &Call, one: &Directories, other: &Directories) -> Result<bool, Error> {
    let collection = one.store.open_or_create(Collection::Volumes).expect("open");
    let spec = one.spec(&volume("made", 1 << 30, None)).expect("spec");
    one.make_filled(call, &collection, &spec, |staged| {
        let file = rustix::fs::openat(
            staged.dir(),
            "file",
            rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
            rustix::fs::Mode::RUSR,
        );
        file.expect("file");
        assert!(one.store.staging_area.lose_lock());
        other.store.clean_up(Duration::from_secs(10));
        Ok(())
    })
}

#[test]
fn what_another_process_took_for_a_leftover_is_not_committed() {
    let top = tempfile::tempdir().expect("folder");
    let base = top.path().join("base");
    let (one, other) = (directories(&base), directories(&base));
    let lost = call();
    let error = fill_and_lose(&lost, &one, &other).expect_err("nothing is there any more");
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    // So it is UNAVAILABLE, and the same call is sent again.
    assert_eq!(lost.effect(), Effect::Possible, "{}", error.chain());
    assert!(
        error.chain().contains("share their locks"),
        "{}",
        error.chain()
    );
    assert!(!base.join("v/made").exists());
    // With their locks both leave the work of the other alone.
    let from = source(&base, 20);
    create(&one, "made", Some(from)).expect("made again");
    assert_eq!(files(&base.join("v/made")), 20);
}

/// Clones until each one is made.
fn clone_all(on: &Directories, base: &Path, from: &Source, who: usize) {
    for clone in 0..CLONES {
        let name = format!("clone-{who}-{clone}");
        while let Err(error) = create(on, &name, Some(from.clone())) {
            assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
        }
        assert_eq!(files(&base.join("v").join(&name)), FILES, "{name}");
    }
}

const FILES: usize = 150;
const CLONES: usize = 12;
/// The number of times that a lock is lost in all, so that the work comes to an end.
const LOSSES: usize = 60;

#[test]
fn a_clone_is_whole_or_an_error_while_locks_are_lost_at_random() {
    let top = tempfile::tempdir().expect("folder");
    let base = top.path().join("base");
    let from = source(&base, FILES);
    let both = [directories(&base), directories(&base)];
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..both.len())
            .map(|who| {
                scope.spawn({
                    let (both, base, from) = (&both, &base, &from);
                    move || clone_all(&both[who], base, from, who)
                })
            })
            .collect();
        let mut random = 1_u64;
        let mut losses = 0;
        while losses < LOSSES && makers.iter().any(|maker| !maker.is_finished()) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let which = usize::from(random >> 63 == 1);
            // At any moment of a copy, and not at each.
            for _ in 0..(random >> 40) % 5_000 {
                std::thread::yield_now();
            }
            losses += usize::from(both[which].store.staging_area.lose_lock());
            both[1 - which].store.staging_area.expect_leftovers();
            both[1 - which].store.clean_up(Duration::from_secs(1));
        }
        for maker in makers {
            maker.join().expect("a maker");
        }
    });
    // What is there is whole, also later.
    for entry in std::fs::read_dir(base.join("v")).expect("list") {
        let path = entry.expect("entry").path();
        assert_eq!(files(&path), FILES, "{}", path.display());
    }
}
