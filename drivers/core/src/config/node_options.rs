//! The options of one connection for the nodes that use its volumes, as written into volume
//! contexts.
//!
//! Nodes do not read the files of connections; their node options are written into each volume,
//! under one key of our name space. The node parses it with the rules of the configuration file.

use csi_types::MountFlags;
use csi_types::filesystem::{FilesystemKind, FilesystemSettings};
use serde_json::{Map, Value};

use super::{ConfigError, Document, NoEnvironment};

/// The part of `node` that a file sets itself, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOptions(String);

/// The same, read.
#[derive(Debug, Clone, Default)]
pub struct NodeSettings {
    /// Options of mounts, if they are set.
    pub mount_flags: Option<MountFlags>,
    /// The way filesystems are made and checked, those that are set.
    pub filesystems: FilesystemSettings,
    /// Filesystems that are not checked, whatever the node does otherwise.
    pub unchecked: Vec<FilesystemKind>,
    /// Whether filesystems are mounted by the guests of pods, if that is set.
    pub kata: Option<bool>,
}

// === impl NodeOptions ===

impl NodeOptions {
    /// The key in the context of a volume.
    pub const KEY: &'static str = "omnibus-csi/node";
    /// The most bytes: the context of a volume, which has 4 KiB, must hold the attachment as well.
    pub const MAX: usize = 2048;

    /// The options that `document` itself sets; without defaults, which nodes read from their own
    /// file. Connections without devices have no filesystems to format, and none for a guest to mount.
    pub fn of(document: &Document, devices: bool) -> Result<Option<Self>, ConfigError> {
        let node = document.own().get("node");
        let at = |path: &[&str]| {
            let found = path.iter().try_fold(node?, |value, step| value.get(step));
            found.filter(|value| !value.is_null()).cloned()
        };
        let mut mount = Map::new();
        let mut kept = Map::new();
        if let Some(flags) = at(&["mount", "mount_flags"]) {
            keep_secrets(&flags)?;
            mount.insert("mount_flags".to_owned(), flags);
        }
        if devices {
            if let Some(checks) = at(&["mount", "checkFilesystem"]) {
                mount.insert("checkFilesystem".to_owned(), checks);
            }
            if let Some(formats) = at(&["format"]) {
                kept.insert("format".to_owned(), formats);
            }
        }
        Self::check_guests(document, devices)?;
        if let Some(kata) = at(&["kata"]).filter(|_| devices) {
            kept.insert("kata".to_owned(), kata);
        }
        if !mount.is_empty() {
            kept.insert("mount".to_owned(), Value::Object(mount));
        }
        if kept.is_empty() {
            return Ok(None);
        }
        let text = Value::Object(kept).to_string();
        if text.len() > Self::MAX {
            let length = text.len();
            let problem = format!("takes {length} bytes, and {} is the most", Self::MAX);
            return Err(ConfigError::at("node", problem)
                .advise("it travels with every volume; what all connections share belongs into the configuration of the nodes"));
        }
        Ok(Some(Self(text)))
    }

