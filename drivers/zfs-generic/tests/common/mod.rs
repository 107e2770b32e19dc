//! A host whose configfs is a folder: `mkdir` and `rmdir` do there what the kernel does.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use csi_types::hex;
use driver_core::config::{Document, NoEnvironment};
use driver_core::{Error, NodeId, VolumeId};
use driver_zfs::Export;
use driver_zfs::export::{Act, Subject};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::{Dataset, Guid, VolumeKind};
use driver_zfs::property::{Properties, PropertyName, Value};
use driver_zfs_cli::exec::{Command, Local, Lock, Output, Program, RunError, Runner, Variable};
use driver_zfs_generic::{DiskExport, Facts, HostPaths};
use sha2::{Digest as _, Sha256};

const PATH: Variable = Variable::constant("PATH");
const COUNT: Variable = Variable::constant("COUNT");
const CUT: Variable = Variable::constant("CUT");

/// Subsystems that let in only the nodes that a volume was published to.
pub(crate) const NVMET: &str = "driver: zfs-generic-nvmeof
nvmeof:
  transport: tcp://192.0.2.1:4420
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2003-01.org.example
    configPath: '{etc}/saved.json'
    ports: [{id: 1, traddr: 0.0.0.0}]
    nodes: {nameTemplate: 'nqn.2014-08.org.example:{{node}}'}
";

/// The folders of the kernel when it starts.
const TREES: [&str; 4] = [
    "cfg/target/core",
    "cfg/nvmet/subsystems",
    "cfg/nvmet/ports",
    "cfg/nvmet/hosts",
];

/// A host.
pub(crate) struct Host {
    folder: tempfile::TempDir,
    /// Before which command it is cut.
    pub(crate) cut: Option<u32>,
}

/// The requests to an export.
pub(crate) enum Ask {
    Establish,
    Allow(NodeId),
    /// The same, with all that it waits for.
    Publish(NodeId),
    Revoke(Option<NodeId>),
}

/// A volume.
pub(crate) struct Volume {
    id: VolumeId,
    dataset: DatasetName,
    seen: Dataset,
}

impl Volume {
    /// The volume of this name below `parent`.
    pub(crate) fn new(parent: &str, name: &str, guid: u64) -> Self {
        let dataset = DatasetName::parse(&format!("{parent}/{name}")).unwrap();
        let seen = Dataset {
            name: dataset.clone(),
            kind: VolumeKind::Zvol,
            guid: Guid(guid),
            properties: Properties::default(),
        };
        let id = VolumeId::parse(name).unwrap();
        Self { id, dataset, seen }
    }

    /// It remembers this.
    pub(crate) fn remembering(mut self, name: PropertyName, text: &str) -> Self {
        self.seen.properties.insert(name, Value::own(text));
        self
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            id: &self.id,
            dataset: &self.dataset,
            request: None,
            chosen: None,
            volume: Some(&self.seen),
        }
    }
}

impl Host {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for path in TREES.into_iter().chain(["etc", "bin"]) {
            std::fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        Self { folder, cut: None }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    pub(crate) fn places(&self) -> HostPaths {
        let text = |path: &str| self.path(path).to_str().unwrap().to_owned();
        HostPaths {
            configfs: text("cfg"),
            debugfs: text("debug"),
            pools: text("pools"),
            targetcli_lock: text("etc/targetcli.lock"),
            targetcli_saved: Some(text("etc/targetcli.json")),
            locks: Some(text("locks")),
        }
    }

    /// A program of this host.
    pub(crate) fn program(&self, name: &str, text: &str) {
        driver_zfs_cli::exec::testing::write_program(&self.path("bin").join(name), text);
    }

    /// Has this shell, or this awk, as `name`; says whether the machine has it.
    pub(crate) fn takes(&self, name: &str, path: &str) -> bool {
        let found = Path::new(path).exists();
        if found {
            std::os::unix::fs::symlink(path, self.path("bin").join(name)).unwrap();
        }
        found
    }

    /// Loses what the kernel knows, as when it starts again.
    pub(crate) fn starts_again(&self) {
        std::fs::remove_dir_all(self.path("cfg")).unwrap();
        for sessions in ["sessions", "controllers"] {
            let _ = std::fs::remove_dir_all(self.path(sessions));
        }
        for path in TREES {
            std::fs::create_dir_all(self.path(path)).unwrap();
        }
    }

