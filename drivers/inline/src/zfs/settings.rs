//! The section `zfs` of `zfs-local-ephemeral-inline`, and which properties a pod may choose.

use std::collections::{BTreeMap, BTreeSet};

use csi_types::VolumeContext;
use driver_core::Error;
use driver_core::config::{CommonConfig, ConfigError, Document};
use driver_zfs::id::Layout;
use driver_zfs::name::DatasetName;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The properties that a pod may choose unless the configuration says otherwise: its own limits, and what costs and
/// harms no others.
const SAFE: [&str; 6] = [
    "atime",
    "compression",
    "quota",
    "recordsize",
    "refquota",
    "relatime",
];

/// The properties that no pod may choose, whatever the configuration says: where and how it is mounted, what may be
/// executed, what is shared, and what reads keys from files of the host.
const NEVER: [&str; 21] = [
    "canmount",
    "context",
    "defcontext",
    "devices",
    "encryption",
    "exec",
    "fscontext",
    "jailed",
    "keyformat",
    "keylocation",
    "mlslabel",
    "mountpoint",
    "overlay",
    "pbkdf2iters",
    "rootcontext",
    "setuid",
    "sharenfs",
    "sharesmb",
    "snapdev",
    "version",
    "zoned",
];

/// The properties that limit a volume: a value of the configuration is the administrator's word, unless it says that a
/// pod may choose.
const LIMITS: [&str; 2] = ["quota", "refquota"];

/// The properties that the driver sets itself.
const OURS: [&str; 3] = ["canmount", "mountpoint", "readonly"];

/// The text that stands before the name of a property in the attributes of a pod.
const ATTRIBUTE: &str = "property.";

/// `zfs`, as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Section {
    /// Volumes lie in the folder `v` below it.
    dataset_parent_name: String,
    /// Properties of all volumes.
    #[serde(default)]
    properties: BTreeMap<String, Configured>,
    /// The properties that a pod may choose.
    #[serde(default)]
    allowed_properties: Option<Vec<String>>,
    /// The way `zfs` is run.
    #[serde(default)]
    cli: Cli,
}

/// `zfs.properties.<name>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configured {
    #[serde(deserialize_with = "word")]
    value: String,
    /// Whether a pod may choose another value, if it may choose this property at all. Unless given, it may
    /// where nothing is limited.
    #[serde(default)]
    allow_override: Option<bool>,
}

/// `zfs.cli`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cli {
    #[serde(default)]
    sudo_enabled: bool,
}

/// A word of ZFS, where YAML may have read `on` as true.
fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Bool(true) => Ok("on".to_owned()),
        Value::Bool(false) => Ok("off".to_owned()),
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(D::Error::custom("expected the value of a property")),
    }
}

/// The driver of one connection, as it is configured.
#[derive(Debug)]
pub struct Settings {
    /// The value of `driver:`.
    pub kind: String,
    /// The `instance_id`.
    pub instance: Option<String>,
    /// The place where volumes lie.
    pub layout: Layout,
    /// Whether `zfs` is run by sudo.
    pub sudo: bool,
    configured: Vec<(Property, bool)>,
    allowed: BTreeSet<String>,
}

// === impl Settings ===

impl Settings {
    /// Reads and checks the section.
    pub fn read(document: &Document, common: &CommonConfig) -> Result<Self, ConfigError> {
        document.without_effect(&[
            ("zfs.chroot", "the host finds its own programs"),
            ("zfs.cli.paths", "the host finds its own programs"),
            ("sshConnection", "volumes are datasets of the node itself"),
        ]);
        let section: Section = document.section("zfs")?;
        let parent = section.dataset_parent_name.as_str();
        let parent = parent.strip_suffix('/').unwrap_or(parent);
        // compat: "Inline volumes": below this folder, as with democratic-csi.
        let volumes = DatasetName::parse(&format!("{parent}/v"))
            .map_err(|error| ConfigError::at("zfs.datasetParentName", error.to_string()))?;
        let allowed = section.allowed_properties;
        let allowed = allowed.unwrap_or_else(|| SAFE.map(str::to_owned).to_vec());
        for name in &allowed {
            check_allowed(name)?;
        }
        let configured = section.properties.iter();
        Ok(Self {
            kind: common.driver.clone(),
            instance: common.instance_id.clone(),
            layout: Layout {
                volumes,
                children: Vec::new(),
                detached: None,
                kind: VolumeKind::Filesystem,
            },
            sudo: section.cli.sudo_enabled,
            configured: configured.map(configured_of).collect::<Result<_, _>>()?,
            allowed: allowed.into_iter().collect(),
        })
    }

