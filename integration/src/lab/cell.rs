//! Every cell by its name: what is tested over which attachment, and for how long at most.

use std::pin::Pin;
use std::time::Duration;

use super::bench;
use super::by_hand;
use super::clients;
use super::crash;
use super::faults::absence::Fault;
use super::faults::{KINDS, disconnect, outage, power};
use super::fixture::{Access, ExportKind};
use super::healed;
use super::life;
use super::live_migration;
use super::migration;
use super::never::{busy, dead, foreign, hung, modes, reuse, sharing};
use super::node_loss;
use super::outside::Machine;
use super::pair::class;
use super::reboot;
use super::served::appliance;
use super::served::cuts::operation::Part;
use super::served::synology;
use super::served::{self, Served};
use super::storage::fabric::Fabric;
use super::two_nodes;

/// The work of a cell.
type Work = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync>;

/// One attachment, with one filesystem or access, under one suite.
pub struct Cell {
    /// Its name, which stays the same: results are recorded under it.
    pub name: String,
    /// Longer than this is a failure.
    pub limit: Duration,
    /// When `make test-real` runs it; `make test-all` runs every one.
    pub when: When,
    /// The number of machines it needs.
    pub machines: Machines,
    /// The one that it runs on. The state to inspect is there.
    pub seat: Machine,
    work: Work,
}

/// When `make test-real` runs a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Each time: without it, something that must never happen would not be tested.
    Always,
    /// On its day: of those of each protocol, one a day.
    InTurn,
    /// Never, because it takes long.
    Never,
}

/// The machines of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machines {
    /// One, storage host and node at once.
    One,
    /// Two, joined by a network of their own.
    Pair,
}

/// Those that `make test-real` always runs: each sentence of what is promised, on a kind of volume where
/// it is hard to keep.
const ALWAYS: [&str; 26] = [
    "nfs-life",
    "smb-life",
    "iscsi-ext4-life",
    "iscsi-portals-life",
    "nvmeof-ext4-life",
    "nvmeof-block-life",
    "zfs-local-dataset-life",
    "never-hung",
    "never-format-foreign-iscsi",
    "never-format-unreadable-nvmeof",
    "never-mistake-reused-iscsi",
    "never-mistake-reused-nvmeof",
    "never-grow-lost-iscsi",
    "never-end-shared-iscsi",
    "never-keep-dead-nfs",
    "never-keep-dead-iscsi",
    "never-stage-dead-nvmeof",
    "never-take-busy-iscsi",
    "never-two-writers-nfs",
    "never-write-read-only-iscsi-block",
    "crash-nfs",
    "crash-iscsi",
    "crash-nvmeof",
    "reboot-nfs",
    "reboot-iscsi",
    "fault-cut-30-iscsi",
];

/// Of each of them one cell is run in turn.
const TURNS: [&str; 6] = ["hostpath", "nfs", "smb", "iscsi", "nvmeof", "zfs-local"];

/// The cells that `make test-real` runs on a day, counted from any begin.
pub fn due(day: u64) -> Vec<Cell> {
    let mut chosen = Vec::new();
    for protocol in TURNS {
        let all = all().into_iter();
        let names: Vec<_> = all
            .filter(|cell| cell.when == When::InTurn && cell.name.contains(protocol))
            .map(|cell| cell.name)
            .collect();
        let turn = usize::try_from(day % names.len() as u64).unwrap_or_default();
        chosen.push(names[turn].clone());
    }
    let mut cells = all();
    cells.retain(|cell| cell.when == When::Always || chosen.contains(&cell.name));
    cells
}

