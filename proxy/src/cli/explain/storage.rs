//! The links of the controller: handle, connection, storage, parent, volume, export.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use csi_types::Attachment;
use csi_types::said::{EXPORT_MISSING, NOT_EXPORTED};
use driver_core::config::{Finding, Severity};
use driver_core::{
    CapacityQuery, ConditionKind, Error, FindVolume, Found, HealthQuery, Kind, Volume, VolumeId,
};
use node_utils::Tools;

use super::chain::{Link, State};
use super::{Silent, ask};
use crate::app::App;
use crate::cli::check;
use crate::csi::environment::Environment;
use crate::csi::spec_version::CsiVersion;
use crate::message;
use crate::process;
use crate::routing::connection::Connection;
use crate::routing::connections::{
    ConnectionName, Connections, Handle, LazyConnection, VolumeHandle,
};
use crate::routing::plugin_name::PluginName;

/// The keys of a volume's context that say where it is. None of them is a secret.
const PLACES: [&str; 9] = [
    "server",
    "share",
    "path",
    "portal",
    "iqn",
    "lun",
    "nqn",
    "nsid",
    "zfs_asset_name",
];

/// The connections of a configuration, and their files.
#[derive(Debug)]
pub(super) struct Configured {
    connections: Connections,
    files: BTreeMap<ConnectionName, PathBuf>,
    /// Entries of the folder that are no connection.
    odd: Vec<String>,
    named: bool,
}

/// One volume of a connection that can be asked.
struct Walk<'a> {
    connection: &'a Connection,
    id: &'a VolumeId,
    config: &'a Path,
    /// Whether pods are served from this machine.
    is_node: bool,
    /// The doubt that nodes find the volumes where they are made.
    misled: Option<Finding>,
    links: Vec<Link>,
}

// === impl Configured ===

impl Configured {
    /// The connections, if they have names.
    pub(super) fn into_connections(self) -> Option<Connections> {
        self.named.then_some(self.connections)
    }
}

/// Reads a configuration and the files of its folder, as callers of the name `driver` have its connections. No storage
/// is asked.
pub(super) fn read(file: &Path, driver: Option<&PluginName>) -> Result<Configured, String> {
    let at = Environment {
        node: check::node(),
        version: CsiVersion::NEWEST,
        // Nothing is run on this node.
        tools: Tools::of_this_machine(),
        modes: None,
    };
    let (_, app) = App::of_file(file, &at).map_err(|error| process::chain(&error))?;
    let App {
        folder,
        connections,
        mut legacy,
        ..
    } = app;
    let mut configured = Configured {
        connections,
        files: BTreeMap::new(),
        odd: Vec::new(),
        named: folder.is_some(),
    };
    let Some(mut folder) = folder else {
        return Ok(configured);
    };
    let survey = folder.survey();
    if survey.all.is_empty() && !survey.odd.is_empty() {
        // Perhaps the folder cannot be read: then a connection may exist that is not known.
        let why = survey.odd.join("; ");
        configured.connections.set_incomplete(Some(why));
    }
    for one in survey.all {
        configured.files.insert(one.name.clone(), one.path);
        configured.connections.put(match one.opened {
            Ok((_, connection)) => LazyConnection::fixed(connection),
            Err(error) => LazyConnection::refused(one.name, &process::chain(&error)),
        });
    }
    configured.odd = survey.odd;
    if let Some(legacy) = driver.and_then(|driver| legacy.remove(driver)) {
        configured.connections = legacy.connections;
    }
    Ok(configured)
}

/// Whether a handle can be one of a volume. With names, it may have to name a connection.
pub(super) fn handle(text: &str, named: bool) -> Result<VolumeHandle, Link> {
    let remedy = "give the handle as `spec.csi.volumeHandle` of the PersistentVolume has it: behind the proxy `v:<connection>/<id>`. If it is \
                  wrong there, it cannot be changed: set `persistentVolumeReclaimPolicy: Retain`, delete the PersistentVolume, and make it \
                  again with the right one";
    let broken = |why: &str| Link::broken("handle", &format!("`{text}`: {why}"), remedy);
    let handle = VolumeHandle::parse(text).map_err(|error| broken(&error.to_string()))?;
    match handle.read() {
        Err(error) if named => Err(broken(&error.to_string())),
        _ => Ok(handle),
    }
}