    /// The properties of a new volume that a pod and the configuration choose.
    pub(super) fn chosen(&self, attributes: &VolumeContext) -> Result<Vec<Property>, Error> {
        let mut chosen = BTreeMap::new();
        for (key, value) in attributes {
            let Some(name) = key.strip_prefix(ATTRIBUTE) else {
                continue;
            };
            let refused = || Error::invalid(format!("volume attribute `{}`", key.escape_debug()));
            if !self.allowed.contains(name) {
                let allowed: Vec<_> = self.allowed.iter().map(String::as_str).collect();
                return Err(refused()
                    .because("pods may not choose this property")
                    .advise(format!(
                        "they may choose {}; see `zfs.allowedProperties` of the driver's configuration",
                        allowed.join(", ")
                    )));
            }
            let name = PropertyName::parse(name).map_err(|error| refused().because(error))?;
            let value =
                PropertyValue::parse(value.as_str()).map_err(|error| refused().because(error))?;
            chosen.insert(name, value);
        }
        // compat: "Inline volumes": what may not be overridden counts, and that is no error.
        for (property, allow_override) in &self.configured {
            if !allow_override || !chosen.contains_key(&property.name) {
                chosen.insert(property.name.clone(), property.value.clone());
            }
        }
        let pairs = chosen.into_iter();
        Ok(pairs
            .map(|(name, value)| Property::new(name, value))
            .collect())
    }
}

fn check_allowed(name: &str) -> Result<(), ConfigError> {
    let at = |problem: String| ConfigError::at("zfs.allowedProperties", problem);
    let parsed = PropertyName::parse(name)
        .map_err(|error| at(format!("`{}` {error}", name.escape_debug())))?;
    if NEVER.contains(&name) {
        let problem = format!("no pod may choose `{name}`");
        return Err(at(problem).advise("set it for all volumes, in `zfs.properties`"));
    }
    if parsed.is_user() || name.contains('@') || OURS.contains(&name) {
        return Err(at(format!("no pod may choose `{name}`")));
    }
    Ok(())
}

fn configured_of(
    (name, configured): (&String, &Configured),
) -> Result<(Property, bool), ConfigError> {
    let at = |problem: String| {
        ConfigError::at(
            "zfs.properties",
            format!("`{}` {problem}", name.escape_debug()),
        )
    };
    let parsed = PropertyName::parse(name).map_err(|error| at(error.to_string()))?;
    let ours = ["democratic-csi:", "omnibus-csi:"];
    if OURS.contains(&name.as_str()) || ours.iter().any(|prefix| name.starts_with(prefix)) {
        return Err(at("is set by the driver".to_owned()));
    }
    let value = PropertyValue::parse(configured.value.clone())
        .map_err(|error| at(format!("has a value that {error}")))?;
    let may_choose = !LIMITS.contains(&name.as_str());
    let allow_override = configured.allow_override.unwrap_or(may_choose);
    Ok((Property::new(parsed, value), allow_override))
}

#[cfg(test)]
mod tests {
    use driver_core::Kind;
    use driver_core::config::NoEnvironment;

    use super::*;

    fn settings(section: &str) -> Result<Settings, ConfigError> {
        let text = format!(
            "driver: zfs-local-ephemeral-inline\nzfs: {{datasetParentName: tank/inline, {section}}}\n"
        );
        let document = Document::parse(&text, &NoEnvironment)?;
        let settings = Settings::read(&document, &document.common()?)?;
        assert_eq!(document.findings(), [], "{section}");
        Ok(settings)
    }

