//! `migrate-values`: values files of democratic-csi's chart to one values file of ours, in which each of
//! them is a connection.
//!
//! Nothing but the files is looked at. Their values may hold secrets: those go to standard output and
//! nowhere else; what is said about them names keys only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::args::EX_USAGE;
use crate::cli::{check, yaml};
use crate::process;
use crate::routing::connections::ConnectionName;

mod legacy;
mod merge;
mod rights;
mod schema;
mod source;

use merge::{only_settings, overlay};
use source::Release;

/// The flags.
#[derive(Debug, Args)]
pub struct MigrateValuesFlags {
    /// Values files; each becomes the connection NAME, or is called as the file is
    #[arg(value_name = "[NAME=]FILE", required = true)]
    pub files: Vec<String>,
    /// The name of the new driver in the cluster, beside the old ones
    #[arg(long, value_name = "NAME", conflicts_with = "take_over")]
    pub csi_name: Option<String>,
    /// The connection whose driver name is kept, with all its volumes
    #[arg(long, value_name = "CONNECTION")]
    pub take_over: Option<String>,
    /// Keep the driver names of the other files, too, each as a legacy name: their releases are uninstalled
    #[arg(long)]
    pub legacy_names: bool,
}

/// One file that was read.
#[derive(Default)]
struct Input {
    name: String,
    values: Map<String, Value>,
    /// The notes about where they were found.
    notes: Vec<String>,
    problems: Vec<String>,
}

/// What has been put together so far, and what there is to say about it.
#[derive(Debug, Default)]
struct Merged {
    values: Map<String, Value>,
    connections: Map<String, Value>,
    storage_classes: Vec<Value>,
    snapshot_classes: Vec<Value>,
    /// Secrets that hold the configuration of a connection.
    in_secrets: Vec<(String, String)>,
    /// Driver names that are kept beside the own one, each with its settings.
    legacy: Map<String, Value>,
    default_class: Option<String>,
    notes: Vec<String>,
    problems: Vec<String>,
}

/// Drivers whose volumes are on the node itself.
const LOCAL: [&str; 3] = ["local-hostpath", "zfs-local-dataset", "zfs-local-zvol"];
const NO_NAME: &str = "several files: give --csi-name for a new driver beside the old ones, or \
                       --take-over with the connection whose driver name is kept";
const HEAD: &str =
    "# Made by `omnibus-csi migrate-values`. It holds what the old files held, secrets too.\n";

/// The name of democratic-csi's chart, part of the names of what it makes.
const OLD_CHART: &str = "democratic-csi";

/// Writes the new values to standard output, notes to standard error.
pub fn run(flags: &MigrateValuesFlags) -> ExitCode {
    let merged = match read(&flags.files).and_then(|inputs| migrate(&inputs, flags)) {
        Ok(merged) => merged,
        Err(problems) => {
            for problem in problems {
                process::complain(&format!("omnibus-csi: {problem}"));
            }
            return ExitCode::from(EX_USAGE);
        }
    };
    for note in &merged.notes {
        process::complain(&format!("note: {note}"));
    }
    for problem in &merged.problems {
        process::complain(&format!("problem: {problem}"));
    }
    process::say(HEAD);
    process::say(&yaml::document(&merged.values));
    ExitCode::from(u8::from(!merged.problems.is_empty()))
}

fn read(files: &[String]) -> Result<Vec<Input>, Vec<String>> {
    let mut inputs: Vec<Input> = Vec::new();
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for file in files {
        let (name, path) = named(file);
        let shown = path.display();
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
        let found = text.and_then(|text| source::releases(&text));
        let releases = match found {
            Ok(releases) => releases,
            Err(error) => {
                problems.push(format!("{shown}: {error}"));
                continue;
            }
        };
        let several = releases.len() > 1;
        if several && name.is_some() {
            problems.push(format!(
                "{shown}: it holds {} releases, each called as it is there: leave the name before `=` out",
                releases.len()
            ));
            continue;
        }
        for release in releases {
            let input = input(release, name.as_deref(), &path);
            let name = &input.name;
            if let Err(error) = ConnectionName::parse(name) {
                problems.push(format!("{shown}: `{}`: {error}", name.escape_debug()));
            } else if !names.insert(name.clone()) {
                problems.push(format!(
                    "{shown}: a second connection {name}: give NAME=FILE"
                ));
            }
            inputs.push(input);
        }
    }
    if problems.is_empty() {
        Ok(inputs)
    } else {
        Err(problems)
    }
}

