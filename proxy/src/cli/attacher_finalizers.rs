//! `attacher-finalizers`: the commands that remove what the external-attacher leaves on attachments and
//! `PersistentVolumes` of a driver that does not attach any more.
//!
//! It reads what `kubectl get -o json` prints, and changes nothing: an operator sees each command before it runs.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use crate::cli::args::EX_USAGE;
use crate::process;
use crate::routing::plugin_name::PluginName;

/// The flags.
#[derive(Debug, Args)]
pub struct AttacherFinalizersFlags {
    /// What `kubectl get volumeattachments,persistentvolumes -o json` prints; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub file: PathBuf,
    /// The name of the driver in the cluster
    #[arg(long, value_name = "NAME")]
    pub csi_name: String,
}

/// The most bytes that are read: some 100,000 attachments.
const LARGEST: u64 = 1 << 30;

/// A list of objects, or one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Objects {
    List { items: Vec<Object> },
    One(Box<Object>),
}

/// An object of the cluster, as far as it matters here.
#[derive(Deserialize)]
struct Object {
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    finalizers: Vec<String>,
}

#[derive(Deserialize, Default)]
struct Spec {
    /// Of a `VolumeAttachment`.
    attacher: Option<String>,
    /// Of a `PersistentVolume`.
    csi: Option<Csi>,
}

#[derive(Deserialize)]
struct Csi {
    driver: String,
}

/// Writes the commands to standard output, and how many there are to standard error.
pub fn run(flags: &AttacherFinalizersFlags) -> ExitCode {
    match read(&flags.file).and_then(|text| commands(&text, &flags.csi_name)) {
        Ok(commands) => {
            process::complain(&format!("{} finalizers to remove", commands.len()));
            for command in commands {
                process::say(&format!("{command}\n"));
            }
            ExitCode::SUCCESS
        }
        Err(problem) => {
            process::complain(&format!("omnibus-csi: {problem}"));
            ExitCode::from(EX_USAGE)
        }
    }
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(LARGEST).read_to_string(&mut text)
    } else {
        let open = File::open(file);
        open.and_then(|open| open.take(LARGEST).read_to_string(&mut text))
    };
    read.map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(text)
}

/// The commands for what a driver attached: attachments first, for they keep the `PersistentVolumes` in use.
fn commands(text: &str, driver: &str) -> Result<Vec<String>, String> {
    PluginName::parse(driver).map_err(|error| format!("--csi-name: {error}"))?;
    let objects = serde_json::from_str(text)
        .map_err(|error| format!("this is not what `kubectl get -o json` prints: {error}"))?;
    let objects = match objects {
        Objects::List { items } => items,
        Objects::One(one) => vec![*one],
    };
    let finalizer = finalizer(driver);
    let mut commands = Vec::new();
    for kind in ["VolumeAttachment", "PersistentVolume"] {
        let of_kind = objects.iter().filter(|object| object.kind == kind);
        for object in of_kind.filter(|object| object.is_of(driver)) {
            commands.extend(object.patch(&finalizer)?);
        }
    }
    Ok(commands)
}

/// The finalizer of the external-attacher, as it makes it of the name of the driver.
fn finalizer(driver: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = driver.chars().map(plain).collect();
    format!("external-attacher/{name}")
}

// === impl Object ===

impl Object {
    fn is_of(&self, driver: &str) -> bool {
        let spec = &self.spec;
        spec.attacher.as_deref() == Some(driver)
            || spec.csi.as_ref().is_some_and(|csi| csi.driver == driver)
    }

    /// The command that removes the finalizer. It fails if the list has changed since.
    fn patch(&self, finalizer: &str) -> Result<Option<String>, String> {
        let Metadata { name, finalizers } = &self.metadata;
        let Some(place) = finalizers.iter().position(|one| one == finalizer) else {
            return Ok(None);
        };
        // It becomes a word of a shell.
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
        if name.is_empty() || name.starts_with('-') || !name.chars().all(plain) {
            return Err(format!("no object is called {name:?}"));
        }
        let kind = self.kind.to_ascii_lowercase();
        let path = format!("/metadata/finalizers/{place}");
        let patch = json!([
            {"op": "test", "path": path, "value": finalizer},
            {"op": "remove", "path": path},
        ]);
        Ok(Some(format!(
            "kubectl patch {kind} {name} --type=json --patch='{patch}'"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects as Kubernetes 1.35 shows them, with what external-attacher 4.13 puts on them.
    const OBJECTS: &str = include_str!("attacher_finalizers/objects.json");

    #[test]
    fn only_what_this_driver_attached_is_patched_and_attachments_come_first() {
        let commands = commands(OBJECTS, "org.example.csi").expect("commands");
        let patch = |place: u8| {
            let path = format!("/metadata/finalizers/{place}");
            format!(
                "--type=json --patch='[{{\"op\":\"test\",\"path\":\"{path}\",\"value\":\"external-attacher/org-example-csi\"}},\
                 {{\"op\":\"remove\",\"path\":\"{path}\"}}]'"
            )
        };
        let wanted = [
            format!("kubectl patch volumeattachment csi-0f4d1c {}", patch(0)),
            format!("kubectl patch persistentvolume pvc-5c1b {}", patch(2)),
        ];
        assert_eq!(commands, wanted);
    }

    #[test]
    fn another_driver_of_nearly_that_name_is_left_alone() {
        assert_eq!(commands(OBJECTS, "org.example").expect("commands"), [""; 0]);
        let other = commands(OBJECTS, "org.other").expect("commands");
        assert_eq!(other.len(), 1, "{other:?}");
    }

    #[test]
    fn what_is_no_list_of_objects_or_no_name_is_refused() {
        for text in ["", "NAME   ATTACHER", "[]", "{}"] {
            commands(text, "org.example.csi").expect_err(text);
        }
        commands(OBJECTS, "a;b").expect_err("no name of a driver");
        let hostile = r#"{"kind": "PersistentVolume", "metadata": {"name": "a;reboot",
            "finalizers": ["external-attacher/org-example-csi"]}, "spec": {"csi": {"driver": "org.example.csi"}}}"#;
        commands(hostile, "org.example.csi").expect_err("no name of an object");
    }
}
