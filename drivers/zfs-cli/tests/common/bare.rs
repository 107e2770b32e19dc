//! A driver without exports: datasets that their own machine mounts.

use csi_types::{AccessMode, Attachment, VolumeContext};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{AccessRules, Error, Kind};
use driver_zfs::export::{Act, Subject};
use driver_zfs::observed::VolumeKind;
use driver_zfs::{Export, Settings, ZfsConfig};
use exec::{Command, Output};

/// No export at all: datasets that their own machine mounts.
#[derive(Debug)]
pub(crate) struct Bare {
    /// Their kind.
    pub(crate) kind: VolumeKind,
}

/// Settings with these parents and these lines in the section `zfs`.
pub(crate) fn settings(kind: VolumeKind, volumes: &str, detached: &str, zfs: &str) -> Settings {
    let text = format!(
        "driver: zfs-of-a-test\nzfs:\n  datasetParentName: {volumes}\n  \
         detachedSnapshotsDatasetParentName: {detached}\n{zfs}"
    );
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    let config = ZfsConfig::read(&document).unwrap();
    config
        .settings(&document.common().unwrap(), kind, None)
        .unwrap()
}

impl Export for Bare {
    type Command = Command;
    type Output = Output;
    type Name = ();
    type Facts = ();

    fn kind(&self) -> VolumeKind {
        self.kind
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules {
            block: self.kind == VolumeKind::Zvol,
            block_modes: AccessMode::ALL.to_vec(),
            ..AccessRules::filesystem(&[])
        }
    }

    fn export_name(&self, _subject: &Subject<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn observe(&self, _subject: &Subject<'_>, (): &()) -> Vec<Command> {
        Vec::new()
    }

    fn facts(&self, _subject: &Subject<'_>, (): &(), _answers: &[Output]) -> Result<(), Error> {
        Ok(())
    }

    fn ensure(&self, _subject: &Subject<'_>, (): &(), (): &()) -> Result<Vec<Act<Command>>, Error> {
        Ok(Vec::new())
    }

    fn remove(&self, _subject: &Subject<'_>, (): &(), (): &()) -> Result<Vec<Act<Command>>, Error> {
        Ok(Vec::new())
    }

    fn attachment(
        &self,
        subject: &Subject<'_>,
        (): &(),
        (): &(),
    ) -> Result<Option<Attachment>, Error> {
        let context: VolumeContext = [
            ("node_attach_driver", "zfs-local".to_owned()),
            ("zfs_asset_name", subject.dataset.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        Attachment::parse(&context)
            .map(Some)
            .map_err(|error| Error::new(Kind::Internal, "describe a dataset").because(error))
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        self.attachment(longest, &(), &()).ok().flatten()
    }
}
