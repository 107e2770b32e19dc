//! The name of the plugin, as the orchestrator has it.

use std::fmt;

/// The name of the plugin: a domain name of at most 63 characters. Stored in every volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginName(String);

/// Why a plugin name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a CSI name has 1 to 63 letters, digits, dots and dashes, and begins and ends with a letter or digit"
)]
pub struct PluginNameError;

// === impl PluginName ===

impl PluginName {
    /// Checks the alphabet and the length.
    pub fn parse(name: &str) -> Result<Self, PluginNameError> {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
        let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
        let fine = name.len() <= 63
            && name.bytes().all(inner)
            && edge(name.bytes().next())
            && edge(name.bytes().last());
        fine.then(|| Self(name.to_owned())).ok_or(PluginNameError)
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_names_are_domain_names_of_at_most_63_characters() {
        for good in ["a", "org.democratic-csi.nfs", "X.y-z.9", &"a".repeat(63)] {
            assert!(PluginName::parse(good).is_ok(), "{good:?}");
        }
        for bad in [
            "",
            ".a",
            "a.",
            "-a",
            "a_b",
            "a b",
            "a/b",
            "é",
            &"a".repeat(64),
        ] {
            assert_eq!(PluginName::parse(bad), Err(PluginNameError), "{bad:?}");
        }
    }
}
