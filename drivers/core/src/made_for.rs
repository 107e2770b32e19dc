//! The claim and the persistent volume that a volume was made for, as the provisioner names them with
//! `--extra-create-metadata`. Storage keeps them, so that objects of a lost cluster can be written again.

use std::fmt;

use crate::parameters::Parameters;

/// The longest name of an object of Kubernetes.
const MAX_NAME: usize = 253;
/// The longest name of a namespace, which is one label (RFC 1123).
const MAX_NAMESPACE: usize = 63;
/// Keys of the provisioner.
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const PERSISTENT_VOLUME: &str = "csi.storage.k8s.io/pv/name";

/// The name of an object of Kubernetes: labels of lower case letters, digits and `-`, with dots between them (RFC 1123).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(String);

/// A claim by its namespace and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// Its namespace.
    pub namespace: ObjectName,
    /// Its name there.
    pub name: ObjectName,
}

/// The objects that a volume was made for, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MadeFor {
    /// Its claim.
    pub claim: Option<Claim>,
    /// Its persistent volume.
    pub persistent_volume: Option<ObjectName>,
}

// === impl ObjectName ===

impl ObjectName {
    /// A name that an object can have.
    pub fn parse(text: &str) -> Option<Self> {
        let valid = text.len() <= MAX_NAME && text.split('.').all(is_label);
        valid.then(|| Self(text.to_owned()))
    }

    /// A name that a namespace can have: shorter, and without dots.
    pub fn parse_namespace(text: &str) -> Option<Self> {
        let valid = text.len() <= MAX_NAMESPACE && is_label(text);
        valid.then(|| Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether it is a label: it begins and ends with a letter or a digit.
fn is_label(text: &str) -> bool {
    let word = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(word)
        && bytes.last().is_some_and(word)
        && bytes.iter().all(|byte| word(byte) || *byte == b'-')
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Claim ===

impl Claim {
    /// Reads `namespace/name`.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        Some(Self {
            namespace: ObjectName::parse_namespace(namespace)?,
            name: ObjectName::parse(name)?,
        })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl MadeFor ===

impl MadeFor {
    /// The objects that the request of a volume names. A name that no object can have counts as none.
    pub fn of(parameters: &Parameters) -> Self {
        let of = |key| parameters.raw().get(key);
        let name = |key| of(key).and_then(|text| ObjectName::parse(text));
        let namespace = of(CLAIM_NAMESPACE).and_then(|text| ObjectName::parse_namespace(text));
        let claim = namespace.zip(name(CLAIM_NAME));
        Self {
            claim: claim.map(|(namespace, name)| Claim { namespace, name }),
            persistent_volume: name(PERSISTENT_VOLUME),
        }
    }

    /// The parameters of a request that names them.
    pub fn to_parameters(&self) -> Parameters {
        let claim = self.claim.iter().flat_map(|claim| {
            [
                (CLAIM_NAMESPACE, &claim.namespace),
                (CLAIM_NAME, &claim.name),
            ]
        });
        let volume = self.persistent_volume.iter();
        let all = claim.chain(volume.map(|name| (PERSISTENT_VOLUME, name)));
        let text = |(key, name): (&str, &ObjectName)| (key.to_owned(), name.as_str().to_owned());
        Parameters::new(all.map(text).collect())
    }

    /// The same as storage keeps them.
    pub fn read(claim: Option<&str>, persistent_volume: Option<&str>) -> Self {
        Self {
            claim: claim.and_then(Claim::parse),
            persistent_volume: persistent_volume.and_then(ObjectName::parse),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_object_can_be_called_is_a_name() {
        let longest = "a".repeat(MAX_NAME);
        for good in ["a", "pvc-0a1b", "data.web-0", "0", &longest] {
            assert!(ObjectName::parse(good).is_some(), "{good}");
        }
        let longer = "a".repeat(MAX_NAME + 1);
        for bad in [
            "", "-a", "a-", "A", "a b", "a\n", "a/b", "a:b", "é", ".", "a.", ".a", "a..b", "a.-b",
            "a-.b", &longer,
        ] {
            assert!(ObjectName::parse(bad).is_none(), "{bad}");
        }
        let longest = "a".repeat(MAX_NAMESPACE);
        for good in ["a", "0", "kube-system", &longest] {
            assert!(ObjectName::parse_namespace(good).is_some(), "{good}");
        }
        let longer = "a".repeat(MAX_NAMESPACE + 1);
        for bad in ["", "a.b", "-a", "a-", "A", &longer] {
            assert!(ObjectName::parse_namespace(bad).is_none(), "{bad}");
        }
        assert_eq!(
            Claim::parse("shop/data").expect("one").to_string(),
            "shop/data"
        );
        for bad in [
            "shop",
            "shop/",
            "/data",
            "shop/data/x",
            "shop/Data",
            "a.b/data",
        ] {
            assert!(Claim::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_request_names_them_and_what_it_names_is_read_again() {
        let pairs = [
            (CLAIM_NAMESPACE, "shop"),
            (CLAIM_NAME, "data"),
            (PERSISTENT_VOLUME, "pvc-1"),
        ];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let named = MadeFor::of(&Parameters::new(pairs.into()));
        assert_eq!(named, MadeFor::read(Some("shop/data"), Some("pvc-1")));
        assert!(named.claim.is_some() && named.persistent_volume.is_some());
        assert_eq!(MadeFor::of(&named.to_parameters()), named);
        // What no namespace can be called makes the claim unknown, and the volume is made all the same.
        let odd = [
            (CLAIM_NAMESPACE, "a.b"),
            (CLAIM_NAME, "data"),
            (PERSISTENT_VOLUME, "a..b"),
        ];
        let odd = odd.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(
            MadeFor::of(&Parameters::new(odd.into())),
            MadeFor::default()
        );
        assert_eq!(
            MadeFor::read(Some("a.b/data"), Some("a..b")),
            MadeFor::default()
        );
        let half = [(CLAIM_NAME.to_owned(), "data".to_owned())];
        let half = MadeFor::of(&Parameters::new(half.into()));
        assert_eq!(half, MadeFor::default());
    }
}
