//! `containerd-oci-ephemeral-inline`: each volume is the content of an image, in a snapshot of its own.
//!
//! `ctr images mount` makes the snapshot, whose key is the target, and mounts it. containerd forgets such a
//! snapshot after a day, with the pod still using it; so it is labelled to be kept, and with the volume that
//! it is. What a killed process leaves is found by the key, or forgotten by containerd. compat: "Inline
//! volumes".

mod attributes;
mod ctr;

use async_trait::async_trait;
use csi_types::AbsolutePath;
use driver_core::config::{ConfigError, Document};
use driver_core::secrets::scoped;
use driver_core::{
    AccessRules, BackendIdentity, Call, CreateVolume, DeleteVolume, Driver, Error, InlineFound,
    InlineMount, InlineVolume, InlineVolumes, Kind, NodeId, Parameters, Secrets, Volume, VolumeId,
    VolumeName,
};
use exec::Program;
use node_utils::node::pods;
use node_utils::{Tools, blocking};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use self::attributes::{Attributes, PullPolicy};
use self::ctr::{Credentials, Ctr};
use crate::factory::{CONTAINERD, unsupported};
use crate::zfs::one_pod;

/// The label by which containerd keeps a snapshot.
const KEEP: &str = "containerd.io/gc.root";
/// The label that says which volume a snapshot is.
const VOLUME: &str = "omnibus-csi/volume";
/// The name of the section.
const SECTION: &str = "containerd";

/// `containerd`, as it is written.
#[derive(Debug, Default, Deserialize)]
struct Section {
    /// Its socket, as the host sees it.
    #[serde(default)]
    address: Option<String>,
    /// Its namespace.
    #[serde(default)]
    namespace: Option<String>,
    /// The program that keeps its snapshots.
    #[serde(default)]
    snapshotter: Option<String>,
    /// The way `ctr` is run.
    #[serde(default)]
    cli: Cli,
}

/// `containerd.cli`.
#[derive(Debug, Default, Deserialize)]
struct Cli {
    #[serde(default)]
    paths: Paths,
}

/// `containerd.cli.paths`.
#[derive(Debug, Default, Deserialize)]
struct Paths {
    #[serde(default)]
    ctr: Option<String>,
}

/// Volumes that are the content of images and live with a pod.
#[derive(Debug)]
pub struct ContainerdInline {
    identity: BackendIdentity,
    instance: Option<String>,
    ctr: Ctr,
}

/// Why a secret is refused.
#[derive(Debug, thiserror::Error)]
#[error("the secret of the pod has `{0}` and not `{1}`")]
struct HalfCredentials(&'static str, &'static str);

// === impl ContainerdInline ===