/// All of them, in the order in which they are run.
pub fn all() -> Vec<Cell> {
    let mut cells = vec![Cell {
        limit: Duration::from_mins(15),
        when: When::Never,
        ..cell("lab-by-hand", || by_hand::every_way(VOLUMES))
    }];
    cells.extend(lives());
    for (name, export_kind, access) in [
        ("iscsi", ExportKind::Iscsi, EXT4),
        ("zfs-local", ExportKind::Dataset, Access::Mount("zfs")),
    ] {
        cells.push(cell(&format!("{name}-life-in-a-container"), move || {
            life::whole_in_a_container(export_kind, access)
        }));
    }
    cells.extend(served());
    cells.extend(under_load());
    cells.extend(addons());
    cells.extend(appliances());
    cells.extend(clients::ALL.map(|(name, client)| Cell {
        limit: Duration::from_hours(1),
        ..seldom(cell(&format!("client-{name}-sanity"), move || {
            clients::nothing_fails(client)
        }))
    }));
    cells.extend(migrations());
    cells.extend(served::proxied::connections().map(|served| Cell {
        limit: Duration::from_hours(1),
        when: When::Never,
        ..cell(&format!("proxied-{}-sanity", served.name), move || {
            served::proxied::nothing_fails(served)
        })
    }));
    cells.extend(served::mounted().map(|served| Cell {
        limit: Duration::from_hours(2),
        when: When::Never,
        ..cell(&format!("proxied-{}-conformance", served.name), move || {
            served::proxied::is_whole(served)
        })
    }));
    cells.extend(stopped());
    cells.extend(nevers());
    for (name, export_kind, access) in PROTOCOLS {
        cells.extend(replays(name, export_kind, access));
    }
    cells.extend(faults());
    cells.extend(healed());
    cells.push(Cell {
        limit: Duration::from_mins(40),
        when: When::Never,
        machines: Machines::Pair,
        ..cell("pair-proxy", two_nodes::the_proxy_grows_from_nothing)
    });
    cells.extend(losses());
    cells.extend(outages());
    cells.extend(live_migrations());
    cells.extend(benches());
    cells
}

/// The measurements of `make bench`.
fn benches() -> impl Iterator<Item = Cell> {
    let zvols = ("zfs-local-zvol", ExportKind::Zvol, EXT4);
    let all = [
        cell("bench-node", move || {
            bench::stages(PROTOCOLS.into_iter().chain([zvols]))
        }),
        cell("bench-round-trips", || served::costs::round_trips(remote())),
        cell("bench-at-once", || served::costs::at_once(remote())),
    ];
    all.into_iter().map(|cell| Cell {
        limit: Duration::from_hours(1),
        when: When::Never,
        ..cell
    })
}

/// The cell of a name.
pub fn find(name: &str) -> Option<Cell> {
    all().into_iter().find(|cell| cell.name == name)
}

/// What is attached, how, and what a cell of it is called.
const VOLUMES: [(&str, ExportKind, Access); 16] = [
    ("hostpath", ExportKind::Hostpath, Access::Mount("")),
    ("nfs", ExportKind::Nfs, Access::Mount("nfs")),
    ("smb", ExportKind::Smb, Access::Mount("cifs")),
    ("smb-guest", ExportKind::SmbGuest, Access::Mount("")),
    ("iscsi-ext4", ExportKind::Iscsi, Access::Mount("ext4")),
    ("iscsi-xfs", ExportKind::Iscsi, Access::Mount("xfs")),
    ("iscsi-btrfs", ExportKind::Iscsi, Access::Mount("btrfs")),
    ("iscsi-block", ExportKind::Iscsi, Access::Block),
    ("iscsi-chap", ExportKind::IscsiChap, Access::Mount("ext4")),
    (
        "iscsi-portals",
        ExportKind::IscsiPortals,
        Access::Mount("ext4"),
    ),
    ("iscsi-ipv6", ExportKind::IscsiIpv6, Access::Mount("ext4")),
    ("nvmeof-ext4", ExportKind::Nvmeof, Access::Mount("ext4")),
    ("nvmeof-block", ExportKind::Nvmeof, Access::Block),
    (
        "nvmeof-transports",
        ExportKind::NvmeofTransports,
        Access::Mount("ext4"),
    ),
    (
        "zfs-local-dataset",
        ExportKind::Dataset,
        Access::Mount("zfs"),
    ),
    ("zfs-local-zvol", ExportKind::Zvol, Access::Mount("ext4")),
];

fn lives() -> impl Iterator<Item = Cell> {
    VOLUMES.into_iter().map(|(name, export_kind, access)| {
        cell(&format!("{name}-life"), move || {
            life::whole(export_kind, access)
        })
    })
}