/// A release as a connection: called as it is asked for, as in the file, or as the file.
fn input(release: Release, name: Option<&str>, path: &Path) -> Input {
    let stem = || {
        path.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let name = name.map(str::to_owned).or(release.name);
    Input {
        name: name.unwrap_or_else(stem),
        values: release.values,
        notes: release.notes,
        problems: release.problems,
    }
}

fn named(file: &str) -> (Option<String>, PathBuf) {
    match file.split_once('=') {
        Some((name, path)) if !name.contains('/') => (Some(name.to_owned()), path.into()),
        _ => (None, file.into()),
    }
}

fn migrate(inputs: &[Input], flags: &MigrateValuesFlags) -> Result<Merged, Vec<String>> {
    let heir = heir(inputs, flags).map_err(|error| vec![error])?;
    let name = match (&flags.csi_name, heir) {
        (Some(name), _) => name.clone(),
        (None, Some(heir)) => text(&heir.values, &["csiDriver", "name"])
            .ok_or_else(|| vec![format!("{}: it has no csiDriver.name", heir.name)])?,
        (None, None) => return Err(vec![NO_NAME.into()]),
    };
    if let [only] = inputs
        && is_inline(&only.values)
    {
        let mut merged = Merged::without_connections(only, &name);
        if flags.legacy_names && flags.csi_name.is_some() {
            merged.problems.push(format!(
                "{}: its driver name cannot be a legacy name, because its volumes are described by pods: leave --csi-name out",
                only.name
            ));
        }
        return Ok(merged);
    }
    let mut merged = Merged::default();
    // Of what has the same name in several files the first stays as it is, and that has to be what
    // volumes of the heir refer to.
    let is_heir = |input: &&Input| heir.is_some_and(|heir| heir.name == input.name);
    for input in inputs.iter().filter(is_heir) {
        merged.take(input);
    }
    for input in inputs.iter().filter(|input| !is_heir(input)) {
        merged.take(input);
    }
    let mut driver = merged.object("csiDriver");
    driver.insert("name".into(), json!(name));
    let mut proxy = merged.proxy();
    if let Some(heir) = heir {
        if !is_ours(heir) {
            proxy.insert("legacyConnection".into(), json!(heir.name));
            merged.keep_names(heir);
        }
        // The API server does not let it be changed; this is what the old chart says without it.
        let attach = at(&heir.values, &["csiDriver", "attachRequired"]);
        let attach = attach.and_then(Value::as_bool).unwrap_or(true);
        driver.insert("attachRequired".into(), json!(attach));
    }
    for input in inputs
        .iter()
        .filter(|input| is_ours(input) && !is_heir(input))
    {
        let own = text(&input.values, &["csiDriver", "name"]);
        if let Some(own) = own.filter(|own| *own != name) {
            merged.problems.push(format!(
                "{}: nothing would serve the volumes of its driver {own}: leave --csi-name and --take-over out, so that it keeps its name",
                input.name
            ));
        }
    }
    merged.legacy = merged.object("legacyNames");
    if flags.legacy_names {
        for input in legacy::of(inputs, heir) {
            merged.keep_driver_name(input, &name);
        }
    } else {
        merged.name_classes_that_stay(inputs.iter().filter(|input| !is_heir(input)));
    }
    let sidecars = merge::sidecars(inputs, &mut merged.values);
    let strategy = merge::strategy(inputs, &mut merged.values);
    merged.notes.extend(sidecars.into_iter().chain(strategy));
    merged.finish(driver, proxy);
    Ok(merged)
}

/// Whether pods describe the volumes of a release themselves.
fn is_inline(values: &Map<String, Value>) -> bool {
    let kind = text(values, &["driver", "config", "driver"]);
    kind.is_some_and(|kind| kind.ends_with("-ephemeral-inline"))
}

/// The file whose driver name is kept: the one that is asked for, one of ours, or the only one.
fn heir<'a>(inputs: &'a [Input], flags: &MigrateValuesFlags) -> Result<Option<&'a Input>, String> {
    if flags.csi_name.is_some() {
        return Ok(None);
    }
    if let Some(wanted) = &flags.take_over {
        let found = inputs.iter().find(|input| &input.name == wanted);
        return found.map(Some).ok_or_else(|| {
            format!(
                "--take-over: no file is the connection `{}`",
                wanted.escape_debug()
            )
        });
    }
    let ours = inputs.iter().find(|input| is_ours(input));
    Ok(ours.or_else(|| inputs.first().filter(|_| inputs.len() == 1)))
}

