//! The attributes of a pod's image volume, checked, because each becomes a word of a command.
//!
//! The attributes are those of democratic-csi. compat: "Inline volumes".

use std::collections::BTreeMap;
use std::fmt;

use csi_types::VolumeContext;
use driver_core::Error;
use secrecy::SecretString;

/// The longest reference of an image.
const MAX_REFERENCE: usize = 512;
/// The longest key and value of a label together: containerd keeps no more.
const MAX_LABEL: usize = 4096;
/// The registry of images that name none.
const DOCKER: &str = "docker.io";

/// The full reference of an image: with its registry, and with a tag or a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference(String);

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PullPolicy {
    /// Always.
    Always,
    /// If it is missing.
    IfNotPresent,
    /// Never.
    Never,
}

/// The attributes of one volume.
#[derive(Debug)]
pub(super) struct Attributes {
    pub(super) image: Reference,
    pub(super) pull: PullPolicy,
    pub(super) platform: Option<String>,
    /// The user of the registry, with a password or without: `user[:password]`.
    pub(super) user: Option<SecretString>,
    /// Labels of the snapshot.
    pub(super) labels: BTreeMap<String, String>,
}

/// Why an attribute is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("is missing")]
    Missing,
    #[error("is not the name of an image")]
    Reference,
    #[error("is none of Always, IfNotPresent and Never")]
    PullPolicy,
    #[error("is not a platform as `linux/arm64`")]
    Platform,
    #[error("is not a label that pods may set")]
    Label,
}

fn refused(key: &str, why: Refused) -> Error {
    Error::invalid(format!("volume attribute `{}`", key.escape_debug())).because(why)
}

// === impl Attributes ===

impl Attributes {
    pub(super) fn parse(attributes: &VolumeContext) -> Result<Self, Error> {
        let given = |key: &str| attributes.get(key).filter(|value| !value.is_empty());
        let reference =
            given("image.reference").ok_or_else(|| refused("image.reference", Refused::Missing))?;
        let image = Reference::parse(reference).map_err(|why| refused("image.reference", why))?;
        let pull = match given("image.pullPolicy") {
            Some(word) => PullPolicy::parse(word)
                .ok_or_else(|| refused("image.pullPolicy", Refused::PullPolicy))?,
            // As Kubernetes does.
            None if image.0.ends_with(":latest") => PullPolicy::Always,
            None => PullPolicy::IfNotPresent,
        };
        let platform = given("image.platform").cloned();
        if platform.as_deref().is_some_and(|text| !is_platform(text)) {
            return Err(refused("image.platform", Refused::Platform));
        }
        let user = given("image.user").map(|user| SecretString::from(user.as_str()));
        let mut labels = BTreeMap::new();
        for (key, value) in attributes {
            let Some(label) = key.strip_prefix("snapshot.label.") else {
                continue;
            };
            if !is_label(label, value) {
                return Err(refused(key, Refused::Label));
            }
            labels.insert(label.to_owned(), value.clone());
        }
        Ok(Self {
            image,
            pull,
            platform,
            user,
            labels,
        })
    }
}

fn is_platform(text: &str) -> bool {
    let parts: Vec<_> = text.split('/').collect();
    let word = |part: &&str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    text.len() <= 64 && (1..=3).contains(&parts.len()) && parts.iter().all(word)
}

/// Labels of containerd's own steer what it deletes: of those only the one that keeps a snapshot, which
/// this driver sets anyhow, and which classes of democratic-csi have for that reason.
fn is_label(label: &str, value: &str) -> bool {
    let ours = label.starts_with("omnibus-csi") || label.starts_with("containerd.io/");
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    (!ours || label == super::KEEP)
        && label.starts_with(|c: char| c.is_ascii_alphanumeric())
        && label.chars().all(plain)
        && !value.chars().any(char::is_control)
        && label.len() + value.len() < MAX_LABEL
}

// === impl Reference ===

