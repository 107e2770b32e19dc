//! The folder whose file counts, and when it is gone.

use std::fs;
use std::path::Path;

use super::*;

/// What changed until nothing more does.
fn scan(folders: &mut Folders, now: Instant) -> Vec<(String, String)> {
    let polls = (0..2).flat_map(|_| folders.scan_blocking(now).changed);
    let pair = |one: Changed| (one.name.to_string(), one.text.expect("text"));
    polls.map(pair).collect()
}

fn pair(name: &str, text: &str) -> (String, String) {
    (name.to_owned(), text.to_owned())
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).expect("a file");
}

#[test]
fn a_file_is_gone_after_a_grace_and_never_because_its_folder_cannot_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).expect("a folder");
    write(&inner, "nas.yaml", "one");
    let mut folders = Folders::new(vec![inner.clone()]);
    let mut now = Instant::now();
    assert_eq!(scan(&mut folders, now), [pair("nas", "one")]);
    let away = folder.path().join("away");
    fs::rename(&inner, &away).expect("moved");
    let first = folders.scan_blocking(now);
    assert_eq!((first.odd.len(), first.gone.len(), first.unread), (1, 0, 1));
    assert_eq!(first.unknown, None, "what it had is known");
    for _ in 0..3 {
        now += GRACE;
        let again = folders.scan_blocking(now);
        assert!(again.gone.is_empty() && again.odd.is_empty(), "{again:?}");
    }
    fs::rename(&away, &inner).expect("moved back");
    assert_eq!(scan(&mut folders, now), []);
    fs::remove_file(inner.join("nas.yaml")).expect("removed");
    assert!(folders.scan_blocking(now).gone.is_empty());
    now += GRACE.checked_sub(Duration::from_millis(1)).expect("some");
    assert!(folders.scan_blocking(now).gone.is_empty(), "put back soon");
    write(&inner, "nas.yaml", "one");
    assert_eq!(scan(&mut folders, now), [], "and it is the same");
    fs::remove_file(inner.join("nas.yaml")).expect("removed");
    assert!(folders.scan_blocking(now).gone.is_empty());
    assert_eq!(folders.scan_blocking(now + GRACE).gone.len(), 1);
    write(&inner, "nas.yaml", "one");
    assert_eq!(scan(&mut folders, now), [pair("nas", "one")]);
}

#[test]
fn of_several_folders_the_first_counts_and_the_other_is_reported() {
    let all = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [one, other] = all.each_ref().map(tempfile::TempDir::path);
    for (folder, name, text) in [
        (one, "nas.yaml", "one"),
        (other, "nas.yaml", "other"),
        (other, "b.yaml", "b"),
        (other, "a b.yaml", "no name"),
    ] {
        write(folder, name, text);
    }
    let mut folders = Folders::new(vec![one.to_owned(), other.to_owned()]);
    let now = Instant::now();
    let first = folders.scan_blocking(now);
    let changed = first.changed.iter().map(|one| one.name.to_string());
    assert_eq!(changed.collect::<Vec<_>>(), ["b", "nas"]);
    assert_eq!(first.odd.len(), 2, "{:?}", first.odd);
    assert!(first.odd.iter().any(|odd| odd.contains("another folder")));
    // The other's counts when the first has none any more, and no longer than that.
    fs::remove_file(one.join("nas.yaml")).expect("removed");
    assert_eq!(scan(&mut folders, now), []);
    assert_eq!(scan(&mut folders, now + GRACE), [pair("nas", "other")]);
    write(one, "nas.yaml", "one");
    assert_eq!(scan(&mut folders, now + GRACE), [pair("nas", "one")]);
    fs::remove_file(one.join("nas.yaml")).expect("removed");
    assert_eq!(scan(&mut folders, now + GRACE), []);
    let back = scan(&mut folders, now + 2 * GRACE);
    let more = scan(&mut folders, now + 2 * GRACE);
    assert_eq!([back, more].concat(), [pair("nas", "other")]);
}

#[test]
fn the_content_of_a_folder_that_was_never_readable_is_unknown() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let mut folders = Folders::new(vec![folder.path().to_owned(), missing.clone()]);
    let scan = folders.scan_blocking(Instant::now());
    assert!(scan.unknown.expect("it is reported").contains("missing"));
    fs::create_dir(&missing).expect("a folder");
    assert_eq!(folders.scan_blocking(Instant::now()).unknown, None);
}

