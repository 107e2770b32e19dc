//! Releases whose driver names become legacy names: what their volumes need goes on.

use serde_json::{Map, Value, json};

use super::merge::has_content;
use super::{Input, Merged, OLD_CHART, at, is_inline, is_ours, text};

/// The longest name of an object that the old chart makes.
const LONGEST: usize = 63;

/// Kinds whose volumes neither grow nor have snapshots.
const WITHOUT_GROWTH_AND_SNAPSHOTS: [&str; 2] = ["node-manual", "objectivefs"];
/// Annotations that make a class the default one.
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

// === impl Merged ===

impl Merged {
    /// Keeps the driver name of a release, beside that of the new one.
    pub(super) fn keep_driver_name(&mut self, input: &Input, own: &str) {
        let name = &input.name;
        let Some(driver) = text(&input.values, &["csiDriver", "name"]) else {
            self.problems
                .push(format!("{name}: it has no csiDriver.name"));
            return;
        };
        if driver == own {
            self.problems.push(format!(
                "{name}: its driver is called as the new one, {driver}: give it with --take-over, or choose another --csi-name"
            ));
            return;
        }
        // Said where its configuration is taken.
        if is_inline(&input.values) {
            return;
        }
        let entry = self.legacy_name(input);
        self.note_changes(input);
        if self.legacy.insert(driver.clone(), entry).is_some() {
            self.problems.push(format!(
                "{name}: another file has a driver of the name {driver}, too"
            ));
        }
        self.keep_classes(input, &driver);
        let options = at(&input.values, &["driver", "config", "node"]);
        if has_content(options) {
            self.notes.push(format!(
                "{name}: node in its configuration counts for new volumes; those of before get what driver.config.node \
                 of the new values says"
            ));
        }
    }

    /// Parts of the old driver object that the new one does not have.
    fn note_changes(&mut self, input: &Input) {
        let of_it = |key| at(&input.values, &["csiDriver", key]);
        let modes = of_it("volumeLifecycleModes").and_then(Value::as_array);
        let ephemeral = modes.is_some_and(|modes| modes.iter().any(|mode| mode == "Ephemeral"));
        if of_it("enabled") == Some(&Value::Bool(false)) {
            self.notes.push(format!(
                "{}: csiDriver.enabled: if it is false in the new values, the CSIDrivers of the old names are yours to make, too",
                input.name
            ));
        }
        let is_on = |key| of_it(key) == Some(&Value::Bool(true));
        for (key, there, why) in [
            (
                "volumeLifecycleModes",
                ephemeral,
                "a legacy name has no volumes that pods describe: Ephemeral is left out, and helm cannot adopt the old CSIDriver",
            ),
            (
                "storageCapacity",
                is_on("storageCapacity"),
                "no capacity is published for the old name: it is false there",
            ),
            (
                "requiresRepublish",
                is_on("requiresRepublish"),
                "it is left out for the old name",
            ),
            (
                "tokenRequests",
                has_content(of_it("tokenRequests")),
                "they are left out for the old name",
            ),
            (
                "seLinuxMount",
                is_on("seLinuxMount"),
                "it is left out for the old name",
            ),
        ] {
            if there {
                self.notes
                    .push(format!("{}: csiDriver.{key}: {why}", input.name));
            }
        }
    }

    /// Classes of the old name beside those of the new one: a snapshot is one of the driver of its volume, and a copy
    /// too.
    fn keep_classes(&mut self, input: &Input, driver: &str) {
        if !has_snapshots(input) {
            return;
        }
        let mut kept = Vec::new();
        for key in ["volumeSnapshotClasses", "storageClasses"] {
            let classes = at(&input.values, &[key]).and_then(Value::as_array);
            for class in classes.into_iter().flatten().filter_map(Value::as_object) {
                kept.extend(self.keep_class(key, class.clone(), &input.name, driver));
            }
        }
        self.notes.push(format!(
            "{}: its volumes are snapshotted, restored and cloned with the classes {}: a snapshot and its volume have one \
             driver",
            input.name,
            kept.join(", ")
        ));
    }

    /// Returns the name that the class has now.
    fn keep_class(
        &mut self,
        key: &str,
        mut class: Map<String, Value>,
        release: &str,
        driver: &str,
    ) -> Option<String> {
        let mut name = format!("{}-old", class.get("name")?.as_str()?);
        let classes = if key == "storageClasses" {
            // Claims that name no class are for new volumes.
            class.remove("defaultClass");
            if let Some(Value::Object(annotations)) = class.get_mut("annotations") {
                annotations.retain(|key, _| !DEFAULT_CLASS.contains(&key.as_str()));
            }
            &mut self.storage_classes
        } else {
            // The default among snapshot classes is one for each driver.
            &mut self.snapshot_classes
        };
        let is_there = |name: &str| {
            let mut all = classes.iter();
            all.any(|other| other.get("name").and_then(Value::as_str) == Some(name))
        };
        if is_there(&name) {
            name = format!("{name}-{release}");
        }
        class.insert("name".into(), json!(name));
        class.insert("csiDriver".into(), json!(driver));
        if let Some(Value::Object(parameters)) = class.get_mut("parameters") {
            parameters.retain(|_, value| !value.is_null());
        }
        classes.push(Value::Object(class));
        Some(name.escape_debug().to_string())
    }

