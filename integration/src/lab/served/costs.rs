//! The costs of calls: how often they wait for the storage host, and how many go at once.
//!
//! A round trip is what a longer way to the host costs: the time of a call over a way with a delay,
//! less its time over one without, over the delay. No name for an exchange can flatter that. Calls at
//! once are measured beside the bare commands of ZFS that they come to, in the same run; what is a disk
//! also beside those and a target for each, which nothing saves.
#![expect(
    clippy::print_stderr,
    reason = "a bench prints its figures; that is all it is for"
)]

use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use tonic::Status;

use super::Served;
use super::cuts::host::{Host, Step};
use super::login::Road;
use crate::client::Client;
use crate::lab::calls::{Node, within};
use crate::lab::command::{attempt, run};
use crate::lab::fixture::capability;
use crate::lab::storage::lio::Target;
use crate::lab::storage::zfs::{Zvol, tell_udev_again};
use crate::place::Place;
use crate::relay::Relay;
use crate::volume;
use crate::wait::until_blocking;

/// The delay: long beside what an emulated machine is late by.
const FAR: Duration = Duration::from_secs(2);
/// The number of times that each call is made over each way; the least time counts, because nothing makes it shorter.
const ROUNDS: usize = 2;
/// The number of volumes that are made at once.
const AT_ONCE: usize = 64;
/// A zvol that is not there by then is one that udev has given up.
const LATE: Duration = Duration::from_secs(5);
/// The share that the program should reach of the throughput of the bare commands.
const RATIO: f64 = 0.8;
const SIZE: i64 = 64 << 20;
/// The time that one of many may take on a slow machine.
const CALL_TIMEOUT: Duration = Duration::from_mins(20);

/// A call, and the most round trips that it may take, if that is said.
const CALLS: [(&str, Option<u32>); 8] = [
    ("CreateVolume", Some(3)),
    ("Probe after it", Some(0)),
    ("CreateSnapshot", Some(2)),
    ("CreateVolume from it", Some(3)),
    ("DeleteVolume of that", None),
    ("ControllerExpandVolume", Some(2)),
    ("DeleteSnapshot", None),
    ("DeleteVolume", Some(3)),
];

/// Prints the round trips of each call of each kind.
///
/// # Panics
/// If a call fails.
pub async fn round_trips(kinds: impl IntoIterator<Item = Served>) {
    for served in kinds {
        let place = Place::new();
        let relay = Relay::to(22).await;
        let by = Road {
            port: relay.port,
            ..Road::default()
        };
        let node = Node::start_with(served.launch_by(&place, &by)).await;
        let calls = Calls {
            client: node.server.client(),
            served,
        };
        // Connects, and makes what is made once for all volumes.
        calls.least(1).await;
        let near = calls.least(ROUNDS).await;
        relay.there_and_back(FAR);
        let far = calls.least(ROUNDS).await;
        relay.there_and_back(Duration::ZERO);
        for (index, (call, aim)) in CALLS.into_iter().enumerate() {
            let more = far[index].saturating_sub(near[index]).as_secs_f64();
            let trips = more / FAR.as_secs_f64();
            let verdict = aim.map_or_else(String::new, |aim| {
                let met = if trips < f64::from(aim) + 0.5 {
                    "met"
                } else {
                    "MISSED"
                };
                format!("{aim}: {met}")
            });
            eprintln!(
                "| {} | {call} | {trips:.1} | {verdict} | {:.1?} |",
                served.name, near[index]
            );
        }
        node.end().await;
    }
}

/// The calls of one volume.
struct Calls {
    client: Client,
    served: Served,
}

impl Calls {
    /// The least time of each call, of so many rounds.
    async fn least(&self, rounds: usize) -> [Duration; CALLS.len()] {
        let mut least = [Duration::MAX; CALLS.len()];
        for _ in 0..rounds {
            for (index, least) in least.iter_mut().enumerate() {
                let began = Instant::now();
                let outcome = self.call(index).await;
                *least = began.elapsed().min(*least);
                outcome.unwrap_or_else(|status| panic!("{}: {status:?}", CALLS[index].0));
            }
        }
        least
    }