/// The links from the handle to the export, up to the first that is broken, and how the volume is attached if that is
/// known; as seen where the file is, which may be a node.
pub(super) async fn links(
    configured: &Configured,
    text: &str,
    (config, is_node): (&Path, bool),
) -> (Vec<Link>, Option<Attachment>) {
    let handle = match handle(text, configured.named) {
        Ok(handle) => handle,
        Err(broken) => return (vec![broken], None),
    };
    let mut links = vec![Link::holds("handle", handle.as_str())];
    let (connection, id) = match configured.resolve(&handle).await {
        Ok(found) => found,
        Err(broken) => {
            links.push(broken);
            return (links, None);
        }
    };
    links.push(configured.shown(&connection));
    let mut walk = Walk {
        connection: &connection,
        id: &id,
        config,
        is_node,
        misled: None,
        links,
    };
    let volume = walk.go().await;
    (walk.links, volume.map(|volume| volume.attachment))
}

// === impl Configured ===

impl Configured {
    async fn resolve(&self, handle: &VolumeHandle) -> Result<(Arc<Connection>, VolumeId), Link> {
        let found = self.connections.of_volume(handle).await;
        found.map_err(|error| {
            let remedy = "correct the file of the connection, or put it back: `omnibus-csi check` names each wrong key";
            let broken = Link::of("connection", &error, remedy);
            if self.odd.is_empty() {
                return broken;
            }
            broken.with("not_served", self.odd.clone())
        })
    }

    fn shown(&self, connection: &Connection) -> Link {
        let (name, kind) = (connection.name(), connection.driver().kind());
        let Some(file) = self.files.get(name) else {
            return Link::holds("connection", kind).with("driver", kind);
        };
        let file = file.display().to_string();
        Link::holds("connection", &format!("{name}: {kind}, {file}"))
            .with("name", name.to_string())
            .with("driver", kind)
            .with("file", file)
    }
}

// === impl Walk ===

