//! Targets of LIO by its configfs: no tool, one script, saved as `targetcli` restores it.

use std::sync::LazyLock;

use csi_types::attachment::Portal;
use driver_zfs_cli::exec::Command;
use secrecy::{ExposeSecret, SecretString};

use super::TargetSettings;
use crate::disk::{Disk, Stack};
use crate::facts::Facts;
use crate::scripts::{HostPaths, Scripts, bare};

/// The script; `SAVED` is the program that it gives to `awk`.
pub(super) static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    bare(concat!(
        "SAVED='",
        include_str!("../script/saved.awk"),
        "'\n",
        include_str!("../script/common.sh"),
        include_str!("../script/lio_saved.sh"),
        include_str!("../script/lio.sh"),
    ))
});

/// The file of the `targetcli` that the host has.
pub(super) const AUTO: &str = "auto";

#[derive(Debug)]
pub(super) struct Lio {
    scripts: Scripts,
    settings: TargetSettings,
    listen: Vec<Portal>,
    save: String,
}

// === impl Lio ===

impl Lio {
    pub(super) fn new(
        settings: TargetSettings,
        listen: Vec<Portal>,
        save: Option<String>,
        sudo: bool,
        places: HostPaths,
    ) -> Self {
        Self {
            scripts: Scripts::new(&SCRIPT, "lio", sudo, places),
            settings,
            listen,
            save: save.unwrap_or_else(|| AUTO.to_owned()),
        }
    }

    fn arguments(&self, mode: &str, disk: &Disk<'_>) -> Vec<String> {
        let listen = self.listen.iter().map(|portal| format!("portal={portal}"));
        let words = listen.chain(self.settings.words()).chain(disk.node_words());
        let words = words.chain(disk.out_words());
        arguments(mode, &self.scripts, &self.save, disk, words)
    }

    /// A change that sets the secrets of CHAP.
    fn change(&self, mode: &str, disk: &Disk<'_>) -> Command {
        let (arguments, secrets) = (self.arguments(mode, disk), self.settings.secrets());
        let change = self
            .scripts
            .change_by_itself(arguments, secrets.expose_secret());
        self.settings.hiding(change)
    }
}

/// The arguments of the script.
pub(super) fn arguments(
    mode: &str,
    scripts: &Scripts,
    save: &str,
    disk: &Disk<'_>,
    words: impl Iterator<Item = String>,
) -> Vec<String> {
    let places = scripts.places();
    let fixed = [
        mode,
        &places.configfs,
        save,
        &places.targetcli_lock,
        disk.export_name.as_str(),
        disk.target,
        disk.device,
        disk.uuid,
    ];
    fixed.map(str::to_owned).into_iter().chain(words).collect()
}

/// The arguments of the script if it is about no disk.
fn of_no_disk(mode: &str, scripts: &Scripts, save: &str) -> impl Iterator<Item = String> {
    let places = scripts.places();
    let fixed = [mode, &places.configfs, save, &places.targetcli_lock].map(str::to_owned);
    fixed.into_iter().chain([""; 4].map(str::to_owned))
}

/// Asks which attributes the kernel of the host does not have.
pub(super) fn examining(scripts: &Scripts, settings: &TargetSettings) -> Command {
    let arguments = of_no_disk("examine", scripts, "-").chain(settings.words());
    scripts.unlocked(arguments.collect(), "")
}

// === impl TargetSettings ===

impl TargetSettings {
    /// With these attributes of a portal group, where they are not set.
    pub(super) fn or(mut self, defaults: &[(&'static str, &'static str)]) -> Self {
        // The default of the kernel requires a name and a password.
        let authentication = if self.chap.is_empty() { "0" } else { "1" };
        self.tpg = self
            .tpg
            .or(defaults)
            .or(&[("authentication", authentication)]);
        self
    }

    /// The attributes as words of the script.
    pub(super) fn words(&self) -> impl Iterator<Item = String> + '_ {
        self.tpg.words("tpg=").chain(self.block.words("block="))
    }

    /// The lines of CHAP for the script.
    pub(super) fn secrets(&self) -> SecretString {
        self.chap.to_files()
    }

    /// The command, which may print the secrets of CHAP.
    pub(super) fn hiding(&self, command: Command) -> Command {
        let secrets = self.chap.lines();
        secrets.fold(command, |command, (_, secret)| {
            command.hiding(secret.clone())
        })
    }
}

impl Stack for Lio {
    fn places(&self) -> &HostPaths {
        self.scripts.places()
    }

    fn observe(&self, disk: &Disk<'_>) -> Command {
        let arguments = self.arguments("look", disk);
        let secrets = self.settings.secrets();
        let observe = self.scripts.unlocked(arguments, secrets.expose_secret());
        self.settings.hiding(observe)
    }

    fn make(&self, disk: &Disk<'_>, _facts: &Facts) -> Command {
        self.change("make", disk)
    }

    fn remove(&self, disk: &Disk<'_>, _facts: &Facts) -> Command {
        let arguments = self.arguments("remove", disk);
        self.scripts.change_by_itself(arguments, "")
    }

    fn examine(&self) -> Option<Command> {
        Some(examining(&self.scripts, &self.settings))
    }

    fn save(&self) -> Option<Command> {
        // Exclusive among the saves: at most one of them waits among the changes.
        let arguments = of_no_disk("save", &self.scripts, &self.save);
        let save = self.scripts.save_by_itself(arguments.collect());
        // It also contains the objects of other volumes.
        Some(self.settings.hiding(save))
    }

    fn set_access(&self, disk: &Disk<'_>) -> Option<Command> {
        Some(self.change("nodes", disk))
    }
}
