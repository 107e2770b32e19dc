//! What only some drivers have: publishing, fences, groups of snapshots and changes of volumes, each with its opposite.
//!
//! A program has to tell exactly what its target says that the driver has. A check of something else ends before it begins,
//! and is counted. Behind the proxy more may be reported: that of the connections beside the tested one.

mod deed;
mod killed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use csi_proto::identity::GetCapabilitiesRequest;
use csi_proto::identity::capability::{Type, network_fence};
use csi_proto::identity::identity_client::IdentityClient;
use tonic::Code;

use super::Target;
use super::concurrency::{at_once, only};
use super::messages;
use super::world::{Outcome, World, ends_with};
use crate::server::log_of;
use crate::{volume, wait};
use deed::Deed;

/// What only some drivers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Optional {
    /// Letting nodes reach a volume, also where all do.
    Publish,
    /// Shutting networks out, by csi-addons.
    Fence,
    /// Snapshots of several volumes.
    Groups,
    /// Changes of the properties of a volume.
    Modify,
    /// The ranges of a snapshot that hold data or have changed.
    Ranges,
    /// The health of volumes, as the storage sees it.
    Health,
}

const ROUNDS: usize = 2;
/// The secret in each request.
pub(super) const SECRET: &str = "c4n4ry-of-the-request";

/// The checks that ended before they began.
static ABSENT: AtomicUsize = AtomicUsize::new(0);

// === impl Optional ===

impl Optional {
    const ALL: [Self; 6] = [
        Self::Publish,
        Self::Fence,
        Self::Groups,
        Self::Modify,
        Self::Ranges,
        Self::Health,
    ];

    /// A call that is offered where it is there.
    fn call(self) -> &'static str {
        match self {
            Self::Publish => "ControllerPublishVolume",
            Self::Fence => "FenceClusterNetwork",
            Self::Groups => "CreateVolumeGroupSnapshot",
            Self::Modify => "ControllerModifyVolume",
            Self::Ranges => "GetMetadataDelta",
            Self::Health => "ControllerGetVolumeHealth",
        }
    }

    /// The number of its checks.
    fn checks(self) -> usize {
        match self {
            Self::Publish | Self::Fence | Self::Groups | Self::Modify => 3,
            Self::Ranges => 2,
            Self::Health => 1,
        }
    }
}

/// What a request brings as its secrets.
pub(super) fn secrets() -> BTreeMap<String, String> {
    volume::parameters(&[("password", SECRET)])
}

/// The number of checks so far that were of something that the program does not tell.
pub fn absent() -> usize {
    ABSENT.load(Ordering::Relaxed)
}

/// The number of checks that are of something that this target does not have.
pub fn checks_without(target: &dyn Target) -> usize {
    let own = target.optional();
    let others = Optional::ALL.iter().filter(|what| !own.contains(what));
    others.map(|what| what.checks()).sum()
}

/// A world for a check of something; none if the program does not tell that it has it.
pub(super) async fn with(target: &dyn Target, what: Optional) -> Option<World<'_>> {
    let world = match what {
        Optional::Fence => World::start_with_addons(target).await,
        _ => World::start(target).await,
    };
    let mut own = target.optional();
    own.retain(|one| *one != Optional::Fence || world.has_addons);
    let reported = wait::until_answered("what this driver has", async || {
        let reported = reported(&world).await;
        reported.is_superset(&own).then_some(reported)
    })
    .await;
    if target.beside().is_empty() {
        assert_eq!(reported, own, "exactly what this driver has is reported");
    }
    if own.contains(&what) {
        return Some(world);
    }
    ABSENT.fetch_add(1, Ordering::Relaxed);
    world.end().await;
    None
}

