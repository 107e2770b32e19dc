//! A simulated NAS, a driver for it, and requests.

use std::sync::Arc;
use std::time::Duration;

use csi_types::capability::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver, Error, Parameters,
    Secrets, SizeRange, Snapshot, SnapshotId, SnapshotName, Source, TopologyRequirement, Volume,
    VolumeId, VolumeName,
};
use serde_json::Value;
use synology_sim::{Options, Simulator, Version};

pub(crate) const GIB: i64 = 1 << 30;
pub(crate) const LUN: &str = "SYNO.Core.ISCSI.LUN";
pub(crate) const TARGET: &str = "SYNO.Core.ISCSI.Target";

/// Every release, with targets of their own and with shared ones.
pub(crate) const MODES: [&str; 2] = ["", "mode: shared-target"];

/// A NAS and the driver of a connection to it.
pub(crate) struct Nas {
    pub(crate) sim: Arc<Simulator>,
    pub(crate) driver: Arc<dyn Driver>,
}

/// The configuration of a connection.
pub(crate) fn config(sim: &Simulator, iscsi: &str) -> String {
    let address = sim.address();
    format!(
        "driver: synology-iscsi\n\
         httpConnection: {{protocol: http, host: {}, port: {}, username: csi, password: sesame}}\n\
         iscsi:\n  targetPortal: nas.example:3260\n  baseiqn: 'iqn.2000-01.com.synology:csi.'\n  \
         lunTemplate: {{type: BLUN}}\n  {}\n",
        address.ip(),
        address.port(),
        iscsi.replace('\n', "\n  ")
    )
}

/// The configuration of shared folders: `kind` is `nfs` or `smb`.
pub(crate) fn shares(sim: &Simulator, kind: &str) -> String {
    let address = sim.address();
    let access = if kind == "nfs" {
        "clients: ['10.0.0.0/24', node-7]"
    } else {
        "users: [k8s]"
    };
    format!(
        "driver: synology-{kind}\n\
         httpConnection: {{protocol: http, host: {}, port: {}, username: csi, password: sesame}}\n\
         {kind}: {{shareHost: nas.example, namePrefix: k8s-, {access}}}\n",
        address.ip(),
        address.port(),
    )
}

pub(crate) fn open(text: &str) -> Arc<dyn Driver> {
    let document = Document::parse(text, &NoEnvironment).expect("yaml");
    driver_synology::from_document(&document).expect("a driver")
}

impl Nas {
    pub(crate) async fn start(version: Version, iscsi: &str) -> Self {
        Self::with(Options::new(version), iscsi).await
    }

    pub(crate) async fn with(options: Options, iscsi: &str) -> Self {
        let sim = Arc::new(Simulator::start(options).await.expect("a simulator"));
        let driver = open(&config(&sim, iscsi));
        Self { sim, driver }
    }

    /// A NAS for shared folders.
    pub(crate) async fn of_shares(version: Version, kind: &str) -> Self {
        Self::of_shares_with(Options::new(version), kind).await
    }

    pub(crate) async fn of_shares_with(options: Options, kind: &str) -> Self {
        let sim = Arc::new(Simulator::start(options).await.expect("a simulator"));
        let driver = open(&shares(&sim, kind));
        Self { sim, driver }
    }

    /// The same NAS by another connection.
    pub(crate) fn other(&self, iscsi: &str) -> Self {
        Self {
            sim: Arc::clone(&self.sim),
            driver: open(&config(&self.sim, iscsi)),
        }
    }

    pub(crate) fn request(&self, name: &str, source: Option<Source>) -> CreateVolume {
        let name = VolumeName::parse(name).expect("a name");
        let parameters = Parameters::default();
        CreateVolume {
            id: self.driver.name_volume(&name, &parameters).expect("an id"),
            name,
            size: SizeRange::new(GIB, 0).expect("a size"),
            capabilities: vec![VolumeCapability {
                access: Access::Mount(MountAccess::default()),
                mode: AccessMode::SingleNodeWriter,
            }],
            parameters,
            secrets: Secrets::new(),
            source,
            topology: TopologyRequirement::default(),
        }
    }

    pub(crate) async fn try_create(&self, request: &CreateVolume) -> Result<Volume, Error> {
        self.driver.create_volume(&call(), request).await
    }

    pub(crate) async fn create(&self, name: &str, source: Option<Source>) -> Volume {
        let made = self.try_create(&self.request(name, source)).await;
        made.unwrap_or_else(|error| panic!("create {name}: {}", error.chain()))
    }

    pub(crate) async fn try_snapshot(
        &self,
        source: &VolumeId,
        name: &str,
    ) -> Result<Snapshot, Error> {
        let request = CreateSnapshot {
            name: SnapshotName::parse(name).expect("a name"),
            source: source.clone(),
            parameters: Parameters::default(),
            secrets: Secrets::new(),
        };
        self.driver.create_snapshot(&call(), &request).await
    }

    pub(crate) async fn snapshot(&self, source: &VolumeId, name: &str) -> Snapshot {
        let taken = self.try_snapshot(source, name).await;
        taken.unwrap_or_else(|error| panic!("snapshot {name}: {}", error.chain()))
    }

    pub(crate) async fn try_delete(&self, id: &VolumeId) -> Result<(), Error> {
        let request = DeleteVolume::new(id);
        self.driver.delete_volume(&call(), request).await
    }

    pub(crate) async fn try_delete_snapshot(&self, id: &SnapshotId) -> Result<(), Error> {
        let request = DeleteSnapshot::new(id);
        self.driver.delete_snapshot(&call(), request).await
    }

    pub(crate) async fn delete(&self, id: &VolumeId) {
        let gone = self.try_delete(id).await;
        gone.unwrap_or_else(|error| panic!("delete {id}: {}", error.chain()));
    }

    /// The number of LUNs and targets the NAS has.
    pub(crate) fn objects(&self) -> (usize, usize) {
        let state = self.sim.state();
        let count = |key: &str| state[key].as_array().map_or(0, Vec::len);
        (count("luns"), count("targets"))
    }

    /// A LUN of the NAS by its name.
    pub(crate) fn lun(&self, name: &str) -> Value {
        let state = self.sim.state();
        let luns = state["luns"].as_array().cloned().unwrap_or_default();
        let found = luns.into_iter().find(|lun| lun["name"] == name);
        found.unwrap_or(Value::Null)
    }
}

impl Drop for Nas {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.sim.violations(), Vec::<String>::new());
        }
    }
}

pub(crate) fn call() -> Call {
    Call::within(Duration::from_mins(1))
}

pub(crate) fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).expect("an id")
}
