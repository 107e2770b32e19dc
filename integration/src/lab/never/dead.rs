//! What is dead is taken away, and never passes for what is staged.

use std::fs;

use crate::lab::calls::{Node, until_done};
use crate::lab::command::{attempt, run};
use crate::lab::content;
use crate::lab::life::{LENGTH, read, step, stored, write};
use crate::lab::remains::Remains;
use crate::lab::storage::shares;
use crate::lab::supply::{Access, Backing, Export, Supply, Way};

/// The storage or the device goes away under a mount, and everything can still be taken away.
///
/// # Panics
/// If unpublish or unstage never succeeds, or leaves something.
pub async fn what_is_dead_can_be_taken_away(way: Way, access: Access) {
    let supply = way.supply("dead", access);
    let before = Remains::read();
    let node = Node::start().await;
    let pod = node.pod("dead");
    node.stage(&supply).await.expect("staged");
    node.publish(&supply, &pod).await.expect("published");
    write(&supply, &pod, &content::bytes(1, LENGTH));
    step("it dies");
    kill(&supply);
    step("it is taken away");
    until_done("unpublish", || node.unpublish(&supply, &pod)).await;
    until_done("unstage", || node.unstage(&supply)).await;
    assert!(!pod.exists(), "the target is gone");
    // The storage side, too, is then as it was.
    revive(&supply);
    Remains::back_to(&before, "the dead volume").await;
    node.end().await;
}

/// The device goes away under a mount and the orchestrator stages the volume again: it is then
/// really there, for a new pod, and the old pod can be taken away.
///
/// # Panics
/// If the stage succeeds and the volume does not work.
pub async fn a_dead_volume_is_staged_anew(way: Way, access: Access) {
    let supply = way.supply("anew", access);
    let before = Remains::read();
    let node = Node::start().await;
    let (old, new) = (node.pod("old"), node.pod("new"));
    node.stage(&supply).await.expect("staged");
    node.publish(&supply, &old).await.expect("published");
    write(&supply, &old, &content::bytes(1, LENGTH));
    step("it dies");
    kill(&supply);
    revive(&supply);
    step("it is staged again");
    until_done("stage", || node.stage(&supply)).await;
    node.publish(&supply, &new).await.expect("published");
    let found = read(&supply, &new);
    content::same(&content::bytes(1, LENGTH), &found, "the new pod");
    write(&supply, &new, &content::bytes(2, LENGTH));
    step("it is taken away");
    node.take_away(&supply, &[&old, &new]).await;
    Remains::back_to(&before, "the revived volume").await;
    node.end().await;
    supply.withdraw();
    content::same(&content::bytes(2, LENGTH), &stored(&supply), "the storage");
}

/// Takes away what is below the mounts, as a fault would.
fn kill(supply: &Supply) {
    match &supply.export {
        Export::Iscsi(target, _) => {
            run(&["iscsiadm", "-m", "node", "-T", &target.iqn, "--logout"]);
        }
        Export::Nvmeof(subsystem, _) => {
            run(&["nvme", "disconnect", "-n", &subsystem.nqn]);
        }
        Export::Nfs(client) => {
            // Another directory with the same name: every handle of the old one is stale.
            let folder = folder(supply);
            shares::no_nfs(&folder, client);
            let name = dataset(supply);
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
fn revive(supply: &Supply) {
    match &supply.export {
        Export::Nfs(client) => {
            let (folder, name) = (folder(supply), dataset(supply));
            shares::no_nfs(&folder, client);
            shares::nfsd_lets_go();
            run(&["zfs", "destroy", &name]);
            run(&["zfs", "rename", &format!("{name}-away"), &name]);
            let _ = attempt(&["zfs", "mount", &name]);
            assert!(fs::metadata(folder.join("content")).is_ok(), "it is back");
            supply.export_again();
        }
        Export::Smb(name) => shares::smb(&folder(supply), name, false),
        _ => {}
    }
}

fn dataset(supply: &Supply) -> String {
    match &supply.backing {
        Backing::Dataset(dataset) => dataset.name.clone(),
        Backing::Zvol(zvol) => zvol.name.clone(),
    }
}

fn folder(supply: &Supply) -> std::path::PathBuf {
    std::path::Path::new("/").join(dataset(supply))
}
