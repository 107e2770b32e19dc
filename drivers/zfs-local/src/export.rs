//! No export at all: the node has the dataset.
//!
//! The node service needs its name. It gives a filesystem the mountpoint `legacy` when it first
//! stages it, and finds the device of a zvol by itself.

use std::fmt::Debug;
use std::marker::PhantomData;

use csi_types::attachment::{DatasetName, ZfsLocal};
use csi_types::{AccessMode, Attachment};
use driver_core::{AccessRules, Error};
use driver_zfs::Export;
use driver_zfs::export::{Act, Subject};
use driver_zfs::observed::VolumeKind;

/// The filesystems that a zvol can be formatted with. compat: "ZFS of the node".
const ON_ZVOL: &[&str] = &[
    "btrfs", "exfat", "ext3", "ext4", "ext4dev", "ntfs", "vfat", "xfs",
];

/// Passes the dataset to the node service. `Q` and `A` are the queries and answers of a backend; it
/// makes no queries.
#[derive(Debug)]
pub struct NodeExport<Q, A> {
    kind: VolumeKind,
    asks: PhantomData<fn(Q) -> A>,
}

// === impl NodeExport ===

impl<Q, A> NodeExport<Q, A> {
    /// For datasets of this kind.
    pub fn new(kind: VolumeKind) -> Self {
        Self {
            kind,
            asks: PhantomData,
        }
    }
}

fn export_name(subject: &Subject<'_>) -> Result<DatasetName, Error> {
    DatasetName::parse(subject.dataset.as_str()).map_err(|error| {
        Error::invalid(format!("tell nodes of {}", subject.dataset)).because(error)
    })
}

impl<Q, A> Export for NodeExport<Q, A>
where
    Q: Clone + Debug + Send + Sync + 'static,
    A: Clone + Debug + Send + Sync + 'static,
{
    type Command = Q;
    type Output = A;
    type Name = DatasetName;
    type Facts = ();

    fn kind(&self) -> VolumeKind {
        self.kind
    }

    fn access_rules(&self) -> AccessRules {
        match self.kind {
            VolumeKind::Filesystem => AccessRules::filesystem(&["zfs"]),
            VolumeKind::Zvol => AccessRules {
                block: true,
                block_modes: AccessMode::ALL.to_vec(),
                ..AccessRules::filesystem(ON_ZVOL)
            },
        }
    }

    fn export_name(&self, subject: &Subject<'_>) -> Result<DatasetName, Error> {
        export_name(subject)
    }

    fn observe(&self, _subject: &Subject<'_>, _asset: &DatasetName) -> Vec<Q> {
        Vec::new()
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _asset: &DatasetName,
        _answers: &[A],
    ) -> Result<(), Error> {
        Ok(())
    }

    fn ensure(
        &self,
        _subject: &Subject<'_>,
        _asset: &DatasetName,
        (): &(),
    ) -> Result<Vec<Act<Q>>, Error> {
        Ok(Vec::new())
    }

    fn remove(
        &self,
        _subject: &Subject<'_>,
        _asset: &DatasetName,
        (): &(),
    ) -> Result<Vec<Act<Q>>, Error> {
        Ok(Vec::new())
    }

    fn attachment(
        &self,
        _subject: &Subject<'_>,
        export_name: &DatasetName,
        (): &(),
    ) -> Result<Option<Attachment>, Error> {
        let export_name = export_name.clone();
        Ok(Some(Attachment::ZfsLocal(ZfsLocal { asset: export_name })))
    }

    fn current_attachment(&self, subject: &Subject<'_>) -> Option<Attachment> {
        let asset = export_name(subject).ok()?;
        Some(Attachment::ZfsLocal(ZfsLocal { asset }))
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        let export_name = export_name(longest).ok()?;
        Some(Attachment::ZfsLocal(ZfsLocal { asset: export_name }))
    }
}