    fn legacy_name(&mut self, input: &Input) -> Value {
        let mut entry = Map::new();
        entry.insert("connection".into(), json!(input.name));
        // The API server does not let it be changed; this is what the old chart says without it.
        let attach = at(&input.values, &["csiDriver", "attachRequired"]);
        let attach = attach.and_then(Value::as_bool).unwrap_or(true);
        entry.insert("attachRequired".into(), json!(attach));
        for key in ["podInfoOnMount", "fsGroupPolicy"] {
            let set = at(&input.values, &["csiDriver", key]);
            if let Some(value) = set.filter(|value| has_content(Some(value))) {
                entry.insert(key.into(), value.clone());
            }
        }
        entry.insert("snapshots".into(), json!(has_snapshots(input)));
        if !can(input, "EXPAND_VOLUME") {
            entry.insert("resizer".into(), json!(false));
        }
        let (secrets, twice) = secrets(input);
        let others = self.legacy.iter().filter(|(_, other)| {
            let others = other.get("secrets").and_then(Value::as_object);
            others.is_some_and(|others| secrets.keys().any(|name| others.contains_key(name)))
        });
        self.problems.extend(others.map(|(other, _)| {
            format!(
                "{}: a secret of its volumes is called as one of {other}: of two releases of one name each needs its secrets in its \
                 namespace",
                input.name
            )
        }));
        self.problems.extend(twice.into_iter().map(|secret| {
            format!(
                "{}: two of its classes have a secret {secret}, with another content",
                input.name
            )
        }));
        if !secrets.is_empty() {
            let names: Vec<_> = secrets.keys().map(String::as_str).collect();
            let names = names.join(", ");
            self.notes.push(format!(
                "{}: its volumes name the secrets {names}, if the release is called {}: if it is not, correct these names. They \
                 name them in the namespace of the old release, and the chart makes them in that of the new one: if it is another, \
                 make them there yourself",
                input.name, input.name
            ));
            entry.insert("secrets".into(), Value::Object(secrets));
        }
        Value::Object(entry)
    }
}

fn has_snapshots(input: &Input) -> bool {
    let classes = has_content(at(&input.values, &["volumeSnapshotClasses"]));
    classes && can(input, "CREATE_DELETE_SNAPSHOT")
}

/// Whether the driver of a release has a capability of a controller. Its sidecar ends at once without.
fn can(input: &Input, capability: &str) -> bool {
    let kind = text(&input.values, &["driver", "config", "driver"]);
    if kind.is_some_and(|kind| WITHOUT_GROWTH_AND_SNAPSHOTS.contains(&kind.as_str())) {
        return false;
    }
    let listed = [
        "driver",
        "config",
        "service",
        "controller",
        "capabilities",
        "rpc",
    ];
    let listed = at(&input.values, &listed).and_then(Value::as_array);
    listed.is_none_or(|listed| listed.iter().any(|one| one == capability))
}

/// The secrets of the classes of a release, by the names that its volumes and snapshots have.
/// Beside them those names that have two contents. compat: "Secrets".
fn secrets(input: &Input) -> (Map<String, Value>, Vec<String>) {
    let mut secrets = Map::new();
    let mut twice = Vec::new();
    let full = full_name(input);
    for key in ["storageClasses", "volumeSnapshotClasses"] {
        let classes = at(&input.values, &[key]).and_then(Value::as_array);
        for class in classes.into_iter().flatten() {
            let name = class.get("name").and_then(Value::as_str);
            let kinds = class.get("secrets").and_then(Value::as_object);
            for (kind, content) in kinds.into_iter().flatten() {
                let Some(name) = name else { continue };
                // The old chart makes one without content, too, and volumes name it.
                let content = match content {
                    Value::Null => json!({}),
                    content => content.clone(),
                };
                let called = cut(format!("{kind}-{name}-{full}"));
                if secrets.get(&called).is_some_and(|other| *other != content) {
                    twice.push(called.clone());
                }
                secrets.insert(called, content);
            }
        }
    }
    (secrets, twice)
}

/// The full name of a release, as the old chart makes it.
fn full_name(input: &Input) -> String {
    if let Some(full) = text(&input.values, &["fullnameOverride"]).filter(|full| !full.is_empty()) {
        return cut(full);
    }
    let chart = text(&input.values, &["nameOverride"]).filter(|name| !name.is_empty());
    let chart = chart.unwrap_or_else(|| OLD_CHART.to_owned());
    if input.name.contains(&chart) {
        cut(input.name.clone())
    } else {
        cut(format!("{}-{chart}", input.name))
    }
}

fn cut(mut name: String) -> String {
    let end = (0..=LONGEST.min(name.len())).rev();
    let end = end.into_iter().find(|end| name.is_char_boundary(*end));
    name.truncate(end.unwrap_or_default());
    name.strip_suffix('-').map(str::to_owned).unwrap_or(name)
}

/// The releases whose names become legacy names: all of democratic-csi but the one whose name is the own one.
pub(super) fn of<'a>(
    inputs: &'a [Input],
    heir: Option<&'a Input>,
) -> impl Iterator<Item = &'a Input> {
    let is_heir = move |input: &Input| heir.is_some_and(|heir| heir.name == input.name);
    inputs
        .iter()
        .filter(move |input| !is_heir(input) && !is_ours(input))
}