/// The conformance suite over real storage: of every protocol, and of those that let in nodes one by one.
fn conformance() -> Vec<Cell> {
    let mut cells = Vec::new();
    for served in served::mounted() {
        let name = format!("served-{}-conformance", served.name);
        cells.push(Cell {
            limit: Duration::from_hours(2),
            ..seldom(cell(&name, move || async move {
                served::conformance::is_whole(&served).await;
            }))
        });
    }
    for served in served::mounted().filter(|served| served.for_nodes().is_some()) {
        let name = format!("served-{}-nodes-conformance", served.name);
        cells.push(Cell {
            limit: Duration::from_hours(1),
            ..seldom(cell(&name, move || {
                served::conformance::is_whole_for_nodes(served)
            }))
        });
    }
    cells
}

/// Drivers that make their volumes themselves.
fn served() -> Vec<Cell> {
    let life = |served: Served| {
        let name = format!("served-{}-life", served.name);
        seldom(cell(&name, move || served::life::whole(served)))
    };
    let mut cells = Vec::new();
    for served in served::ALL {
        let name = format!("served-{}-sanity", served.name);
        cells.push(life(served));
        cells.push(Cell {
            limit: Duration::from_hours(1),
            ..seldom(cell(&name, move || served::sanity::nothing_fails(served)))
        });
    }
    cells.extend(served::UNPRIVILEGED.map(life));
    cells.extend(conformance());
    for served in served::one_of_each_stack() {
        let name = format!("served-{}-exports", served.name);
        cells.push(seldom(cell(&name, move || {
            served::exports::come_back(served)
        })));
    }
    for served in served::one_of_each_stack() {
        let name = format!("served-{}-connected", served.name);
        cells.push(seldom(cell(&name, move || {
            served::connected::to_a_volume(served)
        })));
    }
    for served in served::one_of_each_stack() {
        let name = format!("torn-bare-{}", protocol(served));
        cells.push(Cell {
            limit: served::torn::limit(),
            ..seldom(cell(&name, move || served::torn::by_a_bare_client(served)))
        });
    }
    for served in served::mounted() {
        let name = format!("adopt-{}", served.name);
        cells.push(Cell {
            limit: Duration::from_mins(20),
            ..seldom(cell(&name, move || served::adopted::whole(served)))
        });
    }
    for served in served::of_the_node() {
        let name = format!("proxied-{}-copied", served.name);
        cells.push(Cell {
            limit: Duration::from_mins(30),
            ..seldom(cell(&name, move || served::between::copied(served)))
        });
    }
    for served in [served::ALL[0], served::ALL[2]] {
        let name = format!("served-{}-settings", served.name);
        cells.push(seldom(cell(&name, move || {
            served::settings::are_kept(served)
        })));
        let name = format!("served-{}-orphans", served.name);
        cells.push(Cell {
            limit: Duration::from_mins(20),
            ..seldom(cell(&name, move || {
                served::orphans::are_found_and_removed(served)
            }))
        });
    }
    for served in [served::ALL[0], served::ALL[2], served::ALL[8]] {
        let name = format!("served-{}-children", served.name);
        cells.push(Cell {
            limit: Duration::from_mins(20),
            ..seldom(cell(&name, move || served::children::hold_volumes(served)))
        });
    }
    cells
}

/// Programs that check what they wrote, while the driver works on their volumes. The limits grow with the rounds.
fn under_load() -> Vec<Cell> {
    let groups = cell("group-postgres-iscsi", || {
        served::postgres::is_restored_from_groups(served::ALL[2])
    });
    let mut cells = vec![Cell {
        limit: Duration::from_mins(20 + 10 * served::postgres::rounds()),
        ..seldom(groups)
    }];
    for (name, served) in [("iscsi", served::ALL[2]), ("nfs", served::ALL[0])] {
        let switches = cell(&format!("modify-under-fio-{name}"), move || {
            served::switches::change_no_byte(served)
        });
        cells.push(Cell {
            limit: Duration::from_secs(1800 + 20 * served::switches::rounds()),
            ..seldom(switches)
        });
    }
    cells
}

/// The services of csi-addons.
fn addons() -> Vec<Cell> {
    let mut cells = Vec::new();
    for served in served::addons::of_nodes() {
        let name = format!("fence-{}", protocol(served));
        cells.push(Cell {
            limit: Duration::from_mins(30),
            ..seldom(cell(&name, move || {
                served::addons::a_writing_node_is_fenced(served)
            }))
        });
    }
    for served in served::one_of_each_stack().filter(Served::is_device) {
        let name = format!("reclaim-{}", protocol(served));
        cells.push(seldom(cell(&name, move || {
            served::addons::space_is_given_back(served)
        })));
    }
    cells
}