    async fn call(&self, index: usize) -> Result<(), Status> {
        let mut controller = self.client.controller.clone();
        let mut identity = self.client.identity.clone();
        let (volume, cut, restored) = ("pvc-cost", "pvc-cost@cut", "pvc-restored");
        match index {
            0 => create(&self.client, self.served, volume, None).await,
            1 => within("probe", identity.probe(csi::ProbeRequest {}))
                .await
                .map(drop),
            2 => {
                let call = controller.create_snapshot(volume::snapshot("cut", volume));
                let made = within("snapshot", call).await?.into_inner().snapshot;
                assert_eq!(made.expect("a snapshot").snapshot_id, cut);
                Ok(())
            }
            3 => {
                create(
                    &self.client,
                    self.served,
                    restored,
                    volume::from_snapshot(cut),
                )
                .await
            }
            5 => {
                let request = csi::ControllerExpandVolumeRequest {
                    volume_capability: Some(capability(self.served.access, Mode::SingleNodeWriter)),
                    ..volume::expand(volume, 2 * SIZE)
                };
                let call = controller.controller_expand_volume(request);
                within("expand", call).await.map(drop)
            }
            6 => {
                let call = controller.delete_snapshot(volume::delete_snapshot(cut));
                within("delete a snapshot", call).await.map(drop)
            }
            _ => {
                let id = if index == 4 { restored } else { volume };
                let call = controller.delete_volume(volume::delete(id));
                within("delete", call).await.map(drop)
            }
        }
    }
}

async fn create(
    client: &Client,
    served: Served,
    name: &str,
    source: Option<csi::VolumeContentSource>,
) -> Result<(), Status> {
    let request = csi::CreateVolumeRequest {
        capacity_range: volume::at_least(SIZE),
        volume_capabilities: vec![capability(served.access, Mode::SingleNodeWriter)],
        volume_content_source: source,
        ..volume::create(name, &[].into())
    };
    let mut controller = client.controller.clone();
    let made = timeout(CALL_TIMEOUT, controller.create_volume(request)).await;
    made.unwrap_or_else(|_| panic!("{name} is not made within {CALL_TIMEOUT:?}"))
        .map(drop)
}

/// Makes many volumes of a kind at once, and the same with the bare commands of ZFS that one of them
/// came to, without those of its export. A disk is compared with these and a target, too.
///
/// # Panics
/// If one is not made.
pub async fn at_once(kinds: impl IntoIterator<Item = Served>) {
    // Commands of shares, and of zvols.
    let wanted = ["zfs-generic-nfs", "zfs-generic-iscsi"];
    let kinds = kinds.into_iter();
    for served in kinds.filter(|served| wanted.contains(&served.name)) {
        many(served).await;
    }
}

async fn many(served: Served) {
    let place = Place::new();
    let host = Host::new(place.path());
    let by = Road {
        program: Some(host.session()),
        ..Road::default()
    };
    let node = Node::start_with(served.launch_by(&place, &by)).await;
    let counted = "pvc-counted";
    create(&node.server.client(), served, counted, None)
        .await
        .expect("connected");
    delete(&node.server.client(), counted).await;
    host.count();
    create(&node.server.client(), served, counted, None)
        .await
        .expect("counted");
    let steps = host.steps();
    delete(&node.server.client(), counted).await;
    node.end().await;
    let commands: Vec<_> = steps.into_iter().filter(Step::is_of_zfs).collect();
    assert!(commands.iter().any(Step::changes), "{commands:?}");

    // From here on nothing counts commands.
    let place = Place::new();
    let node = Node::start_with(served.start_on(&place)).await;
    let client = node.server.client();
    create(&client, served, counted, None)
        .await
        .expect("connected");
    delete(&client, counted).await;
    let (mut ours, mut bare) = (Duration::MAX, Duration::MAX);
    let is_disk = served.name.ends_with("iscsi");
    let mut with_targets = is_disk.then_some(Duration::MAX);
    for _ in 0..2 {
        bare = bare.min(bare_commands(&commands, counted, false).await);
        if let Some(took) = &mut with_targets {
            *took = (*took).min(bare_commands(&commands, counted, true).await);
        }
        ours = ours.min(volumes(&client, served).await);
    }
    node.end().await;
    let over = |bare: Duration| bare.as_secs_f64() / ours.as_secs_f64();
    let met = if over(bare) >= RATIO { "met" } else { "MISSED" };
    eprintln!(
        "| {} | {AT_ONCE} at once: {ours:.1?} | {} bare commands each: {bare:.1?} | {:.2} | \
         {RATIO}: {met} |",
        served.name,
        commands.len(),
        over(bare)
    );
    if let Some(bare) = with_targets {
        let ratio = over(bare);
        eprintln!(
            "| {} | the same and a target each: {bare:.1?} | {ratio:.2} |",
            served.name
        );
    }
}