    fn chosen(section: &str, attributes: &[(&str, &str)]) -> Result<Vec<String>, Error> {
        let pairs = attributes.iter();
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let chosen = settings(section)
            .expect("settings")
            .chosen(&pairs.collect())?;
        Ok(chosen.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_pod_chooses_what_is_allowed_and_the_configuration_the_rest() {
        let section = "properties: {refquota: {value: 10M, allowOverride: true}, exec: {value: off}, \
                       compression: {value: lz4, allowOverride: false}}";
        assert_eq!(
            settings(section).expect("settings").layout.volumes.as_str(),
            "tank/inline/v"
        );
        let own = ["compression=lz4", "exec=off", "refquota=10M"];
        assert_eq!(chosen(section, &[("foo", "bar")]).expect("chosen"), own);
        let pod = [
            ("property.refquota", "1G"),
            ("property.compression", "off"),
            ("property.recordsize", "16K"),
        ];
        let both = [
            "compression=lz4",
            "exec=off",
            "recordsize=16K",
            "refquota=1G",
        ];
        assert_eq!(chosen(section, &pod).expect("chosen"), both);
    }

    #[test]
    fn a_pod_does_not_lift_the_limits_of_the_configuration_unless_it_says_so() {
        let pod = [
            ("property.quota", "1T"),
            ("property.refquota", "1T"),
            ("property.atime", "off"),
        ];
        let section =
            "properties: {quota: {value: 20M}, refquota: {value: 10M}, atime: {value: on}}";
        let limited = ["atime=off", "quota=20M", "refquota=10M"];
        assert_eq!(chosen(section, &pod).expect("chosen"), limited);
        let section = "properties: {quota: {value: 20M, allowOverride: true}}";
        let own = ["atime=off", "quota=1T", "refquota=1T"];
        assert_eq!(chosen(section, &pod).expect("chosen"), own);
    }

    #[test]
    fn what_is_not_allowed_is_refused_and_named() {
        for name in NEVER.iter().chain(&OURS).chain(&[
            "sync",
            "reservation",
            "userquota@root",
            "democratic-csi:managed_resource",
            "omnibus-csi:target_path",
            "",
            "-o",
            "quota=1G -o mountpoint",
            "QUOTA",
            "quota\n",
        ]) {
            let error = chosen("", &[(&format!("property.{name}"), "x")]).expect_err(name);
            assert_eq!(error.kind(), Kind::Invalid, "{name:?}");
            assert!(error.chain().contains("recordsize"), "{}", error.chain());
        }
        for value in ["1G\nmountpoint=/etc", "a\0b", &"x".repeat(8192)] {
            let error = chosen("", &[("property.quota", value)]).expect_err("refused");
            assert_eq!(error.kind(), Kind::Invalid);
        }
        assert_eq!(
            chosen("", &[("property.quota", "-o;$(x)")]).expect("one word"),
            ["quota=-o;$(x)"]
        );
        assert!(chosen("allowedProperties: []", &[("property.quota", "1G")]).is_err());
        assert!(
            chosen(
                "allowedProperties: [sync]",
                &[("property.sync", "disabled")]
            )
            .is_ok()
        );
    }

    #[test]
    fn no_configuration_allows_what_no_pod_may_choose() {
        for name in NEVER
            .iter()
            .chain(&OURS)
            .chain(&["a:b", "userquota@joe", "A B"])
        {
            let section = format!("allowedProperties: ['{name}']");
            let error = settings(&section).expect_err(name);
            assert_eq!(error.path(), Some("zfs.allowedProperties"), "{error}");
        }
        for section in [
            "properties: {mountpoint: {value: /etc}}",
            "properties: {'democratic-csi:managed_resource': {value: x}}",
            "properties: {'A B': {value: x}}",
        ] {
            let error = settings(section).expect_err(section);
            assert_eq!(error.path(), Some("zfs.properties"), "{error}");
        }
    }
}