/// The protocol of a driver on a storage host.
fn protocol(served: Served) -> &'static str {
    served.name.trim_start_matches("zfs-generic-")
}

/// The APIs of TrueNAS and of DSM over this machine's storage.
fn appliances() -> Vec<Cell> {
    let mut cells = Vec::new();
    for nas in synology::ALL {
        let name = format!("synology-{}-life", nas.served.name);
        cells.push(seldom(cell(&name, move || nas.life())));
    }
    cells.push(Cell {
        limit: Duration::from_hours(1),
        ..seldom(cell("synology-iscsi-sanity", || synology::LUNS.sanity()))
    });
    for appliance in appliance::ALL {
        let name = format!("truenas-{}-life", appliance.served.name);
        cells.push(seldom(cell(&name, move || appliance.life())));
        let name = format!("truenas-{}-sanity", appliance.served.name);
        cells.push(Cell {
            limit: Duration::from_hours(1),
            ..seldom(cell(&name, move || appliance.sanity()))
        });
    }
    cells.push(Cell {
        limit: Duration::from_hours(1),
        ..seldom(cell("truenas-suites", || appliance::ALL[0].suites()))
    });
    for appliance in appliance::OF_SHARES {
        let name = format!("truenas-{}-connected", appliance.served.name);
        cells.push(seldom(cell(&name, move || appliance.connected())));
    }
    for appliance in appliance::OF_NODES {
        let name = format!("truenas-{}-access", appliance.served.name);
        cells.push(seldom(cell(&name, move || appliance.access())));
    }
    cells
}

/// The volumes that democratic-csi made.
fn migrations() -> impl Iterator<Item = Cell> {
    migration::ALL.into_iter().map(|migration| Cell {
        limit: Duration::from_mins(20),
        ..seldom(cell(
            &format!("taken-over-{}", migration.name()),
            move || migration::whole(migration),
        ))
    })
}

/// Without a turn: each time, or by `make test-all` only.
fn seldom(cell: Cell) -> Cell {
    Cell {
        when: match cell.when {
            When::Always => When::Always,
            _ => When::Never,
        },
        ..cell
    }
}

/// Those on a storage host that is reached over SSH, each export once.
fn remote() -> impl Iterator<Item = served::Served> {
    let all = served::ALL.into_iter();
    all.filter(|served| served.is_remote() && served.access != Access::Block)
}

/// Their calls, stopped at each command.
fn stopped() -> Vec<Cell> {
    let mut cells = vec![seldom(cell("served-zfs-generic-nfs-stopped", || {
        served::cuts::a_few(served::ALL[0])
    }))];
    let all = served::ALL.into_iter();
    for served in all.filter(|served| served.access != Access::Block) {
        let slow = |how: &str, part: Part, cell: Cell| Cell {
            name: format!("served-{}-{how}-{}", served.name, part.name()),
            limit: Duration::from_hours(3),
            when: When::Never,
            ..cell
        };
        for part in parts(served) {
            let killed = cell("", move || served::cuts::killed(served, part));
            cells.push(slow("killed", part, killed));
            if served.is_remote() {
                let severed = cell("", move || served::cuts::severed(served, part));
                cells.push(slow("severed", part, severed));
            }
        }
        if served.is_remote() {
            let hostile = cell("", move || served::hostile::nothing_is_run(served));
            cells.push(Cell {
                name: format!("never-run-hostile-{}", served.name),
                limit: Duration::from_hours(1),
                when: When::Never,
                ..hostile
            });
        }
    }
    cells
}

/// All calls, once for each kind of dataset and each place to run commands in; of another way to
/// export the same datasets, those in which it differs.
fn parts(served: Served) -> Vec<Part> {
    let first = [served::ALL[0].name, served::ALL[2].name];
    if !served.is_remote() || first.contains(&served.name) {
        Part::WHOLE.to_vec()
    } else {
        vec![Part::Exporting]
    }
}