/// Whether a file is a values file of our own chart already.
fn is_ours(input: &Input) -> bool {
    ["connections", "existingConnectionsSecret"]
        .iter()
        .any(|key| merge::has_content(at(&input.values, &[key])))
}

fn at<'a>(values: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(values.get(*first)?, |value, key| value.get(key))
        .filter(|value| !value.is_null())
}

fn text(values: &Map<String, Value>, path: &[&str]) -> Option<String> {
    at(values, path)?.as_str().map(str::to_owned)
}

// === impl Merged ===

impl Merged {
    fn object(&mut self, key: &str) -> Map<String, Value> {
        match self.values.remove(key) {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        }
    }

    /// The section `proxy` of the main file, as far as a file of ours had one. The rest of that file stays.
    fn proxy(&mut self) -> Map<String, Value> {
        let driver = self.values.get_mut("driver");
        let config = driver.and_then(|driver| driver.get_mut("config"));
        let config = config.and_then(Value::as_object_mut);
        match config.and_then(|config| config.remove("proxy")) {
            Some(Value::Object(proxy)) => proxy,
            _ => Map::new(),
        }
    }

    /// Each `PersistentVolume` names the secrets of its class, and their names hold the full name of the
    /// release: with others, no volume of before could be staged. compat: "Secrets".
    fn keep_names(&mut self, heir: &Input) {
        let name = at(&heir.values, &["nameOverride"]).cloned();
        let name = name.unwrap_or_else(|| json!(OLD_CHART));
        self.values.insert("nameOverride".into(), name);
        if let Some(full) = at(&heir.values, &["fullnameOverride"]) {
            self.values.insert("fullnameOverride".into(), full.clone());
        }
    }

    /// A release that has no volumes but those that pods describe, which name no connection.
    fn without_connections(only: &Input, name: &str) -> Self {
        let mut merged = Self::default();
        merged.take_settings(only, false);
        let mut driver = merged.object("csiDriver");
        driver.insert("name".into(), json!(name));
        let config = at(&only.values, &["driver", "config"]).cloned();
        if let Some(config) = &config {
            merged.check(&only.name, config);
        }
        merged
            .values
            .insert("csiDriver".into(), Value::Object(driver));
        merged
            .values
            .insert("driver".into(), json!({"config": config}));
        merged.notes.push(format!(
            "{}: its volumes are described by pods, which name no connection: it stays a driver of its own",
            only.name
        ));
        merged.fit();
        merged
    }

