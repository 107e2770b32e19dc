//! The version of the CSI specification that the operator declares with `--csi-version`.
//!
//! It gates what is advertised, never what is served: a call that an older orchestrator does not
//! know simply does not come. compat: "Command line".

use std::fmt;
use std::str::FromStr;

/// A version of the specification, `1.x.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CsiVersion {
    minor: u8,
}

/// Why a version is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsiVersionError {
    /// The orchestrator would call a package of another name.
    #[error("CSI {0} has another wire protocol and cannot be served; use 1.0.0 or later")]
    BeforeOne(String),
    /// Not a version of the specification that this build knows.
    #[error("`{}` is not a CSI version; known are 1.0.0 to {}{}", .0.escape_debug(), CsiVersion::NEWEST, meant(.0))]
    Unknown(String),
}

// === impl CsiVersion ===

impl CsiVersion {
    /// The oldest that is served.
    pub const OLDEST: Self = Self::minor(0);
    /// The newest that this build knows.
    pub const NEWEST: Self = Self::minor(13);

    /// Version `1.minor.0`, for tables.
    pub const fn minor(minor: u8) -> Self {
        Self { minor }
    }

    /// Every version that is served, oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (Self::OLDEST.minor..=Self::NEWEST.minor).map(Self::minor)
    }
}

impl FromStr for CsiVersion {
    type Err = CsiVersionError;

    fn from_str(text: &str) -> Result<Self, CsiVersionError> {
        if matches!(text, "0.2.0" | "0.3.0") {
            return Err(CsiVersionError::BeforeOne(text.to_owned()));
        }
        Self::all()
            .find(|version| version.to_string() == text)
            .ok_or_else(|| CsiVersionError::Unknown(text.to_owned()))
    }
}

/// The version that may have been meant: with the last number left out, or a `v` before it.
fn meant(text: &str) -> String {
    let short = text.trim().trim_start_matches('v');
    let version = CsiVersion::all().map(|version| version.to_string());
    let mut version =
        version.filter(|version| version == short || version.strip_suffix(".0") == Some(short));
    version
        .next()
        .map(|version| format!("; is {version} meant?"))
        .unwrap_or_default()
}

impl fmt::Display for CsiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.0", self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_that_is_served_reads_back_as_itself_and_in_order() {
        let all: Vec<_> = CsiVersion::all().collect();
        assert_eq!(all.len(), 14);
        assert!(all.is_sorted());
        for version in all {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
    }

    #[test]
    fn the_newest_version_is_the_one_whose_wire_types_we_carry() {
        assert_eq!(csi_proto::SPEC_VERSION.parse(), Ok(CsiVersion::NEWEST));
    }

    #[test]
    fn a_version_without_its_last_number_is_proposed_with_it() {
        for (text, said) in [("1.5", "is 1.5.0 meant?"), ("v1.12.0", "is 1.12.0 meant?")] {
            let error = text.parse::<CsiVersion>().expect_err(text).to_string();
            assert!(error.ends_with(said), "{error}");
        }
        let error = "9"
            .parse::<CsiVersion>()
            .expect_err("no version")
            .to_string();
        assert!(!error.contains("meant"), "{error}");
    }

    #[test]
    fn versions_that_cannot_work_are_refused_by_name() {
        assert_eq!(
            "0.3.0".parse::<CsiVersion>(),
            Err(CsiVersionError::BeforeOne("0.3.0".into()))
        );
        for bad in ["", "1", "1.5", "v1.5.0", "1.14.0", "2.0.0", "1.05.0"] {
            assert!(
                matches!(bad.parse::<CsiVersion>(), Err(CsiVersionError::Unknown(_))),
                "{bad:?}"
            );
        }
    }
}
