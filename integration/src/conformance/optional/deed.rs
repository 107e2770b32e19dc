//! The requests of a deed and its opposite, those that are wrong, and what is seen of it.

use csi_proto::fence::fence_controller_client::FenceControllerClient;
use csi_proto::fence::{
    Cidr, FenceClusterNetworkRequest, ListClusterFenceRequest, UnfenceClusterNetworkRequest,
};
use csi_proto::v1 as csi;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use prost_reflect::DynamicMessage;
use tonic::Code;

use super::{Optional, secrets};
use crate::client::Client;
use crate::conformance::messages::{self, Known, known};
use crate::conformance::world::{Outcome, World, asks_again, code};
use crate::{volume, wait};

/// The network that is shut out, in which no node is.
const NETWORK: &str = "198.51.100.0/24";

/// A call that changes something, and its opposite.
pub(super) struct Deed {
    what: Optional,
    volumes: Vec<String>,
    node_id: String,
    /// The opposite and the deed.
    requests: [Known; 2],
    /// The group that is taken, and its snapshots.
    group: (String, Vec<String>),
    /// What is seen after the opposite, and after the deed.
    states: [String; 2],
}

/// A wrong request, and the code that it has to get.
type Wrong = (&'static str, Known, Code);

fn publish(volume_id: &str, node_id: &str, mode: Mode, readonly: bool) -> Known {
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id: node_id.to_owned(),
        volume_capability: Some(volume::mounted(mode)),
        readonly,
        secrets: secrets(),
        ..Default::default()
    };
    let required = &["volume_id", "node_id", "volume_capability"];
    known("ControllerPublishVolume", &request, required)
}

fn unpublish(volume_id: &str, node_id: &str) -> Known {
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id: node_id.to_owned(),
        secrets: secrets(),
    };
    known("ControllerUnpublishVolume", &request, &["volume_id"])
}

fn modify(volume_id: &str, class: &[(&str, &str)]) -> Known {
    let request = csi::ControllerModifyVolumeRequest {
        volume_id: volume_id.to_owned(),
        mutable_parameters: volume::parameters(class),
        secrets: secrets(),
    };
    known("ControllerModifyVolume", &request, &["volume_id"])
}

/// The end of a fence, and a fence.
fn fences(world: &World<'_>, networks: &[&str]) -> [Known; 2] {
    let cidrs = networks.iter().map(|cidr| Cidr {
        cidr: (*cidr).to_owned(),
    });
    let fence = FenceClusterNetworkRequest {
        parameters: world.target.parameters(),
        secrets: secrets(),
        cidrs: cidrs.collect(),
    };
    let unfence = UnfenceClusterNetworkRequest {
        parameters: fence.parameters.clone(),
        secrets: secrets(),
        cidrs: fence.cidrs.clone(),
    };
    [
        known("UnfenceClusterNetwork", &unfence, &["cidrs"]),
        known("FenceClusterNetwork", &fence, &["cidrs"]),
    ]
}

fn group_of(
    world: &World<'_>,
    volume_ids: &[&str],
) -> (Known, csi::CreateVolumeGroupSnapshotRequest) {
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: "group".to_owned(),
        source_volume_ids: volume_ids.iter().map(|id| (*id).to_owned()).collect(),
        parameters: world.target.group_parameters(),
        secrets: secrets(),
    };
    let required = &["name", "source_volume_ids"];
    (
        known("CreateVolumeGroupSnapshot", &request, required),
        request,
    )
}

fn groups(world: &World<'_>) -> GroupControllerClient<tonic::transport::Channel> {
    GroupControllerClient::new(world.client.channel.clone())
}

// === impl Deed ===

