//! The values in a file: a values file of the chart, one with the chart as a subchart, or a manifest of what
//! installs it: Flux, k3s, Argo CD, Kustomize.

use driver_core::config;
use serde_json::{Map, Value};

use super::{at, text};

/// The values of one release.
#[derive(Debug, Default)]
pub(super) struct Release {
    /// Its name, where the file has one.
    pub(super) name: Option<String>,
    pub(super) values: Map<String, Value>,
    pub(super) notes: Vec<String>,
    pub(super) problems: Vec<String>,
}

/// The place where a kind of manifest has the values, as a map or as text, its release and its namespace.
struct Shape {
    kind: &'static str,
    values: &'static [&'static [&'static str]],
    release: &'static [&'static [&'static str]],
    namespace: &'static [&'static [&'static str]],
    /// The parts that are not read, and why it matters.
    unread: &'static [(&'static [&'static str], Unread)],
}

/// The meaning of a part that is not read.
#[derive(Clone, Copy)]
enum Unread {
    /// Values are missing.
    Values,
    /// The changes after an installation.
    Changes,
}

const SHAPES: [Shape; 4] = [
    Shape {
        kind: "HelmRelease",
        values: &[&["spec", "values"]],
        release: &[&["spec", "releaseName"], &["metadata", "name"]],
        namespace: &[&["spec", "targetNamespace"], &["metadata", "namespace"]],
        unread: &[
            (&["spec", "valuesFrom"], Unread::Values),
            (&["spec", "postRenderers"], Unread::Changes),
        ],
    },
    Shape {
        kind: "HelmChart",
        values: &[&["spec", "valuesContent"], &["spec", "values"]],
        release: &[&["metadata", "name"]],
        namespace: &[&["spec", "targetNamespace"], &["metadata", "namespace"]],
        unread: &[
            (&["spec", "set"], Unread::Values),
            (&["spec", "valuesSecrets"], Unread::Values),
        ],
    },
    Shape {
        kind: "HelmChartConfig",
        values: &[&["spec", "valuesContent"]],
        release: &[&["metadata", "name"]],
        namespace: &[&["metadata", "namespace"]],
        unread: &[(&["spec", "valuesSecrets"], Unread::Values)],
    },
    Shape {
        kind: "Application",
        values: &[&["helm", "valuesObject"], &["helm", "values"]],
        release: &[&["helm", "releaseName"]],
        namespace: &[],
        unread: &[
            (&["helm", "parameters"], Unread::Values),
            (&["helm", "valueFiles"], Unread::Values),
            (&["helm", "fileParameters"], Unread::Values),
        ],
    },
];

/// Keys of which a values file of the chart has at least one.
const OF_THE_CHART: [&str; 6] = [
    "csiDriver",
    "connections",
    "existingConnectionsSecret",
    "storageClasses",
    "controller",
    "node",
];

/// All releases that a file holds.
pub(super) fn releases(text: &str) -> Result<Vec<Release>, String> {
    let mut found = Vec::new();
    let mut others = Vec::new();
    for document in documents(text) {
        let Value::Object(document) = parse(&document)? else {
            return Err("no map of values".into());
        };
        if document.is_empty() {
            continue;
        }
        match of_document(&document) {
            Ok(releases) => found.extend(releases),
            Err(why) => others.push(why),
        }
    }
    // Beside a release there are namespaces, repositories and the like.
    match others.into_iter().next() {
        Some(why) if found.is_empty() => Err(why),
        None if found.is_empty() => Err("it holds no values".into()),
        _ => Ok(found),
    }
}

fn parse(text: &str) -> Result<Value, String> {
    config::plain_yaml(text).map_err(|error| error.to_string())
}

/// The documents of a file. A line `---` cannot be a part of indented text.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.trim_start_matches('\u{feff}').lines() {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            documents.push(String::new());
        } else if let Some(last) = documents.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    documents
}

fn of_document(document: &Map<String, Value>) -> Result<Vec<Release>, String> {
    if document.contains_key("sops") {
        return Err("it is encrypted by SOPS: decrypt it first (`sops --decrypt`)".into());
    }
    let kind = document.get("kind").and_then(Value::as_str);
    match kind.filter(|_| document.contains_key("apiVersion")) {
        None => of_values(document, None),
        Some("Application" | "ApplicationSet") => of_argo(document),
        Some("Kustomization") => of_kustomize(document),
        Some(kind) => match SHAPES.iter().find(|shape| shape.kind == kind) {
            Some(shape) => of_shape(shape, document, document),
            None => Err(format!(
                "this is a manifest of the kind {}: give the values of the chart, or the HelmRelease, HelmChart or \
                 Application that holds them",
                kind.escape_debug()
            )),
        },
    }
}

fn of_shape(
    shape: &Shape,
    part: &Map<String, Value>,
    document: &Map<String, Value>,
) -> Result<Vec<Release>, String> {
    let held = shape.values.iter().find_map(|path| at(part, path));
    let values = match held {
        Some(Value::Object(values)) => values.clone(),
        Some(Value::String(text)) => match parse(text)? {
            Value::Object(values) => values,
            _ => return Err(format!("the {}: its values are no map", shape.kind)),
        },
        Some(_) => return Err(format!("the {}: its values are no map", shape.kind)),
        None => Map::new(),
    };
    let first = |paths: &[&[&str]]| paths.iter().find_map(|path| text(part, path));
    let name = first(shape.release).or_else(|| text(document, &["metadata", "name"]));
    let namespace =
        first(shape.namespace).or_else(|| text(document, &["spec", "destination", "namespace"]));
    let mut releases = of_values(&values, name.clone())?;
    for release in &mut releases {
        if let Some(name) = &name {
            let namespace = namespace.as_deref().unwrap_or("of before");
            release.notes.push(format!(
                "install it as the release {} in the namespace {}: volumes hold names that are made of them",
                name.escape_debug(),
                namespace.escape_debug()
            ));
        }
        for (path, unread) in shape.unread {
            if !super::merge::has_content(at(part, path)) {
                continue;
            }
            let path = path.join(".");
            match unread {
                Unread::Values => release.problems.push(format!(
                    "the {}: {path} is not read: add what comes from there to the new values",
                    shape.kind
                )),
                Unread::Changes => release.notes.push(format!(
                    "the {}: {path} is not read: see whether it fits our chart",
                    shape.kind
                )),
            }
        }
    }
    Ok(releases)
}

/// One or several sources; those of other charts hold no values of ours.
fn of_argo(document: &Map<String, Value>) -> Result<Vec<Release>, String> {
    let spec = at(document, &["spec", "template", "spec"]).or_else(|| document.get("spec"));
    let spec = spec.and_then(Value::as_object).cloned().unwrap_or_default();
    let one = spec.get("source").into_iter();
    let several = spec
        .get("sources")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let sources = one.chain(several).filter_map(Value::as_object);
    let sources = sources.filter(|source| source.contains_key("helm"));
    let shape = SHAPES.iter().find(|shape| shape.kind == "Application");
    let found: Vec<_> = sources
        .filter_map(|source| shape.map(|shape| of_shape(shape, source, document)))
        .collect();
    if found.is_empty() {
        return Err("the Application has no values of helm".into());
    }
    let mut error = None;
    let mut all = Vec::new();
    for one in found {
        match one {
            Ok(releases) => all.extend(releases),
            Err(why) => error = error.or(Some(why)),
        }
    }
    match error {
        Some(why) if all.is_empty() => Err(why),
        _ => Ok(all),
    }
}

fn of_kustomize(document: &Map<String, Value>) -> Result<Vec<Release>, String> {
    let charts = document.get("helmCharts").and_then(Value::as_array);
    let mut all = Vec::new();
    for chart in charts.into_iter().flatten().filter_map(Value::as_object) {
        let name = text(chart, &["releaseName"]).or_else(|| text(chart, &["name"]));
        if let Some(Value::Object(values)) = chart.get("valuesInline") {
            all.extend(of_values(values, name)?);
        }
    }
    if all.is_empty() {
        return Err("the Kustomization has no helmCharts with valuesInline".into());
    }
    Ok(all)
}

/// Values of the chart, or of one that has it as a subchart, once or several times under other names.
fn of_values(values: &Map<String, Value>, name: Option<String>) -> Result<Vec<Release>, String> {
    if is_of_the_chart(values) {
        return Ok(vec![Release {
            name,
            values: values.clone(),
            ..Release::default()
        }]);
    }
    if values.get("driver").is_some_and(Value::is_string) {
        return Err(
            "this is the configuration of a driver: in a values file it stands under driver.config"
                .into(),
        );
    }
    let charts: Vec<_> = values
        .iter()
        .filter_map(|(key, below)| Some((key, below.as_object()?)))
        .filter(|(_, below)| has_driver(below))
        .collect();
    if charts.is_empty() {
        return Err("no values of the chart: it has neither csiDriver nor driver.config".into());
    }
    let several = charts.len() > 1;
    let releases = charts.into_iter().map(|(key, below)| Release {
        name: if several { Some(key.clone()) } else { name.clone() },
        values: below.clone(),
        notes: vec![format!(
            "the chart was a subchart, `{}`: the new values are those of our chart itself; as a subchart they go below \
             its name again",
            key.escape_debug()
        )],
        problems: Vec::new(),
    });
    Ok(releases.collect())
}

fn is_of_the_chart(values: &Map<String, Value>) -> bool {
    has_driver(values)
        || OF_THE_CHART
            .iter()
            .any(|key| values.get(*key).is_some_and(|value| !value.is_null()))
}

/// Other charts have a `controller`, too.
fn has_driver(values: &Map<String, Value>) -> bool {
    let driver = values.get("driver").and_then(Value::as_object);
    driver.is_some_and(|driver| {
        driver.contains_key("config") || driver.contains_key("existingConfigSecret")
    }) || values.get("csiDriver").is_some_and(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_values_file_is_called_by_its_name() {
        for (text, said) in [
            (
                "driver: zfs-generic-nfs\nsshConnection: {}\n",
                "under driver.config",
            ),
            (
                "apiVersion: v1\nkind: Secret\nstringData: {}\n",
                "the kind Secret",
            ),
            (
                "sops: {mac: x}\ndriver: {config: {}}\n",
                "encrypted by SOPS",
            ),
            ("replicas: 1\n", "neither csiDriver"),
            ("[1]\n", "no map"),
            ("---\n---\n", "no values"),
            (
                "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec: {source: {path: x}}\n",
                "no values of helm",
            ),
            (
                "apiVersion: a/v1\nkind: Kustomization\nresources: [x]\n",
                "valuesInline",
            ),
        ] {
            let error = releases(text).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