/// One kind of volume for each protocol.
const PROTOCOLS: [(&str, ExportKind, Access); 5] = [
    ("nfs", ExportKind::Nfs, Access::Mount("nfs")),
    ("smb", ExportKind::Smb, Access::Mount("cifs")),
    ("iscsi", ExportKind::Iscsi, EXT4),
    ("nvmeof", ExportKind::Nvmeof, EXT4),
    ("zfs-local", ExportKind::Dataset, Access::Mount("zfs")),
];

/// What a crash, a start of the node and faults of storage must not cost.
fn replays(name: &str, export_kind: ExportKind, access: Access) -> Vec<Cell> {
    vec![
        cell(&format!("crash-{name}"), move || {
            crash::cycles(export_kind, access, 4)
        }),
        Cell {
            limit: Duration::from_hours(2),
            when: When::Never,
            ..cell(&format!("crash-200-{name}"), move || {
                crash::cycles(export_kind, access, 200)
            })
        },
        cell(&format!("reboot-{name}"), move || {
            reboot::the_replay_brings_it_back_or_away(export_kind, access)
        }),
    ]
}

/// Storage that goes away and comes back; each takes minutes, and only the
/// shortest of one kind is always run.
fn faults() -> Vec<Cell> {
    let slow = |cell: Cell| Cell {
        limit: Duration::from_mins(15),
        ..seldom(cell)
    };
    let mut cells = Vec::new();
    for kind in KINDS {
        for (name, fault) in [
            ("cut-30", Fault::Cut(Duration::from_secs(30))),
            ("cut-120", Fault::Cut(Duration::from_mins(2))),
            ("reboot", Fault::Reboot),
        ] {
            let name = format!("fault-{name}-{}", kind.name);
            cells.push(slow(cell(&name, move || {
                outage::a_writer_goes_on(kind, fault)
            })));
        }
        let name = format!("fault-parting-{}", kind.name);
        cells.push(slow(cell(&name, move || {
            disconnect::a_volume_is_removed_during_an_outage(kind)
        })));
    }
    cells.push(slow(cell("fault-slow-reboot-iscsi", || {
        outage::a_writer_goes_on(KINDS[0], Fault::SlowReboot)
    })));
    cells
}

/// What the program repairs below pods without a call, within minutes.
fn healed() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (name, export_kind) in [
        ("iscsi-portals", ExportKind::IscsiPortals),
        ("nvmeof-transports", ExportKind::NvmeofTransports),
    ] {
        cells.push(seldom(cell(&format!("healed-{name}"), move || {
            healed::a_way_comes_back(export_kind)
        })));
    }
    for served in [served::ALL[0], served::ALL[2]] {
        let name = format!("healed-exports-{}", protocol(served));
        cells.push(Cell {
            limit: Duration::from_mins(15),
            ..seldom(cell(&name, move || {
                served::healed::an_export_comes_back(served)
            }))
        });
    }
    cells
}

/// A node that stands still while its volume moves to another one. A share of SMB has no access per node, which is what
/// keeps a lost one out.
fn losses() -> impl Iterator<Item = Cell> {
    let fenced = class::ALONE.into_iter();
    let fenced = fenced.filter(|class| class.connection != "smb");
    fenced.map(|class| Cell {
        // The kernel of the first node may take 50 minutes to give up.
        limit: Duration::from_mins(80),
        when: When::Never,
        machines: Machines::Pair,
        ..cell(&format!("node-loss-{}", class.connection), move || {
            node_loss::its_volume_moves(class)
        })
    })
}

/// A storage host whose power is cut for a while under pods of another machine.
fn outages() -> impl Iterator<Item = Cell> {
    class::ALONE.into_iter().map(|class| Cell {
        limit: Duration::from_mins(40) + power::outage(),
        when: When::Never,
        machines: Machines::Pair,
        seat: Machine::Node,
        ..cell(&format!("outage-{}", class.connection), move || {
            power::pods_go_on(class)
        })
    })
}

/// A virtual machine that moves between two nodes while it writes.
fn live_migrations() -> impl Iterator<Item = Cell> {
    class::DEVICES.into_iter().map(|class| Cell {
        limit: Duration::from_mins(30 + 10 * live_migration::rounds()),
        when: When::Never,
        machines: Machines::Pair,
        ..cell(&format!("live-migration-{}", class.connection), move || {
            live_migration::a_guest_goes_on(class)
        })
    })
}

const EXT4: Access = Access::Mount("ext4");