impl ContainerdInline {
    /// The driver of one connection. Touches no storage.
    pub fn read(document: &Document, node: &NodeId, tools: &Tools) -> Result<Self, ConfigError> {
        document.without_effect(&[("containerd.windowsAddress", "there is no Windows node here")]);
        let common = document.common()?;
        let section: Section = document.optional_section(SECTION)?.unwrap_or_default();
        let word = |key: &str, text: Option<String>| {
            let Some(text) = text.filter(|text| !text.is_empty()) else {
                return Ok(None);
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
            if text.starts_with('-') || !text.chars().all(plain) {
                return Err(ConfigError::at(
                    format!("{SECTION}.{key}"),
                    "has a character that it cannot have",
                ));
            }
            Ok(Some(text))
        };
        let address = word("address", section.address)?;
        if address
            .as_deref()
            .is_some_and(|path| AbsolutePath::parse(path).is_err())
        {
            let problem = "is not the path of a socket";
            return Err(ConfigError::at("containerd.address", problem)
                .advise("for example `/run/containerd/containerd.sock`"));
        }
        let namespace = word("namespace", section.namespace)?;
        let snapshotter = word("snapshotter", section.snapshotter)?;
        let program = section.cli.paths.ctr.filter(|text| !text.is_empty());
        let program = Program::parse(program.as_deref().unwrap_or("ctr"))
            .map_err(|error| ConfigError::at("containerd.cli.paths.ctr", error.to_string()))?;
        let socket = address.as_deref().unwrap_or("default");
        let space = namespace.as_deref().unwrap_or("default");
        Ok(Self {
            identity: BackendIdentity(format!("node {node}: containerd at {socket}, {space}")),
            instance: common.instance_id.clone(),
            ctr: Ctr::new(tools.clone(), program, address, namespace, snapshotter),
        })
    }

    /// The credentials that the registry of an image is shown: the secret of the pod, or else what its attributes say.
    fn credentials(
        &self,
        secrets: &Secrets,
        attributes: &Attributes,
    ) -> Result<Option<Credentials>, Error> {
        let find = |key| scoped(secrets, CONTAINERD, self.instance.as_deref(), key);
        let refused = |why| Error::invalid("read the secret of the pod").because(why);
        if let Some(token) = find("token") {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._~+/=-".contains(c);
            if !token.expose_secret().chars().all(plain) {
                return Err(refused("`token` has a character that no token has"));
            }
            return Ok(Some(Credentials::Bearer(token.clone())));
        }
        match (find("username"), find("password"), &attributes.user) {
            (Some(user), Some(password), _) => {
                let pair = format!("{}:{}", user.expose_secret(), password.expose_secret());
                Ok(Some(Credentials::Basic(SecretString::from(pair))))
            }
            (Some(_), None, _) => Err(Error::invalid("read the secret of the pod")
                .because(HalfCredentials("username", "password"))),
            (None, Some(_), None) => Err(Error::invalid("read the secret of the pod")
                .because(HalfCredentials("password", "username"))),
            (None, Some(password), Some(user)) => {
                let user = user.expose_secret();
                let user = user.split_once(':').map_or(user, |(user, _)| user);
                let pair = format!("{user}:{}", password.expose_secret());
                Ok(Some(Credentials::Basic(SecretString::from(pair))))
            }
            (None, None, Some(pair)) => Ok(Some(Credentials::Basic(pair.clone()))),
            (None, None, None) => Ok(None),
        }
    }

    /// Has the image there that a volume wants.
    async fn have_image(
        &self,
        call: &Call,
        attributes: &Attributes,
        credentials: Option<&Credentials>,
    ) -> Result<(), Error> {
        let image = &attributes.image;
        let pulls = match attributes.pull {
            PullPolicy::Always => true,
            PullPolicy::IfNotPresent => !self.ctr.has_image(call, image).await?,
            PullPolicy::Never => {
                if self.ctr.has_image(call, image).await? {
                    return Ok(());
                }
                return Err(Error::not_found(format!("image `{image}`"))
                    .because("it is not on this node, and `image.pullPolicy` is Never")
                    .advise("see `ctr images ls` in the namespace of `containerd.namespace`"));
            }
        };
        if pulls {
            call.changing();
            let platform = attributes.platform.as_deref();
            self.ctr.pull(call, image, platform, credentials).await?;
        }
        Ok(())
    }

    /// The volume a snapshot is; nothing if it was not labelled yet.
    async fn volume_of(&self, call: &Call, key: &str) -> Result<Option<Option<String>>, Error> {
        let found = self.ctr.snapshot(call, key).await?;
        Ok(found.map(|found| found.labels.get(VOLUME).cloned()))
    }
}

async fn look<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let task = blocking::spawn_on_account(doing, work).await?;
    task.await
        .unwrap_or_else(|join| Err(Error::new(Kind::Internal, doing).because(join)))
}

#[async_trait]
impl Driver for ContainerdInline {
    fn kind(&self) -> &str {
        CONTAINERD
    }

    fn access_rules(&self) -> AccessRules {
        one_pod(&[])
    }

    fn backend_identity(&self) -> BackendIdentity {
        self.identity.clone()
    }

    fn makes_volumes(&self) -> bool {
        false
    }

