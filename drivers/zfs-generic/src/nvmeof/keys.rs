//! The keys by which nodes prove to nvmet who they are: DH-CHAP.

use std::collections::BTreeMap;

use csi_types::DhchapKey;
use driver_core::NodeId;
use driver_core::config::ConfigError;
use driver_zfs::nodes::{NodeName, Nodes};
use driver_zfs_cli::exec::Command;
use secrecy::{ExposeSecret, SecretString};

use super::NvmetConfig;

/// The keys of nodes by the names that the target knows these by.
#[derive(Debug)]
pub(super) struct Keys {
    /// `None` if no node has to prove who it is.
    keys: Option<BTreeMap<NodeName, DhchapKey>>,
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
            let keys = None;
            return Ok(Self { keys, are_restored });
        };
        let key = format!("{key}.dhchapKeys");
        let refused = |problem: String| ConfigError::at(key.clone(), problem);
        let Some(nodes) = nodes else {
            let problem = "needs `nodes`: where all nodes have access, none is asked for its key";
            return Err(refused(problem.to_owned()));
        };
        let mut keys = BTreeMap::new();
        for (id, secret) in given {
            let node = NodeId::parse(id).map_err(|_| refused(format!("`{id}` is no node")))?;
            let name = nodes.name(&node);
            let name = name.map_err(|error| refused(error.chain()))?;
            let secret = DhchapKey::parse(secret.secret().expose_secret().trim())
                .map_err(|error| refused(format!("that of `{id}` {error}")))?;
            let same = secret.clone();
            if keys.insert(name, secret).is_some_and(|other| other != same) {
                let problem = format!("`{id}` has the name of another node, and another key");
                return Err(refused(problem));
            }
        }
        let keys = Some(keys);
        Ok(Self { keys, are_restored })
    }

    /// Whether this node has to prove who it is, and there is no key for it.
    pub(super) fn lacks(&self, node: &NodeName) -> bool {
        let lacks = |keys: &BTreeMap<NodeName, DhchapKey>| !keys.contains_key(node);
        self.keys.as_ref().is_some_and(lacks)
    }

    /// Words of the script.
    pub(super) fn words(&self) -> impl Iterator<Item = String> {
        let restored = self.are_restored.then(|| "keys=restored".to_owned());
        restored.into_iter()
    }

    /// The `name key` lines of the script.
    pub(super) fn lines(&self) -> SecretString {
        let line = |(name, key): (&NodeName, &DhchapKey)| {
            format!("{} {}\n", name.as_str(), key.secret().expose_secret())
        };
        let keys = self.keys.iter().flatten();
        keys.map(line).collect::<String>().into()
    }

    /// The command, which may print keys.
    pub(super) fn hiding(&self, command: Command) -> Command {
        let keys = self.keys.iter().flatten();
        keys.fold(command, |command, (_, key)| {
            command.hiding(key.secret().clone())
        })
    }
}
