//! The keys by which nodes prove to nvmet who they are: DH-CHAP.

use csi_types::DhchapKey;
use driver_core::config::ConfigError;
use driver_core::{Error, NodeId};
use driver_zfs::nodes::{NodeKeys, NodeName, Nodes};
use driver_zfs_cli::exec::Command;
use secrecy::{ExposeSecret, SecretString};

use super::NvmetConfig;

/// The keys of nodes by the names that the target knows these by.
#[derive(Debug)]
pub(super) struct Keys {
    /// Empty if no node has to prove who it is.
    keys: NodeKeys,
    are_restored: bool,
}

// === impl Keys ===

impl Keys {
    /// Checks the keys of the section at `key`.
    pub(super) fn read(
        config: &NvmetConfig,
        nodes: Option<&Nodes>,
        key: &str,
    ) -> Result<Self, ConfigError> {
        let are_restored = config.nvmetcli_restores_keys;
        let Some(given) = &config.dhchap_keys else {
            let keys = NodeKeys::default();
            return Ok(Self { keys, are_restored });
        };
        let given = given.iter().map(|(id, secret)| {
            let secret = secret.secret().expose_secret().trim();
            (id, DhchapKey::parse(secret))
        });
        let keys = NodeKeys::read(given, nodes, &format!("{key}.dhchapKeys"))?;
        Ok(Self { keys, are_restored })
    }

    /// Fails if this node has to prove who it is, and there is no key for it.
    pub(super) fn admit(&self, nodes: Option<&Nodes>, node: &NodeId) -> Result<(), Error> {
        self.keys.admit(nodes, node)
    }

    /// Whether any node has to prove who it is.
    pub(super) fn are_asked_for(&self) -> bool {
        self.keys.iter().next().is_some()
    }

    /// Words of the script, for a change that is for these nodes, or for all.
    pub(super) fn words(&self, concerned: Option<&[NodeName]>) -> impl Iterator<Item = String> {
        let restored = self.are_restored.then(|| "keys=restored".to_owned());
        let concerned = concerned.filter(|_| self.are_asked_for());
        let spared = concerned.map(|_| "keys=spared".to_owned());
        let concerned = concerned.unwrap_or_default().iter();
        let concerned = concerned.map(|node| format!("for={}", node.as_str()));
        restored.into_iter().chain(spared).chain(concerned)
    }

    /// The `name key` lines of the script.
    pub(super) fn lines(&self) -> SecretString {
        let line = |(name, key): (&NodeName, &DhchapKey)| {
            format!("{} {}\n", name.as_str(), key.secret().expose_secret())
        };
        self.keys.iter().map(line).collect::<String>().into()
    }

    /// The command, which may print keys.
    pub(super) fn hiding(&self, command: Command) -> Command {
        let keys = self.keys.iter();
        keys.fold(command, |command, (_, key)| {
            command.hiding(key.secret().clone())
        })
    }
}