    fn unsupported(&self, verb: &'static str) -> Error {
        unsupported(verb)
    }

    fn name_volume(&self, _: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        Err(unsupported("name volume"))
    }

    async fn create_volume(&self, _: &Call, _: &CreateVolume) -> Result<Volume, Error> {
        Err(unsupported("create volume"))
    }

    async fn delete_volume(&self, _: &Call, _: DeleteVolume<'_>) -> Result<(), Error> {
        Err(unsupported("delete volume"))
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        self.ctr.probe(call).await.err().into_iter().collect()
    }

    fn inline(&self) -> Option<&dyn InlineVolumes> {
        Some(self)
    }
}

#[async_trait]
impl InlineVolumes for ContainerdInline {
    async fn make_inline(
        &self,
        call: &Call,
        wanted: &InlineVolume<'_>,
    ) -> Result<InlineMount, Error> {
        let attributes = Attributes::parse(wanted.attributes)?;
        let credentials = self.credentials(wanted.secrets, &attributes)?;
        let (id, key) = (wanted.id, wanted.target.as_str());
        let doing = || format!("make volume `{id}`");
        let target = wanted.target.clone();
        let mounted = look("look at a target", move || pods::is_mounted(&target)).await?;
        let there = self.volume_of(call, key).await?;
        match &there {
            Some(Some(other)) if other != id.as_str() => {
                let why = format!(
                    "the snapshot of this target is of volume `{}`",
                    other.escape_debug()
                );
                return Err(Error::new(Kind::Conflict, doing()).because(why));
            }
            None if mounted => {
                return Err(Error::new(Kind::Conflict, doing())
                    .because("something that is not of containerd is mounted at the target"));
            }
            _ => {}
        }
        if !mounted {
            self.have_image(call, &attributes, credentials.as_ref())
                .await?;
            call.changing();
            let target = wanted.target.clone();
            look("make a target", move || pods::make_target(&target)).await?;
            let platform = attributes.platform.as_deref();
            self.ctr
                .mount(call, &attributes.image, platform, wanted.readonly, key)
                .await?;
            let target = wanted.target.clone();
            if !look("look at a target", move || pods::is_mounted(&target)).await? {
                return Err(Error::new(Kind::Internal, doing())
                    .because("`ctr` says that it has mounted it, and this process does not see it")
                    .advise("mounts of the host have to reach this container: `mountPropagation: Bidirectional`"));
            }
        }
        if !matches!(there, Some(Some(_))) {
            call.changing();
            let labels = attributes.labels.into_iter();
            let ours = [(KEEP, "true"), (VOLUME, id.as_str())];
            let ours = ours.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let labels = labels.filter(|(name, _)| name != KEEP).chain(ours);
            self.ctr.label(call, key, labels).await?;
        }
        Ok(InlineMount::Mounted)
    }

    async fn remove_inline(
        &self,
        call: &Call,
        id: &VolumeId,
        target: &AbsolutePath,
    ) -> Result<(), Error> {
        let key = target.as_str();
        match self.volume_of(call, key).await? {
            Some(Some(other)) if other != id.as_str() => {
                let why = format!(
                    "the snapshot of its target is of volume `{}`",
                    other.escape_debug()
                );
                Err(Error::new(Kind::Conflict, format!("remove volume `{id}`")).because(why))
            }
            // What keeps a snapshot that is gone is left of a removal that was cut.
            _ => self.ctr.remove(call, key).await,
        }
    }

    async fn list_inline(&self, call: &Call) -> Result<Vec<InlineFound>, Error> {
        let mut found = Vec::new();
        for key in self.ctr.keys(call).await? {
            let Ok(target) = AbsolutePath::parse(&key) else {
                continue;
            };
            if let Some(Some(id)) = self.volume_of(call, &key).await?
                && let Ok(id) = VolumeId::parse(&id)
            {
                found.push(InlineFound { id, target });
            }
        }
        Ok(found)
    }
}
