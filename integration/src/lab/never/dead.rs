//! A dead mount is taken away, and never passes for what is staged.

use std::fs;

use crate::lab::calls::{Node, until_done};
use crate::lab::command::{attempt, run};
use crate::lab::content;
use crate::lab::fixture::{Access, Backing, Export, ExportKind, Fixture};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, stored, write};
use crate::lab::storage::shares;

/// The storage or the device goes away under a mount, and everything can still be taken away.
///
/// # Panics
/// If unpublish or unstage never succeeds, or leaves something.
pub async fn what_is_dead_can_be_taken_away(export_kind: ExportKind, access: Access) {
    let fixture = export_kind.fixture("dead", access);
    let before = Leftovers::read();
    let node = Node::start().await;
    let pod = node.pod("dead");
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &pod).await.expect("published");
    write(&fixture, &pod, &content::bytes(1, LENGTH));
    step("it dies");
    kill(&fixture);
    step("it is taken away");
    until_done("unpublish", || node.unpublish(&fixture, &pod)).await;
    until_done("unstage", || node.unstage(&fixture)).await;
    assert!(!pod.exists(), "the target is gone");
    // The storage side, too, is then as it was.
    revive(&fixture);
    Leftovers::back_to(&before, "the dead volume").await;
    node.end().await;
}

/// The device goes away under a mount and the orchestrator stages the volume again: it is then
/// really there, for a new pod, and the old pod can be taken away.
///
/// # Panics
/// If the stage succeeds and the volume does not work.
pub async fn a_dead_volume_is_staged_anew(export_kind: ExportKind, access: Access) {
    let fixture = export_kind.fixture("anew", access);
    let before = Leftovers::read();
    let node = Node::start().await;
    let (old, new) = (node.pod("old"), node.pod("new"));
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &old).await.expect("published");
    write(&fixture, &old, &content::bytes(1, LENGTH));
    step("it dies");
    kill(&fixture);
    revive(&fixture);
    step("it is staged again");
    until_done("stage", || node.stage(&fixture)).await;
    node.publish(&fixture, &new).await.expect("published");
    let found = read(&fixture, &new);
    content::same(&content::bytes(1, LENGTH), &found, "the new pod");
    write(&fixture, &new, &content::bytes(2, LENGTH));
    step("it is taken away");
    node.take_away(&fixture, &[&old, &new]).await;
    Leftovers::back_to(&before, "the revived volume").await;
    node.end().await;
    fixture.remove();
    content::same(&content::bytes(2, LENGTH), &stored(&fixture), "the storage");
}

/// Takes away what is below the mounts, as a fault would.
fn kill(fixture: &Fixture) {
    match &fixture.export {
        Export::Iscsi(target, _) => {
            run(&["iscsiadm", "-m", "node", "-T", &target.iqn, "--logout"]);
        }
        Export::Nvmeof(subsystem, _) => {
            run(&["nvme", "disconnect", "-n", &subsystem.nqn]);
        }
        Export::Nfs(client) => {
            // Another directory with the same name: every handle of the old one is stale.
            let folder = folder(fixture);
            shares::no_nfs(&folder, client);
            let name = dataset(fixture);
            shares::nfsd_lets_go();
            run(&["zfs", "rename", "-f", &name, &format!("{name}-away")]);
            run(&["zfs", "create", &name]);
            shares::nfs(&folder, 99, client);
        }
        Export::Smb(name) => {
            run(&["smbcontrol", "smbd", "close-share", name]);
            shares::no_smb(name);
        }
        Export::None => panic!("what is the node's own does not die alone"),
    }
}

/// Lets it be found again, where the fault was of a kind that ends.
fn revive(fixture: &Fixture) {
    match &fixture.export {
        Export::Nfs(client) => {
            let (folder, name) = (folder(fixture), dataset(fixture));
            shares::no_nfs(&folder, client);
            shares::nfsd_lets_go();
            run(&["zfs", "destroy", &name]);
            run(&["zfs", "rename", &format!("{name}-away"), &name]);
            let _ = attempt(&["zfs", "mount", &name]);
            assert!(fs::metadata(folder.join("content")).is_ok(), "it is back");
            fixture.export_again();
        }
        Export::Smb(name) => shares::smb(&folder(fixture), name, false),
        _ => {}
    }
}

fn dataset(fixture: &Fixture) -> String {
    match &fixture.backing {
        Backing::Dataset(dataset) => dataset.name.clone(),
        Backing::Zvol(zvol) => zvol.name.clone(),
    }
}

fn folder(fixture: &Fixture) -> std::path::PathBuf {
    std::path::Path::new("/").join(dataset(fixture))
}
