//! The class of a claim, and whose driver it names.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::{class_name, seen_from};
use crate::advice::{ANEW, by_plugin, in_brackets};
use crate::chain::Link;
use crate::found::{Answer, Connection, Found};
use crate::ours::{LABEL, LABEL_VALUE};

/// The class with its link. A volume that is bound does without one.
pub(super) fn class<'a>(
    found: &'a Found,
    claim: &PersistentVolumeClaim,
    bound: bool,
) -> (Option<Link>, Option<&'a StorageClass>) {
    let link = |link| (Some(link), None);
    let (Some(name), Some(answer)) = (class_name(claim), &found.class) else {
        let no_class = claim
            .spec
            .as_ref()
            .is_some_and(|spec| spec.storage_class_name.is_some());
        return link(if bound {
            Link::absent("class", "the claim names none, and is bound")
        } else if no_class {
            Link::absent(
                "class",
                "the claim takes none: it waits for a PersistentVolume made by hand",
            )
        } else {
            let remedy = "`kubectl patch storageclass NAME -p '{\"metadata\": {\"annotations\": \
                          {\"storageclass.kubernetes.io/is-default-class\": \"true\"}}}'` makes a class of `kubectl get storageclass` the \
                          default, which the claim then gets; or delete the claim, which has no data yet, and make it again with a class";
            Link::broken(
                "class",
                "the claim names none, and the cluster had no default",
                remedy,
            )
        });
    };
    let class = match answer {
        Answer::There(class) => class,
        Answer::Missing if bound => {
            return link(Link::absent(
                "class",
                &format!("`{name}` is gone; a volume that is bound does without"),
            ));
        }
        Answer::Missing => {
            let remedy = format!(
                "make the class `{name}`, with `storageClasses` of the chart's values, and the claim is tried again. To have one of `kubectl get \
                 storageclass`: {ANEW}"
            );
            return link(Link::broken(
                "class",
                &format!("there is no StorageClass `{name}`"),
                &remedy,
            ));
        }
        Answer::Unknown(why) => return link(Link::unknown("class", why)),
    };
    let provisioner = &class.provisioner;
    let connections = connections(class);
    let shown = if connections.is_empty() {
        format!("`{name}`: {provisioner}")
    } else {
        format!(
            "`{name}`: {provisioner}, connection {}",
            connections.join(", ")
        )
    };
    let of_class = match (is_ours(found, provisioner), bound) {
        (Some(true), _) => Link::holds("class", &shown),
        (None, _) => Link::unknown("class", &not_known_whether(found, &shown)),
        // The volume says whose it is.
        (Some(false), true) => Link::absent("class", &shown),
        (Some(false), false) => {
            let text = format!(
                "`{name}` is of `{provisioner}`, which is no driver of omnibus-csi in this cluster"
            );
            Link::broken("class", &text, &named_drivers(found))
        }
    };
    (
        Some(of_class.with("provisioner", provisioner.as_str())),
        Some(class),
    )
}

fn named_drivers(found: &Found) -> String {
    let drivers = drivers(found);
    if drivers.is_empty() {
        return "install the driver with its chart, with this name as csiDriver.name: \"Helm\" in docs/install.md".to_owned();
    }
    let drivers: Vec<_> = drivers.into_iter().collect();
    format!(
        "ask the makers of that driver. To have a class of {}: {ANEW}",
        drivers.join(" or ")
    )
}

/// The names of the drivers that are omnibus-csi: from its pods, and from the objects of its chart, which stay while a
/// pod is missing.
fn drivers(found: &Found) -> BTreeSet<&str> {
    let pods = found.ours.all().iter().map(|pod| pod.driver.as_str());
    let objects = found.drivers.all().iter().filter(|driver| {
        let labels = driver.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(LABEL))
            .is_some_and(|part| part == LABEL_VALUE)
    });
    pods.chain(objects.filter_map(|driver| driver.metadata.name.as_deref()))
        .collect()
}

/// Whether a driver is omnibus-csi; none if that cannot be said.
pub(super) fn is_ours(found: &Found, driver: &str) -> Option<bool> {
    let known = found.ours.there().is_some() && found.drivers.there().is_some();
    if drivers(found).contains(driver) {
        Some(true)
    } else {
        known.then_some(false)
    }
}

pub(super) fn not_known_whether(found: &Found, shown: &str) -> String {
    let why = found.ours.why_not().or(found.drivers.why_not());
    format!(
        "{shown}; whether that is omnibus-csi is {}",
        why.unwrap_or("not known")
    )
}

/// The connections that a class names.
fn connections(class: &StorageClass) -> Vec<&str> {
    let parameters = class.parameters.as_ref();
    let value = |key| parameters.and_then(|all| all.get(key)).map(String::as_str);
    let names = value("connection").or_else(|| value("connections"));
    let names = names.into_iter().flat_map(|names| names.split(','));
    names
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

/// The connections of a class, of which the volume of a claim is to be made. Each has to answer. None where the class
/// names none.
pub(super) fn connection(found: &Found, class: &StorageClass) -> Option<Link> {
    const NAME: &str = "connection";
    let names = connections(class);
    let known = match found.connections.as_ref()? {
        Answer::There(known) => &known.connections,
        Answer::Unknown(why) if !names.is_empty() => return Some(Link::unknown(NAME, why)),
        Answer::Unknown(_) | Answer::Missing => return None,
    };
    let mut well = Vec::new();
    for name in names {
        let Some(one) = known.iter().find(|one| one.name == name) else {
            let known: Vec<_> = known.iter().map(|one| one.name.as_str()).collect();
            let text = format!(
                "the configuration has no connection `{name}`, but {}",
                known.join(", ")
            );
            let remedy = format!(
                "add `{name}` to `connections` of the chart's values; or, as parameters of a class cannot be changed, delete the class and make it \
                 again with one of these: `kubectl get storageclass {} -o yaml` has what it is now",
                class.metadata.name.as_deref().unwrap_or_default()
            );
            return Some(Link::broken(NAME, &text, &remedy));
        };
        if let Some(ill) = ill(one) {
            return Some(seen_from(found, &class.provisioner, ill));
        }
        let driver = one.driver.as_deref().unwrap_or("no driver");
        well.push(format!("{name}: {driver}"));
    }
    (!well.is_empty()).then(|| Link::holds(NAME, &well.join(", ")))
}

/// A connection that cannot be used.
fn ill(one: &Connection) -> Option<Link> {
    let error = one.error.as_deref().unwrap_or("no reason is given");
    let text = format!("{}: {error}", one.name);
    match one.health.as_str() {
        "invalid" => Some(Link::broken(
            "connection",
            &text,
            "correct its file, in `connections` of the chart's values or their Secret: `kubectl omnibus check` names each wrong key",
        )),
        "bad" => {
            let advice = in_brackets(error).map(by_plugin);
            let reach = "see whether the storage runs and whether the controller's pod reaches it: its address, its port, a firewall between";
            let remedy = format!(
                "{}; `kubectl omnibus check` names everything that is missing there",
                advice.as_deref().unwrap_or(reach)
            );
            Some(Link::broken("storage", &text, &remedy))
        }
        _ => None,
    }
}
