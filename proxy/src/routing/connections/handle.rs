//! The grammar of handles: `v:<connection>/<id>` for volumes, `s:<connection>/<id>` for snapshots,
//! `g:<connection>/<id>` for groups of snapshots.
//!
//! The id is that of the driver and may contain slashes. The owner of a handle without a connection is
//! not decided here. compat: "The proxy".

use driver_core::text::{GroupSnapshotId, TextError};
use driver_core::{SnapshotId, VolumeId};

use super::name::{ConnectionName, ConnectionNameError};

/// The id of a volume as the orchestrator has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeHandle(VolumeId);

/// The id of a snapshot as the orchestrator has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotHandle(SnapshotId);

/// The id of a group of snapshots as the orchestrator has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupHandle(GroupSnapshotId);

/// What is true of the handles of all kinds.
pub(crate) trait Handle {
    /// The id of a driver.
    type Id: Clone;
    /// What it is a handle of.
    const WHAT: &'static str;

    /// The text.
    fn text(&self) -> &str;

    /// See `whole` of each.
    fn bare(&self) -> &Self::Id;

    /// What it says by itself.
    fn read(&self) -> Result<Reading<Self::Id>, HandleError>;
}

/// What a handle says by itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reading<I> {
    /// The id of something at a connection.
    At(ConnectionName, I),
    /// The bare id of a driver.
    Bare(I),
}

/// Why a handle is none of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandleError {
    /// It begins like one that names a connection.
    #[error("it is not of the form `{0}<connection>/<id>`")]
    Form(&'static str),
    /// What should be a name is none.
    #[error(transparent)]
    Name(#[from] ConnectionNameError),
}

const VOLUME: &str = "v:";
const SNAPSHOT: &str = "s:";
const GROUP: &str = "g:";

macro_rules! handle {
    ($handle:ident, $id:ident, $mark:expr, $what:literal) => {
        impl $handle {
            /// Checks what is true of every handle.
            pub(crate) fn parse(text: &str) -> Result<Self, TextError> {
                $id::parse(text).map(Self)
            }

            /// The handle of something at a connection.
            pub(crate) fn write(connection: &ConnectionName, id: &$id) -> String {
                if connection.is_named() {
                    format!("{}{connection}/{id}", $mark)
                } else {
                    id.as_str().to_owned()
                }
            }

            /// The text.
            pub(crate) fn as_str(&self) -> &str {
                self.0.as_str()
            }

            /// The whole text: the id in a process whose handles name no connection.
            pub(crate) fn whole(&self) -> &$id {
                &self.0
            }
        }

        impl Handle for $handle {
            type Id = $id;
            const WHAT: &'static str = $what;

            fn text(&self) -> &str {
                self.as_str()
            }

            fn bare(&self) -> &$id {
                self.whole()
            }

            fn read(&self) -> Result<Reading<$id>, HandleError> {
                let Some(named) = self.as_str().strip_prefix($mark) else {
                    return Ok(Reading::Bare(self.0.clone()));
                };
                let form = || HandleError::Form($mark);
                let (name, id) = named.split_once('/').ok_or_else(form)?;
                let name = ConnectionName::parse(name)?;
                let id = $id::parse(id).map_err(|_| form())?;
                Ok(Reading::At(name, id))
            }
        }
    };
}

impl VolumeHandle {
    /// The id of a volume on its node: the whole handle. So the node serves handles of any connection,
    /// and those of volumes made by hand.
    pub(crate) fn on_node(&self) -> VolumeId {
        self.0.clone()
    }
}

handle!(VolumeHandle, VolumeId, VOLUME, "volume");
handle!(SnapshotHandle, SnapshotId, SNAPSHOT, "snapshot");
handle!(GroupHandle, GroupSnapshotId, GROUP, "group snapshot");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Reading<VolumeId>, HandleError> {
        VolumeHandle::parse(text).expect("text").read()
    }

    fn at(name: &str, id: &str) -> Reading<VolumeId> {
        let name = ConnectionName::parse(name).expect("name");
        Reading::At(name, VolumeId::parse(id).expect("id"))
    }

    #[test]
    fn a_handle_is_split_at_its_first_slash() {
        assert_eq!(read("v:nas/pvc-1"), Ok(at("nas", "pvc-1")));
        assert_eq!(read("v:nas/tank/a@b"), Ok(at("nas", "tank/a@b")));
        let bare = VolumeId::parse("s:nas/a").expect("id");
        assert_eq!(read("s:nas/a"), Ok(Reading::Bare(bare)));
        for bad in ["v:", "v:nas", "v:nas/", "v:/a", "v:../a", "v:a b/c"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let snapshot = SnapshotHandle::parse("s:nas/v/s").expect("text");
        assert!(matches!(snapshot.read(), Ok(Reading::At(_, id)) if id.as_str() == "v/s"));
    }

    fn name(text: &str) -> ConnectionName {
        ConnectionName::parse(text).expect("a name")
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            text in "[a-z0-9][a-z0-9._-]{0,20}",
            id in "[a-z/:=&.@-]{1,60}",
        ) {
            prop_assume!(!text.contains(".."));
            let name = name(&text);
            let volume = VolumeId::parse(&id).expect("id");
            let snapshot = SnapshotId::parse(&id).expect("id");
            let group = GroupSnapshotId::parse(&id).expect("id");
            let handles = [
                VolumeHandle::write(&name, &volume),
                SnapshotHandle::write(&name, &snapshot),
                GroupHandle::write(&name, &group),
            ];
            for handle in &handles {
                prop_assert_eq!(handle.len(), name.bytes_in_handle() + id.len());
            }
            let [v, s, g] = &handles;
            prop_assert_eq!(read(v), Ok(Reading::At(name.clone(), volume)));
            let read = SnapshotHandle::parse(s).expect("text").read();
            prop_assert_eq!(read, Ok(Reading::At(name.clone(), snapshot)));
            let read = GroupHandle::parse(g).expect("text").read();
            prop_assert_eq!(read, Ok(Reading::At(name, group)));
            // None is mistaken for one of another kind.
            let read = GroupHandle::parse(v).expect("text").read();
            prop_assert!(matches!(read, Ok(Reading::Bare(_))));
            let read = SnapshotHandle::parse(g).expect("text").read();
            prop_assert!(matches!(read, Ok(Reading::Bare(_))));
        }

        #[test]
        fn no_text_makes_reading_panic(text in "[vsg]?:?.{0,80}") {
            if let Ok(handle) = GroupHandle::parse(&text) {
                drop(handle.read());
            }
            if let Ok(handle) = VolumeHandle::parse(&text) {
                drop(handle.read());
            }
        }
    }
}
