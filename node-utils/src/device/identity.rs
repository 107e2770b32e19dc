//! The world-wide identifier of a device: which volume it shows.
//!
//! The name of a device and its number on a target may later belong to another volume; the identifier
//! never does. It is the last answer that the kernel has cached: see `device/rescan` of a SCSI disk,
//! which refreshes it. The sources are the SCSI page 0x83 and the NVMe identifiers.

use std::fmt;

use super::BlockDevice;
use crate::kernel::{self, Kernel};
use csi_types::error::Error;

/// A world-wide identifier as sysfs writes it: `naa.…`, `eui.…`, `uuid.…`, `nvme.…`, `t10.…`.
///
/// Runs of white space, with which a `t10` identifier is filled up, are one `_`, so that it is one
/// word in a volume context and in a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity(String);

// === impl Identity ===

impl Identity {
    /// From the text of sysfs; `None` if it says nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text
            .split(|c: char| c.is_whitespace() || c.is_control())
            .filter(|word| !word.is_empty())
            .collect();
        (!words.is_empty()).then(|| Self(words.join("_")))
    }

    /// As one word.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `text` names this volume; hexadecimal digits may be in either case.
    pub fn is(&self, text: &str) -> bool {
        Self::parse(text).is_some_and(|other| other.0.eq_ignore_ascii_case(&self.0))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl BlockDevice {
    /// The volume it shows; of a partition or a multipath map, that of the disk below. `None` for
    /// devices that have no identifier: loop devices, zvols, other maps.
    pub fn wwid(&self, kernel: &Kernel) -> Result<Option<Identity>, Error> {
        let disk = self.disk(kernel)?;
        if disk.is_multipath_map(kernel)? {
            return match disk.slaves(kernel)?.first() {
                Some(path) => path.own_wwid(kernel),
                None => Ok(None),
            };
        }
        disk.own_wwid(kernel)
    }

    /// Whether it is a map that the multipath daemon made: an LVM volume, an encrypted device or a
    /// partition map has a uuid of another kind.
    pub fn is_multipath_map(&self, kernel: &Kernel) -> Result<bool, Error> {
        let uuid = self.attribute(kernel, "dm/uuid")?;
        Ok(uuid.is_some_and(|uuid| uuid.starts_with("mpath-")))
    }

    fn own_wwid(&self, kernel: &Kernel) -> Result<Option<Identity>, Error> {
        // NVMe has it on the disk, SCSI on the device below it.
        for name in ["wwid", "device/wwid"] {
            let path = self.directory(kernel).join(name);
            match kernel::read(&path) {
                Ok(Some(text)) => {
                    if let Some(identity) = Identity::parse(&text) {
                        return Ok(Some(identity));
                    }
                }
                // EINVAL: a SCSI device that has no page 0x83.
                Ok(None) => {}
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {}
                Err(error) => return Err(super::unreadable(&path, error)),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_one_word_whatever_it_was_filled_up_with() {
        let t10 = Identity::parse("t10.ATA     QEMU HARDDISK   QM00001\n").expect("identity");
        assert_eq!(t10.as_str(), "t10.ATA_QEMU_HARDDISK_QM00001");
        assert!(t10.is("t10.ATA QEMU HARDDISK QM00001"));
        assert_eq!(Identity::parse(" \n"), None);
    }

    #[test]
    fn the_case_of_hexadecimal_digits_does_not_matter() {
        let naa = Identity::parse("naa.600140589abc").expect("identity");
        assert!(naa.is("naa.600140589ABC") && !naa.is("naa.600140589abd") && !naa.is(""));
    }
}
