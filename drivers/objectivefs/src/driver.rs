//! The driver: one run of the tool for each verb.

use std::collections::BTreeMap;

use async_trait::async_trait;
use csi_types::Variable;
use csi_types::attachment::{Attachment, Hidden, Objectivefs};
use driver_core::config::{ConfigError, Document};
use driver_core::naming::VolumeNaming;
use driver_core::paging::MAX_PAGE;
use driver_core::secrets::scoped_below;
use driver_core::{
    AccessRules, BackendIdentity, Call, CreateVolume, DeleteVolume, Driver, Error, FindVolume,
    Found, Kind, Lister, MadeFor, Page, PageRequest, PageToken, Parameters, Secrets, Volume,
    VolumeId, VolumeName,
};
use node_utils::Tools;
use tracing::info;

use crate::config::{Config, Env, OBJECTSTORE, is_secret};
use crate::name::{MAX_ID, volume_id};
use crate::tool::{Done, Tool};

/// The value of `driver:`.
pub const KIND: &str = "objectivefs";

/// The text that stands before the name of a variable, in classes and in secrets.
const ENV: &str = "env.";
/// The text that the token of a page begins with.
const TOKEN: &str = "o1/";

/// A driver whose volumes are filesystems of one pool.
#[derive(Debug)]
pub struct ObjectiveFs {
    instance: Option<String>,
    naming: VolumeNaming,
    config: Config,
    store: String,
    tool: Tool,
}

/// Makes the driver of one connection; the tool is one of `tools`. Touches no storage.
pub fn from_document(document: &Document, tools: &Tools) -> Result<ObjectiveFs, ConfigError> {
    document.without_effect(&[
        ("node.format", "the object store is never formatted"),
        (
            "node.mount.checkFilesystem",
            "the object store is never checked",
        ),
    ]);
    let common = document.common()?;
    let config = Config::read(document)?;
    Ok(ObjectiveFs {
        instance: common.instance_id.clone(),
        naming: VolumeNaming::new(&common).at_most(MAX_ID),
        store: config.store()?,
        tool: Tool::new(tools.clone(), config.sudo),
        config,
    })
}

// === impl ObjectiveFs ===

impl ObjectiveFs {
    /// The environment of the tool: that of the configuration, below what the secrets of a class say.
    fn env(&self, secrets: &Secrets) -> Result<Env, Error> {
        let mut env = self.config.env.clone();
        for (name, value) in scoped_below(secrets, KIND, self.instance.as_deref(), ENV) {
            let refused = || Error::invalid(format!("a key `{ENV}…` of the secret"));
            let name = Variable::parse_foreign(name).map_err(|error| refused().because(error))?;
            // Volumes of one connection are in one store, whatever their class says.
            if name == OBJECTSTORE {
                return Err(refused()
                    .because("`OBJECTSTORE` is that of the connection")
                    .advise("take it out of the secret; objectivefs.env.OBJECTSTORE counts"));
            }
            env.insert(name, value.clone());
        }
        Ok(env)
    }

    /// The way nodes reach a volume. `parameters` are those of its class, where they are known.
    fn attachment(&self, id: &VolumeId, parameters: &Parameters) -> Result<Attachment, Error> {
        let mut env = self.config.for_nodes();
        env.extend(of_class(parameters)?);
        // Volumes of one connection are in one store, whatever their class says.
        env.extend(
            self.config
                .for_nodes()
                .into_iter()
                .filter(|(name, _)| *name == OBJECTSTORE),
        );
        Ok(Attachment::Objectivefs(Objectivefs {
            filesystem: self.config.pool.filesystem(id)?,
            env,
        }))
    }

    fn volume(&self, id: VolumeId, parameters: &Parameters) -> Result<Volume, Error> {
        Ok(Volume {
            attachment: self.attachment(&id, parameters)?,
            id,
            // Nothing limits it.
            capacity: None,
            source: None,
            topology: Vec::new(),
            made_for: MadeFor::default(),
            published_to: Vec::new(),
        })
    }

    /// `NotFound` for a volume that the store does not list.
    async fn look(&self, call: &Call, env: &Env, id: &VolumeId) -> Result<(), Error> {
        if self.volumes(call, env).await?.contains(id) {
            return Ok(());
        }
        let pool = self.config.pool.as_str();
        Err(Error::not_found(format!("volume `{id}` in pool `{pool}`")))
    }

    /// The volumes of the pool, by id.
    async fn volumes(&self, call: &Call, env: &Env) -> Result<Vec<VolumeId>, Error> {
        let listed = self.tool.list(call, env).await?;
        let volume = |name: &String| self.config.pool.volume(name);
        let mut all: Vec<VolumeId> = listed.iter().filter_map(volume).collect();
        all.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        all.dedup_by(|one, other| one.as_str() == other.as_str());
        Ok(all)
    }
}

