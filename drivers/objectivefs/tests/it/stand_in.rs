//! A program in the place of `mount.objectivefs`: its commands, its table, its exit codes, as far as its
//! manual and democratic-csi say them. It keeps filesystems as folders.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateVolume, Driver as _, Parameters, Secrets, SizeRange, TopologyRequirement,
    VolumeName,
};
use driver_objectivefs::{ObjectiveFs, from_document};
use node_utils::Tools;

/// The license and the admin key of a test: 24 and 8 characters.
pub(crate) const LICENSE: &str = "license-license-license-adminkey";
/// The passphrase of every pool.
pub(crate) const PASSPHRASE: &str = "open-sesame-1001";
/// The key of the object store.
pub(crate) const SECRET_KEY: &str = "store-secret-key";

const PROGRAM: &str = include_str!("stand_in.sh");

/// Runs what follows `--` with the variables that its options keep, as sudo does.
const SUDO: &str = include_str!("sudo.sh");

/// The tool and its object store, gone with the value.
pub(crate) struct StandIn {
    folder: tempfile::TempDir,
}

// === impl StandIn ===

impl StandIn {
    pub(crate) fn new() -> Self {
        let this = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        fs::create_dir_all(this.path("fs/csi")).expect("a pool");
        this.program("mount.objectivefs", PROGRAM);
        this.program("sudo", SUDO);
        this
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path(name);
        let state = self.folder.path().display().to_string();
        exec::testing::write_program(&path, &text.replace("STATE", &state));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// From now on every run ends like this.
    pub(crate) fn always(&self, code: i32, says: &str) {
        fs::write(self.path("says"), says).expect("a file");
        fs::write(self.path("exit"), code.to_string()).expect("a file");
    }

    pub(crate) fn again_as_documented(&self) {
        fs::remove_file(self.path("exit")).expect("a file");
    }

    /// Every command line so far.
    pub(crate) fn argv(&self) -> String {
        fs::read_to_string(self.path("argv")).unwrap_or_default()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.path("fs/csi").join(id).is_dir()
    }

    /// A driver whose configuration has all that the tool needs.
    pub(crate) fn driver(&self) -> ObjectiveFs {
        self.configured(&format!(
            "env: {{OBJECTSTORE: 's3://', ENDPOINT: 'http://minio:9000', SECRET_KEY: {SECRET_KEY}, \
             OBJECTIVEFS_LICENSE: {LICENSE}, OBJECTIVEFS_PASSPHRASE: {PASSPHRASE}}}"
        ))
    }

    pub(crate) fn configured(&self, section: &str) -> ObjectiveFs {
        let text = format!("driver: objectivefs\nobjectivefs: {{pool: csi, {section}}}\n");
        let document = Document::parse(&text, &NoEnvironment).expect("yaml");
        let folder = self.folder.path().display().to_string();
        let folders = [folder, "/usr/bin".to_owned(), "/bin".to_owned()];
        let tools = Tools::all_through(Arc::new(exec::Local::searching(folders)));
        from_document(&document, &tools).expect("a driver")
    }
}

/// A call with time enough.
pub(crate) fn call() -> Call {
    Call::within(Duration::from_mins(1))
}

/// A request for a new volume.
pub(crate) fn request(driver: &ObjectiveFs, name: &str) -> CreateVolume {
    let name = VolumeName::parse(name).expect("a name");
    let access = Access::Mount(MountAccess::default());
    let mode = AccessMode::SingleNodeWriter;
    CreateVolume {
        id: driver
            .name_volume(&name, &Parameters::default())
            .expect("an id"),
        name,
        size: SizeRange::new(1 << 30, 0).expect("a size"),
        capabilities: vec![VolumeCapability { access, mode }],
        parameters: Parameters::default(),
        secrets: Secrets::new(),
        source: None,
        topology: TopologyRequirement::default(),
    }
}
