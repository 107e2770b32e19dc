//! Secrets go to the backend and nowhere else.
//!
//! Every field that the specification marks as secret, and those that may hold one (mount flags,
//! contexts), carry a canary through calls that succeed and calls that fail, with every line of
//! the log switched on.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};

use super::Target;
use super::messages::{self, Known, Scene};
use super::world::World;
use crate::observe::{free_port, get};
use crate::requirement;
use crate::server::log_of;

const CANARY: &str = "c4n4ry-5ecret";

/// Log, status messages, metrics, arguments, environment.
pub async fn no_secret_reaches_a_log_a_message_a_metric_or_an_argument(target: &dyn Target) {
    if !requirement::root("secrets in requests to the node") {
        return;
    }
    let admin = free_port();
    let address = format!("127.0.0.1:{admin}");
    let world = World::start_with(target, |launch| launch.set("--metrics-address", &address)).await;
    let scene = Scene::set(&world).await;
    let mut requests = scene.requests();
    for method in messages::methods() {
        let message = DynamicMessage::new(method.input());
        requests.push(Known {
            method,
            message,
            required: &[],
        });
    }
    let mut hidden = 0;
    let mut shown = Vec::new();
    for request in &requests {
        let mut fields = Vec::new();
        sensitive(&request.message.descriptor(), &mut Vec::new(), &mut fields);
        for path in fields {
            hidden += 1;
            for value in [
                CANARY.to_owned(),
                format!("x={CANARY},ro"),
                format!("\n{CANARY}\u{0}"),
            ] {
                for spoiled in spoiled(request) {
                    let mut message = spoiled;
                    hide(&mut message, &path, &value);
                    let outcome = messages::call(&world.client, &request.method, &message).await;
                    if let Err(status) = &outcome
                        && format!("{status:?}").contains(CANARY)
                    {
                        shown.push(format!("{}: {status:?}", request.method.name()));
                    }
                }
            }
            remove_what_was_made(&world, &scene).await;
        }
    }
    assert!(hidden >= 25, "only {hidden} places for a secret were found");
    assert!(shown.is_empty(), "secrets in messages: {shown:#?}");
    let log = log_of(&world.place);
    let leak = log.lines().find(|line| line.contains(CANARY));
    assert!(leak.is_none(), "a secret in the log: {leak:?}");
    assert!(log.contains("CreateVolume"), "the log was switched on");
    let metrics = get(admin, "/metrics").await.expect("metrics");
    assert!(metrics.contains("csi_rpc"), "no metrics: {metrics}");
    assert!(!metrics.contains(CANARY), "a secret in the metrics");
    let public = world.server.process().arguments_and_environment();
    assert!(
        !String::from_utf8_lossy(&public).contains(CANARY),
        "a secret in an argument"
    );
    scene.clear(&world).await;
    world.end().await;
}

/// The request as it is, and once without each required field.
fn spoiled(request: &Known) -> Vec<DynamicMessage> {
    let mut all = vec![request.message.clone()];
    for field in request.required {
        let mut message = request.message.clone();
        message.clear_field_by_name(field);
        all.push(message);
    }
    all
}

/// Fields marked as secret, and those which may hold one.
fn sensitive(
    message: &prost_reflect::MessageDescriptor,
    path: &mut Vec<FieldDescriptor>,
    found: &mut Vec<Vec<FieldDescriptor>>,
) {
    for field in message.fields() {
        path.push(field.clone());
        let options = field.options();
        let marked = options.extensions().any(|(extension, value)| {
            ["csi_secret", "omnibus_sensitive"].contains(&extension.name())
                && value.as_bool() == Some(true)
        });
        let may_hold = [
            "secrets",
            "mount_flags",
            "volume_context",
            "publish_context",
        ];
        if marked || may_hold.contains(&field.name()) {
            found.push(path.clone());
        } else if let Kind::Message(inner) = field.kind()
            && !field.is_map()
        {
            sensitive(&inner, path, found);
        }
        path.pop();
    }
}

fn hide(message: &mut DynamicMessage, path: &[FieldDescriptor], value: &str) {
    let (field, rest) = path.split_first().expect("a path has an end");
    let canary = Value::String(value.to_owned());
    if field.is_map() {
        let mut map = message
            .get_field(field)
            .as_map()
            .cloned()
            .unwrap_or_default();
        map.insert(
            MapKey::String("csi.storage.k8s.io/serviceAccount.tokens".into()),
            canary,
        );
        message.set_field(field, Value::Map(map));
    } else if rest.is_empty() {
        let value = if field.is_list() {
            Value::List(vec![canary])
        } else {
            canary
        };
        message.set_field(field, value);
    } else if field.is_list() {
        let mut list = message
            .get_field(field)
            .as_list()
            .map(<[Value]>::to_vec)
            .unwrap_or_default();
        if let Some(Value::Message(first)) = list.first_mut() {
            hide(first, rest, value);
        }
        message.set_field(field, Value::List(list));
    } else {
        let mut inner = message
            .get_field(field)
            .as_message()
            .cloned()
            .expect("a message");
        hide(&mut inner, rest, value);
        message.set_field(field, Value::Message(inner));
    }
}

async fn remove_what_was_made(world: &World<'_>, scene: &Scene) {
    for id in world.volume_ids().await {
        if id != scene.volume.volume_id {
            world.remove(&id).await;
        }
    }
}
