//! Hostile strings in every string of every request.
//!
//! The fields come from the descriptor. Each is spoiled alone in a request that would succeed
//! without changing anything: the answer is a clean refusal, or the string is kept exactly. The
//! backend is the same afterwards, whatever the answer; the log shows no control character.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::v1 as csi;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};
use tonic::Code;

use super::Target;
use super::messages::{self, Known, Scene};
use super::strings::strings;
use super::world::{World, code};
use crate::requirement;
use crate::server::log_of;
use crate::tree::Tree;

/// The codes of a refusal that a caller can understand.
const CLEAN: [Code; 8] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::OutOfRange,
    Code::ResourceExhausted,
    Code::Aborted,
    Code::Unimplemented,
];

/// How far the first string of a place is from that of the place before. A prime, so that it comes by all.
const STRIDE: usize = 97;

/// The place where a string stands in a message: field names from the outside in.
type Path = Vec<FieldDescriptor>;

/// The way a string is put into a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    Text,
    Key,
    Value,
}

/// Whether a field of this name is a path of the node, where any clean absolute path is right.
pub fn is_path(name: &str) -> bool {
    name.ends_with("_path")
}

/// Every string of every request: of five hundred strings some in each place, and others in the next.
pub async fn hostile_strings_are_refused_or_kept_exactly_and_change_nothing_else(
    target: &dyn Target,
) {
    if !requirement::root("hostile strings in requests to the node") {
        return;
    }
    let world = World::start(target).await;
    let scene = Scene::set(&world).await;
    let strings = strings();
    assert!(strings.len() >= 500, "only {} strings", strings.len());
    let before = world.backend();
    let mounts = world.place.mounts();
    let mut requests = scene.requests();
    let known: BTreeSet<_> = requests
        .iter()
        .map(|known| known.method.name().to_owned())
        .collect();
    for method in messages::methods() {
        if !known.contains(method.name()) {
            let message = DynamicMessage::new(method.input());
            requests.push(Known {
                method,
                message,
                required: &[],
            });
        }
    }
    let mut places = 0;
    for request in &requests {
        let copies = request.message.has_field_by_name("volume_content_source");
        for (path, how) in places_of(&request.message) {
            // The rest of a request that copies is that of one that does not.
            if copies && path[0].name() != "volume_content_source" {
                continue;
            }
            places += 1;
            let step = target.one_string_of();
            // Where not all are tried, others in each place, from the whole list.
            let first = places * STRIDE % step;
            for text in strings.iter().skip(first).step_by(step) {
                spoil(&world, &scene, request, &path, how, text).await;
                assert_eq!(world.place.mounts(), mounts, "{text:?} mounted something");
            }
            let what = format!("{} {}", request.method.name(), name_of(&path));
            world.unchanged(&before, &what);
        }
    }
    assert!(places >= 60, "only {places} places for a string were found");
    the_log_is_clean(&log_of(&world.place));
    scene.clear(&world).await;
    world.end().await;
}

async fn spoil(
    world: &World<'_>,
    scene: &Scene,
    request: &Known,
    path: &Path,
    how: As,
    text: &str,
) {
    let field = path.last().expect("a path has an end");
    // Any clean absolute path is a right one, and "/" cannot be tried without a machine to lose.
    if is_path(field.name()) && text.starts_with('/') {
        return;
    }
    let mut message = request.message.clone();
    put(&mut message, path, how, text);
    let outcome = messages::call(&world.client, &request.method, &message).await;
    let what = || format!("{} {} = {text:?}", request.method.name(), name_of(path));
    match &outcome {
        Ok(reply) => {
            let volume = new_volume(reply.get_ref());
            if let Some(id) = volume.filter(|id| *id != scene.volume.volume_id) {
                kept_exactly(world, request, path, text, &id).await;
            }
            let snapshot = new_snapshot(reply.get_ref());
            if let Some(id) = snapshot.filter(|id| *id != scene.snapshot.snapshot_id) {
                world.remove_snapshot(&id).await;
            }
        }
        Err(status) => {
            let code = code(&outcome);
            // What is wrong with a request for a volume that is there is not said for good: an earlier
            // request may have been right, and its answer lost.
            let repeats = request.method.name() == "CreateVolume" && code == Code::Unavailable;
            assert!(repeats || CLEAN.contains(&code), "{}: {status:?}", what());
            assert!(status.details().is_empty(), "{}: details", what());
            let control = status.message().chars().find(|c| is_hidden(*c));
            assert_eq!(control, None, "{}: {:?}", what(), status.message());
        }
    }
}

/// A volume that was made beside the scene's: asked for again it is the same; then it goes.
async fn kept_exactly(world: &World<'_>, request: &Known, path: &Path, text: &str, id: &str) {
    assert!(id.len() <= 128, "an id of {} bytes for {text:?}", id.len());
    if name_of(path) == "name" {
        let mut message = request.message.clone();
        put(&mut message, path, As::Text, text);
        let again = messages::call(&world.client, &request.method, &message).await;
        let again = again.expect("the same request again");
        assert_eq!(new_volume(again.get_ref()).as_deref(), Some(id), "{text:?}");
    }
    world.remove(id).await;
}

