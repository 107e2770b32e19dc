//! The network is cut and storage starts again under a checked writer: no byte is wrong, and it
//! writes again soon, without anybody's help.

use std::time::Duration;

use tokio::time::sleep;

use super::calls::Node;
use super::command::run;
use super::life::step;
use super::remains::Remains;
use super::storage::cut::Cut;
use super::supply::{Access, Export, Supply, Way};
use super::writer::{Writer, check};

/// From the moment that the port answers again.
const WRITABLE: Duration = Duration::from_mins(1);
/// How long storage is away when it starts again.
const AWAY: Duration = Duration::from_secs(15);
const FILE: &str = "checked";

/// Cuts of 30 and 120 seconds, then storage that starts again.
///
/// # Panics
/// If a write fails, a byte is wrong, or writing goes on too late.
pub async fn a_writer_survives(way: Way, access: Access) {
    let supply = way.supply("fault", access);
    let before = Remains::read();
    let node = Node::start().await;
    let pod = node.pod("fault");
    node.stage(&supply).await.expect("staged");
    node.publish(&supply, &pod).await.expect("published");
    let writer = Writer::start(&pod.join(FILE));
    writer.goes_on(WRITABLE).await;

    for seconds in [30, 120] {
        let cut = Cut::ports(&[port(&supply)]);
        sleep(Duration::from_secs(seconds)).await;
        cut.mend();
        let after = writer.goes_on(WRITABLE).await;
        step(&format!(
            "cut for {seconds} s: written again after {after:?}"
        ));
    }
    storage_stops(&supply);
    sleep(AWAY).await;
    storage_starts(&supply);
    let after = writer.goes_on(WRITABLE).await;
    step(&format!(
        "storage started again: written again after {after:?}"
    ));

    let acknowledged = writer.stop();
    step(&format!("{acknowledged} writes were acknowledged"));
    let found = std::fs::read(pod.join(FILE)).expect("the file");
    check(&found, acknowledged);
    node.take_away(&supply, &[&pod]).await;
    Remains::back_to(&before, "the faults").await;
    node.end().await;
    supply.withdraw();
    check(&supply.stored(FILE), acknowledged);
}

fn port(supply: &Supply) -> u16 {
    match &supply.export {
        Export::Nfs(_) => 2049,
        Export::Smb(_) => 445,
        Export::Iscsi(..) => 3260,
        Export::Nvmeof(..) => 4420,
        Export::None => panic!("it is on no network"),
    }
}

/// Every connection ends, and nothing answers.
fn storage_stops(supply: &Supply) {
    match &supply.export {
        Export::Iscsi(target, _) => target.enable(false),
        Export::Nvmeof(subsystem, _) => {
            for (address, service) in &subsystem.ports {
                subsystem.leave(address, *service);
            }
        }
        _ => drop(run(&["systemctl", "stop", "nfs-server"])),
    }
}

fn storage_starts(supply: &Supply) {
    match &supply.export {
        Export::Iscsi(target, _) => target.enable(true),
        Export::Nvmeof(subsystem, _) => {
            for (address, service) in &subsystem.ports {
                subsystem.join(address, *service);
            }
        }
        _ => {
            supply.export_at_start();
            run(&["systemctl", "start", "nfs-server"]);
        }
    }
}
