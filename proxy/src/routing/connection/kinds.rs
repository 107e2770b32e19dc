//! The kinds of drivers there are, and what is said about a name that is none of them.

use driver_core::DriverFactory;
use driver_core::config::{ConfigError, Document, plain_yaml};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::ConnectionContext;

/// The drivers of this build: each is registered here and nowhere else, by the feature of its family.
static FACTORIES: &[DriverFactory<ConnectionContext>] = &[
    #[cfg(feature = "directory")]
    driver_directory::factory(),
    driver_node_manual::factory(),
    #[cfg(feature = "zfs-generic")]
    driver_zfs_generic::factory(),
    #[cfg(feature = "zfs-local")]
    driver_zfs_local::factory(),
    #[cfg(feature = "truenas")]
    driver_truenas::factory(),
    #[cfg(feature = "synology")]
    driver_synology::factory(),
    #[cfg(feature = "objectivefs")]
    driver_objectivefs::factory(),
    #[cfg(feature = "inline")]
    driver_inline::factory(),
];

/// Drivers of democratic-csi that this build does not have.
pub(super) const NOT_YET: [&str; 1] = ["vhd-ephemeral-inline"];

/// The text that stands for all connections of a folder.
pub(crate) const PROXY: &str = "proxy";

/// The factory of drivers of this kind.
pub(super) fn factory(
    kind: &str,
) -> Result<&'static DriverFactory<ConnectionContext>, ConfigError> {
    let mut all = FACTORIES.iter();
    all.find(|factory| factory.kinds.contains(&kind))
        .ok_or_else(|| unknown(kind))
}

/// The error of a document that has no section of its driver, with the least that has to be there.
pub(super) fn with_example(
    error: ConfigError,
    document: &Document,
    factory: &DriverFactory<ConnectionContext>,
) -> ConfigError {
    let is_missing = |section: &&str| {
        let section = document.optional_section::<IgnoredAny>(section);
        matches!(section, Ok(None))
    };
    let (None, Ok(kind)) = (error.advice(), document.driver()) else {
        return error;
    };
    if !factory.sections.iter().all(is_missing) {
        return error;
    }
    let example = (factory.example)(kind);
    let mut keys = String::new();
    for line in example.lines().skip(1).filter(|line| !line.is_empty()) {
        let is_new = !line.starts_with(' ') && !keys.is_empty();
        keys.push_str(if is_new { "; " } else { " " });
        keys.push_str(line.trim());
    }
    error.advise(format!("the least that this driver needs:{keys}"))
}

/// The sections that drivers read, and that may stand in the main file as defaults of connections.
pub(crate) fn sections() -> Vec<&'static str> {
    FACTORIES
        .iter()
        .flat_map(|factory| factory.sections)
        .copied()
        .collect()
}

/// The drivers that this build has.
pub(crate) fn built() -> Vec<&'static str> {
    FACTORIES
        .iter()
        .flat_map(|factory| factory.kinds)
        .copied()
        .collect()
}

/// The error about the name of a driver, with the name that may have been meant.
fn unknown(name: &str) -> ConfigError {
    let all = built();
    let built = all.join(", ");
    if name == PROXY {
        let problem = "a connection has a driver of its own; there is no proxy behind a proxy";
        return ConfigError::at("driver", problem).advise(format!("this build has: {built}"));
    }
    if NOT_YET.contains(&name) {
        return ConfigError::at(
            "driver",
            format!("this build does not have the driver `{name}` yet; it has: {built}"),
        );
    }
    let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    if !cfg!(feature = "every-driver") {
        return ConfigError::at(
            "driver",
            format!(
                "this build has no driver `{shown}`: it was built with some of them only: {built}"
            ),
        );
    }
    let error = ConfigError::at(
        "driver",
        format!("there is no driver `{shown}`; this build has: {built}"),
    );
    let names = all.iter().chain(&NOT_YET).chain([&PROXY]);
    let nearest = names
        .clone()
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .filter(|(distance, known)| *distance <= known.len() / 3)
        .min();
    if let Some((_, known)) = nearest {
        return error.advise(format!("is it a misspelling of `{known}`?"));
    }
    let likely = with_the_same_words(name, names.copied());
    if likely.is_empty() {
        error
    } else {
        error.advise(format!("is one of these meant: {}?", likely.join(", ")))
    }
}

/// The drivers whose names have the most words of `name`: `zfs-nfs` may be `zfs-generic-nfs`.
fn with_the_same_words<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let lower = name.to_lowercase();
    // What people call the product.
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .map(|word| if word == "truenas" { "freenas" } else { word })
        .collect();
    let common = |known: &str| {
        let mut own: Vec<_> = known.split('-').collect();
        own.retain(|word| words.contains(word));
        own.len()
    };
    let scored: Vec<_> = all.map(|known| (common(known), known)).collect();
    let most = scored.iter().map(|(score, _)| *score).max().unwrap_or(0);
    let best = scored
        .into_iter()
        .filter(|(score, _)| *score == most && most > 1);
    best.map(|(_, known)| known).take(6).collect()
}

/// A usable configuration of the same driver. What a file lacks comes from it while the file is read, so
/// that all other problems of the file are found at once.
pub(crate) fn like(document: &Document) -> Option<Value> {
    plain_yaml(&least(document.driver().ok()?)?).ok()
}

/// The text of such a configuration, of any kind that this build has.
pub(crate) fn least(kind: &str) -> Option<String> {
    if kind == PROXY {
        return Some(format!("driver: {PROXY}\nproxy: {{configFolder: /none}}\n"));
    }
    factory(kind).ok().map(|factory| (factory.example)(kind))
}

/// The kinds that let in only the nodes that a volume is published to, configured to do so.
#[cfg(test)]
pub(crate) const LETTING_IN: [(&str, &str); 3] = [
    (
        "zfs-generic-nfs",
        "
        driver: zfs-generic-nfs
        sshConnection: {host: nas.example, username: csi, password: x}
        zfs: {datasetParentName: tank/v}
        nfs:
          shareHost: nas.example
          shareStrategy: setDatasetProperties
          shareStrategySetDatasetProperties:
            properties: {sharenfs: rw}
            nodes: {nameTemplate: '{{node}}.example'}",
    ),
    (
        "zfs-generic-iscsi",
        "
        driver: zfs-generic-iscsi
        sshConnection: {host: nas.example, username: csi, password: x}
        zfs: {datasetParentName: tank/v}
        iscsi:
          targetPortal: nas.example:3260
          shareStrategy: lio
          shareStrategyLio:
            basename: iqn.2003-01.org.example
            nodes: {nameTemplate: 'iqn.2004-10.org.example:{{node}}'}",
    ),
    (
        "zfs-generic-nvmeof",
        "
        driver: zfs-generic-nvmeof
        sshConnection: {host: nas.example, username: csi, password: x}
        zfs: {datasetParentName: tank/v}
        nvmeof:
          transports: ['tcp://nas.example:4420']
          shareStrategy: nvmet
          shareStrategyNvmet:
            basename: nqn.2003-01.org.example
            ports: [1]
            nodes: {nameTemplate: 'nqn.2014-08.org.example:{{node}}'}",
    ),
];