    /// Refuses guests that mount volumes by themselves where volumes have no devices, if `document` itself asks for that.
    pub fn check_guests(document: &Document, devices: bool) -> Result<(), ConfigError> {
        let asked = document.own().pointer("/node/kata/directVolumes");
        let is_asked = asked
            .is_some_and(|value| value.as_bool() == Some(true) || value.as_str() == Some("true"));
        if devices || !is_asked {
            return Ok(());
        }
        Err(
            ConfigError::at("node.kata.directVolumes", "its volumes have no device")
                .advise("a guest of Kata gets a device: iSCSI, NVMe over fabrics or a zvol"),
        )
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the options of a context. Options that a node cannot follow are an error: to mount
    /// without an option such as `noexec` would be worse than not to mount.
    pub fn read(text: &str) -> Result<NodeSettings, ConfigError> {
        if text.len() > Self::MAX {
            return Err(ConfigError::new(format!("more than {} bytes", Self::MAX)));
        }
        // Validated as JSON first, so that no other YAML is accepted.
        let node: Value = serde_json::from_str(text)
            .map_err(|_| ConfigError::new("expected a map in the form of JSON"))?;
        let set = node.pointer("/mount/mount_flags").is_some();
        let has_guests = node.pointer("/kata/directVolumes").is_some();
        let whole = serde_json::json!({ "driver": "any", "node": node }).to_string();
        let document = Document::parse(&whole, &NoEnvironment)?;
        let newer = |error: ConfigError| match error.advice() {
            Some(_) => error,
            None => error.advise("if a newer controller wrote it, update this node"),
        };
        let config = document.common().map_err(newer)?;
        let checks = config.node.mount.check_filesystem.iter();
        let unchecked = checks.filter(|(_, check)| !check.enabled);
        Ok(NodeSettings {
            unchecked: unchecked
                .filter_map(|(name, _)| FilesystemKind::named(name.as_str()))
                .collect(),
            filesystems: config.filesystems(&document).map_err(newer)?,
            mount_flags: set.then_some(config.node.mount.mount_flags),
            kata: has_guests.then_some(config.node.kata.direct_volumes),
        })
    }
}

/// Rejects options that must not be visible in volumes, without showing the value.
fn keep_secrets(flags: &Value) -> Result<(), ConfigError> {
    let texts = match flags {
        Value::Array(all) => all.iter().collect(),
        one => vec![one],
    };
    let texts = texts.into_iter().filter_map(Value::as_str);
    let pairs = texts
        .flat_map(|text| text.split(','))
        .filter_map(|flag| flag.split_once('='));
    for (key, _) in pairs {
        let key = key.trim().to_ascii_lowercase();
        if is_secret(&key) {
            return Err(ConfigError::at(
                "node.mount.mount_flags",
                format!(
                    "has `{}`, and would be visible in every volume",
                    key.escape_debug()
                ),
            )
            .advise("put it into the stage secret, as `mount_flags`"));
        }
    }
    Ok(())
}

/// Whether an option of that name contains a secret, or names a file with one.
fn is_secret(key: &str) -> bool {
    let mut words = key.split(['_', '-', '.']);
    let last = key.rsplit(['_', '-', '.']).next();
    // Others start with `user` or contain `key`: `user_id`, `key_cache`.
    matches!(key, "user" | "username")
        || last == Some("key")
        || words.any(|word| SECRETS.contains(&word.trim_end_matches(|c: char| c.is_ascii_digit())))
}

/// Words in the names of options that have secrets, or name files with secrets.
const SECRETS: [&str; 18] = [
    "pass",
    "passwd",
    "password",
    "passphrase",
    "passfile",
    "cred",
    "creds",
    "credential",
    "credentials",
    "token",
    "tokenfile",
    "secret",
    "secretfile",
    "secretkey",
    "accesskey",
    "apikey",
    "keyfile",
    "keyring",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(yaml: &str, devices: bool) -> Result<Option<NodeOptions>, ConfigError> {
        let base = Document::parse(
            "{driver: proxy, node: {mount: {mount_flags: ro}}}",
            &NoEnvironment,
        );
        let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
        NodeOptions::of(&document.over(&base.expect("yaml")), devices)
    }

    const BOTH: &str = "{driver: x, node: {csiProxy: {}, mount: {mount_flags: 'nodev,noatime'},
                         format: {ext4: {customOptions: [-m, '0']}}}}";

    #[test]
    fn what_a_file_sets_itself_is_read_back_and_its_defaults_are_not() {
        let options = of(BOTH, true).expect("options").expect("some");
        let settings = NodeOptions::read(options.as_str()).expect("its own");
        let flags = settings.mount_flags.expect("flags");
        assert_eq!(flags.iter().collect::<Vec<_>>(), ["nodev", "noatime"]);
        assert!(
            settings
                .filesystems
                .format
                .contains_key(&FilesystemKind::Ext4)
        );
        let directory = of(BOTH, false).expect("options").expect("some");
        assert_eq!(
            directory.as_str(),
            r#"{"mount":{"mount_flags":"nodev,noatime"}}"#
        );
        assert_eq!(of("{driver: x}", true).expect("options"), None);
    }

    #[test]
    fn direct_volumes_travel_with_devices_and_are_refused_without() {
        let yaml = "{driver: x, node: {kata: {directVolumes: true}}}";
        let options = of(yaml, true).expect("options").expect("some");
        let settings = NodeOptions::read(options.as_str()).expect("its own");
        assert_eq!(settings.kata, Some(true));
        let error = of(yaml, false).expect_err("no device");
        assert_eq!(error.path(), Some("node.kata.directVolumes"));
        let off = "{driver: x, node: {kata: {directVolumes: false}}}";
        let options = of(off, true).expect("options").expect("some");
        let settings = NodeOptions::read(options.as_str()).expect("its own");
        assert_eq!(settings.kata, Some(false));
        assert_eq!(of(off, false).expect("options"), None);
        let other = NodeOptions::read(r#"{"mount":{"mount_flags":"ro"}}"#).expect("options");
        assert_eq!(other.kata, None);
        assert!(NodeOptions::read(r#"{"kata":{"directVolumes":"maybe"}}"#).is_err());
    }

    #[test]
    fn options_that_would_fill_the_context_are_refused_with_the_file() {
        let flags = "a".repeat(NodeOptions::MAX);
        let error = of(
            &format!("{{driver: x, node: {{mount: {{mount_flags: {flags}}}}}}}"),
            true,
        );
        assert_eq!(error.expect_err("too long").path(), Some("node"));
    }

    #[test]
    fn options_with_secrets_are_not_written_into_volumes() {
        for flags in [
            "'nodev,password=hunter2'",
            "[nodev, PASS=hunter2]",
            "'credentials=/root/hunter2'",
            "'username=hunter2'",
            "'password2=hunter2'",
            "'passwd_file=/root/hunter2'",
            "'access_key=hunter2'",
            "'key=hunter2'",
        ] {
            let yaml = format!("{{driver: x, node: {{mount: {{mount_flags: {flags}}}}}}}");
            let error = of(&yaml, false).expect_err(flags);
            assert_eq!(error.path(), Some("node.mount.mount_flags"));
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
            assert!(error.advice().expect("advice").contains("stage secret"));
        }
        // The word `user` says who may mount, and others only start like a secret.
        for plain in [
            "user,noatime,vers=4.2",
            "user_id=7,keycache=1,passthrough=2",
        ] {
            let yaml = format!("{{driver: x, node: {{mount: {{mount_flags: '{plain}'}}}}}}");
            assert!(of(&yaml, false).expect("options").is_some(), "{plain}");
        }
    }

    #[test]
    fn a_node_that_cannot_follow_says_that_it_may_be_too_old() {
        let error = NodeOptions::read(r#"{"mount":{"mount_flags":7}}"#).expect_err("a number");
        assert!(error.advice().expect("advice").contains("update this node"));
    }

    #[test]
    fn what_no_configuration_could_hold_is_refused_on_the_node_too() {
        for bad in [
            "",
            "[]x",
            "a: 1",
            r#"{"format":{"ext4":{"customOptions":["/dev/sda"]}}}"#,
            r#"{"mount":{"mount_flags":7}}"#,
        ] {
            assert!(NodeOptions::read(bad).is_err(), "{bad}");
        }
        assert!(
            NodeOptions::read("{}")
                .expect("empty")
                .mount_flags
                .is_none()
        );
    }
}
