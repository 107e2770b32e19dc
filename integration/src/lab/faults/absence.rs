//! The way storage goes away, and comes back as it was.
//!
//! A cut loses every packet without any notice. A reboot ends the services first, as an orderly
//! shutdown does, so that the node gets a notice. Then the machine is silent, and everything is set
//! up again from the same dataset or zvol, under the same identity, before the network is back.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::lab::command::{attempt, run};
use crate::lab::fixture::{Backing, Export, Fixture};
use crate::lab::life::step;
use crate::lab::storage::configfs;
use crate::lab::storage::cut::Cut;
use crate::lab::storage::lio::Target;
use crate::lab::storage::nvmet::Subsystem;
use crate::wait::until;

/// The time that the port is closed while a storage host shuts down.
const CLOSED: Duration = Duration::from_secs(5);
/// The time that the host is silent until it has started again, at least.
const STARTING: Duration = Duration::from_secs(25);
/// How much later than another target a target appears at the same port.
const LATER: Duration = Duration::from_secs(10);

/// What happens to the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its network is cut for so long.
    Cut(Duration),
    /// It is rebooted.
    Reboot,
    /// It is rebooted, and its port answers for others before the volume is there.
    SlowReboot,
}

/// The state that a storage host has written down, so that it is the same after a reboot.
enum Kept {
    Iscsi,
    Nvmeof { serial: String },
    Nfs,
}

// === impl Fault ===

impl Fault {
    /// Lets it happen; when the storage's port answers again, with the volume behind it.
    pub async fn happen(self, fixture: &Fixture) -> Instant {
        let port = port(fixture);
        match self {
            Self::Cut(duration) => {
                let cut = Cut::ports(&[port]);
                pass(duration).await;
                cut.mend();
            }
            Self::Reboot => reboot(fixture).await.mend(),
            Self::SlowReboot => {
                let other = format!("{}-first", fixture.volume.volume_id);
                stop_and_start_late(fixture, &other).await;
            }
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        until("the port to answer", || answers(address).then(Instant::now)).await
    }
}

/// Waits for nothing but time: what is tested is how long storage is away.
pub async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// The port at which storage answers for a volume.
///
/// # Panics
/// If it is none of the network.
pub fn port(fixture: &Fixture) -> u16 {
    match &fixture.export {
        Export::Iscsi(..) => 3260,
        Export::Nvmeof(..) => 4420,
        Export::Nfs(_) => 2049,
        other => panic!("{other:?} has no port"),
    }
}

/// Whether something listens at an address, and can be reached.
pub fn answers(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// Everything ends, and is there again behind a network that is still cut.
async fn reboot(fixture: &Fixture) -> Cut {
    step("the storage host shuts down");
    let kept = stop(fixture).await;
    pass(CLOSED).await;
    let cut = Cut::ports(&[port(fixture)]);
    step("the storage host is away");
    pass(STARTING).await;
    start(fixture, &kept);
    cut
}

async fn stop_and_start_late(fixture: &Fixture, other: &str) {
    let kept = stop(fixture).await;
    let cut = Cut::ports(&[port(fixture)]);
    pass(STARTING).await;
    let Export::Iscsi(target, _) = &fixture.export else {
        panic!("only targets are known to be waited for");
    };
    let portals: Vec<_> = target.portals.iter().map(String::as_str).collect();
    let _other = Target::create(other, &portals, None);
    cut.mend();
    step("the storage host answers, without the volume");
    pass(LATER).await;
    // Complete before it is reachable, as on real storage hosts.
    let cut = Cut::ports(&[port(fixture)]);
    start(fixture, &kept);
    cut.mend();
}

async fn stop(fixture: &Fixture) -> Kept {
    match &fixture.export {
        Export::Iscsi(target, lun) => {
            // Sessions first: a number that is taken away under them is an error, not an absence.
            target.enable(false);
            target.detach(*lun, fixture.zvol());
            target.remove();
            Kept::Iscsi
        }
        Export::Nvmeof(subsystem, _) => {
            let serial = fs::read_to_string(serial_of(subsystem)).expect("a serial number");
            subsystem.remove();
            Kept::Nvmeof { serial }
        }
        Export::Nfs(_) => {
            fixture.export_at_start();
            run(&["systemctl", "stop", "nfs-server"]);
            let dataset = dataset(fixture);
            until("the dataset to be free", || {
                attempt(&["zfs", "unmount", &dataset]).ok()
            })
            .await;
            Kept::Nfs
        }
        other => panic!("{other:?} does not reboot"),
    }
}

fn start(fixture: &Fixture, kept: &Kept) {
    let name = &fixture.volume.volume_id;
    match (&fixture.export, kept) {
        (Export::Iscsi(target, lun), Kept::Iscsi) => {
            let portals: Vec<_> = target.portals.iter().map(String::as_str).collect();
            Target::create(name, &portals, None).attach(*lun, fixture.zvol());
        }
        (Export::Nvmeof(subsystem, nsid), Kept::Nvmeof { serial }) => {
            let ports: Vec<_> = subsystem
                .ports
                .iter()
                .map(|(address, service)| (address.as_str(), *service))
                .collect();
            let made = Subsystem::create(name, &ports);
            let path = serial_of(&made);
            configfs::set(
                path.parent().expect("a folder"),
                "attr_serial",
                serial.trim(),
            );
            made.attach(*nsid, fixture.zvol());
        }
        (Export::Nfs(_), Kept::Nfs) => {
            run(&["zfs", "mount", &dataset(fixture)]);
            // The shortest time for clients to reclaim what they had that the kernel lets one set.
            fs::write("/etc/nfs.conf.d/reboot.conf", "[nfsd]\ngrace-time=10\n").expect("a setting");
            run(&["systemctl", "start", "nfs-server"]);
        }
        (other, _) => panic!("{other:?} was not stopped"),
    }
}

fn serial_of(subsystem: &Subsystem) -> PathBuf {
    Path::new("/sys/kernel/config/nvmet/subsystems")
        .join(&subsystem.nqn)
        .join("attr_serial")
}

fn dataset(fixture: &Fixture) -> String {
    match &fixture.backing {
        Backing::Dataset(dataset) => dataset.name.clone(),
        Backing::Zvol(zvol) => zvol.name.clone(),
    }
}
