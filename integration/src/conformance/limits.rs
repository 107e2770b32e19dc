//! The size limits of the specification, in both directions.

use std::collections::BTreeSet;

use csi_proto::v1 as csi;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};
use tonic::Code;

use super::messages::{self, Known, Scene};
use super::world::{World, ends_with};
use super::{Target, hostile};
use crate::requirement;

/// The longest string.
const STRING: usize = 128;
/// The longest node id.
const NODE_ID: usize = 256;
/// The largest map, keys and values together, and the longest list of mount flags.
const MAP: usize = 4096;
/// Ids of volumes made by others may be longer than what we give out; nothing is that long.
const ANY_ID: usize = 4096;

/// Each string one byte longer, and each map one byte larger, than allowed.
pub async fn what_is_longer_than_the_specification_allows_is_refused_before_anything_changes(
    target: &dyn Target,
) {
    if !requirement::root("limits of requests to the node") {
        return;
    }
    let world = World::start(target).await;
    let scene = Scene::set(&world).await;
    let before = world.backend();
    let mut tried = 0;
    for request in scene.requests() {
        for field in request.message.descriptor().fields() {
            let Some(message) = too_much(&request, &field) else {
                continue;
            };
            let what = format!(
                "{}.{} beyond its limit",
                request.method.name(),
                field.name()
            );
            let outcome = messages::call(&world.client, &request.method, &message).await;
            // A token that was never given is ABORTED whatever its length.
            ends_with(outcome, &[Code::InvalidArgument, Code::Aborted], &what);
            world.unchanged(&before, &what);
            tried += 1;
        }
    }
    assert!(tried >= 30, "only {tried} fields have limits");
    scene.clear(&world).await;
    world.end().await;
}

fn too_much(request: &Known, field: &FieldDescriptor) -> Option<DynamicMessage> {
    let mut message = request.message.clone();
    if field.is_map() {
        let map = [(MapKey::String("k".into()), Value::String("v".repeat(MAP)))];
        message.set_field(field, Value::Map(map.into()));
        return Some(message);
    }
    if field.is_list() || field.kind() != Kind::String || hostile::is_path(field.name()) {
        return None;
    }
    let limit = match field.name() {
        "node_id" => NODE_ID,
        name if name.ends_with("_id") => ANY_ID,
        _ => STRING,
    };
    message.set_field(field, Value::String("a".repeat(limit + 1)));
    Some(message)
}

/// Names of the greatest length become ids, contexts and tokens that are within the limits.
pub async fn every_reply_keeps_the_limits_itself(target: &dyn Target) {
    let world = World::start(target).await;
    let mut made = Vec::new();
    let mut cuts = Vec::new();
    for (n, name) in ["n".repeat(STRING), format!("{}m", "n".repeat(STRING - 1))]
        .iter()
        .enumerate()
    {
        let volume = world.volume(name).await;
        assert!(volume.volume_id.len() <= STRING, "{}", volume.volume_id);
        let context: usize = volume
            .volume_context
            .iter()
            .map(|(k, v)| k.len() + v.len())
            .sum();
        assert!(context <= MAP, "a context of {context} bytes");
        let longest = volume.volume_id;
        made.push(longest.clone());
        let source = if let Some(room) = target.longest_name_with_snapshots() {
            let named = |length: usize| format!("{n}{}", "n".repeat(length - 1));
            let beyond = world.volume(&named(room + 1)).await.volume_id;
            for id in [&longest, &beyond] {
                without_room(&world, id).await;
            }
            let source = world.volume(&named(room)).await.volume_id;
            made.extend([beyond, source.clone()]);
            source
        } else {
            longest
        };
        cuts.extend(two_cuts(&world, n, &source).await);
    }
    let different: BTreeSet<_> = made.iter().collect();
    assert_eq!(different.len(), made.len(), "{made:?}");
    let request = csi::ListVolumesRequest {
        max_entries: 1,
        ..Default::default()
    };
    let page = world
        .client
        .clone()
        .controller
        .list_volumes(request)
        .await
        .expect("a page");
    // A token names an entry, so it may be a little longer than the longest id: clients do not store it.
    let token = page.into_inner().next_token;
    assert!(!token.is_empty() && token.len() <= STRING + 3, "{token}");
    let mut listed = world.snapshot_ids().await;
    listed.sort();
    cuts.sort();
    assert_eq!(listed, cuts);
    for id in cuts {
        world.remove_snapshot(&id).await;
    }
    for id in made {
        world.remove(&id).await;
    }
    world.end().await;
}

/// Two snapshots whose names begin alike for as long as a name can.
async fn two_cuts(world: &World<'_>, n: usize, volume_id: &str) -> [String; 2] {
    let mut both = Vec::new();
    for last in ['a', 'b'] {
        let name = format!("{n}{}{last}", "s".repeat(STRING - 2));
        let snapshot = world.cut(&name, volume_id).await;
        let id = snapshot.snapshot_id;
        assert!(id.len() <= STRING, "{id}");
        assert_eq!(snapshot.source_volume_id, volume_id);
        both.push(id);
    }
    assert_ne!(both[0], both[1], "two names, two snapshots");
    both.try_into().expect("two of them")
}

/// A volume beside whose id no name fits: that is said, and nothing is made.
async fn without_room(world: &World<'_>, volume_id: &str) {
    let before = world.backend();
    let request = world.snapshot(&"s".repeat(STRING), volume_id);
    let mut controller = world.client.clone().controller;
    let what = "a snapshot that would be too long with the id of its volume";
    let outcome = controller.create_snapshot(request).await;
    if let Err(status) = &outcome {
        let says_why = status.message().contains("too long");
        assert!(says_why, "{what}: {}", status.message());
    }
    ends_with(outcome, &[Code::InvalidArgument], what);
    world.unchanged(&before, what);
}