impl Walk<'_> {
    /// Adds one link after the other; the volume, if it is there.
    async fn go(&mut self) -> Option<Volume> {
        if !self.connection.has_storage() {
            let text = "volumes of this driver are made by hand, and each names its own storage, which is not asked here";
            self.links.push(Link::absent("storage", text));
            return None;
        }
        if !self.storage().await {
            return None;
        }
        let volume = self.volume().await?;
        let last = self.links.last();
        if last.is_none_or(|link| link.state != State::Broken) {
            self.export().await;
        }
        Some(volume)
    }

    /// The storage, and whether it can be asked about the volume.
    async fn storage(&mut self) -> bool {
        let driver = self.connection.driver();
        let probed = ask(async |call| self.connection.probe(call).await).await;
        let problem = match probed {
            Ok(problems) => problems.into_iter().next(),
            Err(silent) => {
                self.links.push(self.silent(&silent));
                return false;
            }
        };
        let said = match &problem {
            Some(error) if matches!(error.kind(), Kind::Denied | Kind::Timeout) => Vec::new(),
            _ => ask(async |call| driver.describe(call).await)
                .await
                .unwrap_or_default(),
        };
        let misled = said.iter().find(|said| {
            said.severity == Severity::Doubtful && said.path.ends_with(".shareBasePath")
        });
        self.misled = misled.cloned();
        let answers = said
            .iter()
            .find(|said| said.severity == Severity::Remark && said.path == "storage");
        let answers = answers.map(|said| said.message.as_str());
        match (problem, answers) {
            (None, answers) => {
                let text = answers.unwrap_or("it answers");
                self.links.push(Link::holds("storage", text));
                true
            }
            // It answers, so what is wrong is below it.
            (Some(error), Some(answers)) if error.kind() == Kind::Unreachable => {
                self.links.push(Link::holds("storage", answers));
                self.links
                    .push(Link::of("parent", &error, &self.look_closer()));
                false
            }
            (Some(error), _) if error.kind() == Kind::Timeout => {
                let silent = Silent::Late(Some(message::without_advice(&error)));
                self.links.push(self.silent(&silent));
                false
            }
            (Some(error), _) => {
                self.links
                    .push(Link::of("storage", &error, &self.look_closer()));
                false
            }
        }
    }

    fn silent(&self, silent: &Silent) -> Link {
        Link::broken("storage", &silent.text(), &self.look_closer())
    }

    fn look_closer(&self) -> String {
        format!(
            "see whether the storage runs and whether the controller reaches it: its address, its port, a firewall between; `omnibus-csi check \
             --driver-config-file={}` names everything that is missing there",
            self.config.display()
        )
    }

    /// The parent and the volume in it; the volume, if it is there.
    async fn volume(&mut self) -> Option<Volume> {
        let (driver, id) = (self.connection.driver(), self.id);
        let looked = match driver.lister() {
            Some(lister) => ask(async |call| lister.get_volume(call, id).await.map(Some)).await,
            // One that is incomplete counts as not found, and is then looked at again.
            None => {
                ask(
                    async |call| match driver.find_volume(call, FindVolume::new(id)).await? {
                        Found::Whole => Ok(None),
                        Found::Begun => Err(Error::not_found(format!("volume `{id}`"))),
                    },
                )
                .await
            }
        };
        let looked = match looked {
            Ok(looked) => looked,
            Err(silent) => {
                self.links.push(Link::unknown("volume", &silent.text()));
                return None;
            }
        };
        match looked {
            Ok(volume) => {
                let parent = self.room().await;
                self.links
                    .push(parent.unwrap_or_else(|| Link::holds("parent", "it is there")));
                let unusable = self.unusable().await;
                let link = unusable.or_else(|| self.out_of_sight(volume.as_ref()));
                self.links
                    .push(link.unwrap_or_else(|| shown(id, volume.as_ref())));
                volume
            }
            Err(error) => {
                let links = self.missing(&error).await;
                self.links.extend(links);
                None
            }
        }
    }

    /// A volume that is there, and of which the storage says that it cannot be used: in the words of its condition.
    async fn unusable(&self) -> Option<Link> {
        let health = self.connection.driver().health()?;
        let query = HealthQuery::of_storage(slice::from_ref(self.id));
        let looked = ask(async |call| health.conditions(call, query).await).await;
        let conditions = looked.ok()?.ok()?.pop()??;
        let worst = conditions.worst()?;
        if worst.kind() < ConditionKind::Inaccessible {
            return None;
        }
        let broken = Link::broken("volume", worst.message(), &self.look_closer());
        Some(broken.with("reason", worst.reason().as_str()))
    }

    /// A directory that is there, and that this node looks for elsewhere.
    fn out_of_sight(&self, volume: Option<&Volume>) -> Option<Link> {
        let doubt = self.misled.as_ref().filter(|_| self.is_node)?;
        let Attachment::Hostpath(place) = &volume?.attachment else {
            return None;
        };
        let text = format!(
            "`{}` is there, but nodes look for it in {}: {}",
            self.id, place.path, doubt.message
        );
        let remedy = "set `shareBasePath` of the connection to what `controllerBasePath` says, in the chart by its values and `helm \
                      upgrade`. The PersistentVolumes that were made until then keep the wrong path: if one is empty, delete its pod and \
                      claim, and make them again; if it has data, set `persistentVolumeReclaimPolicy: Retain`, and make the PersistentVolume \
                      again with the same handle and the right path";
        Some(Link::broken("volume", &text, remedy).with("path", place.path.to_string()))
    }

    /// A volume that was not found: it, or what it is in.
    async fn missing(&self, error: &Error) -> Vec<Link> {
        match error.kind() {
            // The storage has just answered.
            Kind::Unreachable => vec![Link::of("parent", error, &self.look_closer())],
            Kind::NotFound => {
                let (driver, id) = (self.connection.driver(), self.id);
                let found =
                    ask(async |call| driver.find_volume(call, FindVolume::new(id)).await).await;
                let broken = match found {
                    Ok(Ok(Found::Begun)) => Link::broken(
                        "volume",
                        &format!(
                            "volume `{id}` is incomplete: its creation was interrupted, or is still running"
                        ),
                        "wait: the orchestrator asks again, which completes it. If it stays so, look for the error in the log of the controller: \
                         the same call is repeated there",
                    ),
                    _ => Link::of(
                        "volume",
                        error,
                        "it was moved, renamed or deleted on the storage, or the disk below it is not mounted: put it \
                         back. Only where its data is really gone, delete the claim and its PersistentVolume",
                    ),
                };
                let parent = self.room().await;
                parent.into_iter().chain([broken]).collect()
            }
            Kind::Timeout => {
                let silent = Silent::Late(Some(message::without_advice(error)));
                vec![Link::unknown("volume", &silent.text())]
            }
            Kind::Unsupported => {
                let text = message::without_advice(error);
                vec![Link::unknown("volume", &text)]
            }
            _ => vec![Link::of("volume", error, &self.look_closer())],
        }
    }

    /// The parent with the room in it, if that is known. A directory that is missing has room, too: the first volume
    /// makes it.
    async fn room(&self) -> Option<Link> {
        let driver = self.connection.driver();
        if check::DIRECTORIES.contains(&driver.kind()) {
            // The base can be used, so what is left is that it is full.
            let problems = ask(async |call| driver.examine(call).await).await;
            if let Some(error) = problems.unwrap_or_default().first() {
                return Some(Link::of("parent", error, &self.look_closer()));
            }
        }
        let reporter = self.connection.driver().capacity_reporter()?;
        let query = CapacityQuery::default();
        let room = ask(async |call| reporter.capacity(call, &query).await).await;
        let room = room.ok()?.ok()?;
        let text = format!("{} free for new volumes", super::size(room.available));
        Some(Link::holds("parent", &text).with("available_bytes", room.available))
    }

    async fn export(&mut self) {
        let (driver, id) = (self.connection.driver(), self.id);
        let Some(exports) = driver.exports() else {
            let kind = driver.kind();
            let text = if check::DIRECTORIES.contains(&kind) {
                "none: the volume is a directory, and no export is made for it alone"
            } else if kind.starts_with("zfs-local") {
                "none: the volume is used on the node that it is on"
            } else {
                "not looked at: this driver cannot ask its storage for the export of a volume"
            };
            self.links.push(Link::absent("export", text));
            return;
        };
        let looked = ask(async |call| exports.is_exported(call, id).await).await;
        let link = match looked {
            Ok(Ok(true)) => self.served().await,
            Ok(Ok(false)) => Link::broken("export", NOT_EXPORTED, &self.repair())
                .with("reason", EXPORT_MISSING.as_str()),
            Ok(Err(error)) if error.kind() == Kind::NotFound => Link::broken(
                "export",
                "the volume bears the driver or the instance_id of another connection, and is not exported by this one",
                "two connections have the same parent: give each its own, or use the one that made the volume, whose `driver` and \
                 `instance_id` it bears",
            ),
            Ok(Err(error)) if error.kind() == Kind::Timeout => {
                let silent = Silent::Late(Some(message::without_advice(&error)));
                Link::unknown("export", &silent.text())
            }
            Ok(Err(error)) => Link::of("export", &error, &self.look_closer()),
            Err(silent) => Link::unknown("export", &silent.text()),
        };
        self.links.push(link);
    }

    /// An export that is there: the service may be stopped, or lack something that all exports need.
    async fn served(&self) -> Link {
        let driver = self.connection.driver();
        match ask(async |call| driver.examine(call).await).await {
            Ok(problems) => match problems.first() {
                None => Link::holds("export", "it is there, and can be used"),
                Some(error) => Link::of("export", error, &self.look_closer()),
            },
            Err(silent) => Link::unknown("export", &silent.text()),
        }
    }

    fn repair(&self) -> String {
        let mut command = format!(
            "omnibus-csi exports --driver-config-file={}",
            self.config.display()
        );
        if let Some(name) = self.connection.name().field() {
            // Writing to a string does not fail.
            let _ = write!(command, " --connection={name}");
        }
        format!("`{command} --repair` puts it back")
    }
}

/// A volume that is there.
fn shown(id: &VolumeId, volume: Option<&Volume>) -> Link {
    let Some(volume) = volume else {
        return Link::holds("volume", &format!("`{id}` is there"));
    };
    let context = volume.attachment.to_context();
    let mut text = format!("`{id}`: {}", volume.attachment.kind());
    let mut link = Link::holds("volume", "").with("attachment", volume.attachment.kind());
    if let Some(bytes) = volume.capacity {
        let _ = write!(text, ", {}", super::size(bytes));
        link = link.with("size_bytes", bytes);
    }
    for key in PLACES {
        if let Some(value) = context.get(key).filter(|value| !value.is_empty()) {
            let _ = write!(text, ", {key} {value}");
            link = link.with(key, value.clone());
        }
    }
    link.text = crate::message::printable(&text);
    link
}