    /// Its kernel shows who is connected to nvmet, and lets one of them be ended.
    pub(crate) fn shows_controllers(&self) {
        std::fs::create_dir_all(self.path("debug")).unwrap();
        std::fs::create_dir_all(self.path("controllers")).unwrap();
        std::os::unix::fs::symlink("../controllers", self.path("debug/nvmet")).unwrap();
    }

    /// An initiator connects to a subsystem, or logs in to a target, by its name. It uses what the kernel
    /// has now, and no access list is checked. `port` is of nvmet.
    pub(crate) fn connect(&self, target: &str, who: &str, port: u16) {
        if target.starts_with("iqn.") {
            std::fs::create_dir_all(self.path("sessions")).unwrap();
            std::fs::write(self.path("sessions").join(who), "").unwrap();
            let group = self.path("cfg/target/iscsi").join(target).join("tpgt_1");
            let info = group.join("acls").join(who).join("info");
            if info.exists() {
                std::fs::write(info, format!("InitiatorName: {who}\n")).unwrap();
            } else {
                // As the kernel does it, with a zero after each line.
                let file = group.join("dynamic_sessions");
                let text = std::fs::read_to_string(&file).unwrap();
                let text = format!("{}{who}\n\0", text.trim_start_matches('\n'));
                std::fs::write(file, text).unwrap();
            }
            return;
        }
        let folder = self.path("controllers").join(target);
        let number = std::fs::read_dir(&folder).unwrap().count() + 1;
        let folder = folder.join(format!("ctrl{number}"));
        std::fs::create_dir(&folder).unwrap();
        let port = format!("{port}\n");
        // As the kernel shows it, without an end of the line.
        for (name, text) in [("hostnqn", who), ("port", &port), ("state", "ready\n")] {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }

    /// Whether it is connected.
    pub(crate) fn is_connected(&self, target: &str, who: &str) -> bool {
        if target.starts_with("iqn.") {
            return self.path("sessions").join(who).exists();
        }
        let Ok(all) = std::fs::read_dir(self.path("controllers").join(target)) else {
            return false;
        };
        all.map(|entry| std::fs::read_to_string(entry.unwrap().path().join("hostnqn")))
            .any(|text| text.is_ok_and(|text| text == who))
    }

    /// Asks and does what is said until there is nothing left to do.
    pub(crate) async fn settle(
        &self,
        export: &DiskExport,
        volume: &mut Volume,
        ask: &Ask,
    ) -> Result<(), RunError> {
        for _ in 0..4 {
            let facts = self.facts(export, volume).await;
            let subject = volume.subject();
            let export_name = export.export_name(&subject).unwrap();
            let (subject, name) = (&subject, &export_name);
            let acts = match ask {
                Ask::Establish => export.ensure(subject, name, &facts),
                Ask::Allow(node) => export.allow(subject, name, &facts, &[node]),
                Ask::Publish(node) => {
                    let mut acts = export.prepare(subject, name, &facts).unwrap();
                    let more = export.allow(subject, name, &facts, &[node]);
                    more.map(|more| {
                        acts.extend(more);
                        acts
                    })
                }
                Ask::Revoke(node) => export.revoke(subject, name, &facts, node.as_ref()),
            };
            let acts = acts.unwrap();
            if acts.is_empty() {
                return Ok(());
            }
            for act in acts {
                match act {
                    Act::Do(command) => drop(self.run(&command).await?),
                    Act::Remember(property) => {
                        let value = Value::own(property.value.as_str());
                        volume.seen.properties.insert(property.name, value);
                    }
                    Act::Forget(name) => volume.seen.properties.remove(&name),
                    Act::Task(_) | Act::Record(..) => panic!("a host does one after the other"),
                }
            }
        }
        panic!("it never ends");
    }

    /// An export of this host: `{etc}` in the text is its folder of configurations.
    pub(crate) fn export(&self, text: &str) -> DiskExport {
        let text = text.replace("{etc}", self.path("etc").to_str().unwrap());
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        let export = if text.contains("iscsi:") {
            driver_zfs_generic::iscsi::export(&document, self.places())
        } else {
            driver_zfs_generic::nvmeof::export(&document, self.places())
        };
        export.unwrap()
    }

    /// Runs a command here.
    pub(crate) async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
        let bin = self.path("bin");
        let path = format!(
            "{}:{}:/usr/sbin:/usr/bin:/sbin:/bin",
            bin.display(),
            fake.display()
        );
        let count = self.path("count").to_str().unwrap().to_owned();
        // The runner itself would look for it on this machine.
        let command = if command.program().as_str() == "sudo" {
            let locks = self.path("locks").to_str().unwrap().to_owned();
            Lock::object("sudo").within_folder(locks).around(command)
        } else {
            command.clone()
        };
        let mut command = command.env(PATH, path).env(COUNT, count);
        if let Some(cut) = self.cut {
            command = command.env(CUT, cut.to_string());
        }
        let output = Local::new().run_checked(&command).await?;
        let mut said = std::fs::OpenOptions::new();
        let mut said = said
            .create(true)
            .append(true)
            .open(self.path("said"))
            .unwrap();
        said.write_all(&output.stderr).unwrap();
        Ok(output)
    }

