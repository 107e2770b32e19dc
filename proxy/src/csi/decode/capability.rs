//! The capability of a volume: access type, filesystem, mount flags, group, mode.

use csi_proto::v1;
use csi_proto::v1::volume_capability::{AccessType, MountVolume, access_mode::Mode};
use csi_types::{Access, AccessMode, FsType, MountAccess, MountFlags, VolumeCapability};
use driver_core::text::{MAX_MAP, MAX_STRING, check_text};

use super::{DecodeError, Reason};

const FIELD: &str = "volume_capability";
const FLAGS: &str = "volume_capability.mount.mount_flags";
const GROUP: &str = "volume_capability.mount.volume_mount_group";

/// A required capability.
pub(crate) fn required(
    capability: Option<v1::VolumeCapability>,
) -> Result<VolumeCapability, DecodeError> {
    one(capability.ok_or(DecodeError::missing(FIELD))?)
}

/// A list with at least one element.
pub(crate) fn required_list(
    capabilities: Vec<v1::VolumeCapability>,
) -> Result<Vec<VolumeCapability>, DecodeError> {
    if capabilities.is_empty() {
        return Err(DecodeError::missing("volume_capabilities"));
    }
    list(capabilities)
}

/// A list that may be empty.
pub(crate) fn list(
    capabilities: Vec<v1::VolumeCapability>,
) -> Result<Vec<VolumeCapability>, DecodeError> {
    capabilities.into_iter().map(one).collect()
}

/// One capability.
pub(crate) fn one(capability: v1::VolumeCapability) -> Result<VolumeCapability, DecodeError> {
    let access = match capability.access_type {
        None => return Err(DecodeError::missing("volume_capability.access_type")),
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(wishes)) => Access::Mount(mount(&wishes)?),
    };
    let field = "volume_capability.access_mode";
    let mode = capability
        .access_mode
        .ok_or(DecodeError::missing(field))?
        .mode;
    let mode =
        Mode::try_from(mode).map_err(|_| DecodeError::new(field, Reason::UnknownNumber(mode)))?;
    Ok(VolumeCapability {
        access,
        mode: access_mode(mode),
    })
}

fn mount(wishes: &MountVolume) -> Result<MountAccess, DecodeError> {
    let fs_type = match wishes.fs_type.as_str() {
        "" => None,
        name => Some(
            FsType::parse(name)
                .map_err(|error| DecodeError::new("volume_capability.mount.fs_type", error))?,
        ),
    };
    let bytes = wishes.mount_flags.iter().map(String::len).sum();
    if bytes > MAX_MAP {
        let limit = MAX_MAP;
        return Err(DecodeError::new(FLAGS, Reason::TooLarge { bytes, limit }));
    }
    let flags =
        MountFlags::parse(&wishes.mount_flags).map_err(|error| DecodeError::new(FLAGS, error))?;
    let group = match wishes.volume_mount_group.as_str() {
        "" => None,
        group => {
            check_text(group, MAX_STRING).map_err(|error| DecodeError::new(GROUP, error))?;
            let digits = group.bytes().all(|b| b.is_ascii_digit());
            let number = group.parse().ok().filter(|_| digits);
            Some(number.ok_or(DecodeError::new(GROUP, Reason::Group))?)
        }
    };
    Ok(MountAccess {
        fs_type,
        flags,
        group,
    })
}

fn access_mode(mode: Mode) -> AccessMode {
    match mode {
        Mode::Unknown => AccessMode::Unknown,
        Mode::SingleNodeWriter => AccessMode::SingleNodeWriter,
        Mode::SingleNodeReaderOnly => AccessMode::SingleNodeReaderOnly,
        Mode::MultiNodeReaderOnly => AccessMode::MultiNodeReaderOnly,
        Mode::MultiNodeSingleWriter => AccessMode::MultiNodeSingleWriter,
        Mode::MultiNodeMultiWriter => AccessMode::MultiNodeMultiWriter,
        Mode::SingleNodeSingleWriter => AccessMode::SingleNodeSingleWriter,
        Mode::SingleNodeMultiWriter => AccessMode::SingleNodeMultiWriter,
    }
}
