//! A node that starts again has lost its mounts, sessions and processes, and kept its files.

use std::path::Path;

use super::calls::Node;
use super::command::{attempt, run};
use super::content;
use super::fixture::{Access, Export, ExportKind, Fixture};
use super::leftovers::Leftovers;
use super::life::{LENGTH, read, step, stored, write};
use super::storage::configfs::names;

/// Twice the node starts again under a published volume: once the orchestrator brings it back, and
/// once it takes it away.
///
/// # Panics
/// If the volume does not come back with its content, or something of it stays.
pub async fn the_replay_brings_it_back_or_away(export_kind: ExportKind, access: Access) {
    let fixture = export_kind.fixture("reboot", access);
    let before = Leftovers::read();
    let mut node = Node::start().await;
    let (old, new) = (node.pod("old"), node.pod("new"));
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &old).await.expect("published");
    write(&fixture, &old, &content::bytes(1, LENGTH));

    step("the node starts again, and the volume is wanted");
    start_again(&mut node, &fixture).await;
    node.unpublish(&fixture, &old).await.expect("unpublished");
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &new).await.expect("published");
    let found = read(&fixture, &new);
    content::same(&content::bytes(1, LENGTH), &found, "after the start");
    write(&fixture, &new, &content::bytes(2, LENGTH));

    step("the node starts again, and the volume is not wanted");
    start_again(&mut node, &fixture).await;
    node.unpublish(&fixture, &new).await.expect("unpublished");
    node.unstage(&fixture).await.expect("unstaged");
    Leftovers::back_to(&before, "the node that started again").await;
    node.end().await;
    fixture.remove();
    content::same(&content::bytes(2, LENGTH), &stored(&fixture), "the storage");
}

/// The effect of a start of the machine on everything but files: iscsid's records and the folders of the
/// orchestrator stay.
async fn start_again(node: &mut Node, fixture: &Fixture) {
    node.server.kill().await;
    let below = node.place.node();
    while let Some(point) = last_mount(&below) {
        run(&["umount", &point]);
    }
    for name in names(Path::new("/sys/block")) {
        if name.starts_with("loop") {
            let _ = attempt(&["losetup", "-d", &format!("/dev/{name}")]);
        }
    }
    match &fixture.export {
        Export::Iscsi(target, _) => {
            let _ = attempt(&["multipath", "-F"]);
            run(&["iscsiadm", "-m", "node", "-T", &target.iqn, "--logout"]);
        }
        Export::Nvmeof(subsystem, _) => {
            run(&["nvme", "disconnect", "-n", &subsystem.nqn]);
        }
        _ => {}
    }
    node.start_again().await;
}

/// The last thing that was mounted below a folder.
fn last_mount(below: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let mut ours = points.filter(|point| Path::new(point).starts_with(below));
    ours.next_back().map(str::to_owned)
}