    /// Standard error of all commands that succeeded.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.path("said")).unwrap_or_default()
    }

    /// The number of commands that could have been cut since the last time.
    pub(crate) fn counted(&self) -> u32 {
        let text = std::fs::read_to_string(self.path("count")).unwrap_or_default();
        let _ = std::fs::remove_file(self.path("count"));
        text.trim().parse().unwrap_or(0)
    }

    /// How things stand.
    pub(crate) async fn facts(&self, export: &DiskExport, volume: &Volume) -> Facts {
        let subject = volume.subject();
        let export_name = export.export_name(&subject).unwrap();
        let mut answers = Vec::new();
        for look in export.observe(&subject, &export_name) {
            answers.push(self.run(&look).await.unwrap());
        }
        export.facts(&subject, &export_name, &answers).unwrap()
    }

    async fn acts(&self, acts: Vec<Act<Command>>) -> Result<usize, RunError> {
        let mut done = 0;
        for act in acts {
            if let Act::Do(command) = act {
                let _ = self.run(&command).await?;
                done += 1;
            }
        }
        Ok(done)
    }

    /// Does what is missing; says how many commands that were.
    pub(crate) async fn ensure(
        &self,
        export: &DiskExport,
        volume: &Volume,
    ) -> Result<Result<usize, RunError>, Error> {
        let facts = self.facts(export, volume).await;
        let subject = volume.subject();
        let export_name = export.export_name(&subject)?;
        let acts = export.ensure(&subject, &export_name, &facts)?;
        Ok(self.acts(acts).await)
    }

    /// Removes what is there; says how many commands that were.
    pub(crate) async fn remove(
        &self,
        export: &DiskExport,
        volume: &Volume,
    ) -> Result<usize, RunError> {
        let facts = self.facts(export, volume).await;
        let subject = volume.subject();
        let export_name = export.export_name(&subject).unwrap();
        let acts = export.remove(&subject, &export_name, &facts).unwrap();
        self.acts(acts).await
    }

    /// Every file and folder of a tree, with what is in it.
    pub(crate) fn tree(&self, root: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut left = vec![self.path(root)];
        while let Some(folder) = left.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let entry = entry.unwrap();
                let (path, kind) = (entry.path(), entry.file_type().unwrap());
                let text = if kind.is_symlink() {
                    std::fs::read_link(&path).unwrap().display().to_string()
                } else if kind.is_dir() {
                    left.push(path.clone());
                    String::new()
                } else {
                    std::fs::read_to_string(&path).unwrap()
                };
                found.push((path.display().to_string(), text.trim_end().to_owned()));
            }
        }
        found.sort();
        found
    }
}

/// A name and the node that is called so, as a dataset remembers it.
pub(crate) fn pair(name: &str, id: &str) -> String {
    let digest = Sha256::digest(id.as_bytes());
    format!("{name}#{}", hex(&digest[..5]))
}

/// A target of LIO, set up by its configfs, with an access list.
pub(crate) const LIO: &str = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 192.0.2.1
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2003-01.org.example
    configPath: '{etc}/saved.json'
    nodes: {nameTemplate: 'iqn.2004-10.org.example:{{node}}'}
";

/// A program that every host has.
pub(crate) const SH: Program = Program::constant("sh");
