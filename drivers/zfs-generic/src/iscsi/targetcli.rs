//! Targets of LIO by `targetcli`: what is there is seen in configfs, what is missing is told to the
//! tool, and it saves.
//!
//! The tool exits with 0 whatever happens, so only the look after it says what it has done. The
//! truth is in targetcli-fb (`ui_target.py`, `ui_backstore.py`) and in the grammar of configshell-fb.

use driver_core::config::ConfigError;
use driver_zfs_cli::exec::Command;
use secrecy::{ExposeSecret, SecretString};

use super::Wishes;
use super::lio::{SCRIPT, arguments, examining};
use crate::config::ChapKey;
use crate::disk::{Disk, Stack};
use crate::facts::Facts;
use crate::scripts::{HostPaths, Scripts, TRIES};

/// The file that the tool writes; what it says of an object is its own affair.
const NAMED: &str = "named";

#[derive(Debug)]
pub(super) struct TargetCli {
    scripts: Scripts,
    wishes: Wishes,
}

// === impl TargetCli ===

impl TargetCli {
    pub(super) fn new(
        wishes: Wishes,
        sudo: bool,
        places: HostPaths,
        key: &str,
    ) -> Result<Self, ConfigError> {
        for (name, secret) in wishes.chap.lines() {
            if !secret.expose_secret().chars().all(takes) {
                let problem = "holds a character that targetcli does not take";
                return Err(
                    ConfigError::at(format!("{key}.tpg.auth.{}", name.name()), problem)
                        .advise("use another one, or the strategy `lio`, which takes any"),
                );
            }
        }
        Ok(Self {
            scripts: Scripts::new(&SCRIPT, "lio", sudo, places),
            wishes,
        })
    }

    fn arguments(&self, disk: &Disk<'_>) -> Vec<String> {
        let words = std::iter::once("portal=any".to_owned()).chain(self.wishes.words());
        let saved = self.scripts.places().targetcli_saved.as_ref();
        let saved = saved.map_or_else(|| NAMED.to_owned(), |file| format!("{NAMED}:{file}"));
        arguments("look", &self.scripts, &saved, disk, words)
    }

    /// Tells the tool these lines, after which a look must not print this word any more.
    fn tell(&self, disk: &Disk<'_>, lines: &[String], word: &str) -> Command {
        let text = format!("{}\nexit\n", lines.join("\n"));
        let tool = [TRIES, word, "targetcli", "-"];
        let arguments = self.arguments(disk);
        let secrets = self.wishes.secrets();
        let told = self
            .scripts
            .tell(tool, &text, arguments, secrets.expose_secret());
        self.wishes.hiding(told)
    }

    /// What makes all of it, without what is there already. Each line has its whole path: after one
    /// that failed the tool goes on with the next.
    fn making(&self, disk: &Disk<'_>, facts: &Facts) -> Vec<String> {
        let (export_name, target, device, uuid) =
            (disk.export_name, disk.target, disk.device, disk.uuid);
        let is_missing = |tail: &str| facts.missing.iter().any(|name| name.ends_with(tail));
        let is_present = |name: &str| facts.present.iter().any(|present| present == name);
        let group = format!("/iscsi/{target}/tpg1");
        let mut lines = Vec::new();
        if !is_present("target") {
            lines.push(format!("/iscsi create {target}"));
        } else if is_missing("/tpgt_1") {
            lines.push(format!("/iscsi/{target} create 1"));
        }
        // A line each: the tool leaves out the rest of a line with an attribute that the kernel does not have.
        let tpg = self.wishes.tpg.words("");
        lines.extend(tpg.map(|word| format!("{group} set attribute {word}")));
        let auth = |(key, secret): (ChapKey, &SecretString)| {
            format!("{}={}", key.name(), secret.expose_secret())
        };
        let chap: Vec<String> = self.wishes.chap.lines().map(auth).collect();
        if !chap.is_empty() {
            lines.push(format!("{group} set auth {}", chap.join(" ")));
        }
        if !is_present("backstore") {
            lines.push(format!(
                "/backstores/block create name={export_name} dev={device} wwn={uuid}"
            ));
        } else if is_missing("backstore") {
            // Made and never enabled: the tool cannot go on with it.
            lines.push(format!("/backstores/block delete {export_name}"));
            lines.push(format!(
                "/backstores/block create name={export_name} dev={device} wwn={uuid}"
            ));
        }
        let block = self.wishes.block.words("");
        lines.extend(
            block.map(|word| format!("/backstores/block/{export_name} set attribute {word}")),
        );
        if !is_present("target") || is_missing("lun") || is_missing("/lun_0") {
            lines.push(format!(
                "{group}/luns create /backstores/block/{export_name} 0"
            ));
        }
        if is_present("target") && (is_missing("portal") || is_missing("/tpgt_1")) {
            lines.push(format!("{group}/portals create"));
        }
        if is_missing("/enable") {
            lines.push(format!("{group} enable"));
        }
        lines.push("/ saveconfig".to_owned());
        lines
    }
}

/// What may be in a value of configshell.
fn takes(c: char) -> bool {
    c.is_ascii_alphanumeric() || "?;&*$!#,=_\\+/.<>()~@:-%[]".contains(c)
}

impl Stack for TargetCli {
    fn refuses(&self, disk: &Disk<'_>) -> Option<&'static str> {
        let good = disk.device.chars().all(takes);
        (!good).then_some("targetcli takes no dataset with a blank in its name")
    }

    fn look(&self, disk: &Disk<'_>) -> Command {
        let secrets = self.wishes.secrets();
        let arguments = self.arguments(disk);
        self.wishes
            .hiding(self.scripts.look(arguments, secrets.expose_secret()))
    }

    fn examine(&self) -> Option<Command> {
        Some(examining(&self.scripts, &self.wishes))
    }

    fn make(&self, disk: &Disk<'_>, facts: &Facts) -> Command {
        self.tell(disk, &self.making(disk, facts), "missing")
    }

    fn remove(&self, disk: &Disk<'_>, facts: &Facts) -> Command {
        let present = |piece: &str| facts.present.iter().any(|name| name == piece);
        let mut lines = Vec::new();
        if present("target") {
            lines.push(format!("/iscsi delete {}", disk.target));
        }
        if present("backstore") {
            lines.push(format!("/backstores/block delete {}", disk.export_name));
        }
        lines.push("/ saveconfig".to_owned());
        self.tell(disk, &lines, "present")
    }
}
