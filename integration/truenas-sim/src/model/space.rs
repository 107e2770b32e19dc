//! Space and properties of the model: what is used, what is left, what is inherited.

use std::collections::BTreeMap;

use super::state::{Node, State};
use crate::backend::{Dataset, Kind, Pool, Property, Source};

/// Properties that a child takes from its parent, and their defaults in ZFS.
const INHERITED: [(&str, &str); 15] = [
    ("aclmode", "discard"),
    ("acltype", "posix"),
    ("atime", "on"),
    ("checksum", "on"),
    ("compression", "off"),
    ("copies", "1"),
    ("dedup", "off"),
    ("exec", "on"),
    ("readonly", "off"),
    ("recordsize", "131072"),
    ("snapdev", "hidden"),
    ("snapdir", "hidden"),
    ("special_small_blocks", "0"),
    ("sync", "standard"),
    ("xattr", "sa"),
];

/// Properties of one dataset alone.
const OWN: [(&str, &str); 5] = [
    ("quota", "0"),
    ("refquota", "0"),
    ("reservation", "0"),
    ("refreservation", "0"),
    ("casesensitivity", "sensitive"),
];

/// Bytes taken by each dataset and all below, and by its children alone; reservations are included.
#[derive(Default)]
pub(super) struct Usage<'a> {
    used: BTreeMap<&'a str, u64>,
    children: BTreeMap<&'a str, u64>,
}

impl Usage<'_> {
    fn of(&self, name: &str) -> u64 {
        self.used.get(name).copied().unwrap_or_default()
    }
}

fn bytes(node: &Node, property: &str) -> u64 {
    node.local
        .get(property)
        .and_then(|raw| raw.parse().ok())
        .unwrap_or_default()
}

impl State {
    pub(super) fn pools(&self) -> Vec<Pool> {
        let usage = self.usage();
        let pool = |(name, size): (&String, &u64)| Pool {
            name: name.clone(),
            size: *size,
            allocated: usage.of(name),
            status: self
                .statuses
                .get(name)
                .cloned()
                .unwrap_or_else(|| "ONLINE".to_owned()),
        };
        self.sizes.iter().map(pool).collect()
    }