    /// Classes that exist already belong to their release, and helm does not take them from it.
    fn name_classes_that_stay<'a>(&mut self, others: impl Iterator<Item = &'a Input>) {
        for other in others.filter(|other| !is_ours(other)) {
            for key in ["storageClasses", "volumeSnapshotClasses"] {
                let classes = at(&other.values, &[key]).and_then(Value::as_array);
                let names = classes.into_iter().flatten();
                let names: Vec<_> = names
                    .filter_map(|class| class.get("name")?.as_str())
                    .map(|name| name.escape_debug().to_string())
                    .collect();
                if !names.is_empty() {
                    self.notes.push(format!(
                        "{}: the old release has {} still: before helm install, remove its {key} there ([]), or \
                         rename these",
                        other.name,
                        names.join(", ")
                    ));
                }
            }
        }
    }

    fn take(&mut self, input: &Input) {
        let ours = is_ours(input);
        let of_it = |text: &String| format!("{}: {text}", input.name);
        self.notes.extend(input.notes.iter().map(of_it));
        self.problems.extend(input.problems.iter().map(of_it));
        if ours {
            let connections = at(&input.values, &["connections"]).and_then(Value::as_object);
            for (name, connection) in connections.into_iter().flatten() {
                self.connect(name, connection.clone());
            }
        } else {
            self.take_config(input);
        }
        for key in ["storageClasses", "volumeSnapshotClasses"] {
            let classes = at(&input.values, &[key]).and_then(Value::as_array);
            for class in classes.into_iter().flatten().filter_map(Value::as_object) {
                self.take_class(key, class.clone(), (!ours).then_some(&input.name));
            }
        }
        self.take_settings(input, ours);
    }

    fn take_settings(&mut self, input: &Input, ours: bool) {
        let (settings, left_out) = only_settings(&input.values, ours);
        for key in left_out {
            self.notes
                .push(format!("{}: {key} is left out", input.name));
        }
        for path in overlay(&mut self.values, &settings) {
            self.notes.push(format!(
                "{}: {path} is another there than in a file before it, whose value stays",
                input.name
            ));
        }
    }

    fn take_config(&mut self, input: &Input) {
        let name = &input.name;
        if let Some(secret) = text(&input.values, &["driver", "existingConfigSecret"]) {
            self.in_secrets.push((name.clone(), secret));
            return;
        }
        let config = at(&input.values, &["driver", "config"])
            .filter(|config| config.get("driver").is_some());
        let Some(config) = config else {
            self.problems
                .push(format!("{name}: it has no driver.config.driver"));
            return;
        };
        if is_inline(&input.values) {
            self.problems.push(format!(
                "{name}: its volumes are described by pods, which name no connection: give this file alone, for a \
                 release of its own"
            ));
            return;
        }
        for (key, pointer) in [
            ("service", "/service"),
            ("_private.volume_context", "/_private/volume_context"),
        ] {
            if config
                .pointer(pointer)
                .is_some_and(|value| !value.is_null())
            {
                self.notes.push(format!(
                    "{name}: {key} counts in driver.config only, not in a connection: see docs/proxy.md"
                ));
            }
        }
        self.connect(name, config.clone());
    }

    fn connect(&mut self, name: &str, config: Value) {
        if self.connections.insert(name.to_owned(), config).is_some() {
            self.problems
                .push(format!("two files have the connection {name}"));
        }
    }

    fn take_class(
        &mut self,
        kind: &str,
        mut class: Map<String, Value>,
        connection: Option<&String>,
    ) {
        let storage = kind == "storageClasses";
        let named = class
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        if storage && let Some(connection) = connection {
            let parameters = class.entry("parameters").or_insert(Value::Null);
            if parameters.is_null() {
                *parameters = json!({});
            }
            if let Value::Object(parameters) = parameters {
                parameters.retain(|_, value| !value.is_null());
                parameters.insert("connection".into(), json!(connection));
            }
        }
        if storage && class.get("defaultClass") == Some(&Value::Bool(true)) {
            if let Some(first) = &self.default_class {
                self.notes
                    .push(format!("{named}: {first} is the default class already"));
                class.insert("defaultClass".into(), json!(false));
            } else {
                self.default_class = Some(named.clone());
            }
        }
        let classes = if storage {
            &mut self.storage_classes
        } else {
            &mut self.snapshot_classes
        };
        let same = |other: &Value| other.get("name").and_then(Value::as_str) == Some(&named);
        match classes.iter().find(|other| same(other)) {
            // Of one name and content, as classes for snapshots often are, one is enough.
            Some(other) if other.as_object() == Some(&class) => return,
            Some(_) => {
                let other = format!("{named}-{}", connection.map_or("2", String::as_str));
                self.notes.push(format!(
                    "{kind}: {named} is there already; this one is called {other}"
                ));
                class.insert("name".into(), json!(other));
            }
            None => {}
        }
        classes.push(Value::Object(class));
    }

    /// Configurations in Secrets: our chart takes all connections from one, or all from the values.
    fn finish_secrets(&mut self) {
        let before = self.values.contains_key("existingConnectionsSecret");
        if self.in_secrets.is_empty() && !before {
            return;
        }
        let made = "omnibus-csi-connections";
        for (name, secret) in &self.in_secrets {
            self.problems.push(format!(
                "{name}: its configuration is in the Secret {secret}, which is not read: make the Secret {made} with the \
                 key {name}.yaml, and in it what {secret} has in driver-config-file.yaml"
            ));
        }
        if self.connections.is_empty() {
            self.values
                .entry("existingConnectionsSecret")
                .or_insert(json!(made));
        } else {
            self.problems.push(format!(
                "the chart takes connections from the values or from a Secret, not from both: put the others into \
                 {made} as well, and set existingConnectionsSecret to it, or put all under connections"
            ));
        }
    }

    /// Leaves out what the chart refuses.
    fn fit(&mut self) {
        let (left_out, wrong) = schema::fit(&mut self.values);
        for misfit in left_out {
            let (path, problem) = (misfit.path(), misfit.problem());
            self.notes.push(format!("{path} is left out: {problem}"));
        }
        for misfit in wrong {
            let (path, problem) = (misfit.path(), misfit.problem());
            self.problems.push(format!("{path}: {problem}"));
        }
    }

    fn finish(&mut self, driver: Map<String, Value>, mut proxy: Map<String, Value>) {
        let is_local = |config: &Value| {
            let kind = config.get("driver").and_then(Value::as_str);
            kind.is_some_and(|kind| LOCAL.contains(&kind))
        };
        let local = self
            .connections
            .values()
            .filter(|config| is_local(config))
            .count();
        if local > 0 {
            if local < self.connections.len() {
                self.problems.push(
                    "storage of the nodes and storage of a network cannot be in one release: make two".into(),
                );
            }
            proxy
                .entry("nodeTopology")
                .or_insert(json!({"type": ["cluster", "node"]}));
        }
        self.values
            .insert("csiDriver".into(), Value::Object(driver));
        self.finish_secrets();
        let connections = std::mem::take(&mut self.connections);
        for (name, config) in &connections {
            self.check(name, config);
        }
        self.notes
            .extend(rights::grant(&mut self.values, &connections));
        self.values
            .insert("connections".into(), Value::Object(connections));
        let legacy = std::mem::take(&mut self.legacy);
        if !legacy.is_empty() {
            self.values
                .insert("legacyNames".into(), Value::Object(legacy));
        }
        if !proxy.is_empty() {
            let main = rights::object(&mut self.values, "driver");
            let config = rights::object(main, "config");
            config.insert("driver".into(), json!("proxy"));
            config.insert("proxy".into(), Value::Object(proxy));
        }
        for (key, classes) in [
            ("storageClasses", std::mem::take(&mut self.storage_classes)),
            (
                "volumeSnapshotClasses",
                std::mem::take(&mut self.snapshot_classes),
            ),
        ] {
            self.values.insert(key.into(), Value::Array(classes));
        }
        self.fit();
    }

    /// The findings of `check --offline` in a configuration. Variables are those of the controller, not of this
    /// machine.
    fn check(&mut self, name: &str, config: &Value) {
        for (is_error, finding) in check::offline(&config.to_string()) {
            let said = format!("{name}: check: {finding}");
            if is_error {
                self.problems.push(said);
            } else {
                self.notes.push(said);
            }
        }
    }
}

#[cfg(test)]
mod tests;
