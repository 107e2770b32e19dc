//! What the secret of `NodeStageVolume` says to the node, beside mount options.
//!
//! Nothing of it is ever printed or kept, and nothing of it reaches a command line.

use std::collections::BTreeMap;
use std::fmt;

use crate::Variable;
use secrecy::SecretString;

/// The content of a stage secret.
#[derive(Clone, Default)]
pub struct StageSecrets {
    /// Settings of an iSCSI node record, `node-db.*`, in the order of their names.
    pub node_db: Vec<(SettingName, SecretString)>,
    /// The environment of a daemon, `env.*`.
    pub env: BTreeMap<Variable, SecretString>,
    /// An access token.
    pub token: Option<SecretString>,
}

/// The name of a setting of an iSCSI node record, such as `node.session.auth.username`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SettingName(String);

/// A text is no name of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not the name of a setting of an iSCSI node record")]
pub struct InvalidSettingName;

// === impl StageSecrets ===

impl StageSecrets {
    /// A setting of the node record by its name.
    pub fn setting(&self, name: &str) -> Option<&SecretString> {
        let mut settings = self.node_db.iter();
        settings
            .find(|(known, _)| known.0 == name)
            .map(|(_, value)| value)
    }
}

impl fmt::Debug for StageSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&SettingName> = self.node_db.iter().map(|(name, _)| name).collect();
        f.debug_struct("StageSecrets")
            .field("node_db", &names)
            .field("env", &self.env.len())
            .field("token", &self.token.is_some())
            .finish()
    }
}

// === impl SettingName ===

impl SettingName {
    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, InvalidSettingName> {
        let allowed =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '[' | ']');
        let well_formed = text.starts_with(|c: char| c.is_ascii_lowercase())
            // One less than the field of iscsiadm, which it fills without looking.
            && text.len() <= 127
            && text.chars().all(allowed)
            && !text.split('.').any(str::is_empty);
        well_formed
            .then(|| Self(text.to_owned()))
            .ok_or(InvalidSettingName)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SettingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for SettingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn names_of_settings_cannot_be_options_or_lines() {
        for good in [
            "node.startup",
            "node.session.auth.username_in",
            "node.conn[0].timeo.noop_out_interval",
            "node.session.iscsi.InitialR2T",
        ] {
            assert_eq!(SettingName::parse(good).expect(good).as_str(), good);
        }
        for bad in [
            "", "-o", ".a", "a.", "a..b", "a=b", "a b", "a\nb", "A", "node.x\0",
        ] {
            assert!(SettingName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_secret_is_found_by_name_and_not_printed() {
        let secrets = StageSecrets {
            node_db: vec![(
                SettingName::parse("node.session.auth.password").expect("a name"),
                SecretString::from("canary"),
            )],
            token: Some(SecretString::from("canary")),
            ..StageSecrets::default()
        };
        assert!(!format!("{secrets:?}").contains("canary"));
        let found = secrets.setting("node.session.auth.password");
        assert_eq!(found.expect("a setting").expose_secret(), "canary");
        assert!(secrets.setting("node.startup").is_none());
    }
}
