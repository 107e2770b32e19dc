//! A session or controller that is still in use is never ended.

use std::fs;
use std::path::Path;

use tonic::Code;

use crate::lab::calls::{Node, refused, until_done};
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::fixture::{Access, SIZE};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, write};
use crate::lab::storage::configfs::names;
use crate::lab::storage::fabric::Fabric;
use crate::lab::storage::zfs::Zvol;

const EXT4: Access = Access::Mount("ext4");

/// Two volumes of one target: one is removed, and the other is not affected. Then a volume whose device
/// is mounted elsewhere, too.
///
/// # Panics
/// If the connection ends too early, or stays in the end.
pub async fn others_keep_their_session(fabric: Fabric) {
    let exporter = fabric.exporter("shared");
    let zvols = [1, 2].map(|number| Zvol::create(&format!("shared-{number}"), SIZE));
    let supplies = [1_u32, 2].map(|number| {
        let zvol = &zvols[usize::try_from(number - 1).expect("small")];
        exporter.give(number, zvol);
        exporter.fixture(&format!("shared-{number}"), number, zvol, EXT4)
    });
    let before = Leftovers::read();
    let node = Node::start().await;
    let [one, two] = &supplies;
    let (pod, elsewhere) = (node.pod("two"), node.place.node().join("elsewhere"));
    fs::create_dir(&elsewhere).expect("a new folder");
    for fixture in &supplies {
        node.stage(fixture).await.expect("staged");
    }
    node.publish(two, &pod).await.expect("published");
    let connections = || names(&Path::new("/sys/class").join(fabric.class())).len();
    assert_eq!(connections(), 1, "both share one connection");

    step("the first one goes");
    node.unstage(one).await.expect("unstaged");
    write(two, &pod, &content::bytes(2, LENGTH));
    assert_eq!(connections(), 1, "the other still needs it");

    step("the first one comes back, and an administrator mounts its device");
    node.stage(one).await.expect("staged");
    let device = run(&[
        "findmnt",
        "-no",
        "SOURCE",
        &node.staging(one).display().to_string(),
    ]);
    let point = elsewhere.display().to_string();
    run(&["mount", device.trim(), &point]);
    node.take_away(two, &[&pod]).await;
    let codes = [Code::FailedPrecondition, Code::Unavailable];
    let why = refused(node.unstage(one).await, &codes, "a device in use");
    step(&format!("refused: {why}"));
    assert_eq!(connections(), 1, "it is mounted elsewhere");
    write(one, &elsewhere, &content::bytes(1, LENGTH));
    let found = read(one, &elsewhere);
    content::same(
        &content::bytes(1, LENGTH),
        &found,
        "what is mounted by hand",
    );
    run(&["umount", &point]);
    until_done("unstage", || node.unstage(one)).await;
    Leftovers::back_to(&before, "the shared target").await;
    node.end().await;
}
