//! The settings for filesystems, as the node reads them.

use csi_types::FsType;
use csi_types::filesystem::{
    CheckOptions, FilesystemKind, FilesystemSettings, InvalidOption, OptionWord,
};

use super::{CommonConfig, FilesystemCheck};
use crate::config::{ConfigError, Document, Finding, Severity};

const FORMAT: &str = "node.format";
const CHECK: &str = "node.mount.checkFilesystem";

// === impl CommonConfig ===

impl CommonConfig {
    /// `node.format` and `node.mount.checkFilesystem`. An unsupported filesystem is not an error,
    /// because democratic-csi ignores its key as well, but `document` reports it.
    pub fn filesystems(&self, document: &Document) -> Result<FilesystemSettings, ConfigError> {
        let mut settings = FilesystemSettings::default();
        for (fs_type, format) in &self.node.format {
            if let Some(kind) = known(document, FORMAT, fs_type) {
                let at = format!("{FORMAT}.{fs_type}.customOptions");
                settings
                    .format
                    .insert(kind, words(&at, &format.custom_options)?);
            }
        }
        for (fs_type, check) in &self.node.mount.check_filesystem {
            let Some(kind) = known(document, CHECK, fs_type) else {
                continue;
            };
            let options = options(&format!("{CHECK}.{fs_type}"), check)?;
            if check.enabled {
                settings.check.insert(kind, options);
            }
        }
        Ok(settings)
    }
}

fn known(document: &Document, section: &str, fs_type: &FsType) -> Option<FilesystemKind> {
    let kind = FilesystemKind::named(fs_type.as_str());
    if kind.is_none() {
        let names: Vec<&str> = FilesystemKind::ALL.iter().map(|kind| kind.name()).collect();
        document.add(Finding {
            severity: Severity::Doubtful,
            path: format!("{section}.{fs_type}"),
            message: "is no filesystem of a disk, and has no effect".to_owned(),
            advice: Some(format!("those that can be made are {}", names.join(", "))),
        });
    }
    kind
}

fn options(at: &str, check: &FilesystemCheck) -> Result<CheckOptions, ConfigError> {
    let filesystem_options = &check.custom_filesystem_options;
    Ok(CheckOptions {
        options: words(&format!("{at}.customOptions"), &check.custom_options)?,
        filesystem_options: words(&format!("{at}.customFilesystemOptions"), filesystem_options)?,
    })
}

fn words(at: &str, options: &[String]) -> Result<Vec<OptionWord>, ConfigError> {
    let word = |(index, option): (usize, &String)| {
        OptionWord::parse(option).map_err(|error: InvalidOption| {
            ConfigError::at(format!("{at}[{index}]"), error.to_string())
        })
    };
    options.iter().enumerate().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NoEnvironment;

    fn read(yaml: &str) -> (Document, Result<FilesystemSettings, ConfigError>) {
        let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
        let settings = document.common().expect("keys").filesystems(&document);
        (document, settings)
    }

    fn texts(options: &[OptionWord]) -> Vec<&str> {
        options.iter().map(OptionWord::as_str).collect()
    }

    #[test]
    fn options_are_kept_in_their_order_and_only_what_is_enabled_is_checked() {
        let (document, settings) = read(
            "
            driver: x
            node:
              format:
                xfs: {customOptions: [-K]}
                ext4: {customOptions: [-m, 0, '-E lazy_itable_init=0']}
              mount:
                checkFilesystem:
                  xfs: {enabled: true, customOptions: [-o], customFilesystemOptions: [force_geometry]}
                  ext4: {enabled: false, customOptions: [-f]}",
        );
        let settings = settings.expect("settings");
        let format = |kind| texts(&settings.format[&kind]);
        assert_eq!(format(FilesystemKind::Xfs), ["-K"]);
        assert_eq!(
            format(FilesystemKind::Ext4),
            ["-m", "0", "-E lazy_itable_init=0"]
        );
        let checked: Vec<_> = settings.check.keys().collect();
        assert_eq!(checked, [&FilesystemKind::Xfs]);
        let check = &settings.check[&FilesystemKind::Xfs];
        assert_eq!(texts(&check.options), ["-o"]);
        assert_eq!(texts(&check.filesystem_options), ["force_geometry"]);
        assert_eq!(document.findings(), []);
    }

    #[test]
    fn an_impossible_filesystem_is_reported_and_a_bad_option_is_rejected_by_its_path() {
        let (document, settings) =
            read("{driver: x, node: {format: {zfs: {customOptions: [-x]}}}}");
        assert_eq!(settings.expect("settings"), FilesystemSettings::default());
        let findings = document.findings();
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "node.format.zfs");
        for (yaml, path) in [
            (
                "{driver: x, node: {format: {ext4: {customOptions: [-q, /dev/sda]}}}}",
                "node.format.ext4.customOptions[1]",
            ),
            (
                "{driver: x, node: {mount: {checkFilesystem: {xfs: {customFilesystemOptions: ['']}}}}}",
                "node.mount.checkFilesystem.xfs.customFilesystemOptions[0]",
            ),
        ] {
            let error = read(yaml).1.expect_err(yaml);
            assert_eq!(error.path(), Some(path));
        }
    }
}