#[tokio::test]
async fn a_folder_that_hangs_delays_no_other_and_is_reported() {
    let all = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    for (folder, name) in all.iter().zip(["a.yaml", "b.yaml"]) {
        write(folder.path(), name, "text");
    }
    let paths = all.each_ref().map(|folder| folder.path().to_owned());
    let mut folders = Folders::new(paths.to_vec());
    // A poll there never ends.
    let (_never, hangs) = oneshot::channel();
    let now = Instant::now();
    folders.places[0].out = Some((hangs, now));
    let now = now + Duration::from_millis(1);
    let timeout = Duration::from_mins(1);
    assert_eq!(reported(&mut folders, now).await, ["b"]);
    let scan = folders.scan(now + SILENT, timeout).await;
    assert!(scan.odd[0].contains("does not answer"), "{:?}", scan.odd);
    assert_eq!((scan.unread, scan.unknown.is_some()), (1, true));
    // It may have been mounted again: it is polled again, a limited number of times.
    let now = now + LOST[0];
    assert_eq!(reported(&mut folders, now).await, ["a"]);
    let place = &mut folders.places[0];
    assert_eq!((place.lost.len(), &place.problem), (1, &None));
    let all_hang: Vec<_> = (0..MOST_LOST).map(|_| oneshot::channel()).collect();
    let (senders, hang): (Vec<_>, Vec<_>) = all_hang.into_iter().unzip();
    let (_nor, hangs) = oneshot::channel();
    (place.lost, place.out) = (hang, Some((hangs, now)));
    place.begin(now + LOST[3]);
    assert!(matches!(place.out, Some((_, since)) if since == now));
    // Those that have come back are no more in the way.
    drop(senders);
    place.begin(now + LOST[0]);
    assert!(matches!(place.out, Some((_, since)) if since == now + LOST[0]));
}

#[tokio::test]
async fn a_folder_that_is_mounted_again_much_later_is_found_and_unchanged_files_are_not_reported_again()
 {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a.yaml", "b.yaml"] {
        write(folder.path(), name, "text");
    }
    let mut folders = Folders::new(vec![folder.path().to_owned()]);
    let mut now = Instant::now();
    assert_eq!(reported(&mut folders, now).await, ["a", "b"]);
    // Each of these polls hangs forever.
    let (senders, polls): (Vec<_>, Vec<_>) = (0..4).map(|_| oneshot::channel()).unzip();
    for (scan, timeout) in polls.into_iter().zip(LOST) {
        let place = &mut folders.places[0];
        place.out = Some((scan, now));
        place.give_up(now + timeout.saturating_sub(Duration::from_millis(1)));
        assert!(place.out.is_some(), "it is waited for");
        place.give_up(now + timeout);
        assert!(place.out.is_none(), "it is polled again");
        now += timeout;
    }
    write(folder.path(), "b.yaml", "other");
    assert_eq!(reported(&mut folders, now).await, ["b"], "`a` is as it was");
    drop(senders);
}

/// The report of two scans.
async fn reported(folders: &mut Folders, now: Instant) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..2 {
        let scan = folders.scan(now, Duration::from_mins(1)).await;
        names.extend(scan.changed.iter().map(|one| one.name.to_string()));
    }
    names
}

#[tokio::test]
async fn a_late_poll_is_followed_by_the_next_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut folders = Folders::new(vec![folder.path().to_owned()]);
    let (answer, late) = oneshot::channel();
    let now = Instant::now();
    folders.places[0].out = Some((late, now));
    let snapshot = poller(&folders.places[0].poller).poll();
    answer.send(snapshot).expect("it is waited for");
    let now = now + Duration::from_millis(1);
    folders.scan(now, Duration::from_mins(1)).await;
    let place = &folders.places[0];
    assert!(place.known.is_some() && place.out.is_some());
}

#[tokio::test]
async fn a_file_is_known_from_its_first_poll_on_and_forgotten_if_it_is_removed_before_its_report() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a.yaml", "b.yaml"] {
        write(folder.path(), name, "text");
    }
    let mut folders = Folders::new(vec![folder.path().to_owned()]);
    let (now, timeout) = (Instant::now(), Duration::from_mins(1));
    let scan = folders.scan(now, timeout).await;
    assert_eq!((scan.changed.len(), scan.found.len()), (0, 2));
    fs::remove_file(folder.path().join("b.yaml")).expect("removed");
    let scan = folders.scan(now, timeout).await;
    let never: Vec<_> = scan.never.iter().map(ToString::to_string).collect();
    assert_eq!((scan.changed.len(), scan.found.len()), (1, 0));
    assert_eq!(never, ["b"]);
    assert!(folders.scan(now, timeout).await.never.is_empty());
}

#[tokio::test]
async fn a_panic_during_a_poll_is_reported_and_polling_continues() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "a.yaml", "text");
    let mut folders = Folders::new(vec![folder.path().to_owned()]);
    let place = &mut folders.places[0];
    let shared = Arc::clone(&place.poller);
    let defect = own_thread::spawn(move || -> Snapshot {
        let _eye = poller(&shared);
        panic!("a defect");
    });
    let now = Instant::now();
    place.out = Some((defect.expect("a thread"), now));
    let timeout = Duration::from_mins(1);
    let scan = folders.scan(now, timeout).await;
    assert!(scan.odd[0].contains("a defect"), "{:?}", scan.odd);
    assert_eq!(reported(&mut folders, now).await, ["a"]);
    assert_eq!(folders.scan(now, timeout).await.unread, 0);
}