impl Reference {
    /// Reads a name as `docker pull` does: without a registry it is one of Docker's, without a tag it is
    /// `latest`.
    fn parse(text: &str) -> Result<Self, Refused> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if text.len() > MAX_REFERENCE || !begins || !text.chars().all(plain) || text.contains("//")
        {
            return Err(Refused::Reference);
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(Refused::Reference);
        }
        let (registry, path) = match name.split_once('/') {
            Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => {
                (first, path.to_owned())
            }
            Some(_) => (DOCKER, name.to_owned()),
            None => (DOCKER, format!("library/{name}")),
        };
        let (path, tag) = match path.split_once(':') {
            Some((path, tag)) => (path.to_owned(), Some(tag.to_owned())),
            None => (path, None),
        };
        let part =
            |part: &str| part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        let tag_fits = |tag: &String| !tag.is_empty() && !tag.contains([':', '/', '@']);
        if !path.split('/').all(part)
            || path.contains(|c: char| c.is_ascii_uppercase())
            || path.ends_with('/')
            || !tag.as_ref().is_none_or(tag_fits)
        {
            return Err(Refused::Reference);
        }
        let tag = match (tag, digest) {
            (Some(tag), _) => format!(":{tag}"),
            (None, Some(_)) => String::new(),
            (None, None) => ":latest".to_owned(),
        };
        let digest = digest
            .map(|digest| format!("@{digest}"))
            .unwrap_or_default();
        Ok(Self(format!("{registry}/{path}{tag}{digest}")))
    }

    /// The text, as `ctr` takes it.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the registry, with its port.
    pub(super) fn registry(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, hash)) = text.split_once(':') else {
        return false;
    };
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    matches!((algorithm, hash.len()), ("sha256", 64) | ("sha512", 128)) && hash.bytes().all(hex)
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl PullPolicy ===

impl PullPolicy {
    fn parse(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "always" => Some(Self::Always),
            "ifnotpresent" => Some(Self::IfNotPresent),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use driver_core::Kind;

    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Attributes, Error> {
        let pairs = pairs.iter();
        let pairs = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Attributes::parse(&pairs.collect())
    }

    #[test]
    fn images_have_the_names_that_docker_gives_them() {
        let digest = format!("sha256:{}", "a0".repeat(32));
        for (text, whole, pull) in [
            (
                "busybox",
                "docker.io/library/busybox:latest",
                PullPolicy::Always,
            ),
            ("joe/app:1", "docker.io/joe/app:1", PullPolicy::IfNotPresent),
            ("localhost/a", "localhost/a:latest", PullPolicy::Always),
            (
                "reg.example:5000/a/b:x",
                "reg.example:5000/a/b:x",
                PullPolicy::IfNotPresent,
            ),
            (
                &format!("reg.example/a@{digest}"),
                &format!("reg.example/a@{digest}"),
                PullPolicy::IfNotPresent,
            ),
            (
                &format!("reg.example/a:1@{digest}"),
                &format!("reg.example/a:1@{digest}"),
                PullPolicy::IfNotPresent,
            ),
        ] {
            let attributes = parse(&[("image.reference", text)]).expect(text);
            assert_eq!(attributes.image.as_str(), whole, "{text}");
            assert_eq!(attributes.pull, pull, "{text}");
        }
        let image = Reference::parse("reg.example:5000/a").expect("a name");
        assert_eq!(image.registry(), "reg.example:5000");
    }

    #[test]
    fn hostile_attributes_are_refused() {
        for text in [
            "",
            "-f",
            "--rw",
            "a b",
            "a\nb",
            "../a",
            "/etc/passwd",
            "a//b",
            "a;b",
            "$(x)",
            "a@sha256:1",
            "reg.example/../a",
            "a:",
            "a:b:c",
            "A",
            "a/",
            "a@",
            "é",
            &"a".repeat(513),
        ] {
            let error = parse(&[("image.reference", text)]).expect_err(text);
            assert_eq!(error.kind(), Kind::Invalid, "{text:?}");
        }
        for (key, value) in [
            ("image.pullPolicy", "sometimes"),
            ("image.platform", "--rw"),
            ("image.platform", "linux/amd64/v1/x"),
            ("image.platform", "linux amd64"),
            ("snapshot.label.-f", "x"),
            ("snapshot.label.", "x"),
            ("snapshot.label.a=b", "x"),
            (
                "snapshot.label.containerd.io/gc.expire",
                "2020-01-01T00:00:00Z",
            ),
            ("snapshot.label.omnibus-csi/volume", "csi-other"),
            ("snapshot.label.a", "x\ny"),
        ] {
            let error = parse(&[("image.reference", "a"), (key, value)]).expect_err(key);
            assert_eq!(error.kind(), Kind::Invalid, "{key}={value}");
        }
        let good = parse(&[
            ("image.reference", "a"),
            ("image.pullPolicy", "NEVER"),
            ("image.platform", "linux/arm64/v8"),
            ("image.user", "joe:hunter2"),
            ("snapshot.label.example.org/team", "a=b c"),
            ("snapshot.label.containerd.io/gc.root", "x"),
            ("csi.storage.k8s.io/ephemeral", "true"),
        ])
        .expect("good");
        assert_eq!((good.pull, good.labels.len()), (PullPolicy::Never, 2));
        assert!(!format!("{good:?}").contains("hunter2"));
    }
}
