//! Maps of a request: parameters, contexts, secrets, topology segments.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::v1;
use driver_core::text::MAX_MAP;
use driver_core::volume::Secrets;
use driver_core::{Topology, TopologyRequirement};
use secrecy::SecretString;

use super::{DecodeError, Reason};
use crate::routing::connection::map_size;
use crate::routing::topology::label::{is_label, is_topology_key};

type Map = BTreeMap<String, String>;

/// Owners of keys with a slash in secrets: ours, and what kubelet adds itself.
const SECRET_OWNERS: [&str; 2] = ["democratic-csi.org/", "csi.storage.k8s.io/"];

/// A map of free keys and values.
pub(crate) fn map(field: &'static str, map: Map) -> Result<Map, DecodeError> {
    let bytes = map_size(&map);
    if bytes > MAX_MAP {
        return Err(DecodeError::new(
            field,
            Reason::TooLarge {
                bytes,
                limit: MAX_MAP,
            },
        ));
    }
    Ok(map)
}

/// Secrets; also those of calls that need none, because a caller that breaks the rules here would
/// break them where it matters.
pub(crate) fn secrets(secrets: Map) -> Result<Secrets, DecodeError> {
    let secrets = map("secrets", secrets)?;
    if !secrets.keys().all(|key| is_secret_key(key)) {
        return Err(DecodeError::new("secrets", Reason::SecretKey));
    }
    Ok(secrets
        .into_iter()
        .map(|(key, value)| (key, SecretString::from(value)))
        .collect())
}

fn is_secret_key(key: &str) -> bool {
    let word = |part: &str| {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        !part.is_empty() && part.bytes().all(fine)
    };
    word(key)
        || (SECRET_OWNERS.iter().any(|owner| key.starts_with(owner)) && key.split('/').all(word))
}

/// The required topology of a new volume.
pub(crate) fn requirement(
    requirement: Option<v1::TopologyRequirement>,
) -> Result<TopologyRequirement, DecodeError> {
    let Some(requirement) = requirement else {
        return Ok(TopologyRequirement::default());
    };
    let all = |terms: Vec<v1::Topology>| {
        terms
            .into_iter()
            .map(|term| topology("accessibility_requirements", term))
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(TopologyRequirement {
        requisite: all(requirement.requisite)?,
        preferred: all(requirement.preferred)?,
    })
}

/// One topology. A topology without segments is rejected: some readers take it for "everywhere",
/// others for "nowhere".
pub(crate) fn topology(
    field: &'static str,
    topology: v1::Topology,
) -> Result<Topology, DecodeError> {
    let segments = map(field, topology.segments)?;
    if segments.is_empty() {
        return Err(DecodeError::missing(field));
    }
    let mut seen = BTreeSet::new();
    for (key, value) in &segments {
        let fail = |reason| Err(DecodeError::new(field, reason));
        if !is_topology_key(key) {
            return fail(Reason::TopologyKey(key.clone()));
        }
        if !seen.insert(key.to_ascii_lowercase()) {
            return fail(Reason::TopologyTwice(key.clone()));
        }
        if !is_label(value) {
            return fail(Reason::TopologyValue(key.clone()));
        }
    }
    Ok(Topology::new(segments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_secrets_are_words_or_scoped_to_an_owner_we_know() {
        for good in [
            "mount_flags",
            "node-db.node.session.auth.password",
            "democratic-csi.org/mount_flags",
            "democratic-csi.org/local-hostpath/mount_flags",
            "csi.storage.k8s.io/serviceAccount.tokens",
        ] {
            assert!(is_secret_key(good), "{good:?}");
        }
        for bad in [
            "",
            "a b",
            "a/b",
            "ä",
            "a\n",
            "democratic-csi.org/",
            "democratic-csi.org//a",
            "democratic-csi.org/a b",
        ] {
            assert!(!is_secret_key(bad), "{bad:?}");
        }
    }

    #[test]
    fn topology_keys_and_values_follow_the_rules_of_labels() {
        let place = |key: &str, value: &str| {
            let segments = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            topology("accessible_topology", v1::Topology { segments })
        };
        let long = "a".repeat(63);
        for (key, value) in [
            ("zone", "a"),
            ("org.democratic-csi.topology/node", "node-1.example.org"),
            ("Zone_x.y", &long),
            (&format!("{long}/{long}"), "1"),
        ] {
            assert!(place(key, value).is_ok(), "{key:?} {value:?}");
        }
        let longer = "a".repeat(64);
        for (key, value) in [
            ("", "a"),
            ("/a", "a"),
            ("a/", "a"),
            ("a/b/c", "a"),
            ("A.b/c", "a"),
            ("-a", "a"),
            (&longer, "a"),
            ("a", ""),
            ("a", "-"),
            ("a", "b c"),
            ("a", "../b"),
            ("a", &longer),
        ] {
            assert!(place(key, value).is_err(), "{key:?} {value:?}");
        }
    }

    #[test]
    fn the_same_topology_key_in_another_case_is_the_same_key() {
        let segments = ["Zone", "zone"].map(|key| (key.to_owned(), "a".to_owned()));
        let segments = BTreeMap::from(segments);
        assert!(topology("accessible_topology", v1::Topology { segments }).is_err());
    }
}
