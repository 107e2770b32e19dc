//! A separate machine for tests of programs of the node: the programs are recorders, the host below
//! `/host` is another folder, and `/dev` has zvols that are loop devices.
//!
//! The server has its own mount namespace and root folder, so that the real `/etc`, `/dev` and
//! `/host` stay untouched. Its system tools are those of the machine; the programs in
//! `/usr/local/sbin` are ours and come first. [`Machine::ran`] returns what ran, where and with
//! which arguments.
#![expect(
    clippy::disallowed_methods,
    reason = "makes loop devices; nothing here is part of the program under test"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::Place;
use crate::requirement;
use crate::server::Launch;

/// A separate machine for a test.
#[derive(Debug)]
pub struct Machine {
    /// The folder in which its server lives.
    pub place: Place,
    loops: Vec<PathBuf>,
}

/// One run of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// `here` or `host`.
    pub place: String,
    /// Its name.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// The programs that are recorded.
const PROGRAMS: [&str; 9] = [
    "mount",
    "mount.objectivefs",
    "oneclient",
    "iscsiadm",
    "other-iscsiadm",
    "nvme",
    "zfs",
    "fsck.ext4",
    "busctl",
];
/// Programs that are recorded and then do their work.
const WORKING: [&str; 1] = ["mkfs.ext4"];

/// The script of a recorder. `slow` in an argument makes it hang, like a server that is gone. Each
/// run is written at once: a concurrent reader sees all of it or nothing.
const RECORDER: &str = include_str!("machine/recorder.sh");

/// Makes the root folder `$1/root` and runs the rest of its arguments there.
const ENTER: &str = include_str!("machine/enter.sh");

// === impl Machine ===

impl Machine {
    /// A machine, or a message that this one does not support it.
    pub fn new(what: &str) -> Option<Self> {
        if !requirement::root(what) {
            return None;
        }
        requirement::tool(what, "unshare")?;
        requirement::tool(what, "losetup")?;
        let machine = Self {
            place: Place::new(),
            loops: Vec::new(),
        };
        for (place, folder) in [("here", "here"), ("host", "host")] {
            machine.install(place, folder);
        }
        fs::create_dir(machine.path("dev")).expect("a folder");
        fs::write(machine.path("enter"), ENTER).expect("a file");
        Some(machine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn install(&self, place: &str, folder: &str) {
        let folder = self.path(folder);
        fs::create_dir(&folder).expect("a folder");
        let ran = self.path("ran").display().to_string();
        let recorder = RECORDER
            .replace("@WHERE@", place)
            .replace("@BETWEEN@", "\u{1f}")
            .replace("@RAN@", &ran);
        let file = folder.join("recorder");
        fs::write(&file, recorder).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a mode");
        for program in PROGRAMS.iter().chain(&WORKING) {
            symlink("recorder", folder.join(program)).expect("a link");
        }
    }

    /// Removes a program of the host. Before its server starts.
    ///
    /// # Panics
    /// If the host does not have it.
    pub fn remove_from_host(&self, program: &str) {
        fs::remove_file(self.path("host").join(program)).expect("a program of the host");
    }

    /// Has a host that was not booted with systemd. Before its server starts.
    ///
    /// # Panics
    /// If its file cannot be written.
    pub fn boot_without_systemd(&self) {
        let enter = ENTER.replace("$host/run/dbus/system_bus_socket", "$host/run");
        fs::write(self.path("enter"), enter).expect("a file");
    }

    /// A node-manual server of this machine, with more lines for its configuration.
    pub fn launch(&self, config: &str) -> Launch {
        let place = self.place.path().as_os_str().to_owned();
        let enter = self.path("enter").into_os_string();
        let words = ["unshare", "--mount", "--propagation", "private", "/bin/sh"];
        Launch::new(format!("driver: node-manual\n{config}\n"))
            .under(words.map(Into::into).into_iter().chain([enter, place]))
    }

    /// Gives the machine a blank zvol, which is a loop device. Before its server starts.
    ///
    /// # Panics
    /// If there is no loop device.
    pub fn add_zvol(&mut self, name: &str) {
        let file = self.path(&name.replace('/', "-"));
        let blank = fs::File::create(&file).expect("a file");
        blank.set_len(64 << 20).expect("a size");
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).arg(&file);
        let output = losetup.output().expect("losetup");
        assert!(output.status.success(), "losetup: {output:?}");
        let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let link = self.path("dev/zvol").join(name);
        fs::create_dir_all(link.parent().expect("a folder above")).expect("folders");
        symlink(&device, link).expect("a link");
        self.loops.push(device);
    }

    /// The commands that ran so far, in order.
    pub fn ran(&self) -> Vec<Ran> {
        let text = fs::read(self.path("ran")).unwrap_or_default();
        let text = String::from_utf8(text).expect("arguments are text");
        let runs = text.split_terminator('\u{1e}').map(|run| {
            let mut words = run.split('\u{1f}').map(str::to_owned);
            Ran {
                place: words.next().unwrap_or_default(),
                program: words.next().unwrap_or_default(),
                arguments: words.collect(),
            }
        });
        runs.collect()
    }

    /// Clears the record.
    pub fn forget(&self) {
        let _ = fs::remove_file(self.path("ran"));
    }

    /// A folder for staging, which the orchestrator must create.
    pub fn staging(&self, name: &str) -> PathBuf {
        let path = self.place.node().join(name);
        fs::create_dir_all(&path).expect("a folder");
        path
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for device in &self.loops {
            let _ = Command::new("losetup").arg("-d").arg(device).output();
        }
    }
}

// === impl Ran ===

impl Ran {
    /// In one line, with the paths of `place` left out.
    pub fn line(&self, place: &Path) -> String {
        let mut words = vec![format!("{}:", self.place), self.program.clone()];
        words.extend(self.arguments.iter().cloned());
        words.join(" ").replace(&place.display().to_string(), "")
    }
}
