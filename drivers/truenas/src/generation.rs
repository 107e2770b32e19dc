//! The TrueNAS that answers, and its names of things.

use std::fmt;

use crate::wire::Transport;
use crate::{Error, Kind};

/// The generations whose API differs for us, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// CORE 12 and 13.
    Core,
    /// SCALE 22.02.
    V22_02,
    /// SCALE 22.12.
    V22_12,
    /// SCALE 23.10.
    V23_10,
    /// SCALE 24.04.
    V24_04,
    /// SCALE 24.10.
    V24_10,
    /// 25.04, the first with JSON-RPC.
    V25_04,
    /// 25.10.
    V25_10,
    /// 26 and, until we know better, what comes after it.
    V26,
}

/// The version as the NAS states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    text: String,
    major: u32,
    minor: u32,
}

/// The way to speak to one NAS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    version: Version,
    generation: Generation,
    transport: Transport,
}

// === impl Generation ===

impl Generation {
    /// Every generation, for tests that walk all of them.
    pub const ALL: [Self; 9] = [
        Self::Core,
        Self::V22_02,
        Self::V22_12,
        Self::V23_10,
        Self::V24_04,
        Self::V24_10,
        Self::V25_04,
        Self::V25_10,
        Self::V26,
    ];

    pub(crate) fn of(major: u32, minor: u32) -> Option<Self> {
        Some(match (major, minor) {
            (..12, _) => return None,
            (12..22, _) => Self::Core,
            (22, ..12) => Self::V22_02,
            (22, _) => Self::V22_12,
            (23, _) | (24, ..4) => Self::V23_10,
            (24, 4..10) => Self::V24_04,
            (24, _) | (25, ..4) => Self::V24_10,
            (25, 4..10) => Self::V25_04,
            (25, _) => Self::V25_10,
            (26.., _) => Self::V26,
        })
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "CORE",
            Self::V22_02 => "22.02",
            Self::V22_12 => "22.12",
            Self::V23_10 => "23.10",
            Self::V24_04 => "24.04",
            Self::V24_10 => "24.10",
            Self::V25_04 => "25.04",
            Self::V25_10 => "25.10",
            Self::V26 => "26",
        })
    }
}

// === impl Version ===

impl Version {
    /// Reads the first `major.minor` of a version, whatever the product is called.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let end = text
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(text.len());
            text[..end].parse::<u32>().ok()
        };
        let starts = text.char_indices().filter(|(at, c)| {
            let before = text[..*at].chars().next_back();
            c.is_ascii_digit() && before.is_none_or(|before| !before.is_ascii_digit())
        });
        let mut pairs = starts.filter_map(|(at, _)| {
            let (major, minor) = text[at..].split_once('.')?;
            // The dot must follow the digits at once.
            let major = major.parse::<u32>().ok()?;
            Some((major, number(minor)?))
        });
        let (major, minor) = pairs.next()?;
        let text = text.to_owned();
        Some(Self { text, major, minor })
    }

    /// The text as the NAS gave it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its first two numbers.
    pub fn numbers(&self) -> (u32, u32) {
        (self.major, self.minor)
    }
}

// === impl Dialect ===

impl Dialect {
    /// Chooses the dialect of a version.
    pub(crate) fn choose(version: &str, transport: Transport) -> Result<Self, Error> {
        let unknown = || {
            Error::new(
                Kind::Unsupported,
                format!("TrueNAS {version:?} is not known"),
            )
        };
        let version = Version::parse(version).ok_or_else(unknown)?;
        let generation = Generation::of(version.major, version.minor).ok_or_else(unknown)?;
        Ok(Self {
            version,
            generation,
            transport,
        })
    }

    /// The dialect of a generation, without a NAS.
    pub fn of(generation: Generation) -> Self {
        let (text, major, minor) = match generation {
            Generation::Core => ("TrueNAS-13.0-U6.8", 13, 0),
            Generation::V22_02 => ("TrueNAS-SCALE-22.02.4", 22, 2),
            Generation::V22_12 => ("TrueNAS-SCALE-22.12.4.2", 22, 12),
            Generation::V23_10 => ("TrueNAS-SCALE-23.10.2", 23, 10),
            Generation::V24_04 => ("TrueNAS-SCALE-24.04.2.5", 24, 4),
            Generation::V24_10 => ("TrueNAS-SCALE-24.10.2.4", 24, 10),
            Generation::V25_04 => ("TrueNAS-25.04.2.6", 25, 4),
            Generation::V25_10 => ("TrueNAS-25.10.6", 25, 10),
            Generation::V26 => ("TrueNAS-26.0.0", 26, 0),
        };
        let text = text.to_owned();
        Self {
            version: Version { text, major, minor },
            generation,
            transport: if generation >= Generation::V25_04 {
                Transport::JsonRpc
            } else {
                Transport::Legacy
            },
        }
    }