/// A beginning, when the machine is done with what was removed before.
async fn from_rest() -> Instant {
    let rest = spawn_blocking(|| {
        run(&["zpool", "sync"]);
        run(&["udevadm", "settle"]);
    });
    rest.await.expect("at rest");
    Instant::now()
}

/// Makes them and takes them away; how long the making took.
async fn volumes(client: &Client, served: Served) -> Duration {
    let name = |number: usize| format!("pvc-{number}");
    let began = from_rest().await;
    let mut all = JoinSet::new();
    for number in 0..AT_ONCE {
        let client = client.clone();
        all.spawn(async move { create(&client, served, &name(number), None).await });
    }
    for outcome in all.join_all().await {
        outcome.expect("one of many");
    }
    let took = began.elapsed();
    for number in 0..AT_ONCE {
        delete(client, &name(number)).await;
    }
    took
}

async fn delete(client: &Client, id: &str) {
    let mut controller = client.controller.clone();
    let call = controller.delete_volume(volume::delete(id));
    within("delete", call).await.expect("deleted");
}

/// The same with bare commands, one after the other for each volume, and a target of it, if it shall have one.
async fn bare_commands(commands: &[Step], counted: &str, exported: bool) -> Duration {
    let commands = Arc::new(commands.to_vec());
    let turn = Arc::new(Mutex::new(()));
    let zvol = |number: usize| Zvol {
        name: format!("{}/v/pvc-{number}", super::ROOT),
    };
    let began = from_rest().await;
    let mut all = JoinSet::new();
    for number in 0..AT_ONCE {
        let (commands, counted) = (Arc::clone(&commands), counted.to_owned());
        let (turn, zvol) = (Arc::clone(&turn), zvol(number));
        all.spawn(async move {
            let volume = format!("pvc-{number}");
            let work = spawn_blocking(move || {
                for command in commands.iter() {
                    let text = command.words.replace(&counted, &volume);
                    let words: Vec<_> = text.split(' ').collect();
                    let outcome = attempt(&words);
                    // A look finds nothing before the volume is there.
                    assert!(outcome.is_ok() || !command.changes(), "{text}: {outcome:?}");
                }
                exported.then(|| (target(&volume, &zvol, &turn), zvol))
            });
            work.await.expect("bare commands")
        });
    }
    let targets = all.join_all().await;
    let took = began.elapsed();
    for (target, zvol) in targets.into_iter().flatten() {
        target.detach(0, &zvol);
        target.remove();
    }
    for number in 0..AT_ONCE {
        let name = zvol(number).name;
        // A zvol is busy while udev reads it.
        let destroyed = (0..20).any(|_| attempt(&["zfs", "destroy", "-r", &name]).is_ok());
        assert!(destroyed, "{name} does not go");
    }
    took
}

/// A target of the zvol, made by the kernel alone, without a process. One at a time: ZFS allows the first open of
/// a zvol only while it makes no other, so this waits for that before.
fn target(volume: &str, zvol: &Zvol, turn: &Mutex<()>) -> Target {
    let device = zvol.device();
    let _opened = until_blocking("a zvol that can be opened", |waited| {
        let opened = File::open(&device).ok();
        if opened.is_none() && waited > LATE {
            tell_udev_again();
        }
        opened
    });
    let _turn = turn.lock().expect("no holder panicked");
    let target = Target::create(volume, &["0.0.0.0:3260"], None);
    target.attach(0, zvol);
    target
}
