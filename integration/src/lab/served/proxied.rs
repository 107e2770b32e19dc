//! csi-sanity and the conformance suite through the proxy, with a connection of every driver that makes
//! volumes: one is tested, the others are asked for what they have all the while.
//!
//! The load changes no list: csi-sanity compares what is listed before and after its own volumes.

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;

use super::{ALL, ROOT, Served, conformance, sanity, storage};
use crate::again::Again;
use crate::client::Client;
use crate::conformance::proxied::Proxied;
use crate::lab::calls::{until_done, within};
use crate::lab::command::run;
use crate::lab::fixture::{Access, capability};
use crate::lab::leftovers::Leftovers;
use crate::place::Place;
use crate::requirement;
use crate::sanity::{ANY_NODE, Questions, UNATTACHED, ask};
use crate::server::Launch;
use crate::volume;

/// The connections that are not of ZFS.
const DIRECTORY: &str = "local-hostpath";
const BY_HAND: &str = "by-hand";

/// The connections that are loaded together: one of each driver, and both uses of disks.
pub fn connections() -> impl Iterator<Item = Served> {
    // Its driver is there already, with the other way to write targets.
    ALL.into_iter()
        .filter(|served| !served.name.ends_with("targetcli"))
}

/// Nothing fails at one connection while the others carry load.
///
/// # Panics
/// If something fails at any of them, or the machine is not as before.
pub async fn nothing_fails(served: Served) {
    let program = requirement::tool_from("csi-sanity", "OMNIBUS_CSI_SANITY")
        .expect("the lab is given csi-sanity");
    let place = Place::new();
    let homes: Vec<_> = connections().map(|_| Place::new()).collect();
    let launch = all_of_them(served, &place, &homes);
    let before = (Leftovers::read(), storage());
    let mut server = launch.start(&place).await;

    let others = connections().filter(|other| other.name != served.name);
    let mut neighbours = Neighbours::new(server.client());
    for other in others {
        neighbours.begin(other.name, other.access).await;
    }
    neighbours.begin(DIRECTORY, Access::Mount("")).await;
    let class = format!("connection: {}\n", served.name);
    let secrets = sanity::secrets(served);
    let questions = Questions {
        class: Some(&class),
        ..sanity::questions(served, secrets.as_ref())
    };
    let (specs, output) = ask(&program, &place, &questions).await;
    neighbours.end().await;
    let failing = if served.is_expanded_by_the_controller() {
        ANY_NODE.as_slice()
    } else {
        &UNATTACHED
    };
    let passed = sanity::judge(served, &specs, &output, &place, failing);
    // The proxy offers what any of its drivers may.
    assert!(passed >= sanity::due(served), "only {passed} ran");

    assert!(place.mounts().is_empty(), "mounts are left");
    assert!(server.terminate().await.success());
    Leftovers::back_to(&before.0, "csi-sanity").await;
    assert_eq!(storage(), before.1, "the storage is as before");
}

/// The conformance suite over one of them, with all others beside it.
///
/// # Panics
/// If a check fails, or the machine is not as before.
pub async fn is_whole(served: Served) {
    let (mut homes, mut beside) = (Vec::new(), Vec::new());
    for other in connections().filter(|other| other.name != served.name) {
        let home = Place::new();
        beside.push((other.name, file_of(other, &home, "")));
        homes.push(home);
    }
    let home = Place::new();
    beside.push((DIRECTORY, Launch::local_hostpath(&home).config));
    homes.push(home);
    conformance::is_whole(&Proxied::new(served, beside, homes)).await;
}

/// The proxy with a file for each connection. What names none is the tested one's.
fn all_of_them(tested: Served, place: &Place, homes: &[Place]) -> Launch {
    let folders = Launch::local_hostpath(place).config;
    let made: Vec<_> = connections()
        .zip(homes)
        .map(|(served, home)| {
            let is_tested = served.name == tested.name;
            let more = if is_tested { sanity::ALLOWED } else { "" };
            (served.name, file_of(served, home, more))
        })
        .chain([
            (DIRECTORY, folders),
            (BY_HAND, "driver: node-manual\n".to_owned()),
        ])
        .collect();
    let files = made.iter().map(|(name, text)| (*name, text.as_str()));
    Launch::proxy(&place.path().join("connections"), tested.name, files).set("--log-level", "info")
}

/// A connection with datasets of its own, which are made, and with more lines in its section `zfs`.
fn file_of(served: Served, home: &Place, more: &str) -> String {
    let own = format!("{ROOT}/{}", served.name);
    let text = served.launch_with(home, more).config.replace(ROOT, &own);
    for name in ["v", "s"] {
        run(&["zfs", "create", "-p", &format!("{own}/{name}")]);
    }
    text
}

/// Volumes of the connections that are not tested, which are asked for all the while.
struct Neighbours {
    client: Client,
    requests: Vec<csi::CreateVolumeRequest>,
    again: Again,
}

// === impl Neighbours ===

impl Neighbours {
    fn new(client: Client) -> Self {
        Self {
            client,
            requests: Vec::new(),
            again: Again::new(),
        }
    }

    /// Makes a volume at a connection, and asks about it from then on.
    async fn begin(&mut self, connection: &'static str, access: Access) {
        let parameters = [("connection".to_owned(), connection.to_owned())];
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![capability(access, Mode::SingleNodeWriter)],
            ..volume::create(&format!("load-{connection}"), &parameters.into())
        };
        until_done("make the volume of a neighbour", || async {
            let mut controller = self.client.controller.clone();
            within("create", controller.create_volume(request.clone()))
                .await
                .map(drop)
        })
        .await;
        self.requests.push(request.clone());
        let client = self.client.clone();
        self.again.also(connection, move |_| {
            let (client, request) = (client.clone(), request.clone());
            async move {
                round(&client, &request).await;
                true
            }
        });
    }

    /// Takes the volumes away.
    ///
    /// # Panics
    /// If a call failed, or a connection was never asked beside the suite.
    async fn end(self) {
        for (connection, ended) in self.again.end().await {
            assert!(ended.rounds > 1, "{connection} carried no load");
        }
        for request in self.requests {
            let id = made(&self.client, &request).await;
            let mut controller = self.client.controller.clone();
            let gone = within("delete", controller.delete_volume(volume::delete(&id))).await;
            gone.expect("the volume of a neighbour goes");
        }
    }
}

/// Repeats each creation, queries the result, and asks for the capacity.
async fn round(client: &Client, request: &csi::CreateVolumeRequest) {
    let id = made(client, request).await;
    let mut controller = client.controller.clone();
    let look = csi::ControllerGetVolumeRequest { volume_id: id };
    within("look", controller.controller_get_volume(look))
        .await
        .expect("the volume of a neighbour is there");
    let room = csi::GetCapacityRequest {
        parameters: request.parameters.clone(),
        ..csi::GetCapacityRequest::default()
    };
    within("room", controller.get_capacity(room))
        .await
        .expect("there is room");
}

async fn made(client: &Client, request: &csi::CreateVolumeRequest) -> String {
    let mut controller = client.controller.clone();
    let reply = within("create", controller.create_volume(request.clone())).await;
    let reply = reply.expect("what is made is made").into_inner();
    reply.volume.expect("a volume").volume_id
}