    /// The version of the NAS.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// The generation of the NAS.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The protocol on the socket.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether datasets can carry properties of users through the API. The betas of 26 accept them at
    /// creation and drop them: read them back.
    pub fn has_user_properties(&self) -> bool {
        self.generation > Generation::Core
    }

    /// Whether snapshots can carry properties of users. 26 takes them at creation through
    /// `zfs.resource.snapshot.create` only.
    pub fn has_snapshot_properties(&self) -> bool {
        self.has_user_properties()
    }

    /// Whether a dataset can be copied on the NAS by a job.
    pub fn has_replication(&self) -> bool {
        self.generation > Generation::Core
    }

    /// Whether snapshots can be held.
    pub fn has_holds(&self) -> bool {
        self.generation >= Generation::V22_12
    }

    /// Whether filters can leave capitals out of account.
    pub(crate) fn has_filters_without_case(&self) -> bool {
        self.generation >= Generation::V22_12
    }

    /// Whether a clone takes properties of users when it is made. 26 refuses all of them but native ones, and
    /// its first beta those, too.
    pub(crate) fn has_clone_properties(&self) -> bool {
        self.generation > Generation::Core && self.generation < Generation::V26
    }

    /// Whether members can be left out of a recursive snapshot.
    pub fn has_snapshot_exclude(&self) -> bool {
        self.generation >= Generation::V22_12
    }

    /// Whether a snapshot can be given another name.
    pub fn has_snapshot_rename(&self) -> bool {
        self.generation >= Generation::V25_10
    }

    /// Whether there is an NVMe-oF target.
    pub fn has_nvmet(&self) -> bool {
        self.generation >= Generation::V25_10
    }

    /// Whether SMB shares have a purpose with options of its own, instead of one flat list.
    pub fn has_smb_purposes(&self) -> bool {
        self.generation >= Generation::V25_10
    }

    /// Whether connections to SMB shares can be asked for.
    pub fn tells_smb_connections(&self) -> bool {
        self.generation >= Generation::V22_12 && self.generation != Generation::V25_10
    }

    /// Whether datasets can be read by path without a walk over all pools.
    pub fn has_resource_query(&self) -> bool {
        self.generation >= Generation::V25_10
    }

    /// Whether `zfs.resource` also destroys and has snapshots.
    pub fn has_resource_destroy(&self) -> bool {
        self.generation >= Generation::V26
    }

    /// The namespace of snapshots.
    pub(crate) fn snapshots(&self) -> &'static str {
        if self.generation >= Generation::V25_10 {
            "pool.snapshot"
        } else {
            "zfs.snapshot"
        }
    }

    /// The error for a function that is not there in this generation.
    pub(crate) fn lacks(&self, what: &str) -> Error {
        let message = format!("{} has no {what}", self.version.text);
        Error::new(Kind::Unsupported, message)
    }

    /// Refuses what came with a later generation.
    pub(crate) fn needs(&self, first: Generation, what: &str) -> Result<(), Error> {
        if self.generation >= first {
            Ok(())
        } else {
            Err(self.lacks(what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_follows_the_numbers_and_never_the_name() {
        for (text, generation) in [
            ("TrueNAS-12.0-U8.1", Generation::Core),
            ("TrueNAS-13.0-U6.7", Generation::Core),
            ("TrueNAS-13.3-U1.2", Generation::Core),
            ("TrueNAS-SCALE-22.02.4", Generation::V22_02),
            ("TrueNAS-SCALE-22.12.4.2", Generation::V22_12),
            ("TrueNAS-SCALE-23.10.2", Generation::V23_10),
            ("TrueNAS-SCALE-24.04.0", Generation::V24_04),
            ("TrueNAS-SCALE-24.10.2", Generation::V24_10),
            ("TrueNAS-25.04.2.6", Generation::V25_04),
            ("25.10.1", Generation::V25_10),
            ("TrueNAS-25.10.6", Generation::V25_10),
            ("TrueNAS-26.0.0-BETA.3", Generation::V26),
            ("TrueNAS-27.0.0-MASTER-20260822", Generation::V26),
            ("Renamed2-OS-25.04.0", Generation::V25_04),
        ] {
            let dialect = Dialect::choose(text, Transport::JsonRpc).expect("known");
            assert_eq!(dialect.generation(), generation, "{text}");
        }
    }

    #[test]
    fn a_version_that_is_not_known_is_refused() {
        for text in ["", "TrueNAS", "FreeNAS-11.3-U5", "TrueNAS-SCALE", "v."] {
            assert!(Dialect::choose(text, Transport::Legacy).is_err(), "{text}");
        }
    }

    #[test]
    fn the_dialect_without_a_nas_is_that_of_its_version() {
        for generation in Generation::ALL {
            let dialect = Dialect::of(generation);
            let chosen = Dialect::choose(dialect.version().text(), dialect.transport());
            assert_eq!(chosen, Ok(dialect));
        }
    }
}
