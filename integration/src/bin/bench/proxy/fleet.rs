//! A server over many connections of local storage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use csi_proto::v1::{ControllerGetVolumeRequest, GetCapacityRequest};
use integration::client::Client;
use integration::place::Place;
use integration::process::Process;
use integration::server::{Launch, Server, log_of};
use integration::volume;

/// A server, its files and its storages.
#[derive(Debug)]
pub(super) struct Fleet {
    place: Place,
    server: Server,
}

/// The name of a connection; all are of one length.
pub(super) fn name(number: usize) -> String {
    format!("c{number:04}")
}

/// The parameters of a class for a connection.
pub(super) fn class(connection: &str) -> BTreeMap<String, String> {
    [("connection".to_owned(), connection.to_owned())].into()
}

/// The file of a connection of local storage; `mark` changes its text but not its meaning.
pub(super) fn local(base: &Path, mark: usize) -> String {
    format!(
        "# {mark}\ndriver: local-hostpath\nlocal-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}}}\n",
        base = base.display()
    )
}

/// Times of a call that makes a volume and deletes it, `calls` times.
pub(super) async fn made_and_deleted(
    client: &Client,
    connection: Option<&str>,
    calls: usize,
) -> Result<Vec<Duration>> {
    let mut client = client.controller.clone();
    let class = connection.map(class).unwrap_or_default();
    let id = connection.map_or_else(|| "bench".to_owned(), |name| format!("v:{name}/bench"));
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let (create, delete) = (volume::create("bench", &class), volume::delete(&id));
        let began = Instant::now();
        client.create_volume(create).await?;
        client.delete_volume(delete).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

/// Times of a query for a volume, `calls` times.
pub(super) async fn got(client: &Client, id: &str, calls: usize) -> Result<Vec<Duration>> {
    let mut client = client.controller.clone();
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let volume_id = id.to_owned();
        let began = Instant::now();
        client
            .controller_get_volume(ControllerGetVolumeRequest { volume_id })
            .await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

// === impl Fleet ===

impl Fleet {
    /// Starts one with this many connections of local storage, and other files in its folder.
    pub(super) async fn start(connections: usize, more: &[(&str, &str)]) -> Result<Self> {
        let place = Place::new();
        let folder = folder(&place);
        fs::create_dir(&folder)?;
        for number in 0..connections {
            let (name, base) = (name(number), base(&place, number));
            fs::create_dir_all(&base)?;
            fs::write(folder.join(format!("{name}.yaml")), local(&base, 0))?;
        }
        for (name, text) in more {
            fs::write(folder.join(format!("{name}.yaml")), text)?;
        }
        let launch = Launch::new(format!(
            "driver: proxy\nproxy: {{configFolder: {}, nodeTopology: {{type: [cluster, node]}}}}\n",
            folder.display()
        ));
        let server = launch.set("--log-level", "info").start(&place).await;
        let fleet = Self { place, server };
        for number in [0, connections.saturating_sub(1)] {
            fleet.serves(&name(number)).await?;
        }
        Ok(fleet)
    }

    /// That a connection is served.
    async fn serves(&self, connection: &str) -> Result<()> {
        let request = GetCapacityRequest {
            parameters: class(connection),
            ..GetCapacityRequest::default()
        };
        let reply = self.client().controller.get_capacity(request).await;
        reply.with_context(|| format!("connection {connection} is not served"))?;
        Ok(())
    }

    pub(super) fn client(&self) -> Client {
        self.server.client()
    }

    pub(super) fn process(&self) -> Process {
        self.server.process()
    }

    /// The storage of a connection.
    pub(super) fn base(&self, number: usize) -> PathBuf {
        base(&self.place, number)
    }

    /// Writes a file into the folder atomically.
    pub(super) fn put(&self, name: &str, text: &str) -> Result<()> {
        let folder = folder(&self.place);
        let new = folder.join(format!(".{name}.new"));
        fs::write(&new, text)?;
        fs::rename(new, folder.join(format!("{name}.yaml")))?;
        Ok(())
    }

    /// The number of log lines about a changed connection: this one, and others.
    pub(super) fn changed(&self, name: &str) -> (usize, usize) {
        let log = log_of(&self.place);
        let changed = log.lines().filter(|line| line.contains("changed"));
        let (this, others): (Vec<_>, Vec<_>) = changed.partition(|line| line.contains(name));
        (this.len(), others.len())
    }
}

fn folder(place: &Place) -> PathBuf {
    place.path().join("connections")
}

fn base(place: &Place, number: usize) -> PathBuf {
    place.path().join("storages").join(name(number))
}
