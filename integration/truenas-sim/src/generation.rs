//! The releases that can be simulated, and what differs between them apart from fields and methods.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A generation of TrueNAS, named after the release whose code it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Generation {
    /// CORE 13.0-U6.8.
    #[serde(rename = "core13")]
    Core13,
    /// SCALE 22.12.4.2.
    #[serde(rename = "22.12")]
    V22_12,
    /// SCALE 24.10.2.4.
    #[serde(rename = "24.10")]
    V24_10,
    /// 25.04.2.6.
    #[serde(rename = "25.04")]
    V25_04,
    /// 25.10.6.
    #[serde(rename = "25.10")]
    V25_10,
    /// 26.0.0-BETA.3.
    #[serde(rename = "26-beta")]
    V26Beta,
    /// The release branch of 26.0.0-RC.1.
    #[serde(rename = "26-rc")]
    V26Rc,
}

impl Generation {
    /// Every generation, oldest first.
    pub const ALL: [Self; 7] = [
        Self::Core13,
        Self::V22_12,
        Self::V24_10,
        Self::V25_04,
        Self::V25_10,
        Self::V26Beta,
        Self::V26Rc,
    ];

    /// The name used on the command line and by the control endpoint.
    pub fn name(self) -> &'static str {
        match self {
            Self::Core13 => "core13",
            Self::V22_12 => "22.12",
            Self::V24_10 => "24.10",
            Self::V25_04 => "25.04",
            Self::V25_10 => "25.10",
            Self::V26Beta => "26-beta",
            Self::V26Rc => "26-rc",
        }
    }

    /// The answer of `system.version`.
    pub fn version(self) -> &'static str {
        match self {
            Self::Core13 => "TrueNAS-13.0-U6.8",
            Self::V22_12 => "TrueNAS-SCALE-22.12.4.2",
            Self::V24_10 => "TrueNAS-SCALE-24.10.2.4",
            Self::V25_04 => "TrueNAS-25.04.2.6",
            Self::V25_10 => "TrueNAS-25.10.6",
            Self::V26Beta => "TrueNAS-26.0.0-BETA.3",
            Self::V26Rc => "TrueNAS-26.0.0-RC.1",
        }
    }

    /// The answer of `system.version_short`.
    pub fn version_short(self) -> &'static str {
        let version = self.version();
        version
            .strip_prefix("TrueNAS-SCALE-")
            .or_else(|| version.strip_prefix("TrueNAS-"))
            .unwrap_or(version)
    }

    /// The list of `GET /api/versions`. `None`: the release has no such page.
    pub fn api_versions(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Core13 | Self::V22_12 | Self::V24_10 => None,
            Self::V25_04 => Some(&["v25.04.0", "v25.04.1", "v25.04.2"]),
            // Recorded on 25.10.6.
            Self::V25_10 => Some(&[
                "v25.04.0", "v25.04.1", "v25.04.2", "v25.10.0", "v25.10.1", "v25.10.2", "v25.10.3",
                "v25.10.4", "v25.10.5",
            ]),
            Self::V26Beta => Some(&[
                "v25.04.0", "v25.04.1", "v25.04.2", "v25.10.0", "v25.10.1", "v25.10.2", "v25.10.3",
                "v25.10.4", "v26.0.0",
            ]),
            Self::V26Rc => Some(&[
                "v25.04.0", "v25.04.1", "v25.04.2", "v25.10.0", "v25.10.1", "v25.10.2", "v25.10.3",
                "v25.10.4", "v25.10.5", "v26.0.0",
            ]),
        }
    }

    /// JSON-RPC 2.0 on `/api/current`.
    pub fn has_jsonrpc(self) -> bool {
        self >= Self::V25_04
    }

    /// Whether the route of this name is that of the newest version.
    pub(crate) fn is_current_version(self, version: &str) -> bool {
        let newest = self.api_versions().and_then(|all| all.last());
        newest.is_some_and(|newest| version == "current" || version == *newest)
    }

    /// REST under `/api/v2.0`.
    pub fn has_rest(self) -> bool {
        self < Self::V26Beta
    }

    /// `GET /api/boot_id`.
    pub fn has_boot_id_page(self) -> bool {
        self >= Self::V25_10
    }

    /// One of the two 26 releases.
    pub fn is_26(self) -> bool {
        self >= Self::V26Beta
    }

    /// FreeBSD with the system's own iSCSI target.
    pub fn is_core(self) -> bool {
        self == Self::Core13
    }

    pub(crate) fn table_text(self) -> &'static str {
        match self {
            Self::Core13 => include_str!("../tables/core-13.tsv"),
            Self::V22_12 => include_str!("../tables/22.12.tsv"),
            Self::V24_10 => include_str!("../tables/24.10.tsv"),
            Self::V25_04 => include_str!("../tables/25.04.tsv"),
            Self::V25_10 => include_str!("../tables/25.10.tsv"),
            Self::V26Beta => include_str!("../tables/26-beta.tsv"),
            Self::V26Rc => include_str!("../tables/26-rc.tsv"),
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Generation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|generation| generation.name() == text)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL
                    .iter()
                    .map(|generation| generation.name())
                    .collect();
                format!("no generation {text:?}; there are {}", names.join(", "))
            })
    }
}