impl Deed {
    /// Makes what it needs, and does and undoes it once, to learn what is seen of it.
    pub(super) async fn set(world: &World<'_>, what: Optional) -> Self {
        let mut volumes = Vec::new();
        for name in ["one", "two"] {
            volumes.push(world.volume(name).await.volume_id);
        }
        let [one, two] = [&*volumes[0], &*volumes[1]];
        let node = world.client.node_get_info(csi::NodeGetInfoRequest {}).await;
        let node_id = node.expect("a node").node_id;
        let mut group = (String::new(), Vec::new());
        let requests = match what {
            Optional::Publish => [
                unpublish(one, &node_id),
                publish(one, &node_id, Mode::SingleNodeWriter, false),
            ],
            Optional::Fence => fences(world, &[NETWORK]),
            Optional::Modify => world.target.classes().map(|class| modify(one, &class)),
            Optional::Groups => {
                let (forward, request) = group_of(world, &[one, two]);
                let taken = groups(world).create_volume_group_snapshot(request).await;
                let taken = taken.expect("a group").into_inner().group_snapshot;
                let taken = taken.expect("a group");
                let ids = taken.snapshots.into_iter().map(|cut| cut.snapshot_id);
                group = (taken.group_snapshot_id, ids.collect::<Vec<_>>());
                let request = csi::DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: group.0.clone(),
                    snapshot_ids: group.1.clone(),
                    secrets: secrets(),
                };
                let required = &["group_snapshot_id"];
                [
                    known("DeleteVolumeGroupSnapshot", &request, required),
                    forward,
                ]
            }
            Optional::Ranges | Optional::Health => panic!("{what:?} changes nothing"),
        };
        let mut deed = Self {
            what,
            volumes,
            node_id,
            requests,
            group,
            states: [String::new(), String::new()],
        };
        for is_forward in [true, false] {
            deed.until_done(world, is_forward).await;
            deed.states[usize::from(is_forward)] = deed.state(world).await;
        }
        // Behind the proxy no nodes are listed where a connection beside it does not record them.
        let is_seen = what != Optional::Publish || world.target.beside().is_empty();
        assert!(!is_seen || deed.is_seen(), "{what:?}: {:?}", deed.states);
        deed
    }

    /// Whether it changes anything that can be seen.
    pub(super) fn is_seen(&self) -> bool {
        self.states[0] != self.states[1]
    }

    pub(super) async fn clear(self, world: &World<'_>) {
        for id in &self.volumes {
            world.remove(id).await;
        }
    }

    pub(super) fn request(&self, is_forward: bool) -> &Known {
        &self.requests[usize::from(is_forward)]
    }

    pub(super) async fn client(&self, world: &World<'_>) -> Client {
        match self.what {
            Optional::Fence => world.addons().await,
            _ => world.client.clone(),
        }
    }

    pub(super) async fn call(&self, client: &Client, is_forward: bool) -> Outcome<DynamicMessage> {
        let request = self.request(is_forward);
        messages::call(client, &request.method, &request.message).await
    }

    /// Asks again until no other call is in the way, as an orchestrator does.
    pub(super) async fn until_done(&self, world: &World<'_>, is_forward: bool) {
        let client = self.client(world).await;
        let name = self.request(is_forward).method.name();
        wait::until_answered(name, async || {
            let outcome = self.call(&client, is_forward).await;
            match code(&outcome) {
                Code::Ok => Some(()),
                code if asks_again(code) => None,
                _ => panic!("{name}: {outcome:?}"),
            }
        })
        .await;
    }

    /// Does it after its opposite was killed. What that has left of a group keeps the same group from being taken: it goes
    /// first, as the refusal says.
    pub(super) async fn until_redone(&self, world: &World<'_>) {
        if self.what != Optional::Groups {
            return self.until_done(world, true).await;
        }
        let client = self.client(world).await;
        wait::until_answered("the group, once the rest is gone", async || {
            let outcome = self.call(&client, true).await;
            match code(&outcome) {
                Code::Ok => Some(()),
                Code::AlreadyExists | Code::Unavailable => {
                    let gone = self.call(&client, false).await;
                    assert!(gone.is_ok() || asks_again(code(&gone)), "{gone:?}");
                    None
                }
                code if asks_again(code) => None,
                _ => panic!("a group after its deletion was killed: {outcome:?}"),
            }
        })
        .await;
    }

    /// Asserts that it is done, or undone.
    pub(super) async fn is(&self, world: &World<'_>, is_done: bool, what: &str) {
        let seen = self.state(world).await;
        let wanted = &self.states[usize::from(is_done)];
        assert_eq!(&seen, wanted, "{what}: {:?} is done: {is_done}", self.what);
    }

    /// The visible state, once the program answers: one that was just started has to log in first.
    async fn state(&self, world: &World<'_>) -> String {
        let what = format!("what is seen of {:?}", self.what);
        wait::until_answered(&what, async || self.seen(world).await).await
    }

    async fn seen(&self, world: &World<'_>) -> Option<String> {
        Some(match self.what {
            Optional::Publish => {
                let volume_id = self.volumes[0].clone();
                let request = csi::ControllerGetVolumeRequest { volume_id };
                let mut client = world.client.controller.clone();
                let found = client.controller_get_volume(request).await;
                if asks_again(code(&found)) {
                    return None;
                }
                let found = found.expect("a volume").into_inner();
                let status = found.status.unwrap_or_default();
                format!("{:?}", status.published_node_ids)
            }
            Optional::Fence => {
                let request = ListClusterFenceRequest {
                    parameters: world.target.parameters(),
                    secrets: secrets(),
                };
                let mut client = FenceControllerClient::new(world.addons().await.channel);
                let listed = client.list_cluster_fence(request).await;
                if asks_again(code(&listed)) {
                    return None;
                }
                format!("{:?}", listed.expect("a list").into_inner().cidrs)
            }
            Optional::Groups => {
                let request = csi::GetVolumeGroupSnapshotRequest {
                    group_snapshot_id: self.group.0.clone(),
                    snapshot_ids: self.group.1.clone(),
                    secrets: secrets(),
                };
                let found = groups(world).get_volume_group_snapshot(request).await;
                if asks_again(code(&found)) {
                    return None;
                }
                format!("{:?} {:?}", code(&found), world.snapshot_ids().await)
            }
            _ => format!("{:?}", world.backend()),
        })
    }

    /// Requests that are refused, or change nothing.
    pub(super) fn wrong(&self, world: &World<'_>, is_done: bool) -> Vec<Wrong> {
        let mut all = Vec::new();
        for request in &self.requests {
            for field in request.required {
                let mut spoiled = request.clone();
                spoiled.message.clear_field_by_name(field);
                all.push((*field, spoiled, Code::InvalidArgument));
            }
        }
        let (one, node) = (&*self.volumes[0], &*self.node_id);
        let invalid = |what, request| (what, request, Code::InvalidArgument);
        let missing = |request| ("no volume", request, Code::NotFound);
        match self.what {
            Optional::Publish => {
                let mode = Mode::SingleNodeWriter;
                all.push(invalid("readonly", publish(one, node, mode, true)));
                // Behind the proxy no driver looks for storage of a node.
                if world.target.elsewhere().is_none() {
                    all.push(missing(publish("ghost", node, mode, false)));
                }
                all.push(("no volume", unpublish("ghost", node), Code::Ok));
            }
            Optional::Fence => {
                for networks in [&["192.0.2.1"][..], &[NETWORK, "node"], &["::/129"], &[""]] {
                    all.extend(fences(world, networks).map(|one| invalid("a network", one)));
                }
            }
            Optional::Groups => {
                all.push(invalid("a volume twice", group_of(world, &[one, one]).0));
                all.push(missing(group_of(world, &[one, "ghost"]).0));
                if is_done {
                    let other = group_of(world, &[one]).0;
                    all.push(("another group of the name", other, Code::AlreadyExists));
                    let alone = volume::delete_snapshot(&self.group.1[0]);
                    all.push(invalid(
                        "one of a group",
                        known("DeleteSnapshot", &alone, &[]),
                    ));
                }
            }
            _ => {
                let right = ("compression", "zstd");
                for wrong in [
                    ("compression", "zstd-20"),
                    ("no-such", "x"),
                    ("quotaMode", "none"),
                ] {
                    all.push(invalid("a class", modify(one, &[right, wrong])));
                }
                all.push(missing(modify("ghost", &[right])));
            }
        }
        all
    }
}