/// The events that must never happen, on every kind of volume that it could happen to.
fn nevers() -> Vec<Cell> {
    let mut cells = vec![
        cell("never-hung", hung::a_silent_server_delays_no_other_volume),
        cell(
            "never-drop-switches-zfs-local",
            modes::the_switches_of_a_dataset_hold,
        ),
    ];
    for (name, fabric) in [("iscsi", Fabric::Iscsi), ("nvmeof", Fabric::Nvmeof)] {
        cells.extend([
            cell(&format!("never-format-foreign-{name}"), move || {
                foreign::nothing_foreign_is_formatted(fabric)
            }),
            cell(&format!("never-format-unreadable-{name}"), move || {
                foreign::nothing_unreadable_is_formatted(fabric)
            }),
            cell(&format!("never-mistake-reused-{name}"), move || {
                reuse::a_reused_number_is_another_volume(fabric)
            }),
            cell(&format!("never-grow-lost-{name}"), move || {
                reuse::what_lost_its_number_is_not_grown(fabric)
            }),
            cell(&format!("never-end-shared-{name}"), move || {
                sharing::others_keep_their_session(fabric)
            }),
        ]);
    }
    for (name, export_kind, access) in [
        ("nfs", ExportKind::Nfs, Access::Mount("nfs")),
        ("smb", ExportKind::Smb, Access::Mount("cifs")),
        ("iscsi", ExportKind::Iscsi, EXT4),
        ("nvmeof", ExportKind::Nvmeof, EXT4),
    ] {
        cells.extend([
            cell(&format!("never-keep-dead-{name}"), move || {
                dead::what_is_dead_can_be_taken_away(export_kind, access)
            }),
            cell(&format!("never-stage-dead-{name}"), move || {
                dead::a_dead_volume_is_staged_anew(export_kind, access)
            }),
            cell(&format!("never-take-busy-{name}"), move || {
                busy::a_busy_volume_is_not_taken_away(export_kind, access)
            }),
        ]);
    }
    for (name, export_kind, access) in [
        ("nfs", ExportKind::Nfs, Access::Mount("nfs")),
        ("smb", ExportKind::Smb, Access::Mount("cifs")),
        ("iscsi", ExportKind::Iscsi, EXT4),
        ("iscsi-block", ExportKind::Iscsi, Access::Block),
        ("nvmeof-block", ExportKind::Nvmeof, Access::Block),
        ("zfs-local", ExportKind::Dataset, Access::Mount("zfs")),
    ] {
        cells.extend([
            cell(&format!("never-two-writers-{name}"), move || {
                modes::a_single_writer_stays_single(export_kind, access)
            }),
            cell(&format!("never-write-read-only-{name}"), move || {
                modes::a_reader_cannot_write(export_kind, access)
            }),
        ]);
    }
    cells
}

fn cell<F: Future<Output = ()> + 'static>(
    name: &str,
    work: impl Fn() -> F + Send + Sync + 'static,
) -> Cell {
    Cell {
        name: name.to_owned(),
        limit: Duration::from_mins(10),
        when: if ALWAYS.contains(&name) {
            When::Always
        } else {
            When::InTurn
        },
        machines: Machines::One,
        seat: Machine::Storage,
        work: Box::new(move || Box::pin(work())),
    }
}

// === impl Cell ===

impl Cell {
    /// Does the work, inside the lab's machine.
    pub async fn work(&self) {
        (self.work)().await;
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cell {}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cell_has_a_name_of_its_own_that_can_name_a_folder_and_a_state() {
        let names: Vec<_> = all().into_iter().map(|cell| cell.name).collect();
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(names.iter().all(|name| name.chars().all(fits)), "{names:?}");
        assert!(
            ALWAYS
                .iter()
                .all(|always| names.iter().any(|name| name == always))
        );
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
    }

    #[test]
    fn every_quick_cell_has_its_turn_within_a_month() {
        let run: BTreeSet<_> = (0..31).flat_map(due).map(|cell| cell.name).collect();
        let all = all().into_iter();
        let never: Vec<_> = all
            .filter(|cell| cell.when != When::Never && !run.contains(&cell.name))
            .map(|cell| cell.name)
            .collect();
        assert!(never.is_empty(), "{never:?}");
        assert!((0..31).all(|day| due(day).len() <= ALWAYS.len() + TURNS.len()));
    }
}