/// The variables that a class gives to the nodes. compat: "ObjectiveFS".
fn of_class(parameters: &Parameters) -> Result<BTreeMap<Variable, Hidden>, Error> {
    let mut env = BTreeMap::new();
    for (key, value) in parameters.raw() {
        let Some(name) = key.strip_prefix(ENV) else {
            continue;
        };
        let refused = || Error::invalid(format!("parameter `{}`", key.escape_debug()));
        let name = Variable::parse_foreign(name).map_err(|error| refused().because(error))?;
        if is_secret(&name) {
            return Err(refused()
                .because("every user who may read volumes would see it")
                .advise(format!(
                    "put `{key}` into the node-stage secret of the class"
                )));
        }
        env.insert(name, Hidden::new(value.as_str()));
    }
    Ok(env)
}

#[async_trait]
impl Driver for ObjectiveFs {
    fn kind(&self) -> &str {
        KIND
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&["fuse.objectivefs", "objectivefs"])
    }

    fn backend_identity(&self) -> BackendIdentity {
        let pool = self.config.pool.as_str();
        BackendIdentity(format!("{KIND}:{}{pool}", self.store))
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        volume_id(&self.naming, name, parameters)
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        // Without keys of its own it cannot ask the store: they may be in the secrets of classes.
        self.tool.is_there(call).await.err().into_iter().collect()
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        if request.source.is_some() {
            return Err(self.unsupported("create a volume from another one or from a snapshot"));
        }
        let volume = self.volume(request.id.clone(), &request.parameters)?;
        let env = self.env(&request.secrets)?;
        let name = self.config.pool.filesystem(&request.id)?;
        self.tool.create(call, &env, &name).await?;
        Ok(volume)
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id;
        let env = self.env(request.secrets)?;
        let name = self.config.pool.filesystem(id)?;
        if self.tool.destroy(call, &env, &name).await? == Done::Now {
            return Ok(());
        }
        // The words for a filesystem that is not there are those for a store that shows nothing.
        if self.volumes(call, &env).await?.contains(id) {
            return Err(Error::new(Kind::Internal, format!("delete volume `{id}`"))
                .because("`mount.objectivefs` lists it and does not find it to destroy it")
                .advise("run `mount.objectivefs list` by hand with the same environment"));
        }
        info!(volume = id.as_str(), "the volume was gone already");
        Ok(())
    }

    /// Without keys in the configuration they are in the secrets of classes, which not every call has.
    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        let env = self.env(request.secrets)?;
        if !env.keys().any(|name| name.as_str().contains("KEY")) {
            return Err(self.unsupported("find a volume without keys in `objectivefs.env`"));
        }
        self.look(call, &env, request.id).await?;
        Ok(Found::Whole)
    }

    fn lister(&self) -> Option<&dyn Lister> {
        Some(self)
    }

    fn check_attachment(&self, id: &VolumeId, attachment: &Attachment) -> Result<(), Error> {
        let own = self.config.pool.filesystem(id)?;
        match attachment {
            Attachment::Objectivefs(found) if found.filesystem.bare() == own.bare() => Ok(()),
            _ => Err(
                Error::invalid(format!("attach volume `{id}` as its context says"))
                    .advise(format!("this driver attaches it as the filesystem `{own}`")),
            ),
        }
    }

    fn longest_attachment(&self) -> Option<Attachment> {
        let id = VolumeId::parse(&"v".repeat(MAX_ID)).ok()?;
        self.attachment(&id, &Parameters::default()).ok()
    }
}

#[async_trait]
impl Lister for ObjectiveFs {
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error> {
        let volume = self.volume(id.clone(), &Parameters::default())?;
        self.look(call, &self.config.env, id).await?;
        Ok(volume)
    }

    async fn list_volumes(&self, call: &Call, page: &PageRequest) -> Result<Page<Volume>, Error> {
        let after = page.after.as_ref().map(read_token).transpose()?;
        let mut all = self.volumes(call, &self.config.env).await?;
        all.retain(|id| after.is_none_or(|after| id.as_str() > after));
        let max = page.max.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
        let next = (all.len() > max).then(|| PageToken(format!("{TOKEN}{}", all[max - 1])));
        all.truncate(max);
        let none = Parameters::default();
        let entries = all.into_iter().map(|id| self.volume(id, &none));
        Ok(Page {
            entries: entries.collect::<Result<_, _>>()?,
            next,
        })
    }
}

fn read_token(token: &PageToken) -> Result<&str, Error> {
    let place = token.0.strip_prefix(TOKEN);
    place.filter(|id| id.len() <= MAX_ID).ok_or_else(|| {
        Error::new(Kind::Pending, "list volumes")
            .because("the token is not one that this list gave")
    })
}