fn new_volume(reply: &DynamicMessage) -> Option<String> {
    let reply = reply.transcode_to::<csi::CreateVolumeResponse>().ok()?;
    let is_reply = reply
        .volume
        .as_ref()
        .is_some_and(|volume| !volume.volume_id.is_empty());
    is_reply.then(|| reply.volume.expect("checked").volume_id)
}

fn new_snapshot(reply: &DynamicMessage) -> Option<String> {
    if reply.descriptor().name() != "CreateSnapshotResponse" {
        return None;
    }
    let reply = reply.transcode_to::<csi::CreateSnapshotResponse>().ok()?;
    reply.snapshot.map(|snapshot| snapshot.snapshot_id)
}

/// Every place for a string in a message, also below messages that this one does not have.
fn places_of(message: &DynamicMessage) -> Vec<(Path, As)> {
    let mut found = Vec::new();
    walk(&message.descriptor(), &mut Vec::new(), &mut found);
    found
}

fn walk(message: &prost_reflect::MessageDescriptor, path: &mut Path, found: &mut Vec<(Path, As)>) {
    for field in message.fields() {
        path.push(field.clone());
        if field.is_map() {
            found.push((path.clone(), As::Key));
            found.push((path.clone(), As::Value));
        } else if field.kind() == Kind::String {
            found.push((path.clone(), As::Text));
        } else if let Kind::Message(inner) = field.kind() {
            walk(&inner, path, found);
        }
        path.pop();
    }
}

fn name_of(path: &Path) -> String {
    path.iter()
        .map(FieldDescriptor::name)
        .collect::<Vec<_>>()
        .join(".")
}

/// Puts `text` there, making what is on the way.
fn put(message: &mut DynamicMessage, path: &[FieldDescriptor], how: As, text: &str) {
    let (field, rest) = path.split_first().expect("a path has an end");
    let text_value = || Value::String(text.to_owned());
    if field.is_map() {
        let mut map = message
            .get_field(field)
            .as_map()
            .cloned()
            .unwrap_or_default();
        match how {
            As::Key => map.insert(MapKey::String(text.to_owned()), Value::String("v".into())),
            _ => map.insert(MapKey::String("k".into()), text_value()),
        };
        message.set_field(field, Value::Map(map));
    } else if rest.is_empty() {
        let value = if field.is_list() {
            Value::List(vec![text_value()])
        } else {
            text_value()
        };
        message.set_field(field, value);
    } else if field.is_list() {
        let mut list = message
            .get_field(field)
            .as_list()
            .map(<[Value]>::to_vec)
            .unwrap_or_default();
        if list.is_empty() {
            list.push(Value::Message(DynamicMessage::new(inner_of(field))));
        }
        if let Value::Message(first) = &mut list[0] {
            put(first, rest, how, text);
        }
        message.set_field(field, Value::List(list));
    } else {
        let mut inner = message
            .get_field(field)
            .as_message()
            .cloned()
            .expect("a message");
        put(&mut inner, rest, how, text);
        message.set_field(field, Value::Message(inner));
    }
}

fn inner_of(field: &FieldDescriptor) -> prost_reflect::MessageDescriptor {
    match field.kind() {
        Kind::Message(inner) => inner,
        other => panic!("{} is a {other:?}", field.name()),
    }
}

/// The characters that a terminal or a reader of a log would not see as it is.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn the_log_is_clean(log: &str) {
    for line in log.lines() {
        assert!(
            !line.starts_with("FORGED"),
            "a request wrote its own line: {line}"
        );
        assert!(
            !line.starts_with("{\"level\":\"ERROR\",\"forged\""),
            "a request wrote its own line"
        );
        let hidden = line.chars().find(|c| is_hidden(*c));
        assert_eq!(hidden, None, "hidden characters in the log: {line:?}");
    }
}

/// Wrong types, broken lengths, text that is not UTF-8, nesting.
pub async fn bytes_that_are_no_message_are_refused_and_the_server_lives(target: &dyn Target) {
    let world = World::start(target).await;
    let before: Tree = world.backend();
    let mut deep = Vec::new();
    for _ in 0..1000 {
        deep.extend([0x1a, 0x7f]);
    }
    let bad: BTreeMap<&str, Vec<u8>> = BTreeMap::from([
        ("not UTF-8", vec![0x0a, 0x02, 0xff, 0xfe]),
        ("a length beyond the end", vec![0x0a, 0x7f, b'a']),
        (
            "a length of ten bytes",
            vec![
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f,
            ],
        ),
        ("a wrong wire type", vec![0x08, 0x01]),
        ("a group without an end", vec![0x0b, 0x0b, 0x0b]),
        ("field number zero", vec![0x00, 0x00]),
        ("nesting", deep),
        ("noise", (0..=255).collect()),
    ]);
    for method in messages::methods() {
        if method.input().fields().next().is_none() {
            continue;
        }
        for (what, bytes) in &bad {
            let outcome = messages::call_with_bytes(&world.client, &method, bytes.clone()).await;
            let what = format!("{} with {what}", method.name());
            // The gRPC library answers INTERNAL to what it cannot decode, before we are asked.
            let refusals = [Code::Internal, Code::InvalidArgument, Code::Unimplemented];
            let unknown_field = code(&outcome) == Code::Ok;
            assert!(
                unknown_field || refusals.contains(&code(&outcome)),
                "{what}: {outcome:?}"
            );
        }
        world.unchanged(&before, method.name());
    }
    world.end().await;
}
