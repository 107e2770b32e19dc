//! Turns requests into verbs: reads parameters, and finds the source of a volume by its id.

use driver_core::config::{Document, NoEnvironment};
use driver_core::parameters::Scope;
use driver_core::{
    CreateSnapshot, CreateVolume, Error, Kind, Parameters, Source, VolumeId, VolumeName,
};
use serde::Deserialize;

use super::ZfsDriver;
use crate::config::BlockSize;
use crate::export::Asked;
use crate::id::{self, At, Child, SnapshotPlace};
use crate::name::DatasetName;
use crate::plan::ExportRef;
use crate::plan::create::{Create, Original};
use crate::plan::snapshot::{self, TakeSnapshot};

/// The settings that a class may override: the parameter `config`. compat: "ZFS".
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Overrides {
    zvol_blocksize: Option<BlockSize>,
}

impl ZfsDriver {
    fn scope(&self) -> Scope<'_> {
        Scope {
            driver: &self.settings.kind,
            instance: self.settings.instance.as_deref(),
        }
    }

    /// Whether a parameter says `true`. compat: "ZFS": any other text is no.
    pub(super) fn says(&self, parameters: &Parameters, key: &str) -> bool {
        parameters.get(self.scope(), key).map(str::trim) == Some("true")
    }

    /// The child of the parent of volumes that a class names.
    pub(super) fn child_of(
        &self,
        parameters: &Parameters,
        doing: &str,
    ) -> Result<Option<&Child>, Error> {
        let class = &self.settings.policy.class;
        class.child(self.scope(), parameters, doing)
    }

    /// The id of the volume of this name in a child, or right below the parent.
    pub(super) fn id_in(
        &self,
        child: Option<&Child>,
        name: &VolumeName,
        parameters: &Parameters,
    ) -> Result<VolumeId, Error> {
        let naming = &self.settings.naming;
        let Some(child) = child else {
            return naming.volume_id(name, parameters);
        };
        let naming = naming.clone().behind(child.bytes_in_id());
        child.id_of(&naming.volume_id(name, parameters)?)
    }

    /// The datasets that the volume of this name would be below the other parents. A driver on top may have added the
    /// same to each id.
    fn twins(&self, request: &CreateVolume) -> Vec<DatasetName> {
        let layout = self.layout();
        if layout.children.is_empty() {
            return Vec::new();
        }
        let id_in = |child| self.id_in(child, &request.name, &request.parameters);
        let own = layout.child_of(&request.id);
        let Ok(plain) = id_in(own) else {
            return Vec::new();
        };
        let Some(added) = request.id.as_str().strip_prefix(plain.as_str()) else {
            return Vec::new();
        };
        let places = std::iter::once(None).chain(layout.children.iter().map(Some));
        let others = places.filter(|place| *place != own);
        let twin = |place| {
            let id = VolumeId::parse(&format!("{}{added}", id_in(place).ok()?)).ok()?;
            layout.volume(&id).ok()
        };
        others.filter_map(twin).collect()
    }

    /// Rejects a topology that this connection does not have.
    pub(super) fn check_place(&self, request: &CreateVolume) -> Result<(), Error> {
        let place = self.settings.place.as_ref();
        if place.is_some_and(|place| !request.topology.accepts(place)) {
            return Err(
                Error::new(Kind::OutOfSpace, format!("create volume `{}`", request.id))
                    .because("its volumes are reachable from another node than those required"),
            );
        }
        Ok(())
    }

    /// The verb that makes a volume.
    pub(super) fn creation<'a>(
        &'a self,
        request: &'a CreateVolume,
        dataset: &'a DatasetName,
    ) -> Result<Create<'a>, Error> {
        let refused = || Error::invalid(format!("create volume `{}`", request.id));
        let helper = id::helper_for_volume(&request.id);
        let helper = helper.map_err(|error| refused().because(error))?;
        let from = match &request.source {
            None => None,
            Some(Source::Elsewhere(source)) => {
                let why = format!("{source} is in another connection");
                return Err(refused().because(why));
            }
            Some(Source::Snapshot(id)) => {
                let copy = self.says(&request.parameters, "detachedVolumesFromSnapshots");
                let at = self.layout().snapshot(id)?.at;
                Some(Original::snapshot(at, &helper, dataset, copy))
            }
            Some(Source::Volume(id)) => {
                let copy = self.says(&request.parameters, "detachedVolumesFromVolumes");
                let source = self.layout().volume(id)?;
                Some(Original::volume(source, &helper, copy))
            }
        };
        let from = from.transpose().map_err(|error| refused().because(error))?;
        let doing = format!("create volume `{}`", request.id);
        let allowed = &self.settings.policy.class;
        let class = allowed.of_new(self.scope(), &request.parameters, &doing)?;
        let block = match class.block {
            Some(block) => block,
            None => self.block(&request.parameters)?,
        };
        Ok(Create {
            policy: &self.settings.policy,
            kind: self.kind(),
            export_ref: ExportRef {
                export: self.export.as_ref(),
                id: &request.id,
                dataset,
                asked: Some(Asked {
                    name: &request.name,
                    parameters: &request.parameters,
                }),
                chosen: allowed.share_choice(&class),
            },
            request,
            from,
            received: None,
            twins: self.twins(request),
            is_in_child: self.layout().child_of(&request.id).is_some(),
            block,
            class,
        })
    }

    /// The block size of one new zvol: the parameter `config` of its class comes first.
    fn block(&self, parameters: &Parameters) -> Result<u64, Error> {
        let refused = || Error::invalid("read the parameter `config`");
        if self.says(parameters, "load-config-from-pvc") {
            return Err(Error::invalid("read the parameter `load-config-from-pvc`")
                .because("this build does not ask Kubernetes for claims")
                .advise("write the setting into the parameter `config` of a class of its own"));
        }
        let Some(text) = parameters.get(self.scope(), "config") else {
            return Ok(self.settings.policy.block);
        };
        let document =
            Document::parse(text, &NoEnvironment).map_err(|error| refused().because(error))?;
        let overrides = document
            .optional_section::<Overrides>("zfs")
            .map_err(|error| refused().because(error))?;
        for finding in document.findings() {
            tracing::warn!(path = %finding.path, "a class cannot change this: {}", finding.message);
        }
        let block = overrides.unwrap_or_default().zvol_blocksize;
        Ok(block.map_or(self.settings.policy.block, BlockSize::bytes))
    }

    /// The place of a new snapshot.
    pub(super) fn place_of(&self, request: &CreateSnapshot) -> Result<SnapshotPlace, Error> {
        let room = self.settings.id_room.bytes();
        let leaf = id::leaf_of(&request.name, &request.source, room)?;
        if self.says(&request.parameters, "detachedSnapshots") {
            self.layout().detached(&request.source, &leaf)
        } else {
            self.layout().attached(&request.source, &leaf)
        }
    }

    /// The verb that takes a snapshot at this place.
    pub(super) fn snapshotting<'a>(
        &'a self,
        request: &'a CreateSnapshot,
        place: SnapshotPlace,
    ) -> Result<TakeSnapshot<'a>, Error> {
        let source = self.layout().volume(&request.source)?;
        let policy = &self.settings.policy;
        let mut contract = snapshot::contract(&request.name, &place);
        if let At::Detached(_) = place.at {
            // An attached one shows those of its volume.
            contract.extend(policy.owner().marks());
        }
        Ok(TakeSnapshot {
            layout: self.layout(),
            owner: policy.owner(),
            properties: policy.of_snapshot(&request.parameters, contract)?,
            place,
            name: &request.name,
            source,
        })
    }
}