    /// The usage of every dataset, in one pass: a child stands after its parent.
    pub(super) fn usage(&self) -> Usage<'_> {
        let mut usage = Usage::default();
        for (name, node) in self.nodes.iter().rev() {
            let own = node.referenced.max(bytes(node, "refreservation"));
            let children = usage
                .children
                .get(name.as_str())
                .copied()
                .unwrap_or_default();
            let used = (own + children).max(bytes(node, "reservation"));
            usage.used.insert(name, used);
            if let Some((parent, _)) = name.rsplit_once('/') {
                *usage.children.entry(parent).or_default() += used;
            }
        }
        usage
    }

    /// Everything below a dataset. The character after `/` ends the range.
    pub(super) fn subtree(&self, name: &str) -> impl Iterator<Item = &String> {
        let (from, to) = (format!("{name}/"), format!("{name}0"));
        self.nodes.range(from..to).map(|(name, _)| name)
    }

    /// Whether a pool or a quota above holds more than it may.
    pub(super) fn overcommitted(&self, name: &str) -> bool {
        let usage = self.usage();
        let pool = name.split('/').next().unwrap_or_default();
        if usage.of(pool) > self.sizes.get(pool).copied().unwrap_or_default() {
            return true;
        }
        ancestors(name).skip(1).any(|ancestor| {
            let quota = self
                .nodes
                .get(ancestor)
                .map(|node| bytes(node, "quota"))
                .unwrap_or_default();
            quota > 0 && usage.of(ancestor) > quota
        })
    }

    fn available(&self, name: &str, usage: &Usage<'_>) -> u64 {
        let pool = name.split('/').next().unwrap_or_default();
        let mut left = self
            .sizes
            .get(pool)
            .copied()
            .unwrap_or_default()
            .saturating_sub(usage.of(pool));
        for ancestor in ancestors(name) {
            let Some(node) = self.nodes.get(ancestor) else {
                continue;
            };
            let quota = bytes(node, "quota");
            if quota > 0 {
                left = left.min(quota.saturating_sub(usage.of(ancestor)));
            }
        }
        let Some(node) = self.nodes.get(name) else {
            return left;
        };
        left += bytes(node, "refreservation").saturating_sub(node.referenced);
        match bytes(node, "refquota") {
            0 => left,
            refquota => left.min(refquota.saturating_sub(node.referenced)),
        }
    }

    pub(super) fn dataset(&self, name: &str, usage: &Usage<'_>) -> Dataset {
        let node = &self.nodes[name];
        let mut properties = BTreeMap::new();
        for (property, default) in INHERITED {
            properties.insert(property.to_owned(), self.inherited(name, property, default));
        }
        for (property, default) in OWN {
            properties.insert(property.to_owned(), own(node, property, default));
        }
        let mut fixed = |property: &str, raw: String| {
            properties.insert(
                property.to_owned(),
                Property {
                    raw,
                    source: Source::None,
                },
            );
        };
        self.measures(name, node, usage, &mut fixed);
        self.encryption(name, &mut fixed);
        match node.kind {
            Kind::Filesystem => {
                let is_mounted = !self.is_locked(name) && !self.unmounted.contains(name);
                let mounted = if is_mounted { "yes" } else { "no" };
                fixed("mounted", mounted.to_owned());
                fixed("canmount", "on".to_owned());
                properties.insert(
                    "mountpoint".to_owned(),
                    Property {
                        raw: format!("/mnt/{name}"),
                        source: Source::Default,
                    },
                );
            }
            Kind::Volume => {
                properties.insert("volsize".to_owned(), own(node, "volsize", "0"));
                properties.insert(
                    "volblocksize".to_owned(),
                    own(node, "volblocksize", "16384"),
                );
                for property in [
                    "atime",
                    "recordsize",
                    "aclmode",
                    "acltype",
                    "casesensitivity",
                    "quota",
                    "refquota",
                    "snapdir",
                    "xattr",
                    "exec",
                ] {
                    properties.remove(property);
                }
            }
        }
        Dataset {
            name: name.to_owned(),
            kind: node.kind,
            properties,
            user: self.user_properties(name),
        }
    }

    /// Sizes, times and other properties that cannot be set.
    fn measures(
        &self,
        name: &str,
        node: &Node,
        usage: &Usage<'_>,
        fixed: &mut impl FnMut(&str, String),
    ) {
        let used = usage.of(name);
        fixed("used", used.to_string());
        fixed(
            "usedbychildren",
            usage
                .children
                .get(name)
                .copied()
                .unwrap_or_default()
                .to_string(),
        );
        fixed("usedbydataset", node.referenced.to_string());
        fixed(
            "usedbyrefreservation",
            bytes(node, "refreservation")
                .saturating_sub(node.referenced)
                .to_string(),
        );
        fixed("usedbysnapshots", "0".to_owned());
        fixed("available", self.available(name, usage).to_string());
        fixed("referenced", node.referenced.to_string());
        fixed("creation", node.created.to_string());
        fixed("createtxg", node.created.to_string());
        fixed("guid", (node.created ^ 0xda7a_5e70_0000).to_string());
        fixed("origin", node.origin.clone().unwrap_or_default());
        fixed("compressratio", "1.00".to_owned());
        fixed(
            "type",
            if node.kind == Kind::Volume {
                "volume"
            } else {
                "filesystem"
            }
            .to_owned(),
        );
    }

    fn encryption(&self, name: &str, fixed: &mut impl FnMut(&str, String)) {
        let root = ancestors(name)
            .find(|each| self.nodes.get(*each).is_some_and(|node| node.key.is_some()));
        let Some((root, node)) = root.and_then(|root| Some((root, self.nodes.get(root)?))) else {
            fixed("encryption", "off".to_owned());
            fixed("keyformat", "none".to_owned());
            fixed("pbkdf2iters", "0".to_owned());
            fixed("keystatus", "-".to_owned());
            fixed("encryptionroot", String::new());
            return;
        };
        let setting = |property: &str, default: &str| {
            node.local
                .get(property)
                .cloned()
                .unwrap_or_else(|| default.to_owned())
        };
        fixed("encryption", setting("encryption", "aes-256-gcm"));
        fixed("keyformat", setting("keyformat", "hex"));
        fixed("pbkdf2iters", setting("pbkdf2iters", "0"));
        fixed("encryptionroot", root.to_owned());
        let key = if self.is_locked(name) {
            "unavailable"
        } else {
            "available"
        };
        fixed("keystatus", key.to_owned());
    }

    fn is_locked(&self, name: &str) -> bool {
        ancestors(name)
            .filter_map(|each| self.nodes.get(each))
            .any(|node| node.key.is_some() && !node.key_loaded)
    }

    fn inherited(&self, name: &str, property: &str, default: &str) -> Property {
        for ancestor in ancestors(name) {
            if let Some(raw) = self
                .nodes
                .get(ancestor)
                .and_then(|node| node.local.get(property))
            {
                let source = if ancestor == name {
                    Source::Local
                } else {
                    Source::Inherited(ancestor.to_owned())
                };
                return Property {
                    raw: raw.clone(),
                    source,
                };
            }
        }
        Property {
            raw: default.to_owned(),
            source: Source::Default,
        }
    }

    fn user_properties(&self, name: &str) -> BTreeMap<String, Property> {
        let mut user = BTreeMap::new();
        for ancestor in ancestors(name) {
            let Some(node) = self.nodes.get(ancestor) else {
                continue;
            };
            for (key, raw) in &node.user {
                let source = if ancestor == name {
                    Source::Local
                } else {
                    Source::Inherited(ancestor.to_owned())
                };
                user.entry(key.clone()).or_insert_with(|| Property {
                    raw: raw.clone(),
                    source,
                });
            }
        }
        user
    }
}

fn own(node: &Node, property: &str, default: &str) -> Property {
    match node.local.get(property) {
        Some(raw) => Property {
            raw: raw.clone(),
            source: Source::Local,
        },
        None => Property {
            raw: default.to_owned(),
            source: Source::Default,
        },
    }
}

/// The dataset itself, its parent, and so on up to the pool.
fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| {
        name.rsplit_once('/').map(|(parent, _)| parent)
    })
}