async fn reported(world: &World<'_>) -> BTreeSet<Optional> {
    let mut calls = messages::offered(&world.client).await;
    if world.has_addons {
        let mut addons = IdentityClient::new(world.addons().await.channel);
        let can = addons.get_capabilities(GetCapabilitiesRequest {}).await;
        let can = can.expect("capabilities").into_inner().capabilities;
        let fences = network_fence::Type::NetworkFence;
        let fences = can
            .into_iter()
            .filter_map(|one| one.r#type)
            .any(|one| matches!(one, Type::NetworkFence(fence) if fence.r#type() == fences));
        calls.extend(fences.then_some(Optional::Fence.call()));
    }
    let all = Optional::ALL.into_iter();
    all.filter(|what| calls.contains(what.call())).collect()
}

macro_rules! checks {
    ($($what:ident: $once:ident, $at_once:ident, $killed:ident;)*) => {
        $(
            #[doc = concat!("`Optional::", stringify!($what), "` and its opposite: twice, after a kill, and wrongly.")]
            pub async fn $once(target: &dyn Target) {
                done_once_and_undone(target, Optional::$what).await;
            }

            #[doc = concat!("`Optional::", stringify!($what), "` and its opposite by many at once.")]
            pub async fn $at_once(target: &dyn Target) {
                by_many(target, Optional::$what).await;
            }

            #[doc = concat!("`Optional::", stringify!($what), "` and its opposite, killed in the middle.")]
            pub async fn $killed(target: &dyn Target) {
                killed::in_the_middle(target, Optional::$what).await;
            }
        )*
    };
}

checks! {
    Publish:
        publishing_is_done_once_and_undone_and_wrong_requests_change_nothing,
        sixty_four_callers_publish_or_unpublish_and_the_last_has_its_way,
        publishing_and_unpublishing_killed_in_the_middle_are_completed_or_undone;
    Fence:
        a_fence_is_set_once_and_lifted_and_wrong_requests_change_nothing,
        sixty_four_callers_fence_or_unfence_and_the_last_has_its_way,
        fencing_and_unfencing_killed_in_the_middle_are_completed_or_undone;
    Groups:
        a_group_is_taken_once_and_deleted_and_wrong_requests_change_nothing,
        sixty_four_callers_take_or_delete_a_group_and_the_last_has_its_way,
        a_group_killed_in_the_middle_is_completed_or_removed;
    Modify:
        a_volume_is_modified_once_and_back_and_wrong_requests_change_nothing,
        sixty_four_callers_modify_a_volume_and_the_last_has_its_way,
        a_modification_killed_in_the_middle_is_completed_or_undone;
}

async fn done_once_and_undone(target: &dyn Target, what: Optional) {
    let Some(mut world) = with(target, what).await else {
        return;
    };
    let deed = Deed::set(&world, what).await;
    for is_forward in [true, false] {
        let mut replies = Vec::new();
        for _ in 0..2 {
            for _ in 0..2 {
                let client = deed.client(&world).await;
                let reply = deed.call(&client, is_forward).await;
                let reply = reply.unwrap_or_else(|status| panic!("{what:?}: {status:?}"));
                replies.push(reply.into_inner());
                deed.is(&world, is_forward, "done again").await;
            }
            world.crash().await;
            deed.is(&world, is_forward, "after a kill").await;
        }
        let same = replies.iter().all(|reply| *reply == replies[0]);
        assert!(same, "the same answer each time: {replies:#?}");
        refuses_what_is_wrong(&world, &deed, is_forward).await;
    }
    deed.clear(&world).await;
    let seen = log_of(&world.place);
    assert!(seen.contains(what.call()), "the log was switched on");
    let public = world.server.process().arguments_and_environment();
    for text in [seen, String::from_utf8_lossy(&public).into_owned()] {
        let leak = text.lines().find(|line| line.contains(SECRET));
        assert!(leak.is_none(), "a secret is shown: {leak:?}");
    }
    world.end().await;
}

async fn refuses_what_is_wrong(world: &World<'_>, deed: &Deed, is_done: bool) {
    let client = deed.client(world).await;
    let before = world.backend();
    for (what, request, code) in deed.wrong(world, is_done) {
        let what = format!("{}, wrong: {what}", request.method.name());
        let outcome = messages::call(&client, &request.method, &request.message).await;
        assert!(!format!("{outcome:?}").contains(SECRET), "{what}: a secret");
        ends_with(outcome, &[code], &what);
        world.unchanged(&before, &what);
        deed.is(world, is_done, &what).await;
    }
}

async fn by_many(target: &dyn Target, what: Optional) {
    let Some(world) = with(target, what).await else {
        return;
    };
    let deed = Deed::set(&world, what).await;
    // What a deletion has not removed yet is in the way of the same group. A creation that was stopped has an unknown end.
    let crossed: &[Code] = match what {
        Optional::Groups => &[
            Code::Ok,
            Code::Aborted,
            Code::AlreadyExists,
            Code::DeadlineExceeded,
            Code::Unavailable,
        ],
        _ => &[Code::Ok, Code::Aborted],
    };
    for _ in 0..ROUNDS {
        for is_forward in [true, false] {
            let outcomes = many(&world, &deed, |_| is_forward).await;
            only(&outcomes, &[Code::Ok, Code::Aborted], "equal callers");
            deed.is(&world, is_forward, "equal callers").await;
        }
        let outcomes = many(&world, &deed, |n| n % 2 == 0).await;
        only(&outcomes, crossed, "callers for opposites");
        for is_forward in [false, true, false] {
            deed.until_done(&world, is_forward).await;
            deed.is(&world, is_forward, "after callers for opposites")
                .await;
        }
    }
    deed.clear(&world).await;
    world.end().await;
}

async fn many(
    world: &World<'_>,
    deed: &Deed,
    is_forward: impl Fn(usize) -> bool,
) -> Vec<Outcome<prost_reflect::DynamicMessage>> {
    let addons = if world.has_addons {
        Some(world.addons().await)
    } else {
        None
    };
    at_once(world, |client, n| {
        let client = addons.clone().unwrap_or(client);
        let request = deed.request(is_forward(n)).clone();
        async move { messages::call(&client, &request.method, &request.message).await }
    })
    .await
}
